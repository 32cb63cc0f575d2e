//! A failed Kafka call and its remedy.

use super::OutputTopic;
use crate::dedupe::{Coordinates, Offset, PartitionId};

/// How to handle a failed Kafka call: errors are classified by remedy, not by origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Retry the same call, within a time limit.
    Retry,
    /// Abort the transaction, rewind to C, continue.
    Abort,
    /// The outcome is unknown or the producer is unusable: destroy it, create a new one, read C again.
    Renew,
    /// The member was replaced and its client is unusable: rejoin; end the process when this recurs too often.
    Rejoin,
    /// Another producer uses our transactional id (or the transaction timed out, which causes the same error): renew;
    /// end the process when this recurs too often.
    Fenced,
    /// Only an operator can fix this: permissions, configuration, a deleted topic.
    Stop,
}

/// The end of the text of a failure after which the worker isolates the rejected record.
pub(crate) const SEARCHING: &str = "; aborting the transaction and searching for the record that causes it";

/// Records that the broker or the client rejected, for isolating the one that causes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectedRecords {
    /// The topic that does not accept them.
    pub by: OutputTopic,
    /// Raw partition of the rejected records.
    pub partition: PartitionId,
    /// Lowest rejected raw offset.
    pub first: Offset,
    /// Highest rejected raw offset.
    pub last: Offset,
}

/// A failed Kafka call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    /// How to handle it.
    pub remedy: Remedy,
    /// For people: what failed, on what, why, and what to do.
    pub what: String,
    /// Set when the broker rejected particular records as such (too large, invalid).
    pub rejected: Option<RejectedRecords>,
    /// Set when two reads found a damaged batch, with the offset of the batch, and for a record whose headers cannot be read.
    pub damaged: Option<Coordinates>,
}

impl Failure {
    /// A failure that is not about particular records.
    #[must_use]
    pub fn new(remedy: Remedy, what: String) -> Self {
        Self { remedy, what, rejected: None, damaged: None }
    }

    /// What failed, without what is done about it.
    #[must_use]
    pub fn unretried(&self) -> &str {
        let done = |what: &'static str| self.what.strip_suffix(what);
        done("; retrying").or_else(|| done(SEARCHING)).unwrap_or(&self.what)
    }

    /// The same failure with `remedy`, if its own remedy is one of `lesser`.
    #[must_use]
    pub fn escalated(self, lesser: &[Remedy], remedy: Remedy) -> Self {
        if lesser.contains(&self.remedy) { Self { remedy, ..self } } else { self }
    }
}
