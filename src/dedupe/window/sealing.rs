//! Sealed owners: old ones that are in slices of the store, and not in the index.
//!
//! The store finds the owners of an identity in its slices, with their times, and the window decides whether one of them still counts. It keeps
//! the stamps of all owners, sealed or not, and drops them by the same rules. Invariants:
//! - Only committed owners are sealed, as a prefix of those that count, and whole marks of them.
//! - A sealed owner is not in the index. It is in a slice of the store before it leaves the index.
//! - The oldest slices of the store can be filters without owners. For a window that makes no difference.

use super::{RecordTime, Window};
use crate::dedupe::coordinates::Sequence;
use crate::dedupe::format::{SealedRange, SliceMark};

impl Window {
    /// Whether owners that count are in sealed slices.
    #[inline]
    pub fn has_sealed(&self) -> bool {
        self.first_live < self.sealed_next
    }

    /// Number of owners in the index, without pending ones.
    pub fn unsealed(&self) -> u64 {
        self.marks.count - self.marks.sealed
    }

    /// The committed owners in the index as marks, in ascending order of their numbers.
    pub fn unsealed_marks(&self) -> impl Iterator<Item = SliceMark> {
        self.marks.indexed().map(|(_, mark)| mark)
    }

    /// Whether owners can be sealed. An evicting window needs them in the store.
    pub fn can_seal(&self) -> bool {
        self.slots().is_none()
    }

    /// The oldest owners in the index with stamps up to this time, epoch milliseconds, and numbers below `below`; `None` when there are
    /// none. Later owners get other marks.
    pub fn to_seal(&mut self, time_ms: i64, below: Sequence) -> Option<SealedRange> {
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
        Some(SealedRange { first, next, marks })
    }

    /// Removes the owners with numbers below `next` from the index, because a slice of the store has them. `next` is the end of a mark.
    pub fn seal(&mut self, next: Sequence) {
        if next > self.sealed_next {
            let count = self.marks.seal(next);
            self.index.expire(next, count);
            self.sealed_next = next;
        }
    }

    /// The time of the window's clock, epoch milliseconds, before which its owners may be in filters only.
    pub fn exact_from_ms(&self) -> i64 {
        self.horizon_ms.saturating_sub(self.exact_ms)
    }

    /// Adds the owners of a slice to a window without owners in the index. Slices come in ascending order of their numbers.
    pub fn load_sealed(&mut self, range: &SealedRange) {
        debug_assert_eq!(self.index.live(), 0, "a slice is loaded after other owners");
        self.marks.add_sealed(range);
        self.latest_ms = self.latest_ms.max(range.marks.last().map_or(0, |mark| mark.time_ms.1));
        self.sealed_next = self.sealed_next.max(range.next);
        self.number_from(range.next);
    }

    /// Of the filters of slices without owners, the first one whose identities may count for a record of this time. A filter
    /// is given by the earliest and the latest stream time of its owners, epoch milliseconds; 0 while unknown.
    pub fn counting_filter(&self, filters: &[(i64, i64)], time: RecordTime) -> Option<(i64, i64)> {
        filters.iter().copied().find(|(first, last)| time.is_near(*first..=*last, self.length_ms))
    }
}
