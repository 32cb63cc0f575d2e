//! A fixed table: when both buckets are full, the oldest owner is overwritten.

use super::{Bucket, PLACE_MASK, SLOTS, SlotTable, TablePosition};
use crate::dedupe::coordinates::Sequence;

/// An owner that an insert overwrote, with everything needed to restore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwritten {
    /// The owner that is in the slot now.
    pub by: Sequence,
    /// The owner that was in the slot before.
    pub owner: Sequence,
    place: usize,
    slot: usize,
    tag: u64,
}

impl SlotTable {
    /// A table of at least `slots` slots, all of which are used.
    pub fn of_slots(slots: u64) -> Self {
        Self::with_buckets(Self::buckets_of(slots), Sequence::MAX)
    }

    /// Bytes that a table of `slots` slots allocates.
    pub fn bytes_of_slots(slots: u64) -> u64 {
        ((Self::buckets_of(slots) + 1) * size_of::<Bucket>()) as u64
    }

    fn buckets_of(slots: u64) -> usize {
        usize::try_from(slots).unwrap_or(usize::MAX).min(usize::MAX / 128).div_ceil(SLOTS).max(1)
    }

    pub fn slots(&self) -> u64 {
        (self.buckets * SLOTS) as u64
    }

    /// Overwrites the slot with the lowest number in both buckets: an unused or expired one or, when all are live, the
    /// oldest owner, which is returned. Of unused slots, one in the emptier bucket is taken first.
    ///
    /// Expired slots have no further preference. That costs little, and makes the choice independent of the length of
    /// the window: one curve describes how long an owner stays, for every window.
    pub fn overwrite(
        &mut self,
        position: TablePosition,
        number: Sequence,
        first_live: Sequence,
    ) -> Option<Overwritten> {
        let oldest = self.oldest_place(first_live);
        let [first, second] = self.places(position);
        let (one, other) = (self.lowest(first), self.lowest(second));
        let (place, (held, slot, _)) =
            if (other.0, other.2) < (one.0, one.2) { (second, other) } else { (first, one) };
        self.untouched = false;
        let written = position.tag() | (number - self.base + 1);
        let old = self.bucket_mut(place).and_then(|slots| slots.get_mut(slot));
        let tag = old.map_or(0, |old| std::mem::replace(old, written)) & !PLACE_MASK;
        (held >= oldest).then(|| Overwritten { by: number, owner: self.base + held - 1, place, slot, tag })
    }

    /// The lowest place in a bucket, its slot, and the number of slots of the bucket that are in use.
    fn lowest(&self, place: usize) -> (u64, usize, usize) {
        let slots = self.bucket(place).into_iter().flatten().map(|slot| slot & PLACE_MASK);
        let used = slots.clone().filter(|place| *place > 0).count();
        slots.enumerate().map(|(slot, place)| (place, slot, used)).min().unwrap_or((0, 0, SLOTS))
    }

    /// Restores an owner into the slot in which it was overwritten.
    pub fn restore_overwritten(&mut self, old: &Overwritten) {
        // The base may have moved beyond the owner since; then the slot is cleared.
        let held = if self.reaches(old.owner) { old.tag | (old.owner - self.base + 1) } else { 0 };
        if let Some(slot) = self.bucket_mut(old.place).and_then(|slots| slots.get_mut(old.slot)) {
            *slot = held;
        }
    }

    /// Raises the base so far that `number` can be represented. Adds the live owners (from `first_live` on) that the
    /// table can no longer represent to `out_of_range`: only those more than 137 billion numbers below `number`. Scans
    /// every slot, once in 137 billion numbers.
    pub fn rebase(&mut self, number: Sequence, first_live: Sequence, out_of_range: &mut Vec<Sequence>) {
        let base = first_live.max(number.saturating_sub(PLACE_MASK / 2));
        let oldest = self.oldest_place(first_live);
        let (before, shift) = (self.base, base.saturating_sub(self.base));
        self.base = base;
        for slot in &mut self.words {
            let place = *slot & PLACE_MASK;
            if place >= oldest && place <= shift {
                out_of_range.push(before + place - 1);
            }
            *slot = if place > shift { *slot - shift } else { 0 };
        }
    }
}
