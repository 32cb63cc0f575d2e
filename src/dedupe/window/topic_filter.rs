//! The partitions in which an identity may have an owner (`dedupe.scope = "topic"`).
//!
//! Each partition has windows of its own. This filter holds the identities of all of them, in about three bytes each, so that
//! an identity is looked up only in the windows that may hold a copy: usually in none if it is new, in one if it is a copy.
//!
//! An identity has an entry in a table: a tag from its hash, its partition modulo 32, and its age: the slice of stream time in which it
//! arrived, modulo 8. A look-up reads one cache line per table; there is one table, and while the traffic grows some smaller ones,
//! which are dropped when all their entries are too old. Invariants:
//! - A partition group that has an owner of the identity inside a window is found. A group that has none is found at a rate of about
//!   10 % per table, all groups together. That costs the time of a look-up and decides nothing.
//! - Entries are removed with their age, and not one by one: that of an identity that was aborted, forgotten or dropped by a limit stays
//!   until its age is over.
//! - An age is over when its last entry is older than the longest window at the horizon (see [`TopicFilter::expire`]). The number of an
//!   age is used again only after that; until then the newest age goes on.
//!
//! An entry counts from the arrival of its identity, or from the horizon if that is later.
//!
//! A limit on the memory ends the oldest ages earlier. [`TopicFilter::missing_ms`] is the time up to which owners are not found because of it.

use std::time::Duration;

use super::positions::{IndexKey, Positions};
use crate::dedupe::coordinates::PartitionId;
use crate::dedupe::identity::Identity;
use tags::{AGES, AgeSet, GROUPS, TagTable, has};

mod tags;

/// A window has this many ages. So up to seven are not over, and the entries of one that is can be removed before its number is used
/// again.
const AGES_PER_WINDOW: i64 = 5;
/// Slices for which a table is made: two that are not sealed and what arrives meanwhile, and their ages, which end later.
const SLICES: u64 = 5;
/// Capacity of the first table in identities, if nothing is known.
const SMALLEST: u64 = 1 << 16;
/// The most by which a table is larger than the identities so far, as a factor.
const MAX_FACTOR: u64 = 8;
/// Number of inserts that are prefetched together.
const CHUNK: usize = 32;

/// Partitions by their number modulo 32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartitionGroups(u32);

impl PartitionGroups {
    /// Whether no group is in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the group of a partition is in the set.
    #[must_use]
    #[inline]
    pub fn has(self, partition: PartitionId) -> bool {
        (self.0 >> (partition % GROUPS)) & 1 == 1
    }

    /// The partitions below `end` whose group is in the set, group by group.
    pub fn partitions(self, end: PartitionId) -> impl Iterator<Item = PartitionId> {
        let next = |groups: &u32| Some(groups & (groups - 1)).filter(|rest| *rest != 0);
        let groups = std::iter::successors(Some(self.0).filter(|groups| *groups != 0), next);
        groups.flat_map(move |groups| (groups.trailing_zeros()..end).step_by(GROUPS as usize))
    }
}

/// Stream time of the entries of an age, epoch milliseconds; 0 while unknown.
#[derive(Debug, Clone, Copy, Default)]
struct AgeTimes {
    begin_ms: i64,
    last_ms: i64,
}

/// The identities of all windows of all partitions.
#[derive(Debug)]
pub struct TopicFilter {
    positions: Positions,
    age_ms: i64,
    /// Length of the longest window.
    longest_ms: i64,
    ages: [AgeTimes; AGES],
    newest: usize,
    /// The ages that are not over.
    live: AgeSet,
    /// The last one takes new identities. Each other one with the time of its last entry.
    tables: Vec<(TagTable, i64)>,
    horizon_ms: i64,
    /// Owners that arrived before this stream time are in sealed slices, and need no entries.
    unsealed_from_ms: i64,
    /// Entries in the newest age, and the most of them.
    newest_ids: u64,
    age_ids: u64,
    /// Identities for which a table is made at most, unless it has more.
    most_ids: u64,
    max_bytes: u64,
    missing_ms: Option<i64>,
    /// Whether it has owners whose arrival is unknown.
    has_unknown: bool,
    /// Identities that are still to be restored.
    expected: u64,
}

impl TopicFilter {
    /// An empty filter for windows of at most this length with these positions, and its most bytes.
    #[must_use]
    pub fn new(longest: Duration, positions: Positions, max_bytes: u64) -> Self {
        let ms = |length: Duration| i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        Self {
            positions,
            age_ms: ms(longest) / AGES_PER_WINDOW + 1,
            // Owners that are restored from one block expire together, up to 1/32 later than each by itself.
            longest_ms: ms(longest.saturating_add(longest / 16)),
            ages: [AgeTimes::default(); AGES],
            newest: 0,
            live: 1,
            tables: Vec::new(),
            horizon_ms: 0,
            unsealed_from_ms: 0,
            newest_ids: 0,
            age_ids: u64::MAX,
            most_ids: u64::MAX,
            max_bytes,
            missing_ms: None,
            has_unknown: false,
            expected: 0,
        }
    }

    /// Bytes for this many identities of windows, with steady traffic.
    #[must_use]
    pub fn bytes_for(ids: u64) -> u64 {
        // As in `needed`.
        TagTable::bytes_for(ids.saturating_add(ids / 16 + ids / AGES_PER_WINDOW.unsigned_abs() + ids / 32))
    }

    /// Most bytes where the windows have at most this many identities: a quarter more than [`Self::bytes_for`], because traffic is not
    /// steady.
    #[must_use]
    pub fn most_bytes_for(ids: u64) -> u64 {
        let bytes = Self::bytes_for(ids);
        bytes.saturating_add(bytes / 4)
    }

    /// Bytes for windows of which this many identities are sealed at a time.
    #[must_use]
    pub(super) fn bytes_for_slices_of(ids: u64) -> u64 {
        TagTable::bytes_for(ids.saturating_mul(SLICES))
    }

    /// Prefetches what a look-up reads and an insert writes.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.tables.iter().for_each(|(table, _)| table.prefetch(key.position));
    }

    /// The groups of the partitions whose windows may hold the identity.
    #[must_use]
    #[inline]
    pub fn groups(&self, key: &IndexKey) -> PartitionGroups {
        let tables = self.tables.iter();
        PartitionGroups(tables.fold(0, |found, (table, _)| found | table.groups(key.position, self.live)))
    }

    /// Whether [`TopicFilter::groups`] also finds every owner that counts for a record of the same partition with this time of its own,
    /// epoch milliseconds. Before the horizon it does not, because a window expires by the clock of its partition where that
    /// is earlier. Nor does it when the arrival of an owner is unknown: its window counts it from the first time that becomes known.
    #[must_use]
    #[inline]
    pub fn covers_own(&self, at_ms: i64) -> bool {
        at_ms >= self.horizon_ms
            && !self.has_unknown
            && self.missing_ms.is_none_or(|missing_ms| missing_ms < at_ms.saturating_sub(self.longest_ms))
    }

    /// Stream time, epoch milliseconds, up to which the limit on the memory has dropped identities; `None` when it has dropped none that
    /// would still count.
    #[must_use]
    pub fn missing_ms(&self) -> Option<i64> {
        self.missing_ms.filter(|missing_ms| *missing_ms > self.oldest_ms())
    }

    /// Adds the identity of a record that arrived at this stream time of its partition, epoch milliseconds; 0 while unknown.
    #[inline]
    pub fn insert(&mut self, key: &IndexKey, partition: PartitionId, arrived_ms: i64) {
        self.has_unknown |= arrived_ms <= 0;
        if self.tables.last().is_none_or(|(table, _)| table.is_full()) {
            self.make_room();
        }
        // After that, because it may end an age.
        let age = self.age_of(arrived_ms.max(self.horizon_ms).max(self.unsealed_from_ms));
        if let Some((table, _)) = self.tables.last_mut() {
            table.insert(key.position, partition, age, self.live);
        }
    }

    /// The age of an entry from this time. Begins another age when it is time.
    #[inline]
    fn age_of(&mut self, ms: i64) -> usize {
        let (newest, length) = (self.newest, self.age_ms);
        let Some(times) = self.ages.get_mut(newest) else { return newest };
        if times.begin_ms == 0 {
            // Owners from before any time was known count as arrived at the first time that becomes known.
            times.begin_ms = ms;
        }
        let begin_ms = times.begin_ms;
        let age = if ms < begin_ms {
            self.older_age_of(ms)
        } else if (ms - begin_ms >= length || self.newest_ids >= self.age_ids) && self.begin_age(ms) {
            self.newest
        } else {
            newest
        };
        if let Some(times) = self.ages.get_mut(age) {
            times.last_ms = times.last_ms.max(ms);
        }
        self.newest_ids += 1;
        age
    }

    /// The age before the newest one that has this time; the oldest one if all are later.
    #[cold]
    fn older_age_of(&self, ms: i64) -> usize {
        let mut age = self.newest;
        for _ in 1..AGES {
            let before = (age + AGES - 1) % AGES;
            if !has(self.live, before) {
                break;
            }
            age = before;
            if self.ages.get(age).is_some_and(|times| times.begin_ms <= ms) {
                break;
            }
        }
        age
    }

    /// Begins another age, unless the next number is in use. Then the newest age goes on.
    #[cold]
    fn begin_age(&mut self, ms: i64) -> bool {
        let next = (self.newest + 1) % AGES;
        let live = self.live;
        let Some(times) = self.ages.get_mut(next).filter(|_| !has(live, next)) else { return false };
        *times = AgeTimes { begin_ms: ms, last_ms: 0 };
        if let Some((table, _)) = self.tables.last_mut() {
            // Entries of the age that had the number before would count again.
            table.finish_cleaning(live);
        }
        self.newest = next;
        self.newest_ids = 0;
        self.live |= 1 << next;
        self.end_ages();
        let (needed, capacity) = (self.needed(), self.tables.last().map_or(0, |(table, _)| table.capacity()));
        if capacity > SMALLEST && capacity / 4 > needed {
            self.open(needed);
        }
        // Only now, because the entries of the closed table are older.
        self.ages.get_mut(next).into_iter().for_each(|times| times.last_ms = ms);
        true
    }

    /// Makes room in the newest table, or opens another one.
    #[cold]
    fn make_room(&mut self) {
        while !self.has_room() {
            let left = self.max_bytes.saturating_sub(self.memory_bytes());
            let needed = self.needed();
            let fits = TagTable::bytes_for(needed) <= left;
            // The largest possible table, unless that would be a small one.
            if fits || left > self.max_bytes / 4 || !self.drop_oldest() {
                let largest = TagTable::capacity_in(left).max(SMALLEST);
                self.open(if fits { needed } else { largest });
            }
        }
    }

    /// Whether the newest table has room for some identities.
    fn has_room(&mut self) -> bool {
        let live = self.live;
        self.tables.last_mut().is_some_and(|(table, _)| {
            table.count(live);
            // With less room, the identities would soon have to be counted again.
            table.room() > table.capacity() / 64
        })
    }

    /// Drops the oldest table, or ends the oldest age of the only one, because of the limit on the memory. Returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        if self.tables.len() > 1 {
            let (_, last_ms) = self.tables.remove(0);
            self.missing_ms = self.missing_ms.max(Some(last_ms));
            return true;
        }
        let last_ms = |age: &usize| self.ages.get(*age).map_or(0, |times| times.last_ms);
        let live = (0..AGES).filter(|age| has(self.live, *age));
        let Some(oldest) = live.min_by_key(last_ms) else { return false };
        let ended_ms = last_ms(&oldest);
        if oldest == self.newest && !self.begin_age(ended_ms) {
            return false;
        }
        self.live &= !(1 << oldest);
        self.missing_ms = self.missing_ms.max(Some(ended_ms));
        self.tables.last_mut().into_iter().for_each(|(table, _)| table.clean());
        true
    }

    /// Capacity that is needed when the traffic stays the same: for a window, the age that is over next, and 1/32 more.
    fn needed(&self) -> u64 {
        let ids: u64 = self.tables.iter().map(|(table, _)| table.ids(self.live)).sum();
        let live = self.ages.iter().enumerate().filter(|(age, _)| has(self.live, *age));
        let begins = live.map(|(_, times)| times.begin_ms);
        let last = self.ages.iter().map(|times| times.last_ms).max().unwrap_or(0);
        let span = last.saturating_sub(begins.min().unwrap_or(0)).max(1).unsigned_abs();
        let whole =
            self.longest_ms.saturating_add(self.age_ms).saturating_add(self.longest_ms / 32).unsigned_abs();
        let at_this_rate = u64::try_from(u128::from(ids) * u128::from(whole) / u128::from(span));
        let expected = self.expected.saturating_add(self.expected / 4);
        let (low, high) = (ids / 2, ids.saturating_mul(MAX_FACTOR));
        let wanted = at_this_rate.unwrap_or(u64::MAX).clamp(low, high);
        wanted.min(self.most_ids.max(ids + ids / 4)).max(expected).max(SMALLEST)
    }

    fn open(&mut self, capacity: u64) {
        // Entries whose time is not known are kept.
        let last = self.ages.iter().map(|times| times.last_ms).max().filter(|last_ms| *last_ms > 0);
        if let Some((_, last_ms)) = self.tables.last_mut() {
            *last_ms = last.unwrap_or(i64::MAX);
        }
        self.tables.push((TagTable::new(capacity), i64::MAX));
    }

    /// Expects this many identities of [`TopicFilter::insert_all`], so that the table has the right size.
    pub fn expect(&mut self, ids: u64) {
        self.expected = self.expected.saturating_add(ids);
    }

    /// Expects no further identities of [`TopicFilter::insert_all`].
    pub fn restored(&mut self) {
        self.expected = 0;
    }

    /// Adds the identities of restored owners of a partition, each with the latest stream time at which it can have arrived.
    pub fn insert_all(&mut self, partition: PartitionId, owners: &[(Identity, i64)]) {
        for chunk in owners.chunks(CHUNK) {
            let keys =
                chunk.iter().map(|(identity, arrived_ms)| (self.positions.key(*identity), *arrived_ms));
            let keys: Vec<_> = keys.inspect(|(key, _)| self.prefetch(key)).collect();
            for (key, arrived_ms) in &keys {
                self.insert(key, partition, *arrived_ms);
            }
        }
        self.expected = self.expected.saturating_sub(owners.len() as u64);
    }

    /// Drops identities that are older than the longest window at the horizon: the stream time by which all windows expire, epoch
    /// milliseconds.
    pub fn expire(&mut self, horizon_ms: i64) {
        self.horizon_ms = self.horizon_ms.max(horizon_ms);
        self.end_ages();
        let oldest = self.oldest_ms();
        self.tables.retain(|(_, last_ms)| *last_ms > oldest);
    }

    /// Sets how many identities are sealed at a time: they leave the filter together.
    pub fn seal_by(&mut self, ids: u64) {
        (self.age_ids, self.most_ids) = ((ids / 2).max(1), ids.saturating_mul(SLICES));
    }

    /// Drops identities whose owners are in sealed slices: those that arrived before this stream time, epoch milliseconds.
    pub fn sealed_before(&mut self, ms: i64) {
        self.unsealed_from_ms = self.unsealed_from_ms.max(ms);
        self.expire(self.horizon_ms);
    }

    /// Entries from this time and before do not count.
    fn oldest_ms(&self) -> i64 {
        self.horizon_ms.saturating_sub(self.longest_ms).max(self.unsealed_from_ms - 1)
    }

    /// Ends the ages that are over, except the newest one.
    fn end_ages(&mut self) {
        let oldest = self.oldest_ms();
        let before = self.live;
        for (age, times) in self.ages.iter().enumerate().filter(|(age, _)| *age != self.newest) {
            self.live &= !(AgeSet::from(times.last_ms <= oldest) << age);
        }
        if self.live != before {
            self.tables.last_mut().into_iter().for_each(|(table, _)| table.clean());
        }
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.tables.iter().map(|(table, _)| table.memory_bytes()).sum()
    }
}

#[cfg(test)]
mod tests;
