//! The position of a record: partition and offset.

use std::fmt;

/// A Kafka offset inside one partition; never negative in a log.
pub type Offset = u64;

/// A Kafka partition number; never negative.
pub type PartitionId = u32;

/// The position of one record in the raw topic. It identifies an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coordinates {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// Offset inside the partition.
    pub offset: Offset,
}

impl fmt::Display for Coordinates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}
