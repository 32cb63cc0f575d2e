//! A table that is never followed by another: where there is no room, the oldest is overwritten.

use super::{Bucket, PLACE_MASK, Position, SLOTS, Table};
use crate::dedupe::Offset;

/// An owner that an insert overwrote, and all it takes to put it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwritten {
    /// The owner that stands in its slot now.
    pub by: Offset,
    /// The owner that stood there.
    pub owner: Offset,
    place: usize,
    slot: usize,
    tag: u64,
}

impl Table {
    /// A table of at least so many slots, all of which will be used.
    pub fn of_slots(slots: u64) -> Self {
        Self::with_buckets(Self::buckets_of(slots), Offset::MAX)
    }

    /// What a table of so many slots allocates, in bytes.
    pub fn bytes_of_slots(slots: u64) -> u64 {
        ((Self::buckets_of(slots) + 1) * size_of::<Bucket>()) as u64
    }

    fn buckets_of(slots: u64) -> usize {
        usize::try_from(slots).unwrap_or(usize::MAX).min(usize::MAX / 128).div_ceil(SLOTS).max(1)
    }

    /// How many slots it has.
    pub fn slots(&self) -> u64 {
        (self.buckets * SLOTS) as u64
    }

    /// Writes over the lowest offset of both buckets, whatever it is: never used, expired, or, when all
    /// are live, the oldest owner, which is given back. Among slots never used, those of the
    /// emptier bucket come first.
    ///
    /// That expired slots are not preferred otherwise costs little, and makes what is overwritten
    /// independent of the window: so one curve tells how long an owner stays.
    pub fn overwrite(
        &mut self,
        position: Position,
        offset: Offset,
        first_live: Offset,
    ) -> Option<Overwritten> {
        let oldest = self.oldest_place(first_live);
        let [first, second] = self.places(position);
        let (one, other) = (self.lowest(first), self.lowest(second));
        let (place, (held, slot, _)) =
            if (other.0, other.2) < (one.0, one.2) { (second, other) } else { (first, one) };
        self.untouched = false;
        let written = position.tag() | (offset - self.base + 1);
        let old = self.bucket_mut(place).and_then(|slots| slots.get_mut(slot));
        let tag = old.map_or(0, |old| std::mem::replace(old, written)) & !PLACE_MASK;
        (held >= oldest).then(|| Overwritten { by: offset, owner: self.base + held - 1, place, slot, tag })
    }

    /// The lowest place in a bucket, its slot, and how many slots of the bucket are in use.
    fn lowest(&self, place: usize) -> (u64, usize, usize) {
        let slots = self.bucket(place).into_iter().flatten().map(|slot| slot & PLACE_MASK);
        let used = slots.clone().filter(|place| *place > 0).count();
        slots.enumerate().map(|(slot, place)| (place, slot, used)).min().unwrap_or((0, 0, SLOTS))
    }

    /// Puts an owner back into the slot it was overwritten in.
    pub fn put_back(&mut self, gone: &Overwritten) {
        // A base that moved on meanwhile has left it behind.
        let held = if self.reaches(gone.owner) { gone.tag | (gone.owner - self.base + 1) } else { 0 };
        if let Some(slot) = self.bucket_mut(gone.place).and_then(|slots| slots.get_mut(gone.slot)) {
            *slot = held;
        }
    }

    /// Moves the base so far up that `offset` can be written. Gives the owners from `first_live` on that
    /// it leaves behind: only those more than 137 billion offsets back. Looks at every slot, once in so
    /// many offsets.
    pub fn rebase(&mut self, offset: Offset, first_live: Offset, left_behind: &mut Vec<Offset>) {
        let base = first_live.max(offset.saturating_sub(PLACE_MASK / 2));
        let oldest = self.oldest_place(first_live);
        let (before, shift) = (self.base, base.saturating_sub(self.base));
        self.base = base;
        for slot in &mut self.words {
            let place = *slot & PLACE_MASK;
            if place >= oldest && place <= shift {
                left_behind.push(before + place - 1);
            }
            *slot = if place > shift { *slot - shift } else { 0 };
        }
    }
}
