//! Stamps of ranges of owners. They convert limits on age and count into a prefix to drop.

use std::collections::VecDeque;

use crate::dedupe::coordinates::Sequence;
use crate::dedupe::format::{SealedRange, SliceMark};

/// Number of marks in a full window, for each of its two limits: expiry is accurate to 1/256 of the window.
pub(super) const MARKS_PER_WINDOW: u64 = 256;

/// Number of marks above which those without any remaining owner are removed.
const MAX_MARKS: usize = 1 << 16;

/// A range of consecutive owners that expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// The number of the first owner.
    first: Sequence,
    /// One past that of the last one.
    next: Sequence,
    /// Owners that are held.
    count: u64,
    /// Owners that were overwritten.
    evicted: u64,
    /// The stamp of the first of them, epoch milliseconds; 0 while unknown.
    time_first_ms: i64,
    /// That of the last one.
    time_last_ms: i64,
    /// Whether the owners are in a sealed slice, and not in the index.
    is_sealed: bool,
}

impl Mark {
    fn count_with_evicted(&self) -> u64 {
        self.count + self.evicted
    }
}

/// The owners that [`Marks::drop_expired`] dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DroppedOwners {
    /// One past the number of the last owner dropped.
    pub next: Sequence,
    /// Number of owners dropped that were in the index.
    pub count: u64,
}

/// All owners of the window as a few hundred marks, in ascending order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Marks {
    queue: VecDeque<Mark>,
    /// Owners held: added, and neither dropped nor overwritten.
    pub count: u64,
    /// Owners among them that are in sealed slices.
    pub sealed: u64,
    /// A mark that ends at or below it takes no more owners.
    closed: Sequence,
    /// Overwritten owners of the marks in the queue.
    evicted: u64,
    /// The latest stamp of all owners that were ever overwritten.
    pub evicted_ms: Option<i64>,
    /// Longest time from the first to the last owner of a mark.
    pub longest_ms: i64,
    /// The latest stamp of all owners that were ever dropped.
    pub dropped_ms: Option<i64>,
    /// Owners that arrived before this time may be missing, although none was dropped here.
    pub incomplete_ms: Option<i64>,
}

impl Marks {
    /// For a window of this length.
    pub fn new(length_ms: i64) -> Self {
        Self { longest_ms: length_ms / MARKS_PER_WINDOW.cast_signed(), ..Self::default() }
    }

    /// Number of owners added and not dropped, including overwritten ones.
    pub fn count_with_evicted(&self) -> u64 {
        self.count + self.evicted
    }

    /// Adds an owner that arrived between two times, in ascending order of numbers. It joins the last mark if that
    /// spans at most `longest_ms` (or exactly these times) and holds fewer than `most` owners.
    pub fn add(&mut self, number: Sequence, time_first_ms: i64, time_last_ms: i64, most: u64) {
        self.count += 1;
        let (longest, closed) = (self.longest_ms, self.closed);
        let shared = self.queue.back_mut().filter(|last| {
            let same = last.time_first_ms == time_first_ms && last.time_last_ms == time_last_ms;
            let is_near = same || time_last_ms - last.time_first_ms <= longest;
            last.count_with_evicted() < most && is_near && last.next > closed
        });
        if let Some(mark) = shared {
            mark.next = number + 1;
            mark.count += 1;
            mark.time_last_ms = mark.time_last_ms.max(time_last_ms);
        } else {
            self.queue.push_back(Mark {
                first: number,
                next: number + 1,
                count: 1,
                evicted: 0,
                time_first_ms,
                time_last_ms,
                is_sealed: false,
            });
        }
    }

    /// The earliest and latest stamp that an owner can have; the latest possible one while it is unknown.
    #[inline]
    pub fn times_of(&self, number: Sequence) -> (i64, i64) {
        let place = self.queue.partition_point(|mark| mark.next <= number);
        let times = self.queue.get(place).map(|mark| (mark.time_first_ms, mark.time_last_ms));
        times.filter(|(_, last_ms)| *last_ms > 0).unwrap_or((0, i64::MAX))
    }

    /// Drops marks from the front: those whose last owner arrived before `oldest_ms`, then more until at most
    /// `most_ids` owners remain, including overwritten ones.
    ///
    /// Owners added before any time was known get `now_ms` as their time of arrival.
    pub fn drop_expired(&mut self, now_ms: i64, oldest_ms: i64, most_ids: u64) -> Option<DroppedOwners> {
        for unknown in self.queue.iter_mut().take_while(|mark| mark.time_last_ms <= 0) {
            (unknown.time_first_ms, unknown.time_last_ms) = (now_ms, now_ms);
        }
        let mut dropped = None;
        while self.has_expired(oldest_ms, most_ids)
            && let Some(mark) = self.queue.pop_front()
        {
            self.count -= mark.count;
            self.evicted -= mark.evicted;
            self.dropped_ms = self.dropped_ms.max(Some(mark.time_last_ms));
            let indexed = if mark.is_sealed { 0 } else { mark.count };
            self.sealed -= mark.count - indexed;
            let count = dropped.map_or(0, |earlier: DroppedOwners| earlier.count) + indexed;
            dropped = Some(DroppedOwners { next: mark.next, count });
        }
        dropped
    }

    /// Whether [`Marks::drop_expired`] drops owners.
    pub fn has_expired(&self, oldest_ms: i64, most_ids: u64) -> bool {
        let is_old = |mark: &Mark| mark.time_last_ms > 0 && mark.time_last_ms < oldest_ms;
        self.queue.front().is_some_and(|mark| is_old(mark) || self.count + self.evicted > most_ids)
    }

    /// Removes all owners, which are not counted as dropped: the next one has at least this number.
    pub fn clear(&mut self, number: Sequence) {
        self.queue.clear();
        (self.count, self.sealed, self.evicted) = (0, 0, 0);
        self.close(number);
    }

    /// Counts an owner of the index as removed.
    pub fn forget(&mut self, number: Sequence) {
        let place = self.queue.partition_point(|mark| mark.next <= number);
        let mark = self.queue.get_mut(place).filter(|mark| mark.first <= number && mark.count > 0);
        let Some(mark) = mark else { return };
        mark.count -= 1;
        self.count -= 1;
    }

    /// Counts an owner of this stream time, which is not later than its stamp, as removed from the slices.
    pub fn forget_sealed(&mut self, time_ms: i64) {
        let mut sealed = self.queue.iter_mut().take_while(|mark| mark.is_sealed);
        if let Some(mark) = sealed.find(|mark| mark.count > 0 && mark.time_last_ms >= time_ms) {
            mark.count -= 1;
            (self.count, self.sealed) = (self.count - 1, self.sealed - 1);
        }
    }

    /// Counts a committed owner as overwritten by a newer one.
    pub fn evicted(&mut self, number: Sequence) {
        let place = self.queue.partition_point(|mark| mark.next <= number);
        let Some(mark) = self.queue.get_mut(place).filter(|mark| mark.first <= number && mark.count > 0)
        else {
            return;
        };
        (mark.count, mark.evicted) = (mark.count - 1, mark.evicted + 1);
        let time_ms = mark.time_last_ms;
        (self.count, self.evicted) = (self.count - 1, self.evicted + 1);
        self.evicted_ms = self.evicted_ms.max(Some(time_ms));
    }

    /// The number of the first owner that may still own an identity; `None` when none does.
    pub fn first_held(&mut self) -> Option<Sequence> {
        // While no time is known nothing expires, and marks without owners would accumulate.
        while self.queue.len() > MAX_MARKS
            && let Some(empty) = self.queue.pop_front_if(|mark| mark.count == 0)
        {
            self.evicted -= empty.evicted;
        }
        self.queue.iter().find(|mark| mark.count > 0).map(|mark| mark.first)
    }

    /// Share of the owners inside the window that were overwritten, 0 to 1.
    pub fn evicted_share(&self) -> f64 {
        self.evicted as f64 / (self.count + self.evicted).max(1) as f64
    }

    /// Notes that owners from before this time may be missing. Zero and negative values are ignored.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.incomplete_ms = self.incomplete_ms.max(Some(ms).filter(|ms| *ms > 0));
    }

    /// How far back, in ms, the owners are complete; `None` when none was ever dropped or noted as missing.
    pub fn reach_ms(&self, now_ms: i64) -> Option<i64> {
        self.dropped_ms.max(self.incomplete_ms).map(|missing| now_ms.saturating_sub(missing))
    }

    /// Time from the arrival of the oldest owner to `now_ms`; `None` without owners.
    pub fn span_ms(&self, now_ms: i64) -> Option<i64> {
        self.queue.front().map(|oldest| now_ms.saturating_sub(oldest.time_first_ms))
    }

    /// The marks of owners that are in the index, each with the number of its first owner.
    pub fn indexed(&self) -> impl Iterator<Item = (Sequence, SliceMark)> {
        let begin = self.queue.partition_point(|mark| mark.is_sealed);
        self.queue.range(begin..).map(|mark| {
            let time_ms = (mark.time_first_ms, mark.time_last_ms);
            (mark.first, SliceMark { next: mark.next, count: mark.count, time_ms })
        })
    }

    /// Adds no more owners to the marks that end at or below `next`.
    pub fn close(&mut self, next: Sequence) {
        self.closed = self.closed.max(next);
    }

    /// Notes that the owners of the marks that end at or below `next` are in a sealed slice now. Returns how many they are.
    pub fn seal(&mut self, next: Sequence) -> u64 {
        let mut count = 0;
        let marks = self.queue.iter_mut().skip_while(|mark| mark.is_sealed);
        for mark in marks.take_while(|mark| mark.next <= next) {
            mark.is_sealed = true;
            count += mark.count;
        }
        self.sealed += count;
        count
    }

    /// Adds the owners of a sealed slice. Slices come in ascending order of their numbers, before all other owners.
    pub fn add_sealed(&mut self, range: &SealedRange) {
        let mut first = range.first;
        for SliceMark { next, count, time_ms: (time_first_ms, time_last_ms) } in range.marks.iter().copied() {
            let mark = Mark { first, next, count, evicted: 0, time_first_ms, time_last_ms, is_sealed: true };
            self.queue.push_back(mark);
            self.close(next);
            (self.count, self.sealed, first) = (self.count + count, self.sealed + count, next);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests;
