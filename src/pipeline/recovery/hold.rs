//! In topic scope, records are processed only while the state of all partitions is there: partitions that are ready earlier are
//! held, and released together.

use crate::dedupe::PartitionId;
use crate::dedupe::coordinates::ranges;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::topic::has_settled_state;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::commit_pending_position;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::Source;

/// Releases the held partitions if the state of all partitions is there, and holds all otherwise. No effect in partition scope.
///
/// The records of a held partition that were fetched before are not processed; they are read again once it is released.
pub(crate) fn hold_or_release<W: WorkerPorts>(access: &mut Access<'_, W>) -> Result<(), WorkerError> {
    let Some(is_open) = access.ctx.topic.as_ref().map(|topic| topic.is_open) else { return Ok(()) };
    if is_open && access.ctx.partitions.has_nothing_pending() {
        return Ok(());
    }
    let may_open = if is_open { Ok(has_all_states(access.ctx, true)) } else { is_complete(access) };
    let opens = *may_open.as_ref().unwrap_or(&false);
    if let Some(topic) = &mut access.ctx.topic {
        topic.is_open = opens;
        if opens {
            topic.filter.restored();
        }
    }
    if opens { release(access) } else { hold(access).and(may_open).map(drop) }
}

/// Before the first record: whether the worker has the state of each partition that raw has now. The group can assign it a part of them
/// in one step, and the last active instance may have processed partitions that this process does not know yet: it started before
/// raw grew, and its topic monitor has not looked since. What that instance had, a broker reported before this worker was assigned anything.
fn is_complete<W: WorkerPorts>(access: &Access<'_, W>) -> Result<bool, WorkerError> {
    if !has_all_states(access.ctx, false) {
        return Ok(false);
    }
    let raw = access.source.partition_count(REQUEST_TIMEOUT)?;
    access.ctx.options.partition_limit.note_raw(raw);
    // A broker that reports fewer partitions than are known has outdated metadata.
    Ok(raw >= access.ctx.known_partitions().len() && has_all_states(access.ctx, false))
}

/// While records are processed, a partition that was added to raw does not hold the others until it is assigned, and clean and state have it too: nobody
/// has processed it. Before the first record it does.
fn has_all_states<W: WorkerPorts>(ctx: &Context<W>, is_open: bool) -> bool {
    let options = &ctx.options;
    let owned = |id| !options.keeps(Safeguard::AllPartitions) && ctx.partitions.get(id).is_none();
    let ignored = |id| owned(id) || !options.keeps(Safeguard::AllStates) && ctx.partitions.get(id).is_some();
    let is_new = |id| ctx.partitions.get(id).is_none() || !options.partition_limit.covers(id);
    let has_none = |id| ignored(id) || is_open && is_new(id);
    ctx.known_partitions().all(|id| has_none(id) || ctx.partitions.get(id).is_some_and(has_settled_state))
}

fn hold<W: WorkerPorts>(access: &mut Access<'_, W>) -> Result<(), WorkerError> {
    let mut ids = Vec::new();
    for partition in access.ctx.partitions.iter_mut() {
        if let Some(running) = partition.running_mut().filter(|running| !running.held) {
            running.held = true;
            ids.push(running.state.id);
        }
    }
    if !ids.is_empty() {
        tracing::info!(partitions = %ranges(ids.iter().copied()), "paused until the state of all partitions is complete");
        access.source.pause(&ids)?;
    }
    Ok(())
}

fn release<W: WorkerPorts>(access: &mut Access<'_, W>) -> Result<(), WorkerError> {
    let held: Vec<PartitionId> =
        access.ctx.partitions.ids(|p| p.running().is_some_and(|running| running.held));
    if held.is_empty() {
        return Ok(());
    }
    align_clocks(access.ctx);
    for id in held {
        let Some(running) = access.ctx.partitions.get_mut(id).and_then(|p| p.running_mut()) else { continue };
        let (next, epoch) = running.state.position();
        access.source.seek_behind(id, next, epoch)?;
        // If its next record still needs a schema, the partition waits again when it is read.
        running.resume();
        commit_pending_position(access, id)?;
    }
    Ok(())
}

/// Stream times of different partitions are compared, so all partitions get the same clock: that of the partition with the
/// latest stream time, which no other one has reached.
fn align_clocks<W: WorkerPorts>(ctx: &mut Context<W>) {
    let clock = |state: &DedupeState| (state.windows.stream_time_ms(), state.ahead_ms);
    let states = ctx.partitions.iter().filter_map(Partition::state);
    let Some((_, ahead_ms)) = states.map(clock).max() else { return };
    ctx.partitions.iter_mut().filter_map(Partition::state_mut).for_each(|state| state.ahead_ms = ahead_ms);
}
