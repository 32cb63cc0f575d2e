//! A restore from the state topic, in slices short enough that the worker keeps polling.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, KindId, Offset, PartitionId, StateKey};
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::failpoint;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::loading::clear;
use crate::pipeline::partition::local::{all_expired, is_behind_the_log, usable};
use crate::pipeline::partition::read_progress::ReadProgress;
use crate::pipeline::partition::restoring::{ReadPurpose, Restoring};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::Recovery;
use crate::pipeline::recovery::complete::is_restored;
use crate::pipeline::recovery::restored_offset::end_offset;
use crate::ports::{Committed, LogBounds, StateItem, StateLog, Store};

/// What a restore starts with.
#[derive(Debug)]
pub(crate) enum Base {
    /// Empty windows. The identity rules of these kinds have changed.
    Empty(BTreeSet<KindId>),
    /// Local state, correct below the second offset, a raw offset; the state topic is read from the first on.
    Local(Box<DedupeState>, (Offset, Offset)),
}

impl Recovery {
    /// Starts reading the state topic: all of it, or what follows the local state. When that fails, the partition stays in
    /// `Locating`, without state.
    pub(crate) fn begin_restore<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        answer: &Committed,
        checkpoint: Option<Checkpoint>,
        base: Base,
    ) -> Result<(), WorkerError> {
        let id = answer.partition;
        let bounds = self.start_bounds.state(access, id)?;
        if let Some(checkpoint) = &checkpoint {
            check_length(&access.ctx.options, id, bounds.high, checkpoint)?;
        }
        let local = if let Base::Local(_, local) = &base { Some(*local) } else { None };
        let usable = usable(local, &bounds, answer.offset);
        let is_behind = local.is_some_and(|(from, _)| is_behind_the_log(from, &bounds));
        if answer.offset.is_none() && is_behind && bounds.low >= bounds.stable {
            return Err(all_expired(&access.ctx.options, id, local).into());
        }
        let (loaded, reset_kinds) = match base {
            Base::Local(state, _) if usable.is_some() => (Some(state), BTreeSet::new()),
            Base::Local(state, _) => (None, state.reset_kinds),
            Base::Empty(reset_kinds) => (None, reset_kinds),
        };
        let mut state = if let Some(state) = loaded {
            state
        } else {
            clear(&mut access.ctx.store, &access.ctx.options.kinds.windows_of(id))?;
            Box::new(DedupeState::new(id, access.ctx.empty_windows(checkpoint.as_ref()), reset_kinds))
        };
        state.tail = checkpoint.as_ref().and_then(|c| c.tail);
        let from = usable.map_or(bounds.low, |(from, _)| from);
        tracing::debug!(partition = id, from, until = bounds.stable, "restoring state from the state topic");
        let (now, rules) = (access.ctx.clock.elapsed(), access.ctx.options.rules());
        let restoring = Restoring {
            committed: answer.offset,
            covered: Some(state.windows.next()).filter(|next| *next > 0),
            confirmed: usable.map(|(_, confirmed)| confirmed),
            emptied: access.ctx.options.kinds_by_other_rules(checkpoint.as_ref()),
            checkpoint,
            ..Restoring::new(ReadPurpose::Start, state, (from, &bounds), rules, now)
        };
        if let Some(partition) = access.ctx.partitions.get_mut(id) {
            partition.enter(Phase::Restoring(Box::new(restoring)));
        }
        let opened = self.read_from(access, id, (from, bounds.stable));
        if opened.is_err() {
            abandon_restore(access.ctx, id);
        }
        opened
    }

    /// Reads the state topic from an offset on, or ends the restore when the log ends there.
    fn read_from<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        id: PartitionId,
        (from, until): (Offset, Offset),
    ) -> Result<(), WorkerError> {
        if from >= until {
            return self.end_restore(access, id, from);
        }
        failpoint::pass("before_state_open");
        Ok(access.ctx.log.open(id, Some(from))?)
    }

    /// Continues the search for the owners of forgotten identities. Where it ends, reading continues behind the forget record.
    pub(crate) fn search_forgotten<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        until: Duration,
    ) -> Result<(), WorkerError> {
        let is_searching =
            |p: &Partition| matches!(p.phase(), Phase::Restoring(it) if it.forgetting.is_some());
        for id in access.ctx.partitions.ids(is_searching) {
            let searched = self.search_forgotten_of(access, id, until);
            if searched.is_err() {
                abandon_restore(access.ctx, id);
            }
            searched?;
            if access.ctx.clock.elapsed() >= until {
                break;
            }
        }
        Ok(())
    }

    fn search_forgotten_of<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        id: PartitionId,
        until: Duration,
    ) -> Result<(), WorkerError> {
        match continue_search(access.ctx, id, until)? {
            Some(range) => self.read_from(access, id, range),
            None => Ok(()),
        }
    }

    /// Processes one item read from the state topic. The log delivers each record once, so a restore that misses a record
    /// restarts: otherwise its end would be mistaken for that of a complete restore.
    pub(crate) fn restored<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        item: StateItem,
    ) -> Result<(), WorkerError> {
        let id = item.partition();
        if access.ctx.partitions.restoring_mut(id).is_some_and(|restoring| restoring.forgetting.is_some()) {
            // Reading continues behind the forget record when its owners are found.
            return Ok(());
        }
        let result = match item {
            StateItem::Block { offset, key, block, .. } => {
                restore_record(access.ctx, id, offset, key.unwrap_or_default(), &block)
            }
            StateItem::End { next, .. } => self.end_restore(access, id, next),
            StateItem::Gone { .. } => restart_restore(access.ctx, id),
        };
        if result.is_err() {
            abandon_restore(access.ctx, id);
        }
        result
    }

    fn end_restore<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        id: PartitionId,
        next: Offset,
    ) -> Result<(), WorkerError> {
        let now = access.ctx.clock.elapsed();
        // When anything below fails, the state is read again.
        let restoring = access.ctx.partitions.get_mut(id).and_then(|partition| partition.take_restoring(now));
        let Some(mut restoring) = restoring else { return Ok(()) };
        access.ctx.restorer().1.write(&mut restoring)?;
        if !is_restored(access.ctx, &mut restoring, next)? {
            return Ok(());
        }
        restoring.log_left_out(&access.ctx.options.state);
        access.ctx.log.close(id)?;
        let Some(committed) = end_offset(&mut self.start_bounds, access, &mut restoring)? else {
            return Ok(());
        };
        let known = restoring.covered.max(restoring.confirmed).unwrap_or(0);
        let Restoring { mut state, checkpoint, progress, .. } = *restoring;
        if checkpoint.is_none() && skips_records(known, committed, self.start_bounds.raw(access, id)?) {
            tracing::warn!(partition = id, offset = committed, "{SKIPS_RECORDS}");
            state.windows.note_incomplete_before(access.ctx.time.now_ms(&access.ctx.clock));
        }
        let ReadProgress { since, ids, .. } = progress;
        // An offset without our metadata was set by another program. After a change of the scope, the first commit makes it final.
        let is_ours = checkpoint.as_ref().is_some_and(|it| access.ctx.options.is_of_scope(it));
        state.uncommitted_position |= restoring.committed.is_some() && !is_ours;
        state.state_next = state.state_next.max(next);
        state.complete(committed, &checkpoint.unwrap_or_default());
        access.ctx.store.set_head(id.into(), state.head())?;
        let took_ms = access.ctx.clock.elapsed().saturating_sub(since).as_millis();
        tracing::debug!(
            partition = id,
            ids,
            offset = committed,
            took_ms,
            "state restored from the state topic"
        );
        self.start_loaded(access, state)
    }
}

/// What follows where [`skips_records`].
pub(crate) const SKIPS_RECORDS: &str = "the group continues behind records of raw that it has not processed: their ids are not known, and copies of \
                                        them are forwarded";

/// Whether raw has records before the offset at which a group continues, behind those whose ids are `known`. Without a checkpoint another program or
/// `group.start` has chosen that offset.
pub(crate) fn skips_records(known: Offset, next: Offset, raw: LogBounds) -> bool {
    next > known.max(raw.low)
}

/// Fails when the state topic ends before what it had when the checkpoint was written.
pub(crate) fn check_length(
    options: &WorkerOptions,
    id: PartitionId,
    end: Offset,
    checkpoint: &Checkpoint,
) -> Result<(), Fatal> {
    let reached = checkpoint.state_next;
    if reached <= end {
        return Ok(());
    }
    Err(Fatal::Operator(format!(
        "topic {} partition {id} ends at offset {end}, but the group's checkpoint was written when it had \
         reached {reached}: the topic was recreated or truncated; restore it, or set a new group.id to start with an \
         empty window",
        options.state
    )))
}

/// Discards the restore of a partition, so that its state is read again from the start.
pub(crate) fn abandon_restore<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) {
    let now = ctx.clock.elapsed();
    drop(ctx.partitions.get_mut(id).and_then(|partition| partition.take_restoring(now)));
}

/// Restarts a restore because the log no longer holds the next record. It restarts at the log start because the log
/// bounds have changed.
fn restart_restore<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) -> Result<(), WorkerError> {
    let topic = &ctx.options.state;
    if let Some(restoring) = ctx.partitions.restoring_mut(id) {
        let at = restoring.at;
        tracing::warn!(
            partition = id,
            at,
            "topic {topic} lost records while it was read; restarting the restore"
        );
    }
    abandon_restore(ctx, id);
    Ok(ctx.log.close(id)?)
}

/// Adds a record of the state topic to the restore of a partition, if there is one.
pub(crate) fn restore_record<W: WorkerPorts>(
    ctx: &mut Context<W>,
    id: PartitionId,
    offset: Offset,
    key: StateKey,
    bytes: &[u8],
) -> Result<(), WorkerError> {
    ctx.options.same_pair(&key)?;
    let (partitions, mut restorer) = ctx.restorer();
    let Some(restoring) = partitions.restoring_mut(id) else { return Ok(()) };
    if restoring.committed.is_none() && restoring.purpose == ReadPurpose::Start {
        restorer.options.same_group(&key)?;
    }
    restorer.record(restoring, offset, key, bytes)?;
    if restoring.forgetting.is_some() { Ok(ctx.log.close(id)?) } else { Ok(()) }
}

/// Continues the search for the owners of forgotten identities in one partition. When it has ended, returns the state offsets
/// from which and up to which the log is read next.
pub(crate) fn continue_search<W: WorkerPorts>(
    ctx: &mut Context<W>,
    id: PartitionId,
    until: Duration,
) -> Result<Option<(Offset, Offset)>, WorkerError> {
    let Some(restoring) = ctx.partitions.restoring_mut(id) else { return Ok(None) };
    let Some(forgetting) = &mut restoring.forgetting else { return Ok(None) };
    forgetting.read(&ctx.store, || ctx.clock.elapsed() >= until)?;
    let Some(forgetting) = restoring.forgetting.take_if(|it| it.is_done()) else { return Ok(None) };
    let range = (forgetting.offset + 1, restoring.until);
    let (partitions, mut restorer) = ctx.restorer();
    if let Some(restoring) = partitions.restoring_mut(id) {
        restorer.delete_forgotten(restoring, forgetting)?;
    }
    Ok(Some(range))
}
