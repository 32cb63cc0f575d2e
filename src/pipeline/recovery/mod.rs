//! Recovery: from the assignment of a partition to the processing of its records.
//!
//! The committed offset C marks the end of the durable history, and the state topic holds that history. The local store is a
//! copy of it that may be too old, too new or missing. `plan` compares the three. The rest of this module carries out the
//! plan, in slices short enough that the worker keeps polling.

pub mod complete;
pub mod gap;
pub mod hold;
pub mod load;
pub mod locate;
pub mod restore;
pub mod restored_offset;
pub mod start_bounds;

use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::PartitionId;
use crate::dedupe::coordinates::ranges;
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::topic::{TopicScope, waits_for_retry};
use crate::pipeline::partition::{Partition, Phase, Running};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::gap::resume_offset;
use crate::pipeline::recovery::locate::take_local_state;
use crate::pipeline::recovery::restore::{abandon_restore, search_forgotten};
use crate::pipeline::recovery::start_bounds::StartBounds;
use crate::pipeline::torn::producer::Torn;
use crate::pipeline::torn::without_leftovers;
use crate::ports::{Source, StateLog, StoreError};

/// Time to read the state topic between two polls.
const READ_SLICE: Duration = Duration::from_millis(20);
/// Interval between two deletions of what has left a window that is being restored.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);

/// What starts partitions.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The transactional producer, and what earlier producers left open.
    pub(crate) torn: Torn,
    pub(crate) start_bounds: StartBounds,
}

impl Recovery {
    /// Advances every partition that is not running yet by one slice.
    pub(crate) fn recover<W: WorkerPorts>(&mut self, access: &mut Access<'_, W>) -> Result<(), WorkerError> {
        fit_tables(access)?;
        if access.ctx.partitions.has_nothing_pending() {
            return access.ctx.open_journals().map(drop);
        }
        let advanced = self.advance(access);
        // Applied before the first commit, so that metrics and the status page show a limit as soon as it is in force.
        access.ctx.limits.apply(&access.ctx.options, &mut access.ctx.partitions);
        advanced
    }

    fn advance<W: WorkerPorts>(&mut self, access: &mut Access<'_, W>) -> Result<(), WorkerError> {
        let now = access.ctx.clock.elapsed();
        let partition_limit = &access.ctx.options.partition_limit;
        let due =
            |p: &Partition| matches!(p.phase(), Phase::Locating(locating) if locating.not_before <= now);
        let waiting =
            access.ctx.partitions.ids(|p| due(p) && !waits_for_retry(p, now) && partition_limit.covers(p.id));
        if !waiting.is_empty() && !access.committer.transaction.is_open() {
            // The local state is taken before the committed offset is read. Otherwise another worker could still change that
            // state after the response.
            for id in &waiting {
                take_local_state(access.ctx, *id);
            }
            let free = without_leftovers(access, &waiting)?;
            if !free.is_empty() {
                self.locate(access, &free)?;
            }
        }
        let outcome = self.load_slice(access);
        self.restore_slice(access, outcome)
    }

    /// Reads one slice of the state topic. `outcome` is the result of the iteration so far; a grave one ends the slice.
    fn restore_slice<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        mut outcome: Result<(), WorkerError>,
    ) -> Result<(), WorkerError> {
        let is_grave = |outcome: &Result<(), WorkerError>| outcome.as_ref().is_err_and(WorkerError::is_grave);
        let until = access.ctx.clock.elapsed() + READ_SLICE;
        if !is_grave(&outcome) {
            let searched = search_forgotten(access.ctx, until).map_err(|(id, error)| {
                abandon_restore(access.ctx, id);
                error
            });
            outcome = searched.and(outcome);
        }
        loop {
            let left = until.saturating_sub(access.ctx.clock.elapsed());
            if is_grave(&outcome) || left.is_zero() {
                break;
            }
            match access.ctx.open_journals() {
                Ok(true) => {}
                opened => {
                    outcome = opened.map(drop).and(outcome);
                    break;
                }
            }
            let items = access.ctx.log.read(left)?;
            if items.is_empty() {
                break;
            }
            for item in items {
                // The log delivers each record once, so a journal of which one is skipped here is opened again. No
                // partition is started with a producer that is about to be replaced, or after a commit whose local effects
                // are incomplete.
                let result = if is_grave(&outcome) {
                    access.ctx.reopen_journal(item.partition());
                    Ok(())
                } else {
                    self.restored(access, item)
                };
                if result.is_err() && !is_grave(&outcome) {
                    outcome = result;
                }
            }
        }
        let now = access.ctx.clock.elapsed();
        access.ctx.partitions.all_restoring_mut().for_each(|restoring| restoring.log_progress(now));
        if is_grave(&outcome) { outcome } else { expire_restored(access.ctx, now).and(outcome) }
    }

    /// Starts processing with state that was just loaded.
    pub(crate) fn start_loaded<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        mut state: Box<DedupeState>,
    ) -> Result<(), WorkerError> {
        state.resume_time(access.ctx.time.now_ms(&access.ctx.clock), access.ctx.options.kinds.time());
        state.schedule_window_resets(&access.ctx.options.kinds);
        for (_, window) in state.windows.iter_mut() {
            // Owners that were evicted while old blocks were read were already counted when the blocks were new.
            window.take_evicted();
        }
        self.start(access, state)
    }

    /// Starts processing: the state is that of C. If that fails, the state is kept, and used again once C has been read again.
    pub(crate) fn start<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        mut state: Box<DedupeState>,
    ) -> Result<(), WorkerError> {
        let id = state.id;
        let resumed = resume_offset(&mut self.start_bounds, access, &mut state);
        let (now, left) = (access.ctx.clock.elapsed(), self.torn.held_by_leftovers(access, id));
        let Some(partition) = access.ctx.partitions.get_mut(id) else { return Ok(()) };
        let held = left.or_else(|| partition.rejections.waits(now).then_some(now));
        // In topic scope the partition is sought when the state of all partitions is there.
        let is_released = access.ctx.topic.is_none();
        let sought = resumed.and_then(|_| {
            let (from, last) = state.position();
            let seeks = held.is_none() && is_released;
            if seeks { Ok(access.source.seek_behind(id, from, last)?) } else { Ok(()) }
        });
        if held.is_some() || sought.is_err() {
            partition.keep(state, held.unwrap_or(now));
            return sought;
        }
        partition.run(state, !is_released);
        if let Some(since) = partition.missing_since.take() {
            let took = now.saturating_sub(since).as_secs_f64();
            access.ctx.report.metrics.parts.state.restore_seconds.observe(took);
        }
        commit_pending_position(access, id)
    }
}

/// Adds a position that only this worker has to the next commit, although no record has arrived. In topic scope when the states of all partitions are there:
/// the one of another partition may be lost, and its offset with it.
pub(crate) fn commit_pending_position<W: WorkerPorts>(
    access: &mut Access<'_, W>,
    id: PartitionId,
) -> Result<(), WorkerError> {
    let Some(partition) = access.ctx.partitions.get_mut(id) else { return Ok(()) };
    let Some(running) = partition.running_mut().filter(|it| it.state.uncommitted_position && !it.held) else {
        return Ok(());
    };
    if let Err(failed) =
        access.committer.transaction.begin(&mut access.committer.sink, || access.ctx.clock.elapsed())
    {
        // No record may be processed before the position is in a transaction: the blocks of a partition that goes back
        // must not cover its first records too.
        partition.relocate(access.ctx.clock.elapsed());
        return Err(failed.into());
    }
    access.committer.transaction.touch(id, &mut running.state.open);
    if access.committer.transaction.is_full(access.ctx.options.transaction_limit) {
        access.committer.commit(access.ctx, access.source)
    } else {
        Ok(())
    }
}

/// Rebuilds tables of fixed size from the local state when the number of partitions that share the memory has
/// changed.
pub(crate) fn fit_tables<W: WorkerPorts>(access: &mut Access<'_, W>) -> Result<(), WorkerError> {
    if access.committer.transaction.is_open() || access.ctx.options.limits.when_full == Overflow::Shrink {
        return Ok(());
    }
    let (limits, count) = (access.ctx.options.limits, access.ctx.options.windows_of(&access.ctx.partitions));
    let needs_other = |running: &Running| {
        running.state.windows.iter().any(|(_, window)| limits.needs_other_table(window, count))
    };
    let outdated = access.ctx.partitions.ids(|p| p.running().is_some_and(needs_other));
    if outdated.is_empty() {
        return Ok(());
    }
    tracing::info!(partitions = %ranges(outdated.iter().copied()), "number of windows changed; reloading the state into tables of the new size");
    access.ctx.unload(access.source, &outdated)
}

impl Recovery {
    /// Creates the producer, which fences a predecessor with the same transactional id, and ends open transactions.
    /// This comes before the first request for C, which would otherwise wait for the predecessor's transaction.
    pub(crate) fn make_ready<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
    ) -> Result<(), WorkerError> {
        if !self.torn.is_prepared {
            // In topic scope all instances have the same transactional id: only the one with all partitions may fence the others.
            if access.ctx.topic.is_some() && !access.ctx.has_all_partitions() {
                return Ok(());
            }
            return self.torn.prepare(access);
        }
        if !self.torn.offsets_cleared && !self.torn.clear_own_offsets(access)? {
            return Ok(());
        }
        self.torn.offsets_cleared = true;
        self.torn.clear_elsewhere(access)?;
        let result = self.torn.settle_sides(access);
        if result.as_ref().is_err_and(WorkerError::is_grave) {
            return result;
        }
        // A retriable failure does not delay repairs: the next check of the side topics may depend on them.
        self.recover(access)?;
        result
    }
}

/// Deletes stored owners that have left the windows, as each commit does later. The state topic retains a day more than a window at least, and
/// often far more: all of it would be on the disk until the end of the restore, and in the filters of slices. At most by the stream time of the
/// committed offset, and in topic scope by the horizon.
fn expire_restored<W: WorkerPorts>(ctx: &mut Context<W>, now: Duration) -> Result<(), WorkerError> {
    let horizon_ms = ctx.topic.as_ref().map_or(i64::MAX, TopicScope::horizon_ms);
    let due =
        ctx.partitions.all_restoring_mut().filter(|it| it.forgetting.is_none() && it.expiry.is_due(now));
    for Restoring { state, expiry, checkpoint, purpose, .. } in due {
        // Both are settled: the logs of the partition agree with its committed offset.
        let own_ms = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.stream_time_ms);
        let settled_ms = own_ms.min(horizon_ms).min(state.windows.stream_time_ms());
        let settled = (settled_ms, checkpoint.as_ref());
        let times = (now, EXPIRE_INTERVAL);
        let deleted = expiry.delete((&mut ctx.store, state.id), (&state.windows, *purpose), settled, times);
        StoreError::unless_lease_lost(deleted)?;
    }
    Ok(())
}
