//! A table of entries of 16 bits: a tag of 8 bits, an age of 3 bits and a group of 5 bits.
//!
//! A bucket is a cache line: 31 entries, and a last place with their number and, for each age, whether an entry of that age was put
//! into a later bucket because this one was full (linear probing). A look-up continues with the next bucket in that case. After an age is over,
//! each insert removes the entries of such ages from one more bucket, and from the bucket that it finds full.

use crate::dedupe::window::huge_pages::prefer_huge_pages;
use crate::dedupe::window::prefetch::prefetch;
use crate::dedupe::window::table::TablePosition;

/// Entries of a bucket.
const PLACES: u16 = 31;
/// A bucket: the entries, and in the last place their number and from bit 8 on the ages with entries in later buckets.
type Bucket = [u16; PLACES as usize + 1];
/// The bits of an entry that are the tag.
const TAG: u16 = 0xff00;
const AGE_SHIFT: u32 = 5;
const PASSED_SHIFT: u32 = 8;
/// Of 32 places, this many are used. More would make look-ups read more buckets.
const USED: u64 = 27;
/// Number of ages and of groups.
pub(super) const AGES: usize = 8;
pub(super) const GROUPS: u32 = 1 << AGE_SHIFT;

/// A set of ages, as bits.
pub(super) type AgeSet = u8;

#[inline]
pub(super) fn has(ages: AgeSet, age: usize) -> bool {
    (ages >> age) & 1 == 1
}

/// The table. It does not grow.
#[derive(Debug)]
pub(super) struct TagTable {
    /// Zeroed by the allocator, so that a large table causes no pause. Aligned manually.
    entries: Vec<u16>,
    aligned: usize,
    buckets: usize,
    /// The most identities that it holds at a time.
    capacity: u64,
    /// Entries of each age, including those of an age that is over and has the same number.
    ids: [u64; AGES],
    /// Identities that can be inserted before the next count.
    room: u64,
    /// The next bucket whose entries of ages that are over are removed; after the last one, there are none.
    to_clean: usize,
}

impl TagTable {
    /// An empty table for `capacity` identities.
    pub fn new(capacity: u64) -> Self {
        let buckets = usize::try_from(buckets_for(capacity)).unwrap_or(usize::MAX);
        let entries = vec![0u16; buckets.saturating_add(1).saturating_mul(size_of::<Bucket>() / 2)];
        prefer_huge_pages(&entries);
        let aligned = entries.as_ptr().align_offset(size_of::<Bucket>());
        Self { entries, aligned, buckets, capacity, ids: [0; AGES], room: capacity, to_clean: buckets }
    }

    /// Bytes of a table of this capacity.
    pub fn bytes_for(capacity: u64) -> u64 {
        buckets_for(capacity).saturating_add(1).saturating_mul(size_of::<Bucket>() as u64)
    }

    /// The capacity of a table of these bytes.
    pub fn capacity_in(bytes: u64) -> u64 {
        (bytes / size_of::<Bucket>() as u64).saturating_sub(2).saturating_mul(u64::from(PLACES) * USED) / 32
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Identities of these ages.
    pub fn ids(&self, ages: AgeSet) -> u64 {
        self.ids.iter().enumerate().filter(|(age, _)| has(ages, *age)).map(|(_, ids)| ids).sum()
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Identities that can be inserted before the next [`Self::count`].
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Counts the identities of the ages that are not over, and with that the room for others.
    pub fn count(&mut self, ages: AgeSet) {
        self.room = self.capacity.saturating_sub(self.ids(ages));
    }

    /// Begins to remove the entries of ages that are over.
    pub fn clean(&mut self) {
        self.to_clean = 0;
    }

    /// Removes the remaining entries of all ages but these.
    pub fn finish_cleaning(&mut self, ages: AgeSet) {
        while self.to_clean < self.buckets {
            self.clean_next(ages);
        }
    }

    fn clean_next(&mut self, ages: AgeSet) {
        let (at, ids) = (self.to_clean, &mut self.ids);
        self.to_clean += 1;
        let bucket = buckets_mut(&mut self.entries, self.aligned).get_mut(at);
        if let Some(bucket) = bucket {
            remove_others(bucket, ages, ids);
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        (self.entries.len() * size_of::<u16>()) as u64
    }

    /// The first bucket of an identity, from the high half of a product, which works for any number of buckets.
    #[inline]
    fn first(&self, position: TablePosition) -> usize {
        let (_, high) = position.first.carrying_mul(self.buckets as u64, 0);
        usize::try_from(high).unwrap_or(usize::MAX)
    }

    #[inline]
    fn bucket(&self, at: usize) -> Option<&Bucket> {
        let buckets: &[Bucket] = self.entries.get(self.aligned..).unwrap_or_default().as_chunks().0;
        buckets.get(at)
    }

    #[inline]
    pub fn prefetch(&self, position: TablePosition) {
        if let Some(bucket) = self.bucket(self.first(position)) {
            prefetch(bucket);
        }
    }

    /// The groups of all entries of these ages with the tag of the identity, as bits.
    #[inline]
    pub fn groups(&self, position: TablePosition, ages: AgeSet) -> u32 {
        let (tag, mut at, mut found) = (tag(position), self.first(position), 0);
        while let Some(bucket) = self.bucket(at) {
            let has_tag = |entry: &u16| entry & TAG == tag;
            // Without branches, so that the compiler compares many entries at once.
            if bucket.iter().fold(false, |any, entry| any | has_tag(entry)) {
                let [places @ .., _] = bucket;
                let known = places.iter().filter(|entry| has_tag(entry) && has(ages, age(**entry)));
                found = known.fold(found, |found, entry| found | 1 << (u32::from(*entry) % GROUPS));
            }
            if passed(bucket) & ages == 0 {
                break;
            }
            at = next(at, self.buckets);
        }
        found
    }

    /// Inserts an identity with this age. Entries of other ages than `ages` may be removed. Does nothing when the table is full:
    /// then the identity would not be found.
    #[inline]
    pub fn insert(&mut self, position: TablePosition, group: u32, new: usize, ages: AgeSet) {
        debug_assert!(!self.is_full(), "an identity is inserted into a full table");
        let Some(room) = self.room.checked_sub(1) else { return };
        self.room = room;
        if self.to_clean < self.buckets {
            self.clean_next(ages);
        }
        self.ids.get_mut(new).into_iter().for_each(|ids| *ids += 1);
        #[expect(clippy::cast_possible_truncation, reason = "ages and groups have 3 and 5 bits")]
        let entry = tag(position) | ((new << AGE_SHIFT) as u16) | ((group % GROUPS) as u16);
        let (mut at, count) = (self.first(position), self.buckets);
        let buckets = buckets_mut(&mut self.entries, self.aligned);
        while let Some(bucket) = buckets.get_mut(at) {
            if used(bucket) == PLACES {
                remove_others(bucket, ages, &mut self.ids);
            }
            let used = used(bucket);
            let [places @ .., last] = bucket;
            if let Some(place) = places.get_mut(usize::from(used)) {
                *place = entry;
                *last += 1;
                return;
            }
            *last |= 1 << (PASSED_SHIFT + u32::try_from(new).unwrap_or(0));
            at = next(at, count);
        }
    }
}

/// Number of buckets for this capacity; at least one of them always has room.
fn buckets_for(capacity: u64) -> u64 {
    (capacity.saturating_mul(32) / (u64::from(PLACES) * USED)).saturating_add(1)
}

#[inline]
fn buckets_mut(entries: &mut [u16], aligned: usize) -> &mut [Bucket] {
    entries.get_mut(aligned..).unwrap_or_default().as_chunks_mut().0
}

/// The bucket behind this one, of `count`.
#[inline]
fn next(at: usize, count: usize) -> usize {
    if at + 1 < count { at + 1 } else { 0 }
}

/// Removes the entries of all ages but these, and subtracts them from the numbers of entries of each age.
fn remove_others(bucket: &mut Bucket, ages: AgeSet, ids: &mut [u64; AGES]) {
    let (old, used, passed) = (*bucket, used(bucket), passed(bucket) & ages);
    *bucket = [0; PLACES as usize + 1];
    let [places @ .., last] = bucket;
    let mut free = places.iter_mut();
    for entry in old.iter().take(usize::from(used)) {
        if !has(ages, age(*entry)) {
            ids.get_mut(age(*entry)).into_iter().for_each(|ids| *ids = ids.saturating_sub(1));
        } else if let Some(place) = free.next() {
            *place = *entry;
        }
    }
    *last = (PLACES - u16::try_from(free.len()).unwrap_or(0)) | (u16::from(passed) << PASSED_SHIFT);
}

#[inline]
fn used(bucket: &Bucket) -> u16 {
    let [.., last] = bucket;
    last & ((1 << PASSED_SHIFT) - 1)
}

#[inline]
fn passed(bucket: &Bucket) -> AgeSet {
    let [.., last] = bucket;
    let [_, passed] = last.to_le_bytes();
    passed
}

#[inline]
fn age(entry: u16) -> usize {
    usize::from(entry >> AGE_SHIFT) % AGES
}

/// The tag of an identity, which is not 0, the tag of an empty place.
#[inline]
fn tag(position: TablePosition) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
    let bits = position.second as u16;
    (bits & TAG).max(!TAG + 1)
}
