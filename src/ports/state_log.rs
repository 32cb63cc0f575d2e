//! Reading the state topic.

use std::time::Duration;

use super::Failure;
use crate::dedupe::{Offset, PartitionId, StateKey};

/// An item read from the state topic during a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateItem {
    /// A record of an entry, from a committed transaction.
    Record {
        /// Partition of the state topic: the journal.
        partition: PartitionId,
        /// Offset in the state topic.
        offset: Offset,
        /// The record's key: its writer and its transaction; `None` when dedupd did not write it.
        key: Option<StateKey>,
        /// The record's value; not yet decoded or verified.
        value: Vec<u8>,
    },
    /// All records committed so far have been read.
    End {
        /// Partition of the state topic.
        partition: PartitionId,
        /// Offset in the state topic at which a later read continues.
        next: Offset,
    },
    /// The next record to read is not in the log: deleted by retention, or truncated. The partition returns no more
    /// items until it is opened again.
    Gone {
        /// Partition of the state topic.
        partition: PartitionId,
    },
}

impl StateItem {
    /// The partition of the state topic.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        match self {
            Self::Record { partition, .. } | Self::End { partition, .. } | Self::Gone { partition } => {
                *partition
            }
        }
    }
}

/// The state topic, read with `read_committed`.
pub trait StateLog {
    /// Starts reading a partition at this offset.
    fn open(&mut self, partition: PartitionId, from: Offset) -> Result<(), Failure>;
    /// The next items of all open partitions; returns after `wait` at the latest.
    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure>;
    /// Stops reading a partition.
    fn close(&mut self, partition: PartitionId) -> Result<(), Failure>;
}
