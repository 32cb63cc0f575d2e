//! One raw partition of a worker: its phase, and what outlives a phase.

pub mod forgetting;
pub mod loading;
pub mod local;
pub mod order;
pub mod partitions;
pub mod rejections;
pub mod restoring;
pub mod rounds;
pub mod rules;
pub mod stall;
pub mod state;
pub mod stored;
pub mod unwritten;

use std::time::Duration;

use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::partition::loading::Loading;
use crate::pipeline::partition::order::Order;
use crate::pipeline::partition::rejections::Rejections;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::partition::rounds::Rounds;
use crate::pipeline::partition::stall::StallDetector;
use crate::pipeline::partition::state::DedupeState;
use crate::ports::LogId;

/// The life cycle of a partition in a worker. Each phase owns what exists only in it. Records are processed only in `Running`.
///
/// ```text
/// assigned ─→ Locating ─→ Loading ─→ Restoring ─→ Running ─→ (revoked)
///                 ↑  └───────┴─────────↑    └────↑ │
///                 └──── abort, unknown result ─────┘
/// ```
#[derive(Debug)]
pub enum Phase {
    /// Paused. The committed offset has to be read first.
    Locating(Locating),
    /// Paused. Blocks are being read from the local store.
    Loading(Box<Loading>),
    /// Paused. Blocks are being read from the state topic.
    Restoring(Box<Restoring>),
    /// Records are processed.
    Running(Running),
}

/// A partition whose committed offset has to be read.
#[derive(Debug, Default)]
pub struct Locating {
    /// Monotonic time of the next attempt, after failures.
    pub not_before: Duration,
    /// Monotonic time since which a pending transaction blocks the read of C, and the committed offset before that transaction.
    pub blocked: Option<(Duration, Option<Offset>)>,
    /// The open records of another transaction in the partition's topics, if any.
    pub left_open: Option<LeftOpen>,
    /// Complete state that is already in memory. It is used again if C is its offset, or that of its open transaction.
    pub state: Option<Box<DedupeState>>,
}

/// Open records of another transaction in a partition's topics.
#[derive(Debug)]
pub struct LeftOpen {
    /// The logs that have such records, each with the offset of the first.
    pub place: Vec<(LogId, Offset)>,
    /// The attempts to end the transaction for its writer.
    pub rounds: Rounds,
}

/// A partition whose records are processed.
#[derive(Debug)]
pub struct Running {
    /// Its state.
    pub state: Box<DedupeState>,
    /// The records since the last seek, to distinguish a gap in the log from a record of an earlier position.
    pub order: Order,
    /// Whether its records have stopped arriving.
    pub stall: StallDetector,
}

/// A partition. Owned by one worker.
#[derive(Debug)]
pub struct Partition {
    /// Partition number.
    pub id: PartitionId,
    /// Its phase.
    pub phase: Phase,
    /// Set once the partition was checked since the producer was created: no transaction is open in its topics, and its logs
    /// agree. The first offset of its state log at that time.
    pub checked_from: Option<Offset>,
    /// Number of consecutive restores that ended before the last committed block.
    pub early_ends: u32,
    /// The committed offset that the state topic was found to exceed, if that was seen once; the second time it counts.
    pub behind_state: Option<Offset>,
    /// The records that the broker rejected.
    pub rejections: Rejections,
}

impl Partition {
    /// A newly assigned partition.
    #[must_use]
    pub fn assigned(id: PartitionId, now: Duration) -> Self {
        Self {
            id,
            phase: Phase::Locating(Locating { not_before: now, ..Locating::default() }),
            checked_from: None,
            early_ends: 0,
            behind_state: None,
            rejections: Rejections::default(),
        }
    }

    /// Whether records are processed.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// The partition, if its records are processed.
    #[must_use]
    pub fn running(&self) -> Option<&Running> {
        if let Phase::Running(running) = &self.phase { Some(running) } else { None }
    }

    /// The partition, if its records are processed.
    pub fn running_mut(&mut self) -> Option<&mut Running> {
        if let Phase::Running(running) = &mut self.phase { Some(running) } else { None }
    }

    /// The state in memory; incomplete while it is being read.
    #[must_use]
    pub fn state(&self) -> Option<&DedupeState> {
        match &self.phase {
            Phase::Locating(locating) => locating.state.as_deref(),
            Phase::Loading(loading) => Some(&loading.state),
            Phase::Restoring(restoring) => Some(&restoring.state),
            Phase::Running(running) => Some(&running.state),
        }
    }

    /// The state in memory; incomplete while it is being read.
    pub fn state_mut(&mut self) -> Option<&mut DedupeState> {
        match &mut self.phase {
            Phase::Locating(locating) => locating.state.as_deref_mut(),
            Phase::Loading(loading) => Some(&mut loading.state),
            Phase::Restoring(restoring) => Some(&mut restoring.state),
            Phase::Running(running) => Some(&mut running.state),
        }
    }

    /// Returns to `Locating`, where C is read again, not before `not_before`. State that was being read is dropped: it must not
    /// be mistaken for a complete one.
    pub fn relocate(&mut self, not_before: Duration) {
        let locating = match self.leave(not_before) {
            Phase::Running(running) => {
                Locating { not_before, state: Some(running.state), ..Locating::default() }
            }
            Phase::Locating(locating) => Locating { not_before, blocked: None, ..locating },
            Phase::Loading(_) | Phase::Restoring(_) => return,
        };
        self.phase = Phase::Locating(locating);
    }

    /// Returns to `Locating` without any state, and returns the phase that ended.
    fn leave(&mut self, not_before: Duration) -> Phase {
        let after = Phase::Locating(Locating { not_before, ..Locating::default() });
        std::mem::replace(&mut self.phase, after)
    }

    /// Returns to `Locating` without any state; it is loaded again.
    pub fn unload(&mut self, not_before: Duration) {
        self.relocate(not_before);
        if let Phase::Locating(locating) = &mut self.phase {
            locating.state = None;
        }
    }

    /// Returns to `Locating` with complete state.
    pub fn keep(&mut self, state: Box<DedupeState>, not_before: Duration) {
        self.phase = Phase::Locating(Locating { not_before, state: Some(state), ..Locating::default() });
    }

    /// Processes records from now on.
    pub fn run(&mut self, state: Box<DedupeState>) {
        let (order, stall) = (Order::default(), StallDetector::default());
        self.phase = Phase::Running(Running { state, order, stall });
    }

    /// Ends a restore: returns it, and the partition returns to `Locating`, in case that what follows fails.
    pub fn take_restoring(&mut self, not_before: Duration) -> Option<Box<Restoring>> {
        match self.leave(not_before) {
            Phase::Restoring(restoring) => Some(restoring),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Ends a load that has read everything, like [`Self::take_restoring`]; `None` while there is more to read.
    pub fn take_loaded(&mut self, not_before: Duration) -> Option<Box<Loading>> {
        match self.leave(not_before) {
            Phase::Loading(loading) if loading.is_done() => Some(loading),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Progress of a restore from disk or from the state topic, in 0..=1; `None` when none is in progress.
    #[must_use]
    pub fn restored_share(&self) -> Option<f64> {
        match &self.phase {
            Phase::Restoring(restoring) => Some(restoring.share()),
            Phase::Loading(loading) => Some(loading.share()),
            Phase::Locating(_) | Phase::Running(_) => None,
        }
    }
}
