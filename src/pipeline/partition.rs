//! One raw partition in this worker's care: where it is in its life, and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::checkpoint::{Checkpoint, Tail};
use super::loading::Loading;
use super::order::Order;
use super::poison::Refusal;
use super::stalled::Silence;
use crate::dedupe::{Block, Forgotten, HashKind, KindId, Offset, PartitionId, Windows};
use crate::ports::{Epoch, Head};

/// The life of a partition in a worker. Records are processed only while it runs.
///
/// ```text
/// assigned ─→ Locating ─→ Loading ─→ Restoring ─→ Running ─→ (revoked)
///                 ↑  └───────┴─────────↑    └────↑ │
///                 └──── abort, unknown result ─────┘
/// ```
#[derive(Debug)]
pub enum Phase {
    /// Paused. The committed offset has to be read before anything else.
    Locating {
        /// Monotonic time before which nothing is tried, after failures.
        not_before: Duration,
        /// Monotonic time since which a pending transaction holds C back, and the settled offset
        /// before it.
        blocked: Option<(Duration, Option<Offset>)>,
    },
    /// Paused. Blocks are being read from the local store.
    Loading(Box<Loading>),
    /// Paused. Blocks are being read from the state topic.
    Restoring(Box<Restoring>),
    /// Records flow.
    Running,
}

/// A restore from the state topic under way.
#[derive(Debug)]
pub struct Restoring {
    /// Monotonic time of its start.
    pub since: Duration,
    /// Monotonic time of the last line about it in the log.
    pub told: Duration,
    /// The committed offset that the state has to reach, `None` when the group has none.
    pub committed: Option<Offset>,
    /// Where the reading began, state topic offset.
    pub from: Offset,
    /// Where the log ended when the reading began, for the progress shown.
    pub until: Offset,
    /// Last state topic offset read.
    pub at: Offset,
    /// First offset that the log held when the reading began.
    pub low: Offset,
    /// The last block read.
    pub last: Option<Tail>,
    /// Stream time before the first block read, epoch milliseconds.
    pub first_ms: Option<i64>,
    /// One past the last raw offset covered by a block.
    pub covered: Option<Offset>,
    /// The raw offset up to which local state was committed, perhaps beyond the last block.
    pub confirmed: Option<Offset>,
    /// Identities read.
    pub ids: u64,
    /// The first block of a named kind that reaches beyond the unnamed kind's: its state topic offset, and the highest
    /// raw offset that such blocks cover.
    pub ahead: Option<(Offset, Offset)>,
    /// Kinds that the group has by another rule than ours, which was accepted: nothing of them is taken in.
    pub emptied: BTreeSet<KindId>,
    /// Identities left out because there is no such kind any more, by the kind's name.
    pub left_out: BTreeMap<String, u64>,
    /// What stood beside the committed offset.
    pub checkpoint: Option<Checkpoint>,
}

/// What the open transaction did to a partition.
#[derive(Debug, Clone, Default)]
pub struct Open {
    /// Records processed.
    pub records: usize,
    /// Whether any was written, to the clean topic or to a side topic.
    pub wrote: bool,
    /// The block written for it, once there is one.
    pub tail: Option<Tail>,
    /// The offset and metadata that its commit would leave behind, once they were sent.
    pub sent: Option<(Offset, String)>,
    /// The identities that it takes back.
    pub forgotten: Option<Forgotten>,
}

/// Records of another transaction that are open in a partition's topics.
#[derive(Debug, Clone, Copy)]
pub struct LeftOpen {
    /// Monotonic time since which they are seen at the same place.
    pub since: Duration,
    /// Where they begin in the clean and in the state partition.
    pub place: (Offset, Offset),
    /// How many times it was tried in vain to end them for others.
    pub attempts: u32,
}

/// A partition and everything that belongs to it. Owned by one worker.
#[derive(Debug)]
pub struct Partition {
    /// Its number.
    pub id: PartitionId,
    /// Where it is in its life.
    pub phase: Phase,
    /// What it remembers; `None` until loaded.
    pub windows: Option<Windows>,
    /// C as last read or committed.
    pub committed: Offset,
    /// The next raw offset expected; ahead of `committed` while a transaction is open.
    pub next: Offset,
    /// State topic offset that lies at or before everything newer than `committed`: behind the last marker, where that is known.
    pub state_next: Offset,
    /// The last committed block.
    pub tail: Option<Tail>,
    /// How many times identities were taken back here, up to C.
    pub forgets: u64,
    /// What the open transaction did here; kept while its outcome is unknown.
    pub open: Option<Open>,
    /// Most records of one transaction, while a record that the broker refuses is being looked for.
    pub limit: Option<usize>,
    /// The group was rewound and the state forgot what lay beyond C: the next transaction has to write
    /// a block even without identities, or a later restore would revive the forgotten owners.
    pub rewound: bool,
    /// Since the producer was made, nothing is left open in the partition's topics, and its logs agree.
    pub untorn: bool,
    /// Restores in a row that ended before the last committed block.
    pub early_ends: u32,
    /// What is open in the partition's topics, when something is.
    pub left_open: Option<LeftOpen>,
    /// The leader epoch of the last record before `next`.
    pub epoch: Option<Epoch>,
    /// The leader epoch of the last record before C.
    pub committed_epoch: Option<Epoch>,
    /// The committed offset, beyond the end of the log, that was compared by leader epochs to find where the log was cut.
    pub compared: Option<Offset>,
    /// What came since the last seek, to tell a gap of the log from a record that does not belong here.
    pub order: Order,
    /// How many partitions the raw topic had when the group began, as the last checkpoint says.
    pub began: Option<u32>,
    /// Nobody else could know where this partition begins: its position is committed though no record came.
    pub unsettled: bool,
    /// The committed offset beyond which the state topic was found, when that was seen once.
    pub behind_state: Option<Offset>,
    /// The lowest record among those refused last: it is sent alone next, and what lies before it without it.
    pub suspect: Option<Offset>,
    /// The record that the broker refuses, once found, and its words.
    pub poison: Option<(Offset, String)>,
    /// The record that was refused alone and is tried again.
    pub refusal: Option<Refusal>,
    /// Kinds whose windows begin anew with the next commit, because the change of their rule was accepted.
    pub anew: BTreeSet<KindId>,
    /// What the partition's clock is ahead of the worker's, ms.
    pub ahead_ms: i64,
    /// What it was ahead of the wall clock, as the last checkpoint says, ms.
    pub ahead_of_wall_ms: i64,
    /// Monotonic time since which a record was tried in vain and given up.
    pub gave_up: Option<Duration>,
    /// Whether its records have stopped coming.
    pub silence: Silence,
}

impl Partition {
    /// A partition just assigned.
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
            untorn: false,
            early_ends: 0,
            left_open: None,
            epoch: None,
            committed_epoch: None,
            compared: None,
            order: Order::default(),
            began: None,
            unsettled: false,
            behind_state: None,
            suspect: None,
            poison: None,
            refusal: None,
            anew: BTreeSet::new(),
            ahead_ms: 0,
            ahead_of_wall_ms: 0,
            gave_up: None,
            silence: Silence::default(),
        }
    }

    /// Whether records may be processed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Back to the question where the group stands, not before `not_before`. A state loaded by half is dropped: it
    /// must not pass for a complete one.
    pub fn relocate(&mut self, not_before: Duration) {
        if matches!(self.phase, Phase::Loading(_)) {
            self.unload();
        }
        self.phase = Phase::Locating { not_before, blocked: None };
    }

    /// The blocks of the open transaction, of at most `most` identities: everything new in `committed..next`.
    ///
    /// None when nothing was written. A block without identities is written when only records without id were
    /// forwarded, or records went to a side topic alone: it shows later that the transaction was complete, also to a
    /// group that has lost its offset.
    #[must_use]
    pub fn blocks(&mut self, hash: HashKind, most: usize) -> Vec<Block> {
        let (Some(open), Some(windows)) = (&self.open, &mut self.windows) else { return Vec::new() };
        if !open.wrote && !self.rewound && !windows.has_pending() {
            return Vec::new();
        }
        windows.blocks(hash, self.id, &(self.committed..self.next), most)
    }

    /// The transaction is committed: what was pending is real. Returns the first offset of each kind whose block is
    /// still needed.
    pub fn commit(&mut self, state_end: Option<Offset>) -> Vec<(KindId, Offset)> {
        let open = self.open.take().unwrap_or_default();
        self.committed = self.next;
        self.committed_epoch = self.epoch;
        self.rewound = false;
        self.anew.clear();
        self.unsettled = false;
        // The marker of the transaction comes behind its last record.
        self.state_next = state_end.map_or(self.state_next, |end| self.state_next.max(end + 1));
        self.tail = open.tail.or(self.tail);
        self.limit = self.limit.and_then(|limit| (limit < 1 << 20).then_some(limit * 2));
        if let Some(forgotten) = &open.forgotten {
            self.forget(forgotten);
        }
        self.windows.as_mut().map(|windows| windows.commit(self.committed)).unwrap_or_default()
    }

    /// How far a restore, from disk or from the state topic, has come, in 0..=1; `None` when none is under way.
    #[must_use]
    pub fn restored_share(&self) -> Option<f64> {
        match &self.phase {
            Phase::Restoring(restoring) => Some(restoring.share()),
            Phase::Loading(loading) => Some(loading.share()),
            Phase::Locating { .. } | Phase::Running => None,
        }
    }

    /// The state is complete up to C: what blocks do not tell comes from the checkpoint.
    pub fn take_over(&mut self, checkpoint: &Checkpoint) {
        // The records of the first ones may have left the topic, with the blocks that they are about.
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

    /// Takes identities back, as committed.
    pub fn forget(&mut self, forgotten: &Forgotten) {
        self.forgets = self.forgets.max(forgotten.number);
        if let Some(windows) = self.windows.as_mut() {
            forgotten.owners.iter().for_each(|(owner, identity)| windows.forget(*owner, *identity));
        }
    }

    /// What the local store may believe of this partition.
    #[must_use]
    pub fn head(&self) -> Head {
        let tail = self.tail.map(|tail| (tail.crc, tail.next));
        Head {
            confirmed: self.committed,
            state_next: self.state_next,
            stream_time_ms: self.windows.as_ref().map_or(0, Windows::stream_time_ms),
            tail,
            settled: tail,
            forgets: self.forgets,
            incomplete_ms: self.windows.as_ref().and_then(Windows::incomplete_before_ms).unwrap_or(0),
        }
    }

    /// The transaction is gone: nothing pending ever was.
    pub fn abort(&mut self) {
        self.open = None;
        self.next = self.committed;
        self.epoch = self.committed_epoch;
        if let Some(windows) = self.windows.as_mut() {
            windows.abort();
        }
    }

    /// Forgets everything in memory; the next step loads it again.
    pub fn unload(&mut self) {
        self.open = None;
        self.windows = None;
    }

    /// Takes empty windows for a load.
    pub fn fresh(&mut self, windows: Windows) -> &mut Windows {
        self.windows.insert(windows)
    }
}
