//! The offset at which a restored partition continues.

use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::metrics::OffsetReset;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::commit::Access;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::{Start, WorkerOptions};
use crate::pipeline::partition::local::all_expired;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::gap::rewound;
use crate::pipeline::recovery::start_bounds::StartBounds;
use crate::pipeline::torn::all_partitions;
use crate::ports::{GroupMember, LogId, LogTails};

/// The offset at which the restored state ends; `None` when the committed offset has to be read again.
pub(crate) fn end_offset<W: WorkerPorts>(
    bounds: &mut StartBounds,
    access: &mut Access<'_, W>,
    restoring: &mut Restoring,
) -> Result<Option<Offset>, WorkerError> {
    let state = &mut *restoring.state;
    let offset = match (restoring.committed, restoring.covered) {
        (Some(committed), Some(covered)) if covered > committed => {
            let Some(partition) = access.ctx.partitions.get_mut(state.id) else { return Ok(None) };
            // Another instance may have committed between reading C and reading the state topic, so at the first occurrence
            // C is read again: offsets and blocks are committed together.
            if partition.behind_state.replace(committed) != Some(committed) {
                return Ok(None);
            }
            rewound(access.ctx, state, committed, covered)?
        }
        (Some(committed), _) => committed,
        (None, Some(covered)) => {
            let end = restoring.confirmed.map_or(covered, |confirmed| confirmed.max(covered));
            tracing::warn!(
                partition = state.id,
                offset = end,
                "the group has no committed offset (offsets expire when a group is empty for long); \
                 continuing at the end of the state"
            );
            access.ctx.report.metrics.offset_resets(OffsetReset::Expired).inc();
            // Other instances read the position from the group.
            state.uncommitted_position = true;
            end
        }
        // Nothing was committed yet: the partition starts again at the same offset.
        (None, None) => match restoring.confirmed {
            Some(confirmed) => {
                state.uncommitted_position = access.ctx.options.start == Start::Latest || restoring.low > 0;
                confirmed
            }
            None if restoring.low > 0 && has_expired::<W>(access, state.id)? => {
                return Err(all_expired(&access.ctx.options, state.id, None).into());
            }
            None => first_offset(bounds, access, state)?,
        },
    };
    Ok(Some(offset))
}

/// Whether the offset of a partition without one may have expired. The offsets of a group expire together, so no other partition of its journal has a
/// checkpoint then, and none is written before the positions of all are known. An offset without one was set by an operator, who may not be done.
pub(crate) fn has_expired<W: WorkerPorts>(
    access: &Access<'_, W>,
    id: PartitionId,
) -> Result<bool, WorkerError> {
    let journal = access.ctx.options.journal_of(id);
    let others = all_partitions(access.ctx).into_iter();
    let others: Vec<PartitionId> =
        others.filter(|other| *other != id && access.ctx.options.journal_of(*other) == journal).collect();
    if others.is_empty() {
        return Ok(true);
    }
    let answers = access.source.committed(&others, REQUEST_TIMEOUT)?;
    Ok(answers.iter().all(|answer| Checkpoint::parse(&answer.metadata).is_none()))
}

fn first_offset<W: WorkerPorts>(
    bounds: &mut StartBounds,
    access: &mut Access<'_, W>,
    state: &mut DedupeState,
) -> Result<Offset, WorkerError> {
    let id = state.id;
    bounds.check_scope(access)?;
    let log = bounds.raw(access, id)?;
    warn_of_foreign_records(access, id)?;
    if was_added_later::<W>(&access.ctx.options, access.source, id)? {
        // Records that were written before the partition was first assigned belong to it too.
        tracing::info!(
            partition = id,
            offset = log.low,
            "new partition of the raw topic; starting at the earliest offset"
        );
        access.ctx.report.metrics.offset_resets(OffsetReset::Grown).inc();
        return Ok(log.low);
    }
    match access.ctx.options.start {
        Start::Earliest => Ok(log.low),
        Start::Latest => {
            // Committed at once, because the log end will be a different offset for the next owner.
            state.uncommitted_position = true;
            Ok(log.stable)
        }
        Start::Stop => Err(no_offset(&access.ctx.options, id).into()),
    }
}

fn warn_of_foreign_records<W: WorkerPorts>(
    access: &Access<'_, W>,
    id: PartitionId,
) -> Result<(), WorkerError> {
    let logs = access.ctx.log.bounds(&[LogId::clean(id)], REQUEST_TIMEOUT)?;
    let options = &access.ctx.options;
    if logs.iter().any(|log| log.high > log.low) {
        tracing::warn!(partition = id, "{}", foreign_records(&options.group));
    }
    Ok(())
}

/// The warning that the clean topic is not empty although the group is new.
pub(crate) fn foreign_records(group: &str) -> String {
    format!(
        "the clean topic has records, but group {group} has processed none: what others wrote there is not known, and is written again. To \
         continue another group, set its group.id and topics.state; otherwise correct topics.raw or topics.clean"
    )
}

/// The error for a new group with `group.start = "stop"`.
pub(crate) fn no_offset(options: &WorkerOptions, id: PartitionId) -> Fatal {
    Fatal::Operator(format!(
        "neither the group nor topic {} has an offset for partition {id} of topic {}, and group.start is \
         \"stop\"; set it to earliest or latest",
        options.state, options.raw
    ))
}

/// Whether the partition was added to the raw topic after the group began. The checkpoints of the partitions with lower
/// numbers store the number of partitions at the start of the group. The minimum counts, because each of them may have
/// started later.
fn was_added_later<W: WorkerPorts>(
    options: &WorkerOptions,
    source: &W::Source,
    id: PartitionId,
) -> Result<bool, WorkerError> {
    if id >= options.raw_partitions {
        return Ok(true);
    }
    if options.start == Start::Earliest || id == 0 {
        return Ok(false);
    }
    let below: Vec<PartitionId> = (0..id).collect();
    let answers = source.committed_unstable(&below, REQUEST_TIMEOUT)?;
    let began =
        answers.iter().filter_map(|answer| Checkpoint::parse(&answer.metadata)?.first_raw_partitions).min();
    Ok(began.is_some_and(|began| id >= began))
}
