//! One raw partition of a worker: how far it is processed, and what the open transaction adds to that.

pub mod clock;
pub mod order;
pub mod partitions;
pub mod rejections;
pub mod rounds;
pub mod stall;

use std::fmt;
use std::time::Duration;

use tracing::Value;

use crate::dedupe::{
    Checkpoint, JournalId, Offset, PartitionId, SchemaId, Schemas, Section, StreamTime, TimeSource,
};
use crate::pipeline::partition::clock::Lateness;
use crate::pipeline::partition::order::Order;
use crate::pipeline::partition::rejections::Rejections;
use crate::pipeline::partition::stall::StallDetector;
use crate::ports::{Committed, Epoch};
use crate::schemas::SharedSchemas;

/// What the open transaction did to a partition.
#[derive(Debug, Clone, Default)]
pub struct Uncommitted {
    /// Number of records processed.
    pub records: usize,
    /// Whether any record was written, to the clean topic or to a side topic.
    pub wrote: bool,
    /// The entry has a section of the partition, although nothing may have been written.
    pub is_stated: bool,
    /// The offset and metadata of its commit, set when they are sent.
    pub sent: Option<(Offset, String)>,
}

/// The schema that a partition waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaWait {
    /// Its id.
    pub id: SchemaId,
    /// Why the last attempt to fetch it failed.
    pub why: Option<String>,
}

impl SchemaWait {
    /// The partition waits at the record with this offset, which is read again.
    pub(crate) fn begin(
        schemas: &SharedSchemas,
        id: SchemaId,
        partition: impl Value,
        offset: Offset,
    ) -> Self {
        let why = schemas.request(id);
        tracing::info!(
            partition,
            offset,
            schema = %id,
            "a record needs a schema that is not known yet; its partition waits, others continue"
        );
        Self { id, why }
    }

    /// Whether the schema is known now, so that the partition is read again from this offset on. If not, the schema is requested again.
    pub(crate) fn is_over(
        &mut self,
        schemas: &SharedSchemas,
        known: &Schemas,
        partition: impl Value,
        offset: Offset,
    ) -> bool {
        if !known.has(self.id) {
            self.why = schemas.request(self.id);
            return false;
        }
        tracing::info!(partition, offset, schema = %self.id, "schema known; the partition continues");
        true
    }
}

/// How often the request for a schema is repeated, which also shows why the last attempt failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// When those that wait look at the known schemas again: when there are others, and in an interval, because each repeats its request.
#[derive(Debug, Default)]
pub(crate) struct SchemaCheck {
    /// The version that was seen last.
    version: u64,
    /// Monotonic time of the last check.
    checked: Duration,
}

impl SchemaCheck {
    /// Whether they are to be looked at again now.
    pub(crate) fn is_due(&mut self, version: u64, now: Duration) -> bool {
        let is_due = version != self.version || now.saturating_sub(self.checked) >= CHECK_INTERVAL;
        if is_due {
            *self = Self { version, checked: now };
        }
        is_due
    }
}

/// As in `needs schema 17: GET http://registry/schemas/ids/17: 404 Not Found`.
impl fmt::Display for SchemaWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "needs schema {}", self.id)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// The offset that the group has of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum GroupOffset {
    /// It has not been read, and the position is not known.
    #[default]
    Unknown,
    /// Another one than that at which the partition continues, or none.
    Other,
    /// [`Partition::committed`].
    Committed,
}

/// A partition. Owned by one worker.
///
/// Large because it holds all that a checkpoint states about a partition, and what is known of the records that arrive.
#[derive(Debug, Default)]
pub struct Partition {
    /// Number of the raw partition, and of its clean partition.
    pub id: PartitionId,
    /// The journal that has its entries.
    pub journal: JournalId,
    /// Its records are processed: it was sought to `next`, and its journal runs.
    pub is_started: bool,
    /// What the group has of it.
    group_offset: GroupOffset,
    /// C as last read or committed.
    pub committed: Offset,
    /// The next raw offset expected; ahead of `committed` while a transaction is open.
    pub next: Offset,
    /// Its clock.
    pub time: StreamTime,
    /// What the open transaction did here; kept while its outcome is unknown.
    pub open: Option<Uncommitted>,
    /// The group was rewound and the owners beyond C were undone. The next transaction has to add a section even
    /// without identities; otherwise a later restore would revive them.
    pub rewound: bool,
    /// The start offset of this partition was chosen by this process only. It is committed although no record was
    /// read, so that the next owner starts at the same offset.
    pub uncommitted_position: bool,
    /// The leader epoch of the last record before `next`. Between that record and `next` are only markers and aborted records.
    pub epoch: Option<Epoch>,
    /// The same of C.
    pub committed_epoch: Option<Epoch>,
    /// Number of raw partitions when the group began, from the last checkpoint.
    pub first_raw_partitions: Option<u32>,
    /// Monotonic time at which its position was last stated in the journal, or it was located.
    pub stated: Duration,
    /// How far its clock is ahead of the worker's, ms.
    pub ahead_ms: i64,
    /// How far its clock was ahead of the wall clock at the last checkpoint, ms.
    pub ahead_of_wall_ms: i64,
    /// How far its clock is behind the others without unread records.
    pub lateness: Lateness,
    /// The records since the last seek, to distinguish a gap in the log from a record of an earlier position.
    pub order: Order,
    /// Whether its records have stopped arriving.
    pub stall: StallDetector,
    /// The end of its log, if the client returns no record at or beyond the next offset although there must be one.
    pub unread: Option<Offset>,
    /// Paused until the schema of its next record is known.
    pub schema: Option<SchemaWait>,
    /// The committed offset that the journal was found to exceed, if that was seen once; the second time it counts.
    pub behind_state: Option<Offset>,
    /// The records that the broker rejected.
    pub rejections: Rejections,
}

impl Partition {
    /// A newly assigned partition.
    pub fn assigned(id: PartitionId, journal: JournalId, source: TimeSource) -> Self {
        Self { id, journal, time: StreamTime::new(source), ..Self::default() }
    }

    /// Whether its records are processed when they arrive.
    pub fn is_open(&self) -> bool {
        self.is_started && self.schema.is_none()
    }

    /// The journal is complete, and the partition continues at `committed`. Sets what entries do not contain, from the checkpoint.
    /// `time_ms` is the stream time there, if no checkpoint has it.
    pub fn locate(
        &mut self,
        answer: &Committed,
        committed: Offset,
        checkpoint: Option<&Checkpoint>,
        time_ms: i64,
    ) {
        let has_it = answer.offset == Some(committed);
        self.group_offset = if has_it { GroupOffset::Committed } else { GroupOffset::Other };
        (self.committed, self.next, self.open) = (committed, committed, None);
        self.time.set(checkpoint.map_or(time_ms, |checkpoint| checkpoint.stream_time_ms));
        self.first_raw_partitions = checkpoint.and_then(|it| it.first_raw_partitions);
        self.ahead_of_wall_ms = checkpoint.map_or(0, |it| it.ahead_of_wall_ms);
        self.epoch = checkpoint.and_then(|it| it.epoch_before(committed));
        self.committed_epoch = self.epoch;
        self.lateness = Lateness::of(checkpoint.and_then(|it| it.late_ms), self.time.ms());
    }

    /// Whether its position is known.
    pub fn is_located(&self) -> bool {
        self.group_offset != GroupOffset::Unknown
    }

    /// Whether the group has an offset of it, which is `committed`.
    pub fn is_in_group(&self) -> bool {
        self.group_offset == GroupOffset::Committed
    }

    /// Processes records, after a seek to [`Self::position`].
    pub fn start(&mut self) {
        self.order = Order::with_gap(self.position().0..self.next);
        (self.stall, self.unread, self.schema) = (StallDetector::default(), None, None);
        self.is_started = true;
    }

    /// Where the client reads on, and the leader epoch of the record before that if it is known: behind the last record, also where markers and
    /// aborted records follow that. Their epochs are not known, and a comparison by an older one would take an election for a truncation.
    pub fn position(&self) -> (Offset, Option<Epoch>) {
        let epoch = if self.open.is_some() { self.epoch } else { self.committed_epoch };
        (epoch.map_or(self.next, |epoch| epoch.next.min(self.next)), epoch)
    }

    /// Drops the leader epoch of the committed offset unless it can still be compared. To be called without an open transaction.
    pub fn keep_epoch(&mut self, is_valid: impl FnOnce(&Epoch) -> bool) {
        self.committed_epoch = self.committed_epoch.filter(is_valid);
        self.epoch = self.committed_epoch;
    }

    /// Called when the open transaction has written a record of this partition.
    pub fn wrote(&mut self) {
        if let Some(open) = self.open.as_mut() {
            open.wrote = true;
        }
    }

    /// Whether the open transaction adds a section of this partition to the journal: when something was written, or owners are undone.
    /// Without identities it proves that the transaction was complete, also to a group that has lost its offset.
    pub fn adds_section(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.wrote || open.is_stated || self.rewound)
    }

    /// The section of the open transaction, before its clean records are acknowledged.
    pub fn section(&self) -> Section {
        Section {
            partition: self.id,
            first: self.committed,
            next: self.next,
            clean_end: None,
            time_first_ms: self.time.opened_ms(),
            time_last_ms: self.time.ms(),
            reset_kinds: Vec::new(),
        }
    }

    /// Applies the committed transaction.
    pub fn commit(&mut self) {
        self.lateness.save(self.late_ms());
        self.open = None;
        self.group_offset = GroupOffset::Committed;
        self.committed = self.next;
        self.committed_epoch = self.epoch;
        self.time.commit();
        self.rewound = false;
        self.uncommitted_position = false;
    }

    /// Undoes the aborted transaction.
    pub fn abort(&mut self) {
        self.open = None;
        self.next = self.committed;
        self.epoch = self.committed_epoch;
        self.time.undo();
    }

    /// Whether this is the committed offset of the partition, if the open transaction was not committed.
    pub fn is_at(&self, answer: &Committed) -> bool {
        answer.offset == self.is_in_group().then_some(self.committed)
    }

    /// Whether the open transaction was committed with exactly this offset and metadata. The offset alone does not prove that:
    /// another worker may have committed the same offset, and a commit that only forgets ids leaves the offset unchanged.
    pub fn was_committed_as(&self, answer: &Committed) -> bool {
        let sent = self.open.as_ref().and_then(|open| open.sent.as_ref());
        sent.is_some_and(|(next, text)| answer.offset == Some(*next) && answer.metadata == *text)
    }
}
