//! Reads the committed offsets of journals, and decides how their windows are loaded.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, EntryEnd, Offset, PartitionId, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::loading::AfterLoading;
use crate::pipeline::journal::local::{Located, StatePlan, plan};
use crate::pipeline::journal::restoring::Completed;
use crate::pipeline::options::{OnRewind, Start, WorkerOptions};
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::rounds::Rounds;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::completed::no_offset;
use crate::pipeline::recovery::gap::{check_gap, rewound_group};
use crate::pipeline::recovery::restore::{SKIPS_RECORDS, check_length, skips_records};
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Committed, GroupMember, LogBounds, ProducerLife, Remedy, StateItem, Store, WrittenEnds};

/// Timeout of fencing a dead writer, which ends its transaction.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to begin the loads and restores of several journals between two polls. Each sends requests to the broker.
const LOCATE_TIME: Duration = Duration::from_millis(200);

impl<W: WorkerPorts> Access<'_, W> {
    pub(super) fn locate(&mut self, journals: &[PartitionId]) -> Result<(), WorkerError> {
        let members: Vec<PartitionId> = journals.iter().flat_map(|id| self.ctx.members(*id)).collect();
        match self.source.committed(&members, REQUEST_TIMEOUT) {
            Ok(answers) => {
                self.ctx.report.reachable();
                self.start_bounds.clear();
                self.torn.blocked_by_others = None;
                // Checked before a repair, because a repair commits too.
                answers.iter().try_for_each(|answer| self.ctx.options.check_metadata(answer))?;
                self.committer.undecided.count_if_committed(self.ctx, &answers);
                let checked = self.reconcile(&answers)?;
                self.committer.undecided.count_if_aborted(self.ctx, &answers, &checked);
                let began = self.ctx.clock.elapsed();
                let mut answers = self.ctx.options.by_journal(answers);
                for id in checked {
                    self.located(id, answers.remove(&id).unwrap_or_default())?;
                    // The rest follows in the next iteration.
                    if self.ctx.clock.elapsed().saturating_sub(began) >= LOCATE_TIME {
                        break;
                    }
                }
                Ok(())
            }
            Err(failed) if failed.remedy == Remedy::Retry => {
                self.end_pending(&members)?;
                Err(failed.into())
            }
            Err(failed) => Err(failed.into()),
        }
    }

    fn located(&mut self, id: PartitionId, answers: Vec<Committed>) -> Result<(), WorkerError> {
        let shown = self.ctx.journals.get(id).and_then(|journal| journal.end.last);
        let located = Located::new(answers, shown);
        match kept(self.ctx, id, &located) {
            Kept::Committed => {
                // The response to the commit was lost, and the commit has succeeded.
                // A new producer does not know where it ended, but the journal was checked.
                let checked = self.ctx.journals.get(id).map(|journal| journal.end.next);
                let end = self.committer.sink.state_end(id).or(checked);
                self.ctx.commit_journal(id, end)?;
                self.start(id)
            }
            Kept::Unchanged => {
                undo(self.ctx, id)?;
                self.start(id)
            }
            Kept::Grown => {
                undo(self.ctx, id)?;
                grown(self.ctx, id, located).map_or(Ok(()), |completed| self.completed(id, completed))
            }
            Kept::Outdated => self.begin(id, located),
        }
    }

    /// Starts to load the windows of a journal that are not in memory.
    fn begin(&mut self, id: PartitionId, located: Located) -> Result<(), WorkerError> {
        let first = located.answers.first().map_or(id, |answer| answer.partition);
        let changed = self.ctx.options.changed_rules(located.checkpoint.as_ref(), first)?;
        let now = self.ctx.clock.elapsed();
        let Some(journal) = self.ctx.journals.get_mut(id) else { return Ok(()) };
        journal.unload(now);
        journal.missing_since.get_or_insert(now);
        // The last restore ended early: the local state did not lead to the last committed entry, so it is not used.
        let ended_early = journal.early_ends > 0;
        let is_usable = !ended_early && !has_unusable_slices(self.ctx, id);
        let head = self.ctx.store.head(id.into())?.filter(|_| is_usable);
        let plan = match &head {
            _ if !changed.is_empty() => StatePlan::Restore,
            Some(_) if located.has_offset() && !self.ctx.options.keeps(Safeguard::LastEntries) => {
                StatePlan::Load { has_last: true }
            }
            head => plan(head.as_ref(), &located),
        };
        match plan {
            StatePlan::Load { has_last } => {
                let windows = self.ctx.claim(id, &located, has_last)?;
                self.ctx.begin_loading(id, windows, AfterLoading::Start(located))
            }
            StatePlan::CatchUp { from } => {
                let windows = self.ctx.claim(id, &located, false)?;
                self.ctx.begin_loading(id, windows, AfterLoading::Restore(located, from))
            }
            StatePlan::Restore => self.begin_restore(id, located, None, changed),
        }
    }

    /// A pending transaction blocks C. If its writer is dead, nothing else ends the transaction before its timeout. The
    /// metadata of the last commit names the writer, which is fenced.
    fn end_pending(&mut self, waiting: &[PartitionId]) -> Result<(), WorkerError> {
        let stable = self.source.committed_unstable(waiting, REQUEST_TIMEOUT)?;
        let blocked = blocked_for(self.ctx, &stable);
        if blocked < REQUEST_TIMEOUT {
            return Ok(());
        }
        if blocked > self.ctx.options.transaction_timeout {
            return waiting.first().map_or(Ok(()), |first| self.end_blocking(*first, Rounds::default()));
        }
        let writers = stable.iter().filter_map(|answer| Some(Checkpoint::parse(&answer.metadata)?.writer));
        let others = writers.filter(|writer| !writer.is_empty() && *writer != self.ctx.options.writer);
        let writers = self.without_live(others.collect())?;
        for writer in writers {
            tracing::info!(%writer, partitions = %ranges(waiting.iter().copied()),
            "a pending transaction of another instance blocks the committed offsets; fencing its writer");
            self.committer.sink.fence(&writer, FENCE_TIMEOUT)?;
        }
        Ok(())
    }
}

/// What the committed offsets show about windows that are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// The open transaction was committed.
    Committed,
    /// It was not, and nothing else was.
    Unchanged,
    /// The same, and there are partitions that were assigned since.
    Grown,
    /// There are no windows, or they are those of other offsets: the broker may have undone a transaction that it had responded to.
    Outdated,
}

fn kept<W: WorkerPorts>(ctx: &Context<W>, id: PartitionId, located: &Located) -> Kept {
    let Some(journal) = ctx.journals.get(id).filter(|journal| journal.windows.is_some()) else {
        return Kept::Outdated;
    };
    let is_last = journal.ends_with(located.last_entry.map(|last| last.entry));
    let all = || located.answers.iter().map(|answer| (ctx.partitions.get(answer.partition), answer));
    let is_all = |matches: &dyn Fn(&Partition, &Committed) -> bool| {
        all().all(|(partition, answer)| partition.is_some_and(|it| it.is_located() && matches(it, answer)))
    };
    let is_open = |partition: &Partition| partition.open.as_ref().is_some_and(|open| open.sent.is_some());
    let has_open = all().any(|(partition, _)| partition.is_some_and(is_open));
    let is_committed = |it: &Partition, answer: &Committed| {
        if is_open(it) { it.was_committed_as(answer) } else { it.is_at(answer) }
    };
    if has_open && is_all(&is_committed) {
        return Kept::Committed;
    }
    if !ctx.options.keeps(Safeguard::UndoneState) || is_all(&Partition::is_at) && is_last {
        return Kept::Unchanged;
    }
    let is_at_or_new = |(partition, answer): (Option<&Partition>, &Committed)| {
        partition.is_some_and(|it| !it.is_located() || it.is_at(answer))
    };
    if is_last && all().all(is_at_or_new) { Kept::Grown } else { Kept::Outdated }
}

/// The windows in memory, to locate the partitions that are new.
fn grown<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId, mut located: Located) -> Option<Completed> {
    let partitions = &ctx.partitions;
    located.answers.retain(|answer| partitions.get(answer.partition).is_some_and(|it| !it.is_located()));
    let journal = ctx.journals.get_mut(id)?;
    Some(Completed {
        windows: journal.windows.take()?,
        located,
        last_entry: journal.last_entry,
        covered: journal.covered.clone(),
        reset_kinds: mem::take(&mut journal.reset_kinds),
        ..Completed::default()
    })
}

/// Whether owners are sealed of a window that now needs them in the store, to evict owners.
fn has_unusable_slices<W: WorkerPorts>(ctx: &Context<W>, id: PartitionId) -> bool {
    let evicts = ctx.options.limits.when_full == Overflow::Evict;
    evicts && ctx.options.kinds.windows_of(id).into_iter().any(|window| !ctx.store.sealed(window).is_empty())
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
            check_length(options, journal, log.high, checkpoint)?;
        }
    }
    let mut last = BTreeMap::new();
    for item in logs.last {
        let StateItem::Record { partition, offset, key: Some(key), .. } = item else { continue };
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
    let StateItem::Record { value, .. } = item else { return Vec::new() };
    let sections = EntryEnd::decode(value).map(|end| end.sections).unwrap_or_default();
    sections.into_iter().map(|section| (section.partition, section.next)).collect()
}

fn of(logs: &[LogBounds], partition: PartitionId) -> Option<LogBounds> {
    logs.get(usize::try_from(partition).ok()?).copied()
}

/// How long C has been blocked at the same committed offsets, for the journal that has waited longest. A live writer
/// advances them.
fn blocked_for<W: WorkerPorts>(ctx: &mut Context<W>, stable: &[Committed]) -> Duration {
    let now = ctx.clock.elapsed();
    let mut longest = Duration::ZERO;
    for (id, answers) in ctx.options.by_journal(stable.to_vec()) {
        let offsets: Vec<_> = answers.into_iter().map(|answer| answer.offset).collect();
        let Some(locating) = ctx.journals.get_mut(id).and_then(|journal| journal.locating_mut()) else {
            continue;
        };
        let since =
            locating.blocked.as_ref().filter(|(_, at)| *at == offsets).map_or(now, |(since, _)| *since);
        locating.blocked = Some((since, offsets));
        longest = longest.max(now.saturating_sub(since));
    }
    longest
}

/// Undoes the open transaction in memory and in the local store. It was not committed: C is unchanged.
fn undo<W: WorkerPorts>(ctx: &mut Context<W>, id: PartitionId) -> Result<(), WorkerError> {
    let Context { partitions, journals, options, store, .. } = ctx;
    let Some(journal) = journals.get_mut(id) else { return Ok(()) };
    if options.keeps(Safeguard::Undo) {
        journal.undo_stored(store)?;
    } else {
        journal.windows.iter_mut().for_each(|windows| drop(Windows::commit(windows)));
    }
    journal.abort();
    partitions.of_mut(id).filter(|it| it.open.is_some()).for_each(Partition::abort);
    Ok(())
}
