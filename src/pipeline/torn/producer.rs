//! How far a new producer has come: it is created, and what earlier producers left open is ended, before its first transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dedupe::Offset;
use crate::pipeline::access::Access;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::rounds::Rounds;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::torn::side::Sides;
use crate::ports::{LogId, ProducerLife};

/// Time limit of one call of `init_transactions`; the consumer is polled between two calls.
pub(crate) const PREPARE: Duration = Duration::from_millis(500);

/// The progress of the current producer.
#[derive(Debug, Default)]
pub struct ProducerState {
    /// It is created, and its predecessor with the same transactional id is fenced.
    pub is_prepared: bool,
    /// No transaction of an earlier producer is pending on the group's offsets.
    pub offsets_cleared: bool,
    /// Number of attempts to clear the pending transactions on the group's offsets.
    pub attempts: usize,
    /// The attempts to end the transaction that blocks the group's offsets, for its writer. Since it has been seen, clearing
    /// the open logs is postponed.
    pub blocked_by_others: Option<Rounds>,
    /// The monotonic time of the last check of all logs; the first open offset of each log with an open transaction, and the
    /// number of earlier checks that found the same one.
    pub open_elsewhere: (Duration, BTreeMap<LogId, (Offset, u32)>),
    /// Open transactions that an earlier producer left in the side topics.
    pub sides: Sides,
}

impl ProducerState {
    /// The producer is replaced: the next one starts over. What was seen open in the logs stays, because that is measured in
    /// multiples of the transaction timeout.
    pub fn replace(&mut self) {
        self.is_prepared = false;
        self.offsets_cleared = false;
        self.sides = Sides::default();
    }
}

impl<W: WorkerPorts> Access<'_, W> {
    /// Creates the producer.
    pub(crate) fn prepare(&mut self) -> Result<(), WorkerError> {
        self.committer.sink.prepare(PREPARE)?;
        self.torn.is_prepared = true;
        self.ctx.report.reachable();
        Ok(())
    }
}
