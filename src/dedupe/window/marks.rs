//! Arrival times of ranges of owners. They convert limits on age and count into a prefix to drop.
//!
//! Owners in the index are found by their numbers. Those in sealed slices are found by their offsets, and their marks have no numbers.

use std::collections::VecDeque;
use std::ops::Range;

use crate::dedupe::coordinates::{Offset, Sequence};
use crate::dedupe::format::SliceMark;

/// Number of marks in a full window, for each of its two limits: expiry is accurate to 1/256 of the window.
pub(super) const MARKS_PER_WINDOW: u64 = 256;

/// Number of marks above which those without any remaining owner are removed.
const MAX_MARKS: usize = 1 << 16;

/// An owner of the index: its offset and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexedOwner {
    pub offset: Offset,
    pub number: Sequence,
}

/// A range of consecutive owners that expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    first: Offset,
    /// One past the last owner.
    next: Offset,
    /// The number of the first owner, and one past that of the last one; both that of the next owner for a sealed mark that was loaded.
    numbers: (Sequence, Sequence),
    /// Owners that are held.
    count: u64,
    /// Owners that were overwritten.
    evicted: u64,
    /// Stream time when the first of them arrived, epoch milliseconds; 0 while unknown.
    time_first_ms: i64,
    /// Stream time when the last of them had arrived, epoch milliseconds; 0 while unknown.
    time_last_ms: i64,
    /// Whether the owners are in a sealed slice, and not in the index.
    is_sealed: bool,
}

impl Mark {
    fn count_with_evicted(&self) -> u64 {
        self.count + self.evicted
    }

    /// Number of owners at or beyond `from`, as far as that is known without reading them: as if they were spread evenly.
    fn share_beyond(&self, from: Offset) -> u64 {
        let span = (self.next - self.first).max(1);
        let beyond = self.next.saturating_sub(from.max(self.first));
        let share = u128::from(self.count) * u128::from(beyond) / u128::from(span);
        u64::try_from(share).unwrap_or(u64::MAX).min(self.count)
    }

    fn to_slice_mark(self) -> SliceMark {
        SliceMark { next: self.next, count: self.count, time_ms: (self.time_first_ms, self.time_last_ms) }
    }
}

/// The owners that [`Marks::drop_expired`] dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DroppedOwners {
    /// One past the last owner dropped.
    pub next: Offset,
    /// One past its number.
    pub next_number: Sequence,
    /// Number of owners dropped that were in the index.
    pub count: u64,
}

/// All owners of the window as a few hundred marks, in ascending offset order.
#[derive(Debug)]
pub(super) struct Marks {
    queue: VecDeque<Mark>,
    count: u64,
    /// Owners among them that are in sealed slices.
    sealed: u64,
    /// A mark that ends at or below it takes no more owners.
    closed: Offset,
    /// Overwritten owners of the marks in the queue.
    evicted: u64,
    /// Latest stream time of all owners that were ever overwritten.
    evicted_ms: Option<i64>,
    /// Longest time from the first to the last owner of a mark.
    longest_ms: i64,
    /// Latest stream time of all owners that were ever dropped.
    dropped_ms: Option<i64>,
    /// Owners that arrived before this stream time may be missing, although none was dropped here.
    incomplete_ms: Option<i64>,
}

impl Marks {
    /// For a window of this length.
    pub fn new(length_ms: i64) -> Self {
        let longest_ms = length_ms / MARKS_PER_WINDOW.cast_signed();
        Self {
            queue: VecDeque::new(),
            count: 0,
            sealed: 0,
            closed: 0,
            evicted: 0,
            evicted_ms: None,
            longest_ms,
            dropped_ms: None,
            incomplete_ms: None,
        }
    }

    /// Number of owners held: added, and neither dropped nor overwritten.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of owners added and not dropped, including overwritten ones.
    pub fn count_with_evicted(&self) -> u64 {
        self.count + self.evicted
    }

    /// Adds an owner that arrived between two stream times, in ascending offset order. It joins the last mark if that
    /// spans at most `longest_ms` (or exactly these times) and holds fewer than `most` owners.
    pub fn add(
        &mut self,
        IndexedOwner { offset: owner, number }: IndexedOwner,
        (time_first_ms, time_last_ms): (i64, i64),
        most: u64,
    ) {
        self.count += 1;
        let (longest, closed) = (self.longest_ms, self.closed);
        let shared = self.queue.back_mut().filter(|last| {
            let same = last.time_first_ms == time_first_ms && last.time_last_ms == time_last_ms;
            let is_near = same || time_last_ms - last.time_first_ms <= longest;
            last.count_with_evicted() < most && is_near && last.next > closed
        });
        if let Some(mark) = shared {
            mark.next = owner + 1;
            mark.numbers.1 = number + 1;
            mark.count += 1;
            mark.time_last_ms = mark.time_last_ms.max(time_last_ms);
        } else {
            self.queue.push_back(Mark {
                first: owner,
                next: owner + 1,
                numbers: (number, number + 1),
                count: 1,
                evicted: 0,
                time_first_ms,
                time_last_ms,
                is_sealed: false,
            });
        }
    }

    /// Earliest and latest stream time at which an owner in the index can have arrived; 0 while unknown.
    #[inline]
    pub fn times_of(&self, number: Sequence) -> (i64, i64) {
        self.times(self.queue.partition_point(|mark| mark.numbers.1 <= number))
    }

    /// The same, for any owner, by its offset.
    #[inline]
    pub fn times_at(&self, owner: Offset) -> (i64, i64) {
        self.times(self.queue.partition_point(|mark| mark.next <= owner))
    }

    fn times(&self, place: usize) -> (i64, i64) {
        self.queue.get(place).map_or((0, 0), |mark| (mark.time_first_ms, mark.time_last_ms))
    }

    /// Numbers between which that of the first owner in the index at or beyond an offset is; `all` are those in the index.
    pub fn numbers_around(&self, from: Offset, all: Range<Sequence>) -> (Sequence, Sequence) {
        let place = self.queue.partition_point(|mark| mark.is_sealed || mark.next <= from);
        let (first, next) = self.queue.get(place).map_or((all.end, all.end), |mark| mark.numbers);
        let low = first.max(all.start);
        (low, next.max(low))
    }

    /// Drops marks from the front: those whose last owner arrived before `oldest_ms`, then more until at most
    /// `most_ids` owners remain, including overwritten ones.
    ///
    /// Owners added before stream time was known get `now_ms` as their time of arrival.
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
            dropped = Some(DroppedOwners { next: mark.next, next_number: mark.numbers.1, count });
        }
        dropped
    }

    /// Whether [`Marks::drop_expired`] drops owners.
    pub fn has_expired(&self, oldest_ms: i64, most_ids: u64) -> bool {
        let is_old = |mark: &Mark| mark.time_last_ms > 0 && mark.time_last_ms < oldest_ms;
        self.queue.front().is_some_and(|mark| is_old(mark) || self.count + self.evicted > most_ids)
    }

    /// Removes the owners from this one on, which may not exist; `indexed` of them were in the index.
    pub fn truncate(&mut self, IndexedOwner { offset: from, number }: IndexedOwner, indexed: u64) {
        let mut left = indexed.min(self.count - self.sealed);
        self.count -= left;
        while let Some(mark) = self.queue.pop_back_if(|mark| mark.first >= from) {
            self.evicted -= mark.evicted;
            if mark.is_sealed {
                (self.count, self.sealed) = (self.count - mark.count, self.sealed - mark.count);
            } else {
                left = left.saturating_sub(mark.count);
            }
        }
        self.closed = self.closed.min(from);
        let Some(cut) = self.queue.back_mut() else { return };
        if cut.is_sealed {
            let removed = cut.share_beyond(from);
            cut.count -= removed;
            (self.count, self.sealed) = (self.count - removed, self.sealed - removed);
        } else {
            cut.count = cut.count.saturating_sub(left);
        }
        cut.next = cut.next.min(from);
        cut.numbers.1 = cut.numbers.1.min(number);
    }

    /// Counts an owner as forgotten.
    pub fn forget(&mut self, owner: Offset) {
        let place = self.queue.partition_point(|mark| mark.next <= owner);
        let mark = self.queue.get_mut(place).filter(|mark| mark.first <= owner && mark.count > 0);
        let Some(mark) = mark else { return };
        mark.count -= 1;
        let sealed = u64::from(mark.is_sealed);
        (self.count, self.sealed) = (self.count - 1, self.sealed - sealed);
    }

    /// Counts a committed owner as overwritten by a newer one.
    pub fn evicted(&mut self, number: Sequence) {
        let place = self.queue.partition_point(|mark| mark.numbers.1 <= number);
        let Some(mark) = self.queue.get_mut(place).filter(|mark| mark.numbers.0 <= number && mark.count > 0)
        else {
            return;
        };
        (mark.count, mark.evicted) = (mark.count - 1, mark.evicted + 1);
        let time_ms = mark.time_last_ms;
        (self.count, self.evicted) = (self.count - 1, self.evicted + 1);
        self.evicted_ms = self.evicted_ms.max(Some(time_ms));
    }

    /// The first owner that may still own an identity; `None` when none does.
    pub fn first_held(&mut self) -> Option<IndexedOwner> {
        // While stream time is unknown nothing expires, and marks without owners would accumulate.
        while self.queue.len() > MAX_MARKS
            && let Some(empty) = self.queue.pop_front_if(|mark| mark.count == 0)
        {
            self.evicted -= empty.evicted;
        }
        self.queue
            .iter()
            .find(|mark| mark.count > 0)
            .map(|mark| IndexedOwner { offset: mark.first, number: mark.numbers.0 })
    }

    /// Share of the owners inside the window that were overwritten, 0 to 1.
    pub fn evicted_share(&self) -> f64 {
        self.evicted as f64 / (self.count + self.evicted).max(1) as f64
    }

    /// Stream time of the latest owner that was ever overwritten; `None` when there is none.
    pub fn evicted_ms(&self) -> Option<i64> {
        self.evicted_ms
    }

    /// Stream time of the latest owner that was ever dropped; `None` when there is none.
    pub fn dropped_ms(&self) -> Option<i64> {
        self.dropped_ms
    }

    /// Takes over [`Marks::dropped_ms`] from before a restart.
    pub fn inherit_dropped(&mut self, dropped_ms: Option<i64>) {
        self.dropped_ms = self.dropped_ms.max(dropped_ms);
    }

    /// Notes that owners from before this stream time may be missing. Zero and negative values are ignored.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.incomplete_ms = self.incomplete_ms.max(Some(ms).filter(|ms| *ms > 0));
    }

    /// The latest stream time that was noted by [`Marks::note_incomplete_before`]; `None` when there is none.
    pub fn incomplete_ms(&self) -> Option<i64> {
        self.incomplete_ms
    }

    /// How far back, in ms, the owners are complete; `None` when none was ever dropped or noted as missing.
    pub fn reach_ms(&self, now_ms: i64) -> Option<i64> {
        self.dropped_ms.max(self.incomplete_ms).map(|missing| now_ms.saturating_sub(missing))
    }

    /// Stream time from the arrival of the oldest owner to `now_ms`; `None` without owners.
    pub fn span_ms(&self, now_ms: i64) -> Option<i64> {
        self.queue.front().map(|oldest| now_ms.saturating_sub(oldest.time_first_ms))
    }

    /// Number of owners that are in sealed slices.
    pub fn sealed(&self) -> u64 {
        self.sealed
    }

    /// The marks of owners that are in the index, each with the offset of its first owner.
    pub fn indexed(&self) -> impl Iterator<Item = (Offset, SliceMark)> {
        let begin = self.queue.partition_point(|mark| mark.is_sealed);
        self.queue.range(begin..).map(|mark| (mark.first, mark.to_slice_mark()))
    }

    /// Adds no more owners to the marks that end at or below `next`.
    pub fn close(&mut self, next: Offset) {
        self.closed = self.closed.max(next);
    }

    /// Notes that the owners of the marks that end at or below `next` are in a sealed slice now. Returns one past the number of the last one, and
    /// how many they are.
    pub fn seal(&mut self, next: Offset) -> (Sequence, u64) {
        let (mut number, mut count) = (0, 0);
        for mark in
            self.queue.iter_mut().skip_while(|mark| mark.is_sealed).take_while(|mark| mark.next <= next)
        {
            mark.is_sealed = true;
            number = mark.numbers.1;
            count += mark.count;
        }
        self.sealed += count;
        (number, count)
    }

    /// Adds the owners of a sealed slice that covers the offsets from `first` on. Slices come in ascending order of their offsets, before
    /// all other owners, of which the first one gets this number.
    pub fn add_sealed(&mut self, mut first: Offset, number: Sequence, marks: &[SliceMark]) {
        for mark in marks {
            let (time_first_ms, time_last_ms) = mark.time_ms;
            let SliceMark { next, count, .. } = *mark;
            let mark = Mark {
                first,
                next,
                numbers: (number, number),
                count,
                evicted: 0,
                time_first_ms,
                time_last_ms,
                is_sealed: true,
            };
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
