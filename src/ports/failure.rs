//! What failed, and what to do about it.

use crate::dedupe::{Offset, PartitionId};

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
