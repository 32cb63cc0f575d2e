//! Moves positions behind markers and aborted records at the ends of logs, so that the lag is 0 behind a transactional producer too.
//!
//! The client passes on records only, so a position stays at the last record's end, and the group would lag by one offset for ever. A wrong
//! skip would lose records. It cannot happen:
//!
//! - Another reader has read everything from exactly this position up to the last stable offset, and has found no record. What is below that
//!   offset is decided and does not change. The range ends there, so no record of an open transaction is in it.
//! - What it has found counts only while the partition stays silent at this position. A record, a seek or a new assignment ends that, and then the log
//!   is read again (`StableEnds::publish`).
//! - A partition that has records in the open transaction, is paused, or whose reading is not confirmed, is not moved.
//! - If the log is replaced, a record at a skipped offset can arrive after all. It counts as missed ([`Order::skip`]): the transaction is
//!   aborted, or the process ends. After a restart the client begins behind the last record again, so that such a record does arrive
//!   ([`Partition::position`]).
//!
//! [`Order::skip`]: crate::pipeline::partition::order::Order::skip
//! [`Partition::position`]: crate::pipeline::partition::Partition::position

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::clock::RawEnd;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;

impl<W: WorkerPorts> Access<'_, W> {
    /// Adds positions behind the last record to the open transaction, or to a new one. `silence` is how long a partition has returned no record
    /// before its log is read by another reader.
    pub(super) fn skip_empty_ends(
        &mut self,
        ends: &BTreeMap<PartitionId, RawEnd>,
        silence: Duration,
    ) -> Result<(), WorkerError> {
        let Context { partitions, options, clock, .. } = &mut *self.ctx;
        let transaction = &mut self.committer.transaction;
        let mut is_full = false;
        for partition in partitions.started_mut() {
            let id = partition.id;
            let Some(to) = ends.get(&id).and_then(|end| skipped_to(partition, end, options, silence)) else {
                continue;
            };
            transaction.begin(&mut self.committer.sink, || clock.elapsed())?;
            transaction.touch(id, &mut partition.open);
            partition.order.skip(partition.next..to);
            partition.next = to;
            is_full = transaction.is_full(options.transaction_limit);
            if is_full {
                // The others follow with the next comparison.
                break;
            }
        }
        if is_full { self.committer.commit(self.ctx, self.source) } else { Ok(()) }
    }
}

/// The last stable offset, if it lies behind the next record of the partition and no record is before it.
fn skipped_to(
    partition: &Partition,
    end: &RawEnd,
    options: &WorkerOptions,
    silence: Duration,
) -> Option<Offset> {
    let next = partition.next;
    let is_silent = partition.is_open() && partition.stall.is_silent(silence);
    let is_idle = is_silent && partition.open.is_none() && !partition.order.is_doubted();
    let is_empty = end.empty_from == Some(next) || !options.keeps(Safeguard::EmptyEnds);
    (is_idle && is_empty && end.stable > next).then_some(end.stable)
}
