//! Copies in other partitions, estimated from a sample of the ids, where no window finds them (`dedupe.scope = "partition"`).
//!
//! One identity in [`SAMPLED`] is kept with its partition, in a table of fixed size: 65,536 of them, which stand for the last four
//! million new ids of a worker. A bucket of the table is a cache line; a new entry replaces the oldest one of its bucket.

use super::positions::IndexKey;
use crate::dedupe::coordinates::PartitionId;

/// One identity of this many is in the sample.
pub const SAMPLED: u64 = 64;
/// Buckets of the table: 1 MiB.
const BUCKETS: usize = 1 << 14;
/// Entries of a bucket.
const PLACES: usize = 4;
/// Copies that an estimate requires, and the share of the new ids of the sample. An entry is taken for that of another identity
/// once in 2^30 look-ups, so false matches reach neither.
const LEAST_COPIES: u64 = 4;
const LEAST_SHARE: f64 = 0.001;

/// An identity of the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampledCopy {
    fingerprint: u32,
    /// The partition that had it first.
    partition: PartitionId,
    /// Stream time of that partition at its arrival, epoch milliseconds.
    arrived_ms: i64,
}

/// No time is within a window of this one.
const EMPTY: SampledCopy = SampledCopy { fingerprint: 0, partition: 0, arrived_ms: i64::MIN };

/// A record that is new in its own partition.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// Its identity.
    pub key: &'a IndexKey,
    /// Number of its kind: kinds have windows of their own.
    pub kind: usize,
    /// Its partition.
    pub partition: PartitionId,
    /// Stream time of the partition, epoch milliseconds.
    pub at_ms: i64,
    /// Length of the window in milliseconds. Copies that are further apart do not count.
    pub window_ms: i64,
}

/// The newest identities of the sample.
#[derive(Debug)]
pub struct CopySample(Box<[[SampledCopy; PLACES]]>);

impl Default for CopySample {
    fn default() -> Self {
        Self(vec![[EMPTY; PLACES]; BUCKETS].into_boxed_slice())
    }
}

impl CopySample {
    /// Whether the identity is in the sample. Only then it is worth a call of [`Self::is_copy`].
    #[must_use]
    #[inline]
    pub fn has(key: &IndexKey) -> bool {
        key.position.second.is_multiple_of(SAMPLED)
    }

    /// Whether the sample has the identity from another partition, at a stream time within the window. Adds it otherwise. An
    /// entry keeps its first partition, so a record that is processed again after an abort is no copy of itself.
    pub fn is_copy(&mut self, record: NewRecord<'_>) -> bool {
        let NewRecord { key, kind, partition, at_ms, window_ms } = record;
        let position = key.position;
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let (place, fingerprint) = (
            (position.second / SAMPLED) as usize % BUCKETS,
            (position.first as u32).wrapping_add(kind as u32),
        );
        let Some(bucket) = self.0.get_mut(place) else { return false };
        let new = SampledCopy { fingerprint, partition, arrived_ms: at_ms };
        let Some(known) = bucket.iter_mut().find(|it| it.fingerprint == fingerprint) else {
            let [first, second, third, _] = *bucket;
            *bucket = [new, first, second, third];
            return false;
        };
        let is_near = at_ms.abs_diff(known.arrived_ms) <= window_ms.unsigned_abs();
        if is_near && known.partition != partition {
            return true;
        }
        *known = new;
        false
    }
}

/// Counts of the sample: records that were new in their partition, and those of them that are copies from another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyEstimate {
    /// Records of the sample that were new in their partition, copies included.
    pub new: u64,
    /// Copies among them.
    pub copies: u64,
}

impl CopyEstimate {
    /// Adds the counts of another estimate.
    pub fn add(&mut self, other: Self) {
        self.new += other.new;
        self.copies += other.copies;
    }

    /// Makes the counts so far weigh half.
    pub fn halve(&mut self) {
        *self = Self { new: self.new / 2, copies: self.copies / 2 };
    }

    /// The share of copies among the records that are new in their partition, 0 to 1. `None` while it is too low or too uncertain
    /// to report.
    #[must_use]
    pub fn share(self) -> Option<f64> {
        let share = self.copies as f64 / self.new.max(1) as f64;
        (self.copies >= LEAST_COPIES && share >= LEAST_SHARE).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::identity::Identity;
    use crate::dedupe::window::positions::Positions;

    const WINDOW_MS: i64 = 3_600_000;

    /// Identities of the sample.
    fn keys() -> impl Iterator<Item = IndexKey> {
        (0u128..)
            .map(|number| Positions::keyed([7; 16]).key(Identity(number.to_be_bytes())))
            .filter(CopySample::has)
    }

    fn new(key: &IndexKey, partition: PartitionId, at_ms: i64) -> NewRecord<'_> {
        NewRecord { key, kind: 0, partition, at_ms, window_ms: WINDOW_MS }
    }

    #[test]
    fn one_identity_of_64_is_in_the_sample() {
        let all = (0u128..64_000).map(|number| Positions::keyed([7; 16]).key(Identity(number.to_be_bytes())));
        let sampled = all.filter(CopySample::has).count();
        assert!((850..1_150).contains(&sampled), "{sampled}");
        assert_eq!(size_of::<SampledCopy>() * PLACES * BUCKETS, 1 << 20);
    }

    #[test]
    fn only_an_identity_of_another_partition_within_the_window_is_a_copy() {
        let mut sample = CopySample::default();
        let key = keys().next().unwrap();
        assert!(!sample.is_copy(new(&key, 1, 9 * WINDOW_MS)));
        // The same record again, after an abort.
        assert!(!sample.is_copy(new(&key, 1, 9 * WINDOW_MS)));
        assert!(!sample.is_copy(NewRecord { kind: 1, ..new(&key, 2, 9 * WINDOW_MS) }));
        for at_ms in [8 * WINDOW_MS, 10 * WINDOW_MS] {
            assert!(sample.is_copy(new(&key, 2, at_ms)));
        }
        assert!(!sample.is_copy(new(&key, 2, 10 * WINDOW_MS + 1)));
        assert!(sample.is_copy(new(&key, 1, 10 * WINDOW_MS)));
    }

    #[test]
    fn different_identities_never_reach_an_estimate() {
        let (mut sample, mut estimate) = (CopySample::default(), CopyEstimate::default());
        // Three times as many as the table holds.
        for (number, key) in keys().take(200_000).enumerate() {
            let partition = PartitionId::try_from(number % 7).unwrap();
            let copies = u64::from(sample.is_copy(new(&key, partition, WINDOW_MS)));
            estimate.add(CopyEstimate { new: 1, copies });
        }
        assert!(estimate.copies <= 1, "{estimate:?}");
        assert_eq!(estimate.share(), None);
    }

    #[test]
    fn the_newest_identities_are_kept() {
        let mut sample = CopySample::default();
        let keys: Vec<IndexKey> = keys().take(100_000).collect();
        for key in &keys {
            assert!(!sample.is_copy(new(key, 1, WINDOW_MS)));
        }
        let newest = keys.iter().rev().take(10_000);
        let found = newest.filter(|key| sample.is_copy(new(key, 2, WINDOW_MS))).count();
        assert!(found > 9_900, "{found}");
    }

    #[test]
    fn few_copies_and_a_low_share_are_not_reported() {
        let share = |new, copies| CopyEstimate { new, copies }.share();
        assert_eq!(share(4, 3), None);
        assert_eq!(share(8, 4), Some(0.5));
        assert_eq!(share(5_001, 5), None);
        let mut halved = CopyEstimate { new: 16, copies: 9 };
        halved.halve();
        assert_eq!(halved, CopyEstimate { new: 8, copies: 4 });
    }
}
