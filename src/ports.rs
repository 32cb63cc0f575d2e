//! The few small traits between thinking and I/O.
//!
//! The pipeline knows Kafka and the local store only through these, so the same worker runs on a
//! real broker, on librdkafka's embedded one, and on a simulated broker and store in memory, from a
//! seed. Every effect of a worker is a call of one of these methods, which is also where a test can
//! crash it.

mod epoch;
mod failure;
mod store;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dedupe::identity::Fields;
use crate::dedupe::{Coordinates, Offset, PartitionId};
pub use epoch::Epoch;
pub use failure::{Failure, Refused, Remedy};
pub use store::{Head, Store, StoreError, Visit};

/// A raw record, borrowed from the client while a step looks at it.
pub trait Record: Fields {
    /// Where it stands in the raw topic.
    fn coordinates(&self) -> Coordinates;
    /// The record's timestamp, ms since the epoch; `None` when the record has none.
    fn timestamp_ms(&self) -> Option<i64>;
    /// The epoch of the leader that took it; `None` where the log does not say.
    fn leader_epoch(&self) -> Option<i32> {
        None
    }
    /// Size of key and value, in bytes.
    fn size(&self) -> usize;
    /// Whether it has a header of this name, whatever its value.
    fn has_header(&self, name: &str) -> bool;
}

/// What the group told this member; only queued by the client's callback, acted upon by the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEvent {
    /// These partitions are now ours, once [`Source::assign`] says so.
    Assigned(Vec<PartitionId>),
    /// These partitions must be given back with [`Source::unassign`].
    Revoked(Vec<PartitionId>),
    /// These partitions are already somebody else's: nothing of them may be committed.
    Lost(Vec<PartitionId>),
}

/// What the group knows of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// C, the next raw offset to process; `None` when the group has none (or it has expired).
    pub offset: Option<Offset>,
    /// The checkpoint metadata written with it.
    pub metadata: String,
}

/// The ends of a partition's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// First offset still in the log.
    pub low: Offset,
    /// One past the last offset that a `read_committed` reader can see.
    pub stable: Offset,
    /// One past the last offset written, committed or not.
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
    /// The topic for duplicates.
    Duplicates,
}

/// A partition that transactions write to. Each gets a marker of its own when a transaction ends.
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

    /// The partitions of the clean and the state topic that belong to each of these raw partitions, in this order.
    pub fn pairs<'a>(partitions: impl IntoIterator<Item = &'a PartitionId>) -> Vec<Self> {
        partitions.into_iter().flat_map(|id| [Self::clean(*id), Self::state(*id)]).collect()
    }
}

impl Bounds {
    /// Whether records lie behind an open transaction.
    #[must_use]
    pub fn has_open_records(&self) -> bool {
        self.stable < self.high
    }

    /// Whether the offset lies between the log's ends.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        (self.low..self.high).contains(&offset)
    }
}

/// The raw topic, read as a member of the group.
pub trait Source {
    /// A record borrowed from the client.
    type Record<'a>: Record
    where
        Self: 'a;

    /// Serves the group protocol and returns the next record, waiting at most `wait`.
    /// `Ok(None)` means none came, or a [`GroupEvent`] did.
    fn poll(&self, wait: Duration) -> Result<Option<Self::Record<'_>>, Failure>;
    /// Takes the group events that came since the last call, in order.
    fn events(&self) -> Vec<GroupEvent>;
    /// Accepts assigned partitions. Each starts at its offset, or stays paused where that is `None`.
    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure>;
    /// Gives partitions back after a revocation or a loss.
    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// Moves assigned partitions to new offsets and lets them run; records fetched before are discarded.
    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure>;
    /// The same for one partition, of which a record at or behind `offset` - 1 was taken under the leader epoch `last`, where
    /// that is known. When the log is no longer the one that holds that record, [`Source::truncated`] says so before any
    /// record comes.
    fn seek_behind(
        &self,
        partition: PartitionId,
        offset: Offset,
        _last: Option<Epoch>,
    ) -> Result<(), Failure> {
        self.seek(&[(partition, offset)])
    }
    /// Where the log stops being the one that was read, if since the last seek it was found to be another.
    fn truncated(&self, _partition: PartitionId) -> Option<Offset> {
        None
    }
    /// Takes assigned partitions away from the client and assigns them again, each at its offset and compared as by
    /// [`Source::seek_behind`]: for those that it has lost sight of.
    fn reassign(&self, starts: &[(PartitionId, Offset, Option<Epoch>)]) -> Result<(), Failure> {
        starts.iter().try_for_each(|(partition, offset, last)| self.seek_behind(*partition, *offset, *last))
    }
    /// Stops delivering records of these partitions until the next [`Source::seek`].
    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure>;
    /// C of these partitions. Waits for pending transactional offsets to settle, at most `wait`;
    /// a remedy of [`Remedy::Retry`] says that they have not.
    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure>;
    /// C as an unstable read gives it: the last settled offset and metadata, even while a
    /// transaction is pending. Only to learn who wrote last.
    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure>;
    /// The ends of a raw partition's log.
    fn bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure>;
    /// The raw topic's id now; `None` where the broker does not tell.
    fn topic_id(&self, _wait: Duration) -> Option<String> {
        None
    }
    /// The end of a raw partition as the last fetch told it; asks nobody.
    fn end(&self, partition: PartitionId) -> Option<Offset>;
    /// Whether this member may commit for exactly these partitions now: a real generation and
    /// member id, assignment not lost (the broker does not check all of this, KAFKA.md 9.1).
    fn may_commit(&self, partitions: &[PartitionId]) -> bool;
    /// The failure of any port, with the reason why there is no connection where that is what failed and this client
    /// knows it.
    fn explained(&self, failed: Failure) -> Failure {
        failed
    }
    /// Joins the group anew, as another client; nothing is assigned to it yet.
    fn rejoin(&mut self) -> Result<(), Failure>;
    /// Leaves the group. Serve [`Source::events`] until it has revoked everything.
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

/// A topic for records that do not go to the clean one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// For records that can be neither forwarded nor dropped.
    DeadLetter,
    /// For records that were dropped because their id was seen before.
    Duplicates,
    /// The clean topic after all, same partition, marked: what shadow mode does with a record that would
    /// have been left out.
    Clean,
}

/// Why a record is not forwarded but handed to a side topic; becomes headers there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// One word for programs, as in `missing_id` or `refused`.
    pub code: &'static str,
    /// One sentence for people.
    pub detail: String,
    /// The record that had the id first, in the same partition, when it is known.
    pub owner: Option<Offset>,
    /// When that arrived, stream time in ms since the epoch.
    pub owner_ms: Option<i64>,
    /// Beginning of the slice of the window whose filter has the id, stream time in ms since the epoch.
    pub slice_ms: Option<i64>,
}

impl Reason {
    /// A reason that has nothing to do with another record.
    #[must_use]
    pub fn new(code: &'static str, detail: String) -> Self {
        Self { code, detail, owner: None, owner_ms: None, slice_ms: None }
    }
}

/// A record in a side topic, as its headers describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideRecord {
    /// The partition.
    pub log: LogId,
    /// Its offset there.
    pub offset: Offset,
    /// Transactional id of the producer that wrote it; `None` when another program did.
    pub writer: Option<String>,
    /// The raw record that it is a copy of; `None` when it is none.
    pub raw: Option<Coordinates>,
}

/// Records of side partitions that one look found, those of one partition in their order, and the offset at which the next
/// look at each partition continues.
pub type SideRecords = (Vec<SideRecord>, BTreeMap<LogId, Offset>);

/// The clean topic, the state topic and the transaction around them. One producer.
pub trait Sink<S: Source> {
    /// Makes the producer ready: creates it when there is none, fences a predecessor with the same
    /// transactional id and settles its transaction. Call again on [`Remedy::Retry`].
    fn prepare(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Ends the open transaction of a dead writer by taking its transactional id over for a moment.
    fn fence(&mut self, writer: &str, wait: Duration) -> Result<(), Failure>;
    /// Ends as aborted whatever `writer` left open in these partitions and in the group's offsets: one
    /// transaction of `writer` that touches them, aborted. Its records are visible to no `read_committed` reader.
    fn purge(
        &mut self,
        writer: &str,
        logs: &[LogId],
        position: &Position,
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Writes the records at these offsets of a side partition to its end once more, unchanged and outside of any
    /// transaction. Returns when all replicas in sync have them.
    fn copy_aside(&mut self, log: LogId, offsets: &[Offset], wait: Duration) -> Result<(), Failure>;
    /// Destroys the producer. The only safe thing after an indefinite result.
    fn discard(&mut self);
    /// Opens a transaction.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Writes the record unchanged to the clean topic, same partition, same timestamp.
    fn forward(&mut self, record: &S::Record<'_>) -> Result<(), Failure>;
    /// Writes the original bytes to a side topic (or to the clean one), with the reason and coordinates as headers.
    fn divert(&mut self, side: Side, record: &S::Record<'_>, reason: &Reason) -> Result<(), Failure>;
    /// Waits until everything sent is acknowledged. An error names the first record refused.
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
    /// Puts the raw offsets into the transaction, guarded by the membership of `source`.
    fn send_offsets(&mut self, source: &S, positions: &[Position], wait: Duration) -> Result<(), Failure>;
    /// Commits the transaction.
    fn commit(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Aborts the transaction.
    fn abort(&mut self, wait: Duration) -> Result<(), Failure>;
}

/// What comes out of the state topic while it is read for a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateItem {
    /// One committed block.
    Block {
        /// Partition of the state topic, equal to the raw partition.
        partition: PartitionId,
        /// Offset in the state topic.
        offset: Offset,
        /// The record's key: who wrote it, in which transaction.
        key: String,
        /// The encoded block.
        block: Vec<u8>,
    },
    /// Everything committed so far has been read; `next` is where a later reading continues.
    End {
        /// Partition of the state topic.
        partition: PartitionId,
        /// Offset in the state topic where a later reading continues.
        next: Offset,
    },
    /// What was to be read next is not in the log: deleted by retention, or truncated. Nothing more comes of the
    /// partition until it is opened again.
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

/// What of a tail is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// What `read_committed` sees.
    Committed,
    /// Also what is open or aborted.
    Everything,
}

/// The state topic, read committed; and a look at the tails of state and clean topic.
pub trait StateLog {
    /// Begins to read a partition, at `from` or at its start.
    fn open(&mut self, partition: PartitionId, from: Option<Offset>) -> Result<(), Failure>;
    /// The next items of all open partitions; returns after `wait` at the latest.
    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure>;
    /// Ends the reading of a partition.
    fn close(&mut self, partition: PartitionId) -> Result<(), Failure>;
    /// The ends of these logs, in this order. Asks the leaders.
    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Bounds>, Failure>;
    /// One past the last offset of these logs that `read_committed` sees, in this order. Asks the leaders.
    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure>;
    /// The records of state partitions, each from an offset to its end; those of one partition in their order. Fails
    /// when the brokers do not answer for `wait`.
    fn tails(
        &self,
        from: &[(PartitionId, Offset)],
        what: Leftover,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure>;
    /// All partitions of the side topics that are configured.
    fn side_logs(&self, _wait: Duration) -> Result<Vec<LogId>, Failure> {
        Ok(Vec::new())
    }
    /// The records of side partitions, committed or not, each from an offset up to another. Returns after `wait` what there
    /// was until then; fails when the brokers do not answer for so long.
    fn side_records(
        &self,
        _from_to: &BTreeMap<LogId, (Offset, Offset)>,
        _wait: Duration,
    ) -> Result<SideRecords, Failure> {
        Ok(SideRecords::default())
    }
    /// Whether `read_committed` readers see the record at each of these offsets of the clean topic, in this order.
    fn shown(&self, at: &[(PartitionId, Offset)], wait: Duration) -> Result<Vec<bool>, Failure>;
}
