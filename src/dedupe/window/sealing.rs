//! Sealed owners: old ones that are in slices of the store, and not in the index.
//!
//! The store finds the owners of an identity in its slices; the window decides whether such an owner still counts. It keeps the
//! arrival times of all owners, sealed or not, and drops them by the same rules. Invariants:
//! - Only committed owners are sealed, as a prefix of those that count, and whole marks of them.
//! - A sealed owner is not in the index. It is in a slice of the store before it leaves the index.
//! - The oldest slices of the store can be filters without owners. For a window that makes no difference.

use super::{RecordTime, Window};
use crate::dedupe::coordinates::{Offset, PartitionId};
use crate::dedupe::format::{SliceMark, SlicePartition};

impl Window {
    /// Whether owners that count are in sealed slices.
    #[must_use]
    #[inline]
    pub fn has_sealed(&self) -> bool {
        self.first_live < self.sealed_next
    }

    /// Number of owners in the index, without pending ones.
    #[must_use]
    pub fn unsealed(&self) -> u64 {
        self.marks.count() - self.marks.sealed()
    }

    /// The arrival times of the committed owners in the index, in ascending order of offsets.
    pub fn unsealed_marks(&self) -> impl Iterator<Item = SliceMark> {
        self.marks.indexed().map(|(_, mark)| mark)
    }

    /// Whether owners can be sealed. An evicting window needs them in the store.
    #[must_use]
    pub fn can_seal(&self) -> bool {
        self.slots().is_none()
    }

    /// The oldest owners in the index that arrived up to this stream time, epoch milliseconds, and are below the offset `below`; `None`
    /// when there are none. Later owners get other marks.
    pub fn to_seal(
        &mut self,
        partition: PartitionId,
        (time_ms, below): (i64, Offset),
    ) -> Option<SlicePartition> {
        let arrived = |mark: &SliceMark| mark.time_ms.1 <= time_ms && mark.next <= below;
        let mut marks = self.marks.indexed().take_while(|(_, mark)| arrived(mark)).peekable();
        let first = marks.peek().map(|(first, _)| *first).filter(|_| self.can_seal())?;
        let marks: Vec<SliceMark> = marks.map(|(_, mark)| mark).collect();
        let next = marks.last()?.next;
        // All of them were forgotten: a slice without identities would be taken for a filter.
        if marks.iter().all(|mark| mark.count == 0) {
            return None;
        }
        self.marks.close(next);
        Some(SlicePartition { partition, first, next, marks })
    }

    /// Removes the owners below `next` from the index, because a slice of the store has them. `next` is the end of a mark.
    pub fn seal(&mut self, next: Offset) {
        if next > self.sealed_next {
            let (number, count) = self.marks.seal(next);
            self.index.expire(number, count);
            self.sealed_next = next;
        }
    }

    /// The stream time, epoch milliseconds, before which the owners of this window may be in filters only. `horizon_ms`: that of all windows
    /// in topic scope, which the clock of a partition without new records does not delay.
    #[must_use]
    pub fn exact_from_ms(&self, horizon_ms: Option<i64>) -> i64 {
        horizon_ms.unwrap_or(self.time.committed_ms()).saturating_sub(self.exact_ms)
    }

    /// Adds the owners of a slice to a window without owners in the index. Slices come in ascending order of their offsets.
    pub fn load_sealed(&mut self, range: &SlicePartition) {
        debug_assert_eq!(self.index.live(), 0, "a slice is loaded after other owners");
        self.marks.add_sealed(range.first, self.next_number, &range.marks);
        self.sealed_next = self.sealed_next.max(range.next);
        self.next = self.next.max(range.next);
    }

    /// Latest stream time at which a sealed owner can have arrived, if that counts for the record of this partition that was observed
    /// last; 0 while unknown.
    #[must_use]
    pub fn sealed_owner(&self, owner: Offset) -> Option<i64> {
        self.sealed_within(owner, (self.oldest_ms(), i64::MAX))
    }

    /// As [`Window::sealed_owner`], for a record of another partition.
    #[must_use]
    pub fn sealed_copy(&self, time: RecordTime, owner: Offset) -> Option<i64> {
        self.sealed_within(owner, self.around(time))
    }

    /// Of the filters of slices without owners, the first one whose identities count for the record that was observed last. A filter
    /// is given by the stream times between which its owners arrived, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn counting_filter(&self, filters: &[(i64, i64)]) -> Option<(i64, i64)> {
        let around = self.around(self.time.record());
        filters.iter().copied().find(|times| is_within(*times, around))
    }

    pub(super) fn sealed_within(&self, owner: Offset, range: (i64, i64)) -> Option<i64> {
        let times = self.marks.times_at(owner);
        let is_sealed = (self.first_live..self.sealed_next).contains(&owner);
        (is_sealed && is_within(times, range)).then_some(times.1)
    }

    /// The stream times between which an owner counts for a record of another partition; all while the time of that is unknown.
    pub(super) fn around(&self, RecordTime { own_ms, stream_ms }: RecordTime) -> (i64, i64) {
        if stream_ms <= 0 {
            return (i64::MIN, i64::MAX);
        }
        (own_ms.saturating_sub(self.length_ms), stream_ms.saturating_add(self.length_ms))
    }

    /// The stream time before which every owner is in a sealed slice, epoch milliseconds; `None` when all of them are.
    #[must_use]
    pub fn unsealed_from_ms(&self) -> Option<i64> {
        if !self.can_seal() {
            return Some(i64::MIN);
        }
        let committed = self.marks.indexed().map(|(_, mark)| mark.time_ms.0);
        committed.chain(self.arrived_ms.first().copied()).min()
    }
}

/// Whether owners that arrived between these stream times, 0 while unknown, may have arrived within a range.
pub(super) fn is_within((first_ms, last_ms): (i64, i64), (oldest, latest): (i64, i64)) -> bool {
    last_ms <= 0 || (last_ms >= oldest && first_ms <= latest)
}
