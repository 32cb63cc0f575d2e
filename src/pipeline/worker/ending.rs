//! How a worker ends: in order, or after a failure.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::window::CHUNK;
use crate::pipeline::commit::Committer;
use crate::pipeline::error::Fatal;
use crate::pipeline::options::OnStop;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::chunk::gather;
use crate::pipeline::worker::{BUSY, Parts, Worker};
use crate::ports::{GroupMember, ProducerLife, Sink, Store};

/// Time limit for leaving the group, and before that for aborting the open transaction.
const LEAVE: Duration = Duration::from_secs(3);

impl<W: WorkerPorts> Worker<W> {
    /// Commits the open transaction, so that a restart reprocesses nothing, and leaves the group.
    pub(super) fn finish(mut self, stops: bool) -> Result<(), Fatal> {
        let Self { source, parts, .. } = &mut self;
        if let Err(error) = parts.committer.commit(&mut parts.ctx, source) {
            tracing::warn!(%error, "failed to commit the last transaction; its records will be processed again");
            parts.committer.sink.discard();
        }
        match parts.ctx.options.on_stop {
            OnStop::Remain if stops => {
                tracing::info!(
                    "staying in the group: a restart within group.session_timeout resumes the partitions"
                );
                if let Err(error) = parts.ctx.close_all(source) {
                    tracing::warn!(%error, "failed to confirm the local state; the next start reads more of the state topic");
                }
            }
            OnStop::Leave | OnStop::Remain => leave(source, parts),
        }
        // Otherwise the unfinished file of a slice stays until the next start.
        parts.ctx.store.end_seal();
        // Also of partitions that the group has not revoked in time: a standby of this process may follow them.
        for id in parts.ctx.journals.ids(|_| true) {
            parts.ctx.release_leases(id);
        }
        parts.ctx.store.sync().map_err(|error| Fatal::State(error.to_string()))
    }

    /// Aborts the open transaction after a failure or a panic: `read_committed` readers would wait for it until its timeout, unless this instance is
    /// started again before that. Nothing is written to the local store, which may be what has failed: the next start recognises an entry that was
    /// not committed.
    pub(super) fn abandon(&mut self) {
        let Committer { sink, transaction, .. } = &mut self.parts.committer;
        if !transaction.is_open() {
            return;
        }
        if let Err(failed) = sink.abort(LEAVE) {
            tracing::warn!(%failed, "failed to abort the open transaction; the broker aborts it after its timeout, or the next start does");
        }
        transaction.close();
    }

    /// Leaves the group in topic scope after a failure or a panic. Nothing is committed, and nothing is written to the local store.
    pub(super) fn resign(&mut self) {
        let Self { source, parts, .. } = self;
        if parts.membership.is_exclusive() && parts.ctx.options.keeps(Safeguard::Resignation) {
            parts.ctx.partitions.remove_all();
            leave(source, parts);
        }
    }
}

/// Leaves the group, and waits until all partitions are released.
fn leave<W: WorkerPorts>(source: &mut W::Source, parts: &mut Parts<W>) {
    source.leave();
    let deadline = parts.ctx.clock.elapsed() + LEAVE;
    let is_member = |source: &W::Source, parts: &Parts<W>| {
        parts.ctx.partitions.iter().next().is_some() || !source.has_left()
    };
    while is_member(source, parts) && parts.ctx.clock.elapsed() < deadline {
        // Records that still arrive are processed by the next owner of the partition.
        drop(gather(source, CHUNK, BUSY));
        if let Err(error) = parts.serve(source) {
            tracing::warn!(%error, "failed to answer a group event while leaving the group");
        }
    }
}
