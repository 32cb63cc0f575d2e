//! The life cycle of a journal.

use std::time::Duration;

use crate::dedupe::Offset;
use crate::pipeline::journal::loading::Loading;
use crate::pipeline::journal::restoring::Restoring;
use crate::pipeline::journal::undoing::Undoing;
use crate::pipeline::partition::rounds::Rounds;
use crate::ports::LogId;

/// The life cycle of a journal in a worker. Each phase owns what exists only in it. Records are processed only in `Running`.
///
/// ```text
/// assigned ─→ Locating ←─→ Loading, Restoring, Undoing, Running
/// ```
///
/// Every phase begins and ends in `Locating`: what follows it may fail, and then the committed offsets are read again, and between a load and a
/// restore the journal has no windows that could be mistaken for complete ones. A journal leaves the worker from any phase.
#[derive(Debug)]
pub enum Phase {
    /// The committed offsets of its partitions have to be read first. Windows that are complete are kept meanwhile.
    Locating(Locating),
    /// Owners are being read from the local store.
    Loading(Box<Loading>),
    /// Entries are being read.
    Restoring(Box<Restoring>),
    /// Owners are being undone that no entry has undone yet, in windows that are complete otherwise.
    Undoing(Undoing),
    /// Records are processed.
    Running,
}

impl Default for Phase {
    fn default() -> Self {
        Self::locating(Duration::ZERO)
    }
}

impl Phase {
    /// The committed offsets have to be read, not before `not_before`.
    pub(super) fn locating(not_before: Duration) -> Self {
        Self::Locating(Locating { not_before, ..Locating::default() })
    }

    /// Progress of a restore from disk or from the state topic, in 0..=1; `None` when none is in progress.
    pub fn share(&self) -> Option<f64> {
        match self {
            Self::Restoring(restoring) => Some(restoring.share()),
            Self::Loading(loading) => Some(loading.share()),
            Self::Locating(_) | Self::Undoing(_) | Self::Running => None,
        }
    }
}

/// A journal whose committed offsets have to be read.
#[derive(Debug, Default)]
pub struct Locating {
    /// Monotonic time of the next attempt, after failures.
    pub not_before: Duration,
    /// Monotonic time since which a pending transaction blocks the read of the offsets, and those before that transaction.
    pub blocked: Option<(Duration, Vec<Option<Offset>>)>,
    /// The open records of another transaction in the logs, if any.
    pub left_open: Option<LeftOpen>,
}

/// Open records of another transaction in the journal or the clean logs of its partitions.
#[derive(Debug)]
pub struct LeftOpen {
    /// The logs that have such records, each with the offset of the first.
    pub place: Vec<(LogId, Offset)>,
    /// The attempts to end the transaction for its writer.
    pub rounds: Rounds,
}
