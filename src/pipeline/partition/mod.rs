//! One raw partition of a worker: its phase, and what outlives a phase.

pub mod expiry;
pub mod forgetting;
pub mod loading;
pub mod local;
pub mod order;
pub mod partitions;
pub mod read_progress;
pub mod rejections;
pub mod restoring;
pub mod rounds;
pub mod rules;
pub mod sealed;
pub mod stall;
pub mod state;
pub mod stored;
pub mod topic;
pub mod unwritten;

use std::fmt;
use std::time::Duration;

use crate::dedupe::{Offset, PartitionId, SchemaId};
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
/// assigned ─→ Locating ←─→ Loading, Restoring, Running
/// ```
///
/// Every phase ends in `Locating` ([`TRANSITIONS`]): what follows it may fail, and then C is read again. A partition leaves the
/// worker from any phase.
#[derive(Debug)]
pub enum Phase {
    /// Paused. The committed offset has to be read first.
    Locating(Locating),
    /// Paused. Owners are being read from the local store.
    Loading(Box<Loading>),
    /// Paused. Entries are being read from the journal.
    Restoring(Box<Restoring>),
    /// Records are processed.
    Running(Running),
}

/// A phase without its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Locating,
    Loading,
    Restoring,
    Running,
}

/// The allowed changes of the phase. Loading and restoring do not follow each other directly, and neither of them is followed
/// by running: between them the partition holds no state that could be mistaken for a complete one.
const TRANSITIONS: [(Stage, Stage); 7] = [
    // A later attempt, or state that is kept.
    (Stage::Locating, Stage::Locating),
    (Stage::Locating, Stage::Loading),
    (Stage::Locating, Stage::Restoring),
    (Stage::Locating, Stage::Running),
    (Stage::Loading, Stage::Locating),
    (Stage::Restoring, Stage::Locating),
    (Stage::Running, Stage::Locating),
];

impl Phase {
    /// The state has to be read, not before `not_before`.
    fn locating(not_before: Duration) -> Self {
        Self::Locating(Locating { not_before, ..Locating::default() })
    }

    /// Progress of a restore from disk or from the state topic, in 0..=1; `None` when none is in progress.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        match self {
            Self::Restoring(restoring) => Some(restoring.share()),
            Self::Loading(loading) => Some(loading.share()),
            Self::Locating(_) | Self::Running(_) => None,
        }
    }

    fn stage(&self) -> Stage {
        match self {
            Self::Locating(_) => Stage::Locating,
            Self::Loading(_) => Stage::Loading,
            Self::Restoring(_) => Stage::Restoring,
            Self::Running(_) => Stage::Running,
        }
    }
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
    /// Complete up to the last record processed.
    pub state: Box<DedupeState>,
    /// The records since the last seek, to distinguish a gap in the log from a record of an earlier position.
    pub order: Order,
    /// Whether its records have stopped arriving.
    pub stall: StallDetector,
    /// The end of its log, if the client returns no record at or beyond the next offset although there must be one.
    pub unread: Option<Offset>,
    /// Paused until the state of all partitions is complete. Only in topic scope.
    pub held: bool,
    /// Paused until the schema of its next record is known.
    pub schema: Option<SchemaWait>,
}

impl Running {
    /// Whether its records are processed when they arrive.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.held && self.schema.is_none()
    }

    /// Processes records again, after a seek to the position of its state.
    pub fn resume(&mut self) {
        (self.order, self.stall) = (self.state.order(), StallDetector::default());
        (self.held, self.schema) = (false, None);
    }
}

/// The schema that a partition waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaWait {
    /// Its id.
    pub id: SchemaId,
    /// Why the last attempt to fetch it failed.
    pub why: Option<String>,
}

/// As in `needs schema 17: GET http://registry/schemas/ids/17: 404 Not Found`.
impl fmt::Display for SchemaWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "needs schema {}", self.id)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// A partition. Owned by one worker.
#[derive(Debug)]
pub struct Partition {
    /// Number of the raw partition.
    pub id: PartitionId,
    phase: Phase,
    /// Set once the partition was checked since the producer was created: no transaction is open in its topics, and its logs
    /// agree.
    pub is_checked: bool,
    /// Number of consecutive restores that ended before the last committed entry, or lacked records.
    pub early_ends: u32,
    /// The committed offset that the state topic was found to exceed, if that was seen once; the second time it counts.
    pub behind_state: Option<Offset>,
    /// The records that the broker rejected.
    pub rejections: Rejections,
    /// Monotonic time since which its state has been missing: since the assignment, or a later loss. `None` once it is loaded.
    pub missing_since: Option<Duration>,
}

impl Partition {
    /// A newly assigned partition.
    #[must_use]
    pub fn assigned(id: PartitionId, now: Duration) -> Self {
        Self {
            id,
            phase: Phase::locating(now),
            is_checked: false,
            early_ends: 0,
            behind_state: None,
            rejections: Rejections::default(),
            missing_since: Some(now),
        }
    }

    /// Where it is in its life cycle; only [`Self::enter`] changes that.
    #[must_use]
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Changes the phase, and returns the one that ended.
    pub fn enter(&mut self, next: Phase) -> Phase {
        let change = (self.phase.stage(), next.stage());
        debug_assert!(TRANSITIONS.contains(&change), "partition {}: {change:?} is not allowed", self.id);
        std::mem::replace(&mut self.phase, next)
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

    /// What a record of the partition changes, if its records are processed.
    pub fn record_mut(&mut self) -> Option<(&mut Running, &mut Rejections)> {
        let Self { phase, rejections, .. } = self;
        if let Phase::Running(running) = phase { Some((running, rejections)) } else { None }
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
        let locating = match self.enter(Phase::locating(not_before)) {
            Phase::Running(running) => {
                Locating { not_before, state: Some(running.state), ..Locating::default() }
            }
            Phase::Locating(locating) => Locating { not_before, blocked: None, ..locating },
            Phase::Loading(_) | Phase::Restoring(_) => return,
        };
        self.enter(Phase::Locating(locating));
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
        self.enter(Phase::Locating(Locating { not_before, state: Some(state), ..Locating::default() }));
    }

    /// Processes records from now on; while it is `held`, only once it is released.
    pub fn run(&mut self, state: Box<DedupeState>, held: bool) {
        let (order, stall) = (state.order(), StallDetector::default());
        self.enter(Phase::Running(Running { state, order, stall, unread: None, held, schema: None }));
    }

    /// Ends a restore: returns it, and the partition returns to `Locating`, in case that what follows fails.
    pub fn take_restoring(&mut self, not_before: Duration) -> Option<Box<Restoring>> {
        if !matches!(self.phase, Phase::Restoring(_)) {
            return None;
        }
        if let Phase::Restoring(restoring) = self.enter(Phase::locating(not_before)) {
            Some(restoring)
        } else {
            None
        }
    }

    /// Ends a load that has read everything, like [`Self::take_restoring`]; `None` while there is more to read.
    pub fn take_loaded(&mut self, not_before: Duration) -> Option<Box<Loading>> {
        if !matches!(&self.phase, Phase::Loading(loading) if loading.is_done()) {
            return None;
        }
        if let Phase::Loading(loading) = self.enter(Phase::locating(not_before)) {
            Some(loading)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Windows;

    fn running() -> Partition {
        let mut partition = Partition::assigned(0, Duration::ZERO);
        partition.run(state(), false);
        partition
    }

    fn state() -> Box<DedupeState> {
        Box::new(DedupeState::new(0, Windows::new([]), std::collections::BTreeSet::new()))
    }

    #[test]
    fn a_partition_returns_to_locating_from_each_phase() {
        let mut partition = running();
        partition.relocate(Duration::ZERO);
        partition.run(state(), false);
        assert!(partition.is_running());
    }

    #[test]
    #[should_panic(expected = "(Running, Running) is not allowed")]
    fn a_change_of_the_phase_that_is_not_declared_is_detected() {
        running().run(state(), false);
    }
}
