//! Reads the committed offset of partitions, and decides how the state of each one is loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, EntryEnd, Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::commit::{Access, commit_state};
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::{OnRewind, Start, WorkerOptions};
use crate::pipeline::partition::loading::{AfterLoading, begin_loading};
use crate::pipeline::partition::local::{StatePlan, plan};
use crate::pipeline::partition::rounds::Rounds;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::Recovery;
use crate::pipeline::recovery::gap::{check_gap, rewound_group};
use crate::pipeline::recovery::restore::{Base, SKIPS_RECORDS, check_length, skips_records};
use crate::pipeline::recovery::restored_offset::no_offset;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::producer::Torn;
use crate::pipeline::torn::without_live;
use crate::ports::{
    Committed, GroupMember, LogBounds, ProducerLife, Remedy, StateItem, Store, StoreError, WrittenEnds,
};

/// Timeout of fencing a dead writer, which ends its transaction.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to begin the loads and restores of several partitions between two polls. Each sends requests to the broker.
const LOCATE_SLICE: Duration = Duration::from_millis(200);

impl Recovery {
    pub(super) fn locate<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        waiting: &[PartitionId],
    ) -> Result<(), WorkerError> {
        match access.source.committed(waiting, REQUEST_TIMEOUT) {
            Ok(answers) => {
                access.ctx.report.reachable();
                self.start_bounds.clear();
                self.torn.blocked_by_others = None;
                // Checked before a repair, because a repair commits too.
                answers.iter().try_for_each(|answer| access.ctx.options.check_metadata(answer))?;
                access.committer.undecided.count_if_committed(access.ctx, &answers);
                let checked = self.torn.reconcile(access, &answers)?;
                access.committer.undecided.count_if_aborted(access.ctx, &answers, &checked);
                let began = access.ctx.clock.elapsed();
                for answer in answers.iter().filter(|answer| checked.contains(&answer.partition)) {
                    self.located(access, answer)?;
                    // The rest follows in the next iteration.
                    if access.ctx.clock.elapsed().saturating_sub(began) >= LOCATE_SLICE {
                        break;
                    }
                }
                Ok(())
            }
            Err(failed) if failed.remedy == Remedy::Retry => {
                end_pending(&mut self.torn, access, waiting)?;
                Err(failed.into())
            }
            Err(failed) => Err(failed.into()),
        }
    }

    pub(super) fn located<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        answer: &Committed,
    ) -> Result<(), WorkerError> {
        let id = answer.partition;
        let Some(locating) = access.ctx.partitions.locating_mut(id) else { return Ok(()) };
        if let Some(mut state) = locating.state.take() {
            if state.was_committed_as(answer.offset, &answer.metadata) {
                // The response to the commit was lost, and the commit has succeeded.
                let journal_end = access.committer.sink.state_end(access.ctx.options.journal_of(id));
                commit_state(&mut state, journal_end, &mut access.ctx.store)?;
                if let Some(partition) = access.ctx.partitions.get_mut(id) {
                    partition.rejections.committed(id, state.committed);
                }
                return self.start(access, state);
            }
            if state.is_of(answer) {
                undo(access.ctx, &mut state)?;
                return self.start(access, state);
            }
        }
        self.begin(access, answer)
    }

    /// Starts to load the state of a partition that is not in memory.
    pub(super) fn begin<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        answer: &Committed,
    ) -> Result<(), WorkerError> {
        let id = answer.partition;
        let checkpoint = Checkpoint::parse(&answer.metadata);
        let changed = access.ctx.options.changed_rules(checkpoint.as_ref(), id)?;
        if let Some(topic) = &mut access.ctx.topic {
            checkpoint.as_ref().and_then(|it| it.horizon_ms).into_iter().for_each(|ms| topic.resume(ms));
            topic.has_checkpoint |= checkpoint.is_some();
        }
        let now = access.ctx.clock.elapsed();
        let Some(partition) = access.ctx.partitions.get_mut(id) else { return Ok(()) };
        partition.missing_since.get_or_insert(now);
        // The last restore ended early: the local state did not lead to the last committed block, so it is not used.
        let ended_early = partition.early_ends > 0;
        let is_usable = !ended_early && !has_unusable_slices(access.ctx, id);
        let head = access.ctx.store.head(id.into())?.filter(|_| is_usable);
        let plan = match (head, answer.offset) {
            _ if !changed.is_empty() => StatePlan::Restore,
            (Some(_), Some(confirmed)) if !access.ctx.options.keeps(Safeguard::Tails) => {
                StatePlan::Load { confirmed }
            }
            _ => plan(head, answer.offset, checkpoint.as_ref()),
        };
        match plan {
            StatePlan::Load { confirmed } => {
                let (checkpoint, committed) = (checkpoint.unwrap_or_default(), answer.offset.unwrap_or(0));
                let state = claim(access.ctx, answer, Some(&checkpoint), confirmed)?;
                begin_loading(access.ctx, state, committed, AfterLoading::Start(answer.clone(), checkpoint))
            }
            StatePlan::CatchUp { confirmed, from } => {
                let state = claim(access.ctx, answer, checkpoint.as_ref(), confirmed)?;
                let next = AfterLoading::Restore(answer.clone(), checkpoint, (from, confirmed));
                begin_loading(access.ctx, state, confirmed, next)
            }
            StatePlan::Restore => self.begin_restore(access, answer, checkpoint, Base::Empty(changed)),
        }
    }
}

/// Whether owners are sealed of a window that now needs their blocks, to evict owners.
fn has_unusable_slices<W: WorkerPorts>(ctx: &Context<W>, id: PartitionId) -> bool {
    let evicts = ctx.options.limits.when_full == Overflow::Evict;
    evicts && ctx.options.kinds.iter().any(|kind| !ctx.store.sealed(kind.id.window(id)).is_empty())
}

/// A pending transaction blocks C. If its writer is dead, nothing else ends the transaction before its timeout. The
/// metadata of the last commit names the writer, which is fenced.
fn end_pending<W: WorkerPorts>(
    torn: &mut Torn,
    access: &mut Access<'_, W>,
    waiting: &[PartitionId],
) -> Result<(), WorkerError> {
    let stable = access.source.committed_unstable(waiting, REQUEST_TIMEOUT)?;
    let blocked = blocked_for(access.ctx, &stable);
    if blocked < REQUEST_TIMEOUT {
        return Ok(());
    }
    if blocked > access.ctx.options.transaction_timeout {
        return waiting.first().map_or(Ok(()), |first| torn.end_blocking(access, *first, Rounds::default()));
    }
    let writers = stable.iter().filter_map(|answer| Some(Checkpoint::parse(&answer.metadata)?.writer));
    let others = writers.filter(|writer| !writer.is_empty() && *writer != access.ctx.options.writer);
    let writers = without_live::<W>(&access.ctx.options, access.source, others.collect())?;
    for writer in writers {
        tracing::info!(%writer, partitions = %ranges(waiting.iter().copied()),
            "a pending transaction of another instance blocks the committed offsets; fencing its writer");
        access.committer.sink.fence(&writer, FENCE_TIMEOUT)?;
    }
    Ok(())
}

/// Takes the partition's local state. The state in memory is valid only if no other worker held the local state
/// meanwhile.
pub(super) fn take_local_state<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) {
    let unchanged: Vec<bool> =
        ctx.options.kinds.windows_of(id).into_iter().map(|window| ctx.store.acquire_lease(window)).collect();
    if unchanged.contains(&false)
        && let Some(locating) = ctx.partitions.locating_mut(id)
    {
        locating.state = None;
    }
}

/// What `dedupd check` has read of the topics: nothing, or all partitions in their order.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartLogs<'a> {
    /// The last records of the state topic, read before the committed offsets.
    pub last: &'a [StateItem],
    /// The bounds of raw, read after the committed offsets.
    pub raw: &'a [LogBounds],
    /// The bounds of the state topic, read after the committed offsets; partitions that it does not have are missing.
    pub state: &'a [LogBounds],
}

/// What would end a start with these committed offsets of all partitions and these logs.
pub fn check_start(
    options: &WorkerOptions,
    committed: &[Committed],
    logs: StartLogs<'_>,
) -> Result<(), Fatal> {
    for answer in committed {
        options.check_metadata(answer)?;
        let checkpoint = Checkpoint::parse(&answer.metadata);
        options.changed_rules(checkpoint.as_ref(), answer.partition)?;
        let journal = options.journal_of(answer.partition);
        if let (Some(checkpoint), Some(log)) = (&checkpoint, of(logs.state, journal)) {
            check_length(options, answer.partition, log.high, checkpoint)?;
        }
    }
    let mut last = BTreeMap::new();
    for item in logs.last {
        let StateItem::Block { partition, offset, key: Some(key), .. } = item else { continue };
        options.same_pair(key)?;
        let what = || format!("topic {} partition {partition} offset {offset} was written", options.state);
        options.same_scope(key.is_topic_wide, what)?;
        // A later section replaces an earlier one: a repair may have rewound the partition.
        last.extend(covered(item).into_iter().map(|(partition, covered)| (partition, (covered, key))));
    }
    for answer in committed {
        let Some((covered, key)) = last.get(&answer.partition) else { continue };
        match answer.offset {
            None => options.same_group(key)?,
            Some(at) if *covered > at && options.on_rewind == OnRewind::Stop => {
                return Err(rewound_group(options, answer.partition, at, *covered));
            }
            Some(_) => {}
        }
    }
    for answer in committed {
        if let (Some(offset), Some(log)) = (answer.offset, of(logs.raw, answer.partition)) {
            check_gap(options, answer.partition, offset, log)?;
        }
    }
    let is_new = committed.iter().all(|answer| answer.offset.is_none());
    match committed.first().filter(|_| is_new && logs.state.iter().all(|log| log.high == 0)) {
        Some(first) if options.start == Start::Stop && !logs.raw.is_empty() => {
            Err(no_offset(options, first.partition))
        }
        _ => Ok(()),
    }
}

/// What a start with these committed offsets does that its operator may not expect, in sentences.
pub fn start_notes(options: &WorkerOptions, committed: &[Committed], logs: StartLogs<'_>) -> Vec<String> {
    let (mut skipping, mut emptied) = (Vec::new(), Vec::new());
    for answer in committed {
        let (id, checkpoint) = (answer.partition, Checkpoint::parse(&answer.metadata));
        let Some(raw) = of(logs.raw, id) else { continue };
        let latest = Some(raw.stable).filter(|_| options.start == Start::Latest);
        let next = answer.offset.or(latest);
        let mut known = logs.last.iter().flat_map(covered).filter(|(of, _)| *of == id);
        // In topic scope its last section may be far before the end of the journal.
        let is_all = !options.is_topic_wide() || logs.last.is_empty();
        let known = known.next_back().map(|(_, next)| next).or(is_all.then_some(0));
        let skips = known.zip(next).is_some_and(|(known, next)| skips_records(known, next, raw));
        if checkpoint.is_none() && skips {
            skipping.push(id);
        }
        if !options.kinds_by_other_rules(checkpoint.as_ref()).is_empty() {
            emptied.push(id);
        }
    }
    let named = |ids: Vec<PartitionId>, what: &str| {
        (!ids.is_empty()).then(|| format!("partitions {}: {what}", ranges(ids.iter().copied())))
    };
    let accepted = "the identity rule has changed (identity.accept_change): their windows start empty, and copies of earlier records are forwarded";
    [named(skipping, SKIPS_RECORDS), named(emptied, accepted)].into_iter().flatten().collect()
}

/// The partitions of the entry that a record of the state topic ends, each with the offset of raw behind it.
fn covered(item: &StateItem) -> Vec<(PartitionId, Offset)> {
    let StateItem::Block { block, .. } = item else { return Vec::new() };
    let sections = EntryEnd::decode(block).map(|end| end.sections).unwrap_or_default();
    sections.into_iter().map(|section| (section.partition, section.next)).collect()
}

fn of(logs: &[LogBounds], partition: PartitionId) -> Option<LogBounds> {
    logs.get(usize::try_from(partition).ok()?).copied()
}

/// How long C has been blocked at the same committed offset, for the partition that has waited longest. A live writer
/// advances the committed offset.
fn blocked_for<W: WorkerPorts>(ctx: &mut Context<W>, stable: &[Committed]) -> Duration {
    let now = ctx.clock.elapsed();
    let mut longest = Duration::ZERO;
    for answer in stable {
        if let Some(locating) = ctx.partitions.locating_mut(answer.partition) {
            let since = locating.blocked.filter(|(_, at)| *at == answer.offset);
            let since = since.map_or(now, |(since, _)| since);
            locating.blocked = Some((since, answer.offset));
            longest = longest.max(now.saturating_sub(since));
        }
    }
    longest
}

/// Undoes the open transaction in memory and in the local store. It was not committed: C is unchanged.
fn undo<W: WorkerPorts>(ctx: &mut Context<W>, state: &mut DedupeState) -> Result<(), StoreError> {
    if !ctx.options.keeps(Safeguard::Undo) {
        state.windows.commit(state.next);
    }
    state.undo_stored(&mut ctx.store, &ctx.options.kinds)?;
    state.abort();
    Ok(())
}

/// Truncates the local store to `from`. Owners that the store held at or beyond C are unconfirmed, and their records will be
/// read again: they become claims. Returns state with these claims and empty windows.
fn claim<W: WorkerPorts>(
    ctx: &mut Context<W>,
    answer: &Committed,
    checkpoint: Option<&Checkpoint>,
    from: Offset,
) -> Result<Box<DedupeState>, WorkerError> {
    let id = answer.partition;
    let mut windows = ctx.empty_windows(checkpoint);
    let from = if ctx.options.keeps(Safeguard::Claims) { from } else { Offset::MAX };
    for (kind, window) in windows.iter_mut() {
        for (owner, identity) in ctx.store.truncate(kind.window(id), from)? {
            if answer.offset.is_some_and(|committed| owner >= committed) {
                window.claim(identity, owner);
            }
        }
    }
    Ok(Box::new(DedupeState::new(id, windows, BTreeSet::new())))
}
