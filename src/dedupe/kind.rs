//! Kinds of records: each has a window of its own, and so its own memory, in blocks of its own.

use xxhash_rust::xxh3::xxh3_64;

use super::identity::{Fields, IdSource};
use super::{Fingerprint, PartitionId};

/// Lower bits of the number that a kind's blocks of a partition are filed under.
const PARTITION_BITS: u32 = 17;
/// Partitions that a topic may have, so that kinds fit beside them.
pub const MOST_PARTITIONS: u32 = 1 << PARTITION_BITS;

/// Stands for a kind in blocks and checkpoints, and follows from its name alone, so that kinds can be added, left out and
/// put in another order. 15 bits: two names can collide, which the configuration refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct KindId(u16);

impl KindId {
    /// Of the records that belong to no named kind.
    pub const UNNAMED: Self = Self(0);

    /// Of the kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        const NAMES: u64 = (1 << (u32::BITS - PARTITION_BITS)) - 1;
        Self(u16::try_from(xxh3_64(name.as_bytes()) % NAMES + 1).unwrap_or(1))
    }

    /// Its number, 0 to 32,767.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// The kind with this number.
    #[must_use]
    pub fn numbered(number: u16) -> Self {
        Self(number)
    }

    /// The number under which its blocks of a partition are stored: the partition's own for the unnamed kind.
    #[must_use]
    pub fn filed(self, partition: PartitionId) -> PartitionId {
        (u32::from(self.0) << PARTITION_BITS) | (partition % MOST_PARTITIONS)
    }

    /// Kind and partition of the number that blocks are filed under.
    #[must_use]
    pub fn of_filed(number: PartitionId) -> (Self, PartitionId) {
        (Self(u16::try_from(number >> PARTITION_BITS).unwrap_or(0)), number % MOST_PARTITIONS)
    }
}

/// Which records belong to a kind: those that carry one of these values there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindRule {
    source: IdSource,
    values: Vec<Vec<u8>>,
}

impl KindRule {
    /// A string in JSON counts by its bytes, a number or boolean by its text.
    #[must_use]
    pub fn new(source: IdSource, values: impl IntoIterator<Item = String>) -> Self {
        Self { source, values: values.into_iter().map(String::into_bytes).collect() }
    }

    /// What identities of this kind, made by such a rule, are told apart by from those of another.
    #[must_use]
    pub fn fingerprint(&self, of: Fingerprint) -> Fingerprint {
        let mut values = self.values.clone();
        values.sort_unstable();
        values.dedup();
        let rule = [of.to_string(), self.source.to_string()].map(String::into_bytes);
        Fingerprint::of(rule.into_iter().chain(values))
    }

    /// Whether the record belongs to it.
    #[must_use]
    pub fn takes<F: Fields>(&self, record: &F) -> bool {
        let found = self.source.bytes(record);
        found.is_some_and(|found| self.values.iter().any(|value| value.as_slice() == found.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_tells_kind_and_partition() {
        for (kind, partition) in
            [(KindId::UNNAMED, 0), (KindId::UNNAMED, 131_071), (KindId::named("payments"), 40)]
        {
            assert_eq!(KindId::of_filed(kind.filed(partition)), (kind, partition));
        }
        assert_eq!(KindId::UNNAMED.filed(17), 17);
        // Part of the format of blocks: must never change.
        assert_eq!(KindId::named("payments").number(), 25_378);
        assert!((0..40_000).all(|number| KindId::named(&number.to_string()) != KindId::UNNAMED));
    }
}
