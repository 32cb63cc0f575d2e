//! One table of the index: buckets of one cache line with eight slots each.

use super::huge_pages::prefer_huge_pages;
use super::prefetch::prefetch;
use crate::dedupe::coordinates::Sequence;

pub(super) mod evicting;

/// A bucket: 64 bytes, one cache line. A slot is 0 if it was never used. Otherwise the high 26 bits are the
/// fingerprint, and the low 38 bits (the *place*) are the number relative to the table's base, plus 1.
type Bucket = [u64; SLOTS];

const SLOTS: usize = 8;
const PLACE_BITS: u32 = 38;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// The position of an identity in any table: 128 bits of a second hash of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TablePosition {
    /// The high bits select the first bucket, the low 26 bits are the fingerprint.
    pub first: u64,
    /// The high bits select the second bucket.
    pub second: u64,
}

impl TablePosition {
    fn tag(self) -> u64 {
        self.first << PLACE_BITS
    }
}

/// A fixed number of slots for the numbers from `base` on. It never moves a slot and never grows.
#[derive(Debug)]
pub(super) struct SlotTable {
    /// Zeroed by the allocator, so that a large table causes no pause. Aligned manually, because a vector of an aligned
    /// struct would be filled slot by slot.
    words: Vec<u64>,
    aligned: usize,
    buckets: usize,
    /// The lowest number that can be stored.
    pub base: Sequence,
    /// Entries of live numbers, in this table or, if both buckets were full, in the index's overflow map.
    pub live: u64,
    /// True until the first slot is written.
    untouched: bool,
}

impl SlotTable {
    /// A table that counts as full at about `ids` entries.
    pub fn for_ids(ids: u64, base: Sequence) -> Self {
        Self::with_buckets(Self::buckets_for(ids), base)
    }

    fn with_buckets(buckets: usize, base: Sequence) -> Self {
        let words = vec![0u64; (buckets + 1) * SLOTS];
        prefer_huge_pages(&words);
        let aligned = words.as_ptr().align_offset(64).min(SLOTS);
        Self { words, aligned, buckets, base, live: 0, untouched: true }
    }

    /// The capacity of a table for `ids` entries, and the bytes that it allocates.
    pub fn shape(ids: u64) -> (u64, u64) {
        let buckets = Self::buckets_for(ids);
        (Self::capacity_of(buckets), ((buckets + 1) * size_of::<Bucket>()) as u64)
    }

    fn buckets_for(ids: u64) -> usize {
        let slots = usize::try_from(ids.saturating_mul(4) / 3).unwrap_or(usize::MAX).min(usize::MAX / 128);
        slots.div_ceil(SLOTS).max(1)
    }

    fn capacity_of(buckets: usize) -> u64 {
        (buckets * SLOTS / 4 * 3) as u64
    }

    /// Number of entries at which it is full: three quarters of its slots.
    pub fn capacity(&self) -> u64 {
        Self::capacity_of(self.buckets)
    }

    /// Whether no more entries fit.
    pub fn is_full(&self) -> bool {
        self.live >= self.capacity()
    }

    /// Whether this number may become the base: no slot was ever written, or all inserts were undone and the
    /// number is lower. (A table whose entries have expired keeps its base: with a higher one, the expired
    /// entries that are still in its slots would become live again.)
    pub fn may_begin_at(&self, number: Sequence) -> bool {
        self.live == 0 && (self.untouched || number < self.base)
    }

    /// Whether the number can be represented as base plus 38 bits. The largest place is unused: it is the oldest place
    /// of a window that lies entirely beyond the table.
    pub fn reaches(&self, number: Sequence) -> bool {
        number.checked_sub(self.base).is_some_and(|distance| distance < PLACE_MASK - 1)
    }

    pub fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }

    #[inline]
    pub fn prefetch(&self, position: TablePosition) {
        for place in self.places(position) {
            if let Some(bucket) = self.bucket(place) {
                prefetch(bucket);
            }
        }
    }

    /// Visits the live numbers that may belong to the identity.
    #[inline]
    pub fn candidates<B>(
        &self,
        position: TablePosition,
        first_live: Sequence,
        visit: &mut impl FnMut(Sequence) -> std::ops::ControlFlow<B>,
    ) -> std::ops::ControlFlow<B> {
        let oldest = self.oldest_place(first_live);
        let tag = position.tag();
        let [first, second] = self.places(position);
        for place in [Some(first), (second != first).then_some(second)].into_iter().flatten() {
            for slot in self.bucket(place).into_iter().flatten() {
                // One comparison for both conditions: after the XOR, equal fingerprints leave the place, and
                // different ones leave a value above the largest place.
                if (slot ^ tag).wrapping_sub(oldest) <= PLACE_MASK - oldest {
                    visit(self.number_of(*slot))?;
                }
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Writes into a free slot of the emptier bucket; returns false when all slots of both buckets are live.
    #[inline]
    pub fn insert(&mut self, position: TablePosition, number: Sequence, first_live: Sequence) -> bool {
        let oldest = self.oldest_place(first_live);
        let [first, second] = self.places(position);
        let used = |bucket: Option<&Bucket>| {
            bucket.map_or(SLOTS, |slots| slots.iter().filter(|slot| **slot & PLACE_MASK >= oldest).count())
        };
        let place = if used(self.bucket(second)) < used(self.bucket(first)) { second } else { first };
        self.untouched = false;
        let slot = position.tag() | (number - self.base + 1);
        let free = self
            .bucket_mut(place)
            .and_then(|slots| slots.iter_mut().find(|slot| **slot & PLACE_MASK < oldest));
        free.map(|free| *free = slot).is_some()
    }

    /// Clears the slot of this identity and number; returns false when there is none.
    pub fn remove(&mut self, position: TablePosition, number: Sequence) -> bool {
        if !self.reaches(number) {
            return false;
        }
        let slot = position.tag() | (number - self.base + 1);
        for place in self.places(position) {
            let held = self.bucket_mut(place).and_then(|slots| slots.iter_mut().find(|held| **held == slot));
            if let Some(held) = held {
                *held = 0;
                return true;
            }
        }
        false
    }

    /// The smallest place of a live number, at least 1, so that an unused slot is never live.
    #[inline]
    fn oldest_place(&self, first_live: Sequence) -> u64 {
        (first_live.saturating_sub(self.base) + 1).min(PLACE_MASK)
    }

    #[inline]
    fn number_of(&self, slot: u64) -> Sequence {
        self.base + (slot & PLACE_MASK) - 1
    }

    /// The two buckets of an identity, from the high half of a product, which works for any number of buckets.
    #[inline]
    fn places(&self, position: TablePosition) -> [usize; 2] {
        let buckets = self.buckets as u64;
        [position.first, position.second].map(|hash| {
            let (_, high) = hash.carrying_mul(buckets, 0);
            usize::try_from(high).unwrap_or(usize::MAX)
        })
    }

    #[inline]
    fn bucket(&self, place: usize) -> Option<&Bucket> {
        self.words.get(self.aligned..)?.as_chunks().0.get(place)
    }

    #[inline]
    fn bucket_mut(&mut self, place: usize) -> Option<&mut Bucket> {
        self.words.get_mut(self.aligned..)?.as_chunks_mut().0.get_mut(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cache_lines() {
        for ids in [1, 100, 100_000] {
            let table = SlotTable::for_ids(ids, 0);
            assert!(std::ptr::from_ref(table.bucket(0).unwrap()).cast::<u8>().align_offset(64) == 0);
            assert!(table.bucket(table.buckets - 1).is_some());
            assert!(table.capacity() + 6 > ids, "{} for {ids}", table.capacity());
        }
    }

    #[test]
    fn a_place_holds_38_bits_and_no_more() {
        let mut table = SlotTable::for_ids(8, 1_000);
        let position = TablePosition { first: u64::MAX, second: 3 };
        let last = 1_000 + PLACE_MASK - 2;
        assert!(table.reaches(last) && !table.reaches(last + 1) && !table.reaches(999));
        assert!(table.insert(position, last, 1_000));
        let mut seen = Vec::new();
        let all = table.candidates::<()>(position, last, &mut |number| {
            seen.push(number);
            std::ops::ControlFlow::Continue(())
        });
        assert!(all.is_continue());
        assert_eq!(seen, [last]);
        assert!(table.remove(position, last));
        assert!(!table.remove(position, last));
    }
}
