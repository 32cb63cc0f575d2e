//! The traits between decisions and I/O.
//!
//! The pipeline uses Kafka and the local store only through these traits. So the same worker runs on a real broker,
//! on librdkafka's embedded broker, and on a simulated broker and store in memory, driven by a seed. Every effect of
//! a worker is a call of one of these methods, which is also where a test can inject a crash.

mod epoch;
mod failure;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::dedupe::coordinates::ranges;
use crate::dedupe::identity::Fields;
use crate::dedupe::{Coordinates, Offset, PartitionId};
pub use epoch::{Epoch, Truncation};
pub use failure::{Failure, RejectedRecords, Remedy};
pub use store::{Head, Store, StoreError, Visit};

/// A raw record, borrowed from the client while an iteration processes it.
pub trait Record: Fields {
    /// Its partition and offset in the raw topic.
    fn coordinates(&self) -> Coordinates;
    /// The record's timestamp, epoch milliseconds; `None` when the record has none.
    fn timestamp_ms(&self) -> Option<i64>;
    /// The leader epoch under which it was written; `None` where the log does not contain it.
    fn leader_epoch(&self) -> Option<i32> {
        None
    }
    /// Size of key and value, in bytes.
    fn size(&self) -> usize;
    /// Whether it has a header of this name, regardless of its value.
    fn has_header(&self, name: &str) -> bool;
}

/// An event of the group protocol. The client's callback only queues it; the worker acts on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// These partitions are assigned to this member, effective with the call of [`Source::assign`].
    Assigned(Vec<PartitionId>),
    /// These partitions are revoked; the worker releases them with [`Source::unassign`].
    Revoked(Vec<PartitionId>),
    /// These partitions may already belong to another member: nothing of them may be committed.
    Lost(Vec<PartitionId>),
}

/// The committed offset of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// C, the next raw offset to process; `None` when the group has no committed offset (or it has expired).
    pub offset: Option<Offset>,
    /// The checkpoint metadata written with it.
    pub metadata: String,
}

/// The offsets at which a partition's log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Log start offset: the first offset in the log.
    pub low: Offset,
    /// Last stable offset: one past the last offset that a `read_committed` reader can see.
    pub stable: Offset,
    /// High watermark: one past the last offset written, committed or not.
    pub high: Offset,
}

/// A topic that transactions write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Written {
    /// The clean topic.
    Clean,
    /// The state topic.
    State,
    /// The dead-letter topic.
    DeadLetter,
    /// The duplicates topic.
    Duplicates,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "clean",
            Self::State => "state",
            Self::DeadLetter => "dead_letter",
            Self::Duplicates => "duplicates",
        })
    }
}

/// A partition that transactions write to. Each gets its own transaction marker when a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// The topic.
    pub topic: Written,
    /// The partition of that topic.
    pub partition: PartitionId,
}

impl LogId {
    /// A partition of the clean topic.
    #[must_use]
    pub fn clean(partition: PartitionId) -> Self {
        Self { topic: Written::Clean, partition }
    }

    /// A partition of the state topic.
    #[must_use]
    pub fn state(partition: PartitionId) -> Self {
        Self { topic: Written::State, partition }
    }

    /// Logs as text: the partitions of each topic as [`ranges`].
    #[must_use]
    pub fn listed(logs: &[Self]) -> String {
        let mut topics: BTreeMap<Written, Vec<PartitionId>> = BTreeMap::new();
        for log in logs {
            topics.entry(log.topic).or_default().push(log.partition);
        }
        let texts: Vec<String> =
            topics.into_iter().map(|(topic, partitions)| format!("{topic} {}", ranges(partitions))).collect();
        texts.join(", ")
    }

    /// The clean and the state partition of each of these raw partitions, in this order.
    pub fn pairs<'a>(partitions: impl IntoIterator<Item = &'a PartitionId>) -> Vec<Self> {
        partitions.into_iter().flat_map(|id| [Self::clean(*id), Self::state(*id)]).collect()
    }
}

impl Bounds {
    /// Whether the log has records at or after the start of an open transaction.
    #[must_use]
    pub fn has_open_records(&self) -> bool {
        self.stable < self.high
    }

    /// Whether the log contains the offset.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        (self.low..self.high).contains(&offset)
    }
}

/// The raw topic, consumed as a member of the group.
pub trait Source {
    /// A record borrowed from the client.
    type Record<'a>: Record
    where
        Self: 'a;

    /// Serves the group protocol and returns the next record, waiting at most `wait`. `Ok(None)` means that no record
    /// arrived in this time, or that a [`GroupEvent`] did.
    fn poll(&self, wait: Duration) -> Result<Option<Self::Record<'_>>, Failure>;
    /// Returns the group events since the last call, in order.
    fn events(&self) -> Vec<GroupEvent>;
    /// Accepts assigned partitions. Each starts at its offset, or stays paused where the offset is `None`.
    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure>;
    /// Releases partitions after a revocation or a loss.
    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// Seeks assigned partitions to new offsets and resumes them; records fetched before are discarded.
    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure>;
    /// Seeks one partition and compares leader epochs. `last` is the leader epoch of a record at or beyond `offset` -
    /// 1, where known. When the log no longer contains that record because it was truncated, [`Source::truncated`]
    /// reports so before any record is returned.
    fn seek_behind(
        &self,
        partition: PartitionId,
        offset: Offset,
        _last: Option<Epoch>,
    ) -> Result<(), Failure> {
        self.seek(&[(partition, offset)])
    }
    /// What the client found at the position of the last seek, if that position is outside of the log.
    fn truncated(&self, _partition: PartitionId) -> Option<Truncation> {
        None
    }
    /// Removes assigned partitions from the client and assigns them again, each at its offset and with the comparison
    /// of [`Source::seek_behind`]: for partitions that the client no longer fetches.
    fn reassign(&self, starts: &[(PartitionId, Offset, Option<Epoch>)]) -> Result<(), Failure> {
        starts.iter().try_for_each(|(partition, offset, last)| self.seek_behind(*partition, *offset, *last))
    }
    /// Stops returning records of these partitions until the next [`Source::seek`].
    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// Reads C of these partitions. Waits at most `wait` for pending transactional offsets to settle;
    /// [`Remedy::Retry`] means that they have not settled yet.
    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure>;
    /// Reads C without waiting for pending transactions: the last settled offset and metadata. Only for finding out
    /// who wrote last.
    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure>;
    /// The bounds of a raw partition's log.
    fn bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure>;
    /// The current topic id of the raw topic; `None` where the broker does not report it.
    fn topic_id(&self, _wait: Duration) -> Option<String> {
        None
    }
    /// The end of a raw partition as reported by the last fetch; sends no request.
    fn end(&self, partition: PartitionId) -> Option<Offset>;
    /// Whether this member may commit for exactly these partitions now: it has a real generation and member id, and
    /// its assignment is not lost (the broker does not check all of this, KAFKA.md 9.1).
    fn may_commit(&self, partitions: &[PartitionId]) -> bool;
    /// Adds the reason for a failed connection to the failure of any port, when that is what failed and this client
    /// has the reason.
    fn explained(&self, failed: Failure) -> Failure {
        failed
    }
    /// Rejoins the group with a new client, without an assignment.
    fn rejoin(&mut self) -> Result<(), Failure>;
    /// Leaves the group. The caller serves [`Source::events`] until all partitions are revoked.
    fn leave(&self);
}

/// One partition's part of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
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

/// Why a record is not forwarded but written to a side topic; becomes headers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for programs, for example `missing_id` or `rejected`.
    pub code: &'static str,
    /// One sentence for people.
    pub detail: String,
    /// The earlier record with the same id, in the same partition, when it is known.
    pub owner: Option<Offset>,
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

/// A record in a side topic, according to its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideRecord {
    /// The partition.
    pub log: LogId,
    /// Its offset there.
    pub offset: Offset,
    /// Transactional id of the producer that wrote it; `None` when another program did.
    pub writer: Option<String>,
    /// The raw record of which it is a copy; `None` when it is not a copy.
    pub raw: Option<Coordinates>,
}

/// Records of side partitions that one read returned, in order within each partition, and the offset at which the
/// next read of each partition continues.
pub type SideRecords = (Vec<SideRecord>, BTreeMap<LogId, Offset>);

/// The clean topic, the state topic and the transaction that spans them. One producer.
pub trait Sink<S: Source> {
    /// Initialises the producer: creates it when there is none, fences a predecessor with the same transactional id
    /// and settles its transaction. The caller repeats the call on [`Remedy::Retry`].
    fn prepare(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Ends the open transaction of a dead writer by briefly using its transactional id.
    fn fence(&mut self, writer: &str, wait: Duration) -> Result<(), Failure>;
    /// Aborts all open transactions of `writer` in these partitions and in the group's offsets, with one transaction
    /// of `writer` that touches them and is aborted. Its records are visible to no `read_committed` reader.
    fn purge(
        &mut self,
        writer: &str,
        logs: &[LogId],
        position: &Position,
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Appends copies of the records at these offsets of a side partition to the same partition, unchanged and
    /// outside of any transaction. Returns when all in-sync replicas have them.
    fn copy_aside(&mut self, log: LogId, offsets: &[Offset], wait: Duration) -> Result<(), Failure>;
    /// Destroys the producer. The only safe action after an unknown result.
    fn discard(&mut self);
    /// Begins a transaction.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Writes the record unchanged to the clean topic, same partition, same timestamp.
    fn forward(&mut self, record: &S::Record<'_>) -> Result<(), Failure>;
    /// Writes the original bytes to a side topic (or to the clean topic), with the reason and the coordinates as
    /// headers.
    fn divert(&mut self, side: Side, record: &S::Record<'_>, reason: &Reason) -> Result<(), Failure>;
    /// Waits until all records sent are acknowledged. An error contains the first rejected record.
    fn drain(&mut self, wait: Duration) -> Result<(), Failure>;
    /// One past the highest clean offset acknowledged in this transaction, for a partition.
    fn clean_end(&self, partition: PartitionId) -> Option<Offset>;
    /// Writes a block to the state topic, in the transaction.
    fn put_state(&mut self, partition: PartitionId, key: &str, block: &[u8]) -> Result<(), Failure>;
    /// One past the highest state offset acknowledged in this transaction, for a partition.
    fn state_end(&self, partition: PartitionId) -> Option<Offset>;
    /// The partitions of side topics written to in this transaction, each with one past the highest offset
    /// acknowledged.
    fn side_ends(&self) -> Vec<(LogId, Offset)> {
        Vec::new()
    }
    /// Adds the raw offsets to the transaction, with the group metadata of `source`.
    fn send_offsets(&mut self, source: &S, positions: &[Position], wait: Duration) -> Result<(), Failure>;
    /// Commits the transaction.
    fn commit(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Aborts the transaction.
    fn abort(&mut self, wait: Duration) -> Result<(), Failure>;
}

/// An item read from the state topic during a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateItem {
    /// One committed block.
    Block {
        /// Partition of the state topic, equal to the raw partition.
        partition: PartitionId,
        /// Offset in the state topic.
        offset: Offset,
        /// The record's key: its writer and its transaction.
        key: String,
        /// The encoded block.
        block: Vec<u8>,
    },
    /// All blocks committed so far have been read.
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
            Self::Block { partition, .. } | Self::End { partition, .. } | Self::Gone { partition } => {
                *partition
            }
        }
    }
}

/// Which records of a tail to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// Records that `read_committed` readers see.
    Committed,
    /// All records, including open and aborted ones.
    Everything,
}

/// The state topic, read with `read_committed`; and reads of the ends of all topics that transactions write to.
pub trait StateLog {
    /// Starts reading a partition, at `from` or at its earliest offset.
    fn open(&mut self, partition: PartitionId, from: Option<Offset>) -> Result<(), Failure>;
    /// The next items of all open partitions; returns after `wait` at the latest.
    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure>;
    /// Stops reading a partition.
    fn close(&mut self, partition: PartitionId) -> Result<(), Failure>;
    /// The bounds of these logs, in this order. Requests them from the leaders.
    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Bounds>, Failure>;
    /// The last stable offsets of these logs, in this order. Requests them from the leaders.
    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure>;
    /// The records of state partitions, each from an offset to its end, in order within each partition. Fails when
    /// the brokers do not respond for `wait`.
    fn tails(
        &self,
        from: &[(PartitionId, Offset)],
        what: Leftover,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure>;
    /// All partitions of the configured side topics.
    fn side_logs(&self, _wait: Duration) -> Result<Vec<LogId>, Failure> {
        Ok(Vec::new())
    }
    /// The records of side partitions, committed or not, each from an offset up to another. Returns after `wait` what
    /// was read until then; fails when the brokers do not respond for `wait`.
    fn side_records(
        &self,
        _from_to: &BTreeMap<LogId, (Offset, Offset)>,
        _wait: Duration,
    ) -> Result<SideRecords, Failure> {
        Ok(SideRecords::default())
    }
    /// Whether `read_committed` readers see the record at each of these offsets of the clean topic, in this order.
    fn visible(&self, at: &[(PartitionId, Offset)], wait: Duration) -> Result<Vec<bool>, Failure>;
}
