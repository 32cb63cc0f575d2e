//! One raw partition of a worker: its phase and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::checkpoint::{Checkpoint, Tail};
use super::loading::Loading;
use super::order::Order;
use super::rejected::Rejection;
use super::stalled::StallDetector;
use crate::dedupe::{Block, ForgetRecord, HashKind, KindId, Offset, PartitionId, Windows};
use crate::ports::{Epoch, Head};

/// The life cycle of a partition in a worker. Records are processed only in `Running`.
///
/// ```text
/// assigned ─→ Locating ─→ Loading ─→ Restoring ─→ Running ─→ (revoked)
///                 ↑  └───────┴─────────↑    └────↑ │
///                 └──── abort, unknown result ─────┘
/// ```
#[derive(Debug)]
pub enum Phase {
    /// Paused. The committed offset has to be read first.
    Locating {
        /// Monotonic time of the next attempt, after failures.
        not_before: Duration,
        /// Monotonic time since which a pending transaction blocks the read of C, and the settled offset before that
        /// transaction.
        blocked: Option<(Duration, Option<Offset>)>,
    },
    /// Paused. Blocks are being read from the local store.
    Loading(Box<Loading>),
    /// Paused. Blocks are being read from the state topic.
    Restoring(Box<Restoring>),
    /// Records are processed.
    Running,
}

/// A restore from the state topic in progress.
#[derive(Debug)]
pub struct Restoring {
    /// Monotonic time at which the restore started.
    pub since: Duration,
    /// Monotonic time of the last log message about its progress.
    pub last_logged: Duration,
    /// The committed offset that the state has to reach; `None` when the group has none.
    pub committed: Option<Offset>,
    /// State topic offset at which reading started.
    pub from: Offset,
    /// End of the log when reading started, for the reported progress.
    pub until: Offset,
    /// Last state topic offset read.
    pub at: Offset,
    /// First offset of the log when reading started.
    pub low: Offset,
    /// The last block read.
    pub last: Option<Tail>,
    /// Stream time before the first block read, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// One past the last raw offset covered by a block.
    pub covered: Option<Offset>,
    /// The raw offset up to which local state was committed; may lie beyond the last block.
    pub confirmed: Option<Offset>,
    /// Number of identities read.
    pub ids: u64,
    /// The first block of a named kind that reaches beyond the blocks of the unnamed kind: its state topic offset,
    /// and the highest raw offset that such blocks cover.
    pub ahead: Option<(Offset, Offset)>,
    /// Kinds for which the group has another identity rule than this process, and the operator accepted the change:
    /// their blocks are skipped.
    pub emptied: BTreeSet<KindId>,
    /// Number of identities skipped because their kind is no longer configured, by the kind's name.
    pub left_out: BTreeMap<String, u64>,
    /// The checkpoint metadata of the committed offset.
    pub checkpoint: Option<Checkpoint>,
}

/// What the open transaction did to a partition.
#[derive(Debug, Clone, Default)]
pub struct Open {
    /// Number of records processed.
    pub records: usize,
    /// Whether any record was written, to the clean topic or to a side topic.
    pub wrote: bool,
    /// The last block written for it; `None` before that.
    pub tail: Option<Tail>,
    /// The offset and metadata of its commit, set when they are sent.
    pub sent: Option<(Offset, String)>,
    /// The identities that it forgets.
    pub forgotten: Option<ForgetRecord>,
}

/// Open records of another transaction in a partition's topics.
#[derive(Debug, Clone, Copy)]
pub struct LeftOpen {
    /// Monotonic time since which they are seen at the same offsets.
    pub since: Duration,
    /// Their first offsets in the clean and in the state partition.
    pub place: (Offset, Offset),
    /// Number of failed attempts to end the transaction for its writer.
    pub attempts: u32,
}

/// A partition and all its state. Owned by one worker.
#[derive(Debug)]
pub struct Partition {
    /// Partition number.
    pub id: PartitionId,
    /// Its phase.
    pub phase: Phase,
    /// Its windows; `None` until loaded.
    pub windows: Option<Windows>,
    /// C as last read or committed.
    pub committed: Offset,
    /// The next raw offset expected; ahead of `committed` while a transaction is open.
    pub next: Offset,
    /// State topic offset at or before everything newer than `committed`.
    pub state_next: Offset,
    /// The last committed block.
    pub tail: Option<Tail>,
    /// Number of times identities were forgotten in this partition, up to C.
    pub forgets: u64,
    /// What the open transaction did here; kept while its outcome is unknown.
    pub open: Option<Open>,
    /// Most records of one transaction, while a rejected record is being isolated.
    pub limit: Option<usize>,
    /// The group was rewound and the state beyond C was removed. The next transaction has to write a block even
    /// without identities; otherwise a later restore would revive the removed owners.
    pub rewound: bool,
    /// Set once the partition was checked since the producer was created: no transaction is open in its topics, and its logs
    /// agree. The first offset of its state log at that time.
    pub agreed: Option<Offset>,
    /// Number of consecutive restores that ended before the last committed block.
    pub early_ends: u32,
    /// The open records of another transaction in the partition's topics, if any.
    pub left_open: Option<LeftOpen>,
    /// The leader epoch of the last record before `next`.
    pub epoch: Option<Epoch>,
    /// The leader epoch of the last record before C.
    pub committed_epoch: Option<Epoch>,
    /// The records since the last seek, to distinguish a gap in the log from a record of an earlier position.
    pub order: Order,
    /// Number of raw partitions when the group began, from the last checkpoint.
    pub began: Option<u32>,
    /// The start offset of this partition was chosen by this process only. It is committed although no record was
    /// read, so that the next owner starts at the same offset.
    pub uncommitted_position: bool,
    /// The committed offset that the state topic was found to exceed, if that was seen once; the second time it
    /// counts.
    pub behind_state: Option<Offset>,
    /// The lowest of the records rejected last. The records before it are sent first, without it; then it is sent
    /// alone.
    pub suspect: Option<Offset>,
    /// The rejected record, once it is isolated, and the broker's error message.
    pub rejected: Option<(Offset, String)>,
    /// The record that was rejected when sent alone, and is being retried.
    pub rejection: Option<Rejection>,
    /// Kinds whose windows start empty with the next commit, because a change of their rule was accepted.
    pub reset_kinds: BTreeSet<KindId>,
    /// How far the partition's clock is ahead of the worker's, ms.
    pub ahead_ms: i64,
    /// How far the partition's clock was ahead of the wall clock at the last checkpoint, ms.
    pub ahead_of_wall_ms: i64,
    /// Monotonic time at which the retries of a rejected record were last exhausted.
    pub retries_exhausted_at: Option<Duration>,
    /// Tracks whether the partition's records have stopped arriving.
    pub silence: StallDetector,
}

impl Partition {
    /// A newly assigned partition.
    #[must_use]
    pub fn assigned(id: PartitionId, now: Duration) -> Self {
        Self {
            id,
            phase: Phase::Locating { not_before: now, blocked: None },
            windows: None,
            committed: 0,
            next: 0,
            state_next: 0,
            tail: None,
            forgets: 0,
            open: None,
            limit: None,
            rewound: false,
            agreed: None,
            early_ends: 0,
            left_open: None,
            epoch: None,
            committed_epoch: None,
            order: Order::default(),
            began: None,
            uncommitted_position: false,
            behind_state: None,
            suspect: None,
            rejected: None,
            rejection: None,
            reset_kinds: BTreeSet::new(),
            ahead_ms: 0,
            ahead_of_wall_ms: 0,
            retries_exhausted_at: None,
            silence: StallDetector::default(),
        }
    }

    /// Whether records may be processed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Returns to `Locating`, where C is read again, not before `not_before`. A half-loaded state is dropped: it must
    /// not be taken for a complete one.
    pub fn relocate(&mut self, not_before: Duration) {
        if matches!(self.phase, Phase::Loading(_)) {
            self.unload();
        }
        self.phase = Phase::Locating { not_before, blocked: None };
    }

    /// The blocks of the open transaction, each with at most `most` identities: everything new in `committed..next`.
    ///
    /// Empty when nothing was written. A block without identities is written when only records without an id were
    /// forwarded, or records went to a side topic only. It later proves that the transaction was complete, also to a
    /// group that has lost its offset.
    #[must_use]
    pub fn blocks(&mut self, hash: HashKind, most: usize) -> Vec<Block> {
        let (Some(open), Some(windows)) = (&self.open, &mut self.windows) else { return Vec::new() };
        if !open.wrote && !self.rewound && !windows.has_pending() {
            return Vec::new();
        }
        windows.blocks(hash, self.id, &(self.committed..self.next), most)
    }

    /// Applies the committed transaction. Returns for each kind the first offset whose block is still needed.
    pub fn commit(&mut self, state_end: Option<Offset>) -> Vec<(KindId, Offset)> {
        let open = self.open.take().unwrap_or_default();
        self.committed = self.next;
        self.committed_epoch = self.epoch;
        self.rewound = false;
        self.reset_kinds.clear();
        self.uncommitted_position = false;
        self.state_next = state_end.map_or(self.state_next, |end| end.max(self.state_next));
        self.tail = open.tail.or(self.tail);
        self.limit = self.limit.and_then(|limit| (limit < 1 << 20).then_some(limit * 2));
        if let Some(forgotten) = &open.forgotten {
            self.forget(forgotten);
        }
        self.windows.as_mut().map(|windows| windows.commit(self.committed)).unwrap_or_default()
    }

    /// Progress of a restore from disk or from the state topic, in 0..=1; `None` when none is in progress.
    #[must_use]
    pub fn restored_share(&self) -> Option<f64> {
        match &self.phase {
            Phase::Restoring(restoring) => Some(restoring.share()),
            Phase::Loading(loading) => Some(loading.share()),
            Phase::Locating { .. } | Phase::Running => None,
        }
    }

    /// The state is complete up to C. Sets what blocks do not contain, from the checkpoint.
    pub fn take_over(&mut self, checkpoint: &Checkpoint) {
        // The first forget records may have been deleted from the topic, together with the blocks that they refer to,
        // so their number is taken from the checkpoint.
        self.forgets = self.forgets.max(checkpoint.forgets);
        self.began = checkpoint.began.or(self.began);
        self.ahead_of_wall_ms = checkpoint.ahead_of_wall_ms;
        self.epoch = checkpoint.epoch;
        self.committed_epoch = checkpoint.epoch;
        if let Some(windows) = self.windows.as_mut() {
            windows.set_stream_time(checkpoint.stream_time_ms);
            windows.inherit(&checkpoint.windows);
        }
    }

    /// Forgets identities, after the transaction that forgets them is committed.
    pub fn forget(&mut self, forgotten: &ForgetRecord) {
        self.forgets = self.forgets.max(forgotten.number);
        if let Some(windows) = self.windows.as_mut() {
            forgotten.owners.iter().for_each(|(owner, identity)| windows.forget(*owner, *identity));
        }
    }

    /// The head that the local store may record for this partition.
    #[must_use]
    pub fn head(&self) -> Head {
        let tail = self.tail.map(|tail| (tail.crc, tail.next));
        Head {
            confirmed: self.committed,
            state_next: self.state_next,
            // The open transaction may be aborted, and another process with another clock may commit instead.
            stream_time_ms: self.windows.as_ref().map_or(0, Windows::committed_time_ms),
            tail,
            confirmed_tail: tail,
            forgets: self.forgets,
            incomplete_ms: self.windows.as_ref().and_then(Windows::incomplete_before_ms).unwrap_or(0),
        }
    }

    /// Undoes the aborted transaction.
    pub fn abort(&mut self) {
        self.open = None;
        self.next = self.committed;
        self.epoch = self.committed_epoch;
        if let Some(windows) = self.windows.as_mut() {
            windows.abort();
        }
    }

    /// Drops the state in memory; it is loaded again in a later iteration.
    pub fn unload(&mut self) {
        self.open = None;
        self.windows = None;
    }

    /// Sets empty windows, to be filled by a load.
    pub fn fresh(&mut self, windows: Windows) -> &mut Windows {
        self.windows.insert(windows)
    }
}
