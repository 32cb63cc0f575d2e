//! The life of the transactional producer, and what only a producer outside of a worker's transaction can do.

use std::time::Duration;

use super::{CommitPosition, Failure, LogId};
use crate::dedupe::Offset;

/// The producer of a worker: created, replaced, and used to end what other producers left open.
pub trait ProducerLife {
    /// Initialises the producer: creates it when there is none, fences a predecessor with the same transactional id
    /// and settles its transaction. The caller repeats the call on [`Remedy::Retry`](super::Remedy::Retry).
    fn prepare(&mut self, wait: Duration) -> Result<(), Failure>;
    /// Destroys the producer. The only safe action after an unknown result.
    fn discard(&mut self);
    /// Ends the open transaction of a dead writer by briefly using its transactional id.
    fn fence(&mut self, writer: &str, wait: Duration) -> Result<(), Failure>;
    /// Aborts all open transactions of `writer` in these partitions and in the group's offsets, with one transaction
    /// of `writer` that touches them and is aborted. Its records are visible to no `read_committed` reader.
    fn purge(
        &mut self,
        writer: &str,
        logs: &[LogId],
        position: &CommitPosition,
        wait: Duration,
    ) -> Result<(), Failure>;
    /// Appends copies of the records at these offsets of a side partition to the same partition, outside of any transaction and
    /// marked as such, otherwise unchanged. Returns when all in-sync replicas have them.
    fn copy_aside(&mut self, log: LogId, offsets: &[Offset], wait: Duration) -> Result<(), Failure>;
    /// Writes all later records for this side partition outside of any transaction, and marks them as such. They are
    /// acknowledged when [`Sink::drain`](super::Sink::drain) returns, and an abort does not discard them.
    fn write_outside(&mut self, log: LogId);
}
