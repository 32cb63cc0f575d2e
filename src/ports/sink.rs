//! The transaction that spans the clean topic, the state topic and the group's offsets.

use std::time::Duration;

use super::{Failure, LogId, OutputTopic, Source};
use crate::dedupe::{Coordinates, Offset, PartitionId};

/// One partition's part of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitPosition {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The next raw offset to process.
    pub next: Offset,
    /// Checkpoint metadata, at most 1,024 bytes.
    pub metadata: String,
}

/// A destination of records that are not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Dead-letter topic: records that can be neither forwarded nor dropped.
    DeadLetter,
    /// Duplicates topic: records that were dropped because their id was seen before.
    Duplicates,
    /// The clean topic, same partition, with a mark: what shadow mode does with a record that would have been
    /// suppressed.
    Clean,
}

impl Side {
    /// The topic that the records are written to.
    #[must_use]
    pub fn topic(self) -> OutputTopic {
        match self {
            Self::DeadLetter => OutputTopic::DeadLetter,
            Self::Duplicates => OutputTopic::Duplicates,
            Self::Clean => OutputTopic::Clean,
        }
    }
}

/// Why a record is not forwarded but written to a side topic; becomes headers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for programs, for example `missing_id` or `rejected`.
    pub code: &'static str,
    /// One sentence for people.
    pub detail: String,
    /// The earlier record with the same id, when it is known.
    pub owner: Option<Coordinates>,
    /// Arrival of that record, stream time in epoch milliseconds.
    pub owner_ms: Option<i64>,
    /// Start of the window slice whose filter contains the id, stream time in epoch milliseconds.
    pub slice_ms: Option<i64>,
}

impl Reason {
    /// A reason that does not involve another record.
    #[must_use]
    pub fn new(code: &'static str, detail: String) -> Self {
        Self { code, detail, owner: None, owner_ms: None, slice_ms: None }
    }
}

/// The transaction of a worker: the records of all topics that it writes, and the offsets of the group.
pub trait Sink<S: Source> {
    /// Begins a transaction; none may be open.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Writes the record unchanged to the clean topic, same partition, same timestamp. The record is mutable so that its parts
    /// can be moved instead of copied; it reads the same afterwards.
    fn forward(&mut self, record: &mut S::Record<'_>) -> Result<(), Failure>;
    /// Writes the original bytes to a side topic (or to the clean topic), with the reason and the coordinates as
    /// headers.
    fn divert(&mut self, side: Side, record: &S::Record<'_>, reason: &Reason) -> Result<(), Failure>;
    /// Why a topic certainly rejects the record, without sending it; `None` when that is not certain. A transaction must be open.
    fn certain_rejection(&mut self, _by: OutputTopic, _record: &S::Record<'_>) -> Option<String> {
        None
    }
    /// Writes a block to the state topic, in the transaction.
    fn put_state(&mut self, partition: PartitionId, key: &str, block: &[u8]) -> Result<(), Failure>;
    /// Waits until all records sent are acknowledged. An error contains the first rejected record.
    fn drain(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Adds the raw offsets to the transaction, with the group metadata of `source`.
    fn send_offsets(
        &mut self,
        source: &S,
        positions: &[CommitPosition],
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Commits the transaction. After an error its outcome can be unknown: only the committed offset shows it.
    fn commit(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Aborts the transaction: records that were sent are discarded, also those without an acknowledgement.
    fn abort(&mut self, wait: Duration) -> Result<(), Failure>;
}

/// Where the acknowledged records of the transaction are.
pub trait WrittenEnds {
    /// One past the highest clean offset acknowledged in this transaction, for a partition.
    fn clean_end(&self, partition: PartitionId) -> Option<Offset>;
    /// One past the highest state offset acknowledged in this transaction, for a partition.
    fn state_end(&self, partition: PartitionId) -> Option<Offset>;
    /// The partitions of side topics that records of this transaction were sent to, each with the lowest offset acknowledged.
    fn side_starts(&self) -> Vec<(LogId, Option<Offset>)> {
        Vec::new()
    }
}
