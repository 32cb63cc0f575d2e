//! Errors of one poll loop iteration of the worker, and the errors that end it.

use crate::dedupe::BlockError;
use crate::ports::{Failure, Remedy, StoreError};

/// Error of one poll loop iteration.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A Kafka call failed; the failure carries its remedy.
    #[error(transparent)]
    Kafka(#[from] Failure),
    /// The local store failed: the process ends, unless only a lease was lost or a filter has to be removed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error that ends the worker.
    #[error(transparent)]
    Fatal(#[from] Fatal),
}

/// Why a worker ended. The process ends with it.
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

/// The remedy when others write to the state topic.
const OWN_STATE_TOPIC: &str = "give dedupd a state topic of its own: set topics.state to a new topic, and the group's offsets to their current values \
                               (kafka-consumer-groups.sh --reset-offsets --to-current). The windows then start empty";

impl Fatal {
    /// A record of the state topic that cannot be decoded.
    pub(crate) fn unusable(place: &str, error: &BlockError) -> Self {
        Self::Operator(format!(
            "{place} contains no usable block: {error}; another program writes to the topic, or it is damaged: {OWN_STATE_TOPIC}"
        ))
    }

    /// A record of the state topic without a key of this version.
    pub(crate) fn foreign(place: &str) -> Self {
        Self::Operator(format!(
            "{place} was not written by this version of dedupd: another program writes to the topic, or an earlier version did: {OWN_STATE_TOPIC}"
        ))
    }
}

impl WorkerError {
    /// Whether nothing may follow in the same iteration of the poll loop: the remedy ends the process or takes every
    /// partition back to its committed offset.
    pub(crate) fn is_grave(&self) -> bool {
        !matches!(self, Self::Kafka(failed) if failed.remedy == Remedy::Retry)
    }

    /// Raises the remedy of a failure in the middle of a chunk or a commit. Only a rewind makes the client return the
    /// records again that were already polled, and includes the partitions that were already processed.
    pub(crate) fn rewinding(self) -> Self {
        self.escalated(&[Remedy::Retry], Remedy::Abort)
    }

    /// Raises the remedy of a failed abort: only destroying the producer guarantees that its transaction ends.
    pub(crate) fn renewing(self) -> Self {
        self.escalated(&[Remedy::Retry, Remedy::Abort], Remedy::Renew)
    }

    fn escalated(self, lesser: &[Remedy], remedy: Remedy) -> Self {
        match self {
            Self::Kafka(failed) => failed.escalated(lesser, remedy).into(),
            other => other,
        }
    }

    /// Raises the remedy of a call that exceeded its time limit: the outcome is unknown.
    pub(crate) fn exhausted(failed: Failure) -> Failure {
        failed.escalated(&[Remedy::Retry], Remedy::Renew)
    }
}
