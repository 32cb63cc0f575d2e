//! A restore from the state topic, in slices short enough that the worker keeps polling.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, Entry, KindId, Offset, PartitionId};
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::failpoint;
use crate::pipeline::journal::{Lacking, Taken};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::loading::clear;
use crate::pipeline::partition::local::{all_expired, is_behind_the_log, usable};
use crate::pipeline::partition::read_progress::ReadProgress;
use crate::pipeline::partition::restoring::{ReadPurpose, Restoring};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::Recovery;
use crate::pipeline::recovery::complete::{misses_entries, restored};
use crate::pipeline::recovery::restored_offset::{end_offset, has_expired};
use crate::ports::{Committed, LogBounds, StateItem, Store};

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
        let is_empty = bounds.low >= bounds.stable;
        if answer.offset.is_none() && is_behind && is_empty && has_expired(access, id)? {
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
        if from < bounds.stable {
            access.ctx.await_end(id);
            failpoint::pass("before_state_open");
            return Ok(());
        }
        let ended = self.end_restore(access, id, from);
        if ended.is_err() {
            abandon_restore(access.ctx, id);
        }
        ended
    }

    /// Processes one item read from a journal. A restore that misses an entry restarts: otherwise its end would be mistaken for that of a
    /// complete restore.
    pub(crate) fn restored<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        item: StateItem,
    ) -> Result<(), WorkerError> {
        let journal = item.partition();
        match item {
            StateItem::Block { offset, key, block, .. } => {
                let taken = access.ctx.take_record(journal, offset, key, block);
                if let Ok(Taken::Nothing) = taken {
                    return Ok(());
                }
                let partitions = access.ctx.restoring_from(journal);
                match taken {
                    Ok(Taken::Nothing) => Ok(()),
                    Ok(Taken::Entry(entry)) => restore_entry(access.ctx, &partitions, &entry),
                    Ok(Taken::Lacks(gap)) => misses_entries(access.ctx, &partitions, gap),
                    Err(error) => {
                        for id in &partitions {
                            abandon_restore(access.ctx, *id);
                        }
                        Err(error)
                    }
                }
            }
            StateItem::End { next, .. } => {
                let Some(next) = access.ctx.end_of_entries(journal, next) else { return Ok(()) };
                for id in access.ctx.restoring_from(journal) {
                    let ended = match access.ctx.partitions.restoring_mut(id) {
                        // Another partition may have needed more of the journal: what lies between has no committed records.
                        Some(it) if it.forgetting.is_none() => {
                            let next = next.max(it.needed);
                            self.end_restore(access, id, next)
                        }
                        _ => Ok(()),
                    };
                    if ended.is_err() {
                        abandon_restore(access.ctx, id);
                        // The others have not ended.
                        access.ctx.reopen_journal(journal);
                        return ended;
                    }
                }
                Ok(())
            }
            StateItem::Gone { .. } => {
                for id in access.ctx.restoring_from(journal) {
                    restart_restore(access.ctx, id);
                }
                access.ctx.reopen_journal(journal);
                Ok(())
            }
        }
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
        let Some(mut restoring) = restored(access.ctx, restoring, next)? else { return Ok(()) };
        restoring.log_left_out(&access.ctx.options.state);
        let Some(committed) = end_offset(&mut self.start_bounds, access, &mut restoring)? else {
            return Ok(());
        };
        let known = restoring.covered.max(restoring.confirmed).unwrap_or(0);
        let Restoring { mut state, checkpoint, progress, .. } = *restoring;
        if checkpoint.is_none() && skips_records(known, committed, self.start_bounds.raw(access, id)?) {
            tracing::warn!(partition = id, offset = committed, "{SKIPS_RECORDS}");
            state.windows.note_incomplete_before(access.ctx.time.now_ms(&access.ctx.clock));
        }
        // The group may continue behind what its checkpoint names.
        state.tail = restoring.last.or(state.tail);
        if checkpoint.is_none() && state.tail.is_none() {
            state.tail = access.ctx.store.head(id.into())?.and_then(|head| head.confirmed_tail);
        }
        let ReadProgress { since, ids, .. } = progress;
        // An offset without our metadata was set by another program.
        state.uncommitted_position |= restoring.committed.is_some() && checkpoint.is_none();
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

/// Adds an entry to the restores of these partitions.
fn restore_entry<W: WorkerPorts>(
    ctx: &mut Context<W>,
    partitions: &[PartitionId],
    entry: &Entry,
) -> Result<(), WorkerError> {
    let mut missed = Vec::new();
    for id in partitions {
        match apply_entry(ctx, *id, entry) {
            Ok(true) => {}
            Ok(false) => missed.push(*id),
            Err(error) => {
                abandon_restore(ctx, *id);
                // The others have not read it.
                ctx.reopen_journal(ctx.options.journal_of(*id));
                return Err(error);
            }
        }
    }
    let number = entry.end.number;
    if missed.is_empty() {
        Ok(())
    } else {
        misses_entries(ctx, &missed, Lacking { last: number, next: number })
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
fn restart_restore<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) {
    let topic = &ctx.options.state;
    if let Some(restoring) = ctx.partitions.restoring_mut(id) {
        let at = restoring.needed;
        tracing::warn!(
            partition = id,
            at,
            "topic {topic} lost records while it was read; restarting the restore"
        );
    }
    abandon_restore(ctx, id);
}

/// Adds an entry of the journal to the restore of a partition, if there is one that needs it. Returns false when records of it are missing.
pub(crate) fn apply_entry<W: WorkerPorts>(
    ctx: &mut Context<W>,
    id: PartitionId,
    entry: &Entry,
) -> Result<bool, WorkerError> {
    let (partitions, mut restorer) = ctx.restorer();
    let Some(restoring) = partitions.restoring_mut(id) else { return Ok(true) };
    if restoring.forgetting.is_some() || entry.at < restoring.needed {
        return Ok(true);
    }
    if restoring.committed.is_none() && restoring.purpose == ReadPurpose::Start {
        restorer.options.same_group(&entry.key)?;
    }
    restorer.entry(restoring, entry)
}

/// Continues the searches for the owners of forgotten identities. Where one ends, the journal is read on behind the forget record.
/// Returns the partition whose search failed.
pub(crate) fn search_forgotten<W: WorkerPorts>(
    ctx: &mut Context<W>,
    until: Duration,
) -> Result<(), (PartitionId, WorkerError)> {
    let is_searching = |p: &Partition| matches!(p.phase(), Phase::Restoring(it) if it.forgetting.is_some());
    for id in ctx.partitions.ids(is_searching) {
        continue_search(ctx, id, until).map_err(|error| (id, error))?;
        if ctx.clock.elapsed() >= until {
            break;
        }
    }
    Ok(())
}

fn continue_search<W: WorkerPorts>(
    ctx: &mut Context<W>,
    id: PartitionId,
    until: Duration,
) -> Result<(), WorkerError> {
    let Some(restoring) = ctx.partitions.restoring_mut(id) else { return Ok(()) };
    let Some(forgetting) = &mut restoring.forgetting else { return Ok(()) };
    forgetting.read(&ctx.store, || ctx.clock.elapsed() >= until)?;
    let Some(forgetting) = restoring.forgetting.take_if(|it| it.is_done()) else { return Ok(()) };
    // The end may have been reported meanwhile.
    ctx.await_end(id);
    let (partitions, mut restorer) = ctx.restorer();
    partitions.restoring_mut(id).map_or(Ok(()), |restoring| restorer.delete_forgotten(restoring, forgetting))
}
