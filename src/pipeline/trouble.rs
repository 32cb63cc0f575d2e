//! What can go wrong inside a turn of the worker, and what ends it.

use crate::dedupe::BlockError;
use crate::ports::{Failure, Remedy, StoreError};

/// A turn of the worker did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A Kafka call failed; the failure carries its remedy.
    #[error(transparent)]
    Kafka(#[from] Failure),
    /// The local store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing the worker may decide by itself.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// Why a worker ended; the process ends with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// The state cannot be used (exit code 4).
    #[error("{0}")]
    State(String),
    /// Another process took over (exit code 5).
    #[error("{0}")]
    Fenced(String),
    /// Kafka needs an operator (exit code 6).
    #[error("{0}")]
    Operator(String),
}

impl Trouble {
    /// A block of the state topic or the store that cannot be read.
    pub(super) fn block(place: &str, error: &BlockError) -> Self {
        Fatal::State(format!(
            "{place} does not hold a usable block: {error}; if the topic is shared with something else, \
             give dedupd a state topic of its own; if it is damaged, restore it or reset the state"
        ))
        .into()
    }

    /// Whether nothing may follow in the same iteration: the remedy ends the process or takes every partition back to its
    /// committed offset.
    pub(super) fn is_grave(&self) -> bool {
        !matches!(self, Self::Kafka(failed) if failed.remedy == Remedy::Retry)
    }

    /// A failure in the middle of a chunk or a commit: nothing less than a rewind brings the records
    /// back that were taken from the client, and the partitions that were.
    pub(super) fn rewinding(self) -> Self {
        self.escalated(&[Remedy::Retry], Remedy::Abort)
    }

    /// A failure to abort: only the end of the producer is sure to end its transaction.
    pub(super) fn renewing(self) -> Self {
        self.escalated(&[Remedy::Retry, Remedy::Abort], Remedy::Renew)
    }

    fn escalated(self, lesser: &[Remedy], remedy: Remedy) -> Self {
        match self {
            Self::Kafka(failed) => failed.escalated(lesser, remedy).into(),
            other => other,
        }
    }

    /// A call that has used up its time: the outcome is unknown.
    pub(super) fn exhausted(failed: Failure) -> Failure {
        failed.escalated(&[Remedy::Retry], Remedy::Renew)
    }
}
