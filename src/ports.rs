//! The few small traits between thinking and I/O.
//!
//! The pipeline knows Kafka and the local store only through these, so the same worker runs on a
//! real broker, on librdkafka's embedded one, and on a simulated broker and store in memory, from a
//! seed. Every effect of a worker is a call of one of these methods, which is also where a test can
//! crash it.

use std::time::Duration;

use crate::dedupe::identity::Fields;
use crate::dedupe::{Block, BlockView, Coordinates, Identity, Offset, PartitionId};

/// A raw record, borrowed from the client while a step looks at it.
pub trait Record: Fields {
    /// Where it stands in the raw topic.
    fn coordinates(&self) -> Coordinates;
    /// The record's timestamp, ms since the epoch; `None` when the record has none.
    fn timestamp_ms(&self) -> Option<i64>;
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
    /// Takes assigned partitions away from the client and assigns them again, each at its offset: for those that it has
    /// lost sight of.
    fn reassign(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.seek(starts)
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
    /// Checkpoint metadata, below 640 bytes.
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

/// The clean topic, the state topic and the transaction around them. One producer.
pub trait Sink<S: Source> {
    /// Makes the producer ready: creates it when there is none, fences a predecessor with the same
    /// transactional id and settles its transaction. Call again on [`Remedy::Retry`].
    fn prepare(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Ends the open transaction of a dead writer by taking its transactional id over for a moment.
    fn fence(&mut self, writer: &str, wait: Duration) -> Result<(), Failure>;
    /// Ends what a broker left without its marker in one partition, as aborted: one transaction of
    /// `writer` over the clean and the state partition, where `(clean, state)` says so, and the
    /// group's offsets, aborted.
    fn purge(
        &mut self,
        writer: &str,
        partition: PartitionId,
        parts: (bool, bool),
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Ends what a broker left without its marker in the state partition and the group's offsets, as
    /// committed: one transaction of `writer` with an empty block and the offset, committed.
    fn seal(
        &mut self,
        writer: &str,
        key: &str,
        block: &[u8],
        position: &Position,
        wait: Duration,
    ) -> Result<(), Failure>;
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
    /// One past the highest state offset acknowledged for a partition since the producer exists.
    fn state_end(&self, partition: PartitionId) -> Option<Offset>;
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
    /// The ends of a state partition's log.
    fn bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure>;
    /// The ends of a clean partition's log.
    fn clean_bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure>;
    /// The records of a state partition from `from` to its end.
    fn tail(
        &self,
        partition: PartitionId,
        from: Offset,
        what: Leftover,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure>;
    /// Whether `read_committed` sees the record at this offset of a clean partition.
    fn clean_shows(&self, partition: PartitionId, offset: Offset, wait: Duration) -> Result<bool, Failure>;
}

/// How much of a partition's local state is real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Raw offset up to which the local blocks are known to be committed. Owners at or beyond it
    /// are hearsay.
    pub confirmed: Offset,
    /// Where reading the state topic continues to get what lies beyond `confirmed`.
    pub state_next: Offset,
    /// Stream time at `confirmed`, ms since the epoch.
    pub stream_time_ms: i64,
    /// The last block appended: its CRC32C, and the raw offset after the last it covers.
    /// The only block that may lie beyond `confirmed`; the committed offset's metadata names the
    /// block that was committed last, so that the two can be compared.
    pub tail: Option<(u32, Offset)>,
    /// How many times identities were taken back in the partition, as far as this state knows.
    pub forgets: u64,
}

/// The local block store. A cache: every method may lose the state, none may invent any.
pub trait Store {
    /// Takes the partition: from now on this handle alone may change it. False when another one may
    /// have changed it since this one last took it. A store with one handle is always held.
    fn hold(&mut self, _partition: PartitionId) -> bool {
        true
    }
    /// What is known of the partition; `None` when nothing is stored.
    fn head(&self, partition: PartitionId) -> Result<Option<Head>, StoreError>;
    /// Adds a block at the end and sets the head, atomically.
    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError>;
    /// Sets the head alone.
    fn set_head(&mut self, partition: PartitionId, head: Head) -> Result<(), StoreError>;
    /// Visits the blocks by rising first offset.
    fn scan(
        &self,
        partition: PartitionId,
        visit: &mut dyn FnMut(&BlockView<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError>;
    /// Removes every owner at or beyond `from` and returns them.
    fn truncate(
        &mut self,
        partition: PartitionId,
        from: Offset,
    ) -> Result<Vec<(Offset, Identity)>, StoreError>;
    /// Removes these owners from their blocks and sets the head; owners that are not there are gone already.
    fn forget(&mut self, partition: PartitionId, owners: &[Offset], head: Head) -> Result<(), StoreError>;
    /// Removes blocks whose owners are all below `first`.
    fn expire(&mut self, partition: PartitionId, first: Offset) -> Result<(), StoreError>;
    /// The identity owned by the record at `owner`, if it owns one.
    fn identity_of(&self, owner: Coordinates) -> Result<Option<Identity>, StoreError>;
    /// Whether the record at `owner` owns this identity; `None` when it owns none.
    fn owns(&self, owner: Coordinates, identity: Identity) -> Result<Option<bool>, StoreError> {
        Ok(self.identity_of(owner)?.map(|known| known == identity))
    }
    /// Forgets the partition.
    fn clear(&mut self, partition: PartitionId) -> Result<(), StoreError>;
    /// Bytes that everything stored takes up on disk; `None` where that is not known.
    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }
    /// Makes what was written durable against power loss.
    fn sync(&mut self) -> Result<(), StoreError>;
}

/// The local store failed. The state topic still has everything; the directory must be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Stored bytes are damaged.
    #[error("local state is damaged: {0}")]
    Corrupt(String),
    /// The disk refused.
    #[error("local state cannot be written or read: {0}")]
    Io(String),
    /// The partition is in the hands of another worker of this process.
    #[error("the local state of partition {0} is now with another worker of this process")]
    Taken(PartitionId),
}

impl StoreError {
    /// What came of a call, `None` when the partition was taken.
    pub fn unless_taken<T>(result: Result<T, Self>) -> Result<Option<T>, Self> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Self::Taken(_)) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// What to do about a failed Kafka call: errors are sorted by remedy, not by origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The same call again, within a time limit.
    Retry,
    /// Abort the transaction, rewind to C, go on.
    Abort,
    /// The outcome is unknown or the producer is dead: destroy it, make a new one, read C again.
    Renew,
    /// The member was replaced and its client is dead: join anew once, exit when it happens again soon.
    Rejoin,
    /// Another producer took over our transactional id (or the transaction timed out, which looks
    /// the same): renew once, exit when it happens again soon.
    Fenced,
    /// Only an operator can mend this: rights, configuration, a deleted topic.
    Stop,
}

/// Records that the broker refused, for finding the poison among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Raw partition of the refused records.
    pub partition: PartitionId,
    /// Lowest raw offset refused.
    pub first: Offset,
    /// Highest raw offset refused.
    pub last: Offset,
}

/// A failed Kafka call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// What to do.
    pub remedy: Remedy,
    /// What happened, to what, and what to do, for people.
    pub what: String,
    /// Set when the broker refused particular records as such (too large, invalid).
    pub refused: Option<Refused>,
}

impl Failure {
    /// The same failure with another remedy, where one of `lesser` would not do.
    #[must_use]
    pub fn escalated(self, lesser: &[Remedy], remedy: Remedy) -> Self {
        if lesser.contains(&self.remedy) { Self { remedy, ..self } } else { self }
    }
}
