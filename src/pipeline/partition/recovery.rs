//! Recovery: from the assignment of a partition to the processing of its records.
//!
//! The committed offset C marks the end of the durable history, and the state topic holds that history. The local store is a
//! copy of it that may be too old, too new or missing. `plan` compares the three. The rest of this module carries out the
//! plan, in slices short enough that the worker keeps polling.

use std::collections::BTreeSet;
use std::time::Duration;

use super::loading::Next;
use super::local::{Plan, plan};
use super::restore::Base;
use super::state::State;
use super::{Partition, Phase};
use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::error::WorkerError;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::rounds::Rounds;
use crate::pipeline::worker::commit::commit_state;
use crate::pipeline::worker::{Core, World};
use crate::ports::{
    Committed, GroupMember, ProducerLife, Remedy, Source, StateLog, Store, StoreError, WrittenEnds,
};

/// Timeout of fencing a dead writer, which ends its transaction.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to begin the loads and restores of several partitions between two polls. Each sends requests to the broker.
const LOCATE_SLICE: Duration = Duration::from_millis(200);
/// Time to read the state topic between two polls.
const READ_SLICE: Duration = Duration::from_millis(20);

impl<W: World> Core<W> {
    /// Advances every partition that is not running yet by one slice.
    pub(crate) fn recover(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        self.fit_tables(source)?;
        if self.partitions.is_settled() {
            return Ok(());
        }
        let advanced = self.advance(source);
        // Applied before the first commit, so that metrics and the status page show a limit as soon as it is in force.
        self.limits.apply(&self.options, &mut self.partitions);
        advanced
    }

    fn advance(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        let partition_limit = &self.options.partition_limit;
        let due = |p: &Partition| matches!(&p.phase, Phase::Locating(locating) if locating.not_before <= now);
        let waiting =
            self.partitions.ids(|p| due(p) && !p.rejections.waits(now) && partition_limit.covers(p.id));
        if !waiting.is_empty() && !self.transaction.is_open() {
            // The local state is taken before the committed offset is read. Otherwise another worker could still change that
            // state after the response.
            for id in &waiting {
                self.take_local_state(*id);
            }
            let free = self.without_leftovers(source, &waiting)?;
            if !free.is_empty() {
                self.locate(source, &free)?;
            }
        }
        let outcome = self.load_slice(source);
        self.restore_slice(source, outcome)
    }

    /// Reads one slice of the state topic. `outcome` is the result of the iteration so far; a grave one ends the slice.
    fn restore_slice(
        &mut self,
        source: &W::Source,
        mut outcome: Result<(), WorkerError>,
    ) -> Result<(), WorkerError> {
        let is_grave = |outcome: &Result<(), WorkerError>| outcome.as_ref().is_err_and(WorkerError::is_grave);
        let until = self.clock.elapsed() + READ_SLICE;
        if !is_grave(&outcome) {
            outcome = self.search_forgotten(source, until).and(outcome);
        }
        let is_reading = |p: &Partition| matches!(&p.phase, Phase::Restoring(it) if it.forgetting.is_none());
        loop {
            let left = until.saturating_sub(self.clock.elapsed());
            if is_grave(&outcome) || left.is_zero() || !self.partitions.iter().any(is_reading) {
                break;
            }
            let items = self.log.read(left)?;
            if items.is_empty() {
                break;
            }
            for item in items {
                // The log delivers each record once, so a partition whose record is skipped here restarts its restore. No
                // partition is started with a producer that is about to be replaced, or after a commit whose local effects
                // are incomplete.
                let result = if is_grave(&outcome) {
                    self.abandon_restore(item.partition());
                    Ok(())
                } else {
                    self.restored(source, item)
                };
                if result.is_err() && !is_grave(&outcome) {
                    outcome = result;
                }
            }
        }
        let now = self.clock.elapsed();
        self.partitions.all_restoring_mut().for_each(|restoring| restoring.log_progress(now));
        outcome
    }

    /// Takes the partition's local state. The state in memory is valid only if no other worker held the local state
    /// meanwhile.
    fn take_local_state(&mut self, id: PartitionId) {
        let unchanged: Vec<bool> = self
            .options
            .kinds
            .windows_of(id)
            .into_iter()
            .map(|window| self.store.acquire_lease(window))
            .collect();
        if unchanged.contains(&false)
            && let Some(locating) = self.partitions.locating_mut(id)
        {
            locating.state = None;
        }
    }

    fn locate(&mut self, source: &W::Source, waiting: &[PartitionId]) -> Result<(), WorkerError> {
        match source.committed(waiting, REQUEST_TIMEOUT) {
            Ok(answers) => {
                self.report.reachable();
                self.start_bounds.clear();
                self.producer.blocked_by_others = None;
                // Checked before a repair, because a repair commits too.
                answers.iter().try_for_each(|answer| self.check_topic_ids(answer))?;
                self.count_if_committed(&answers);
                let agreed = self.reconcile(source, &answers)?;
                self.count_if_aborted(&answers, &agreed);
                let began = self.clock.elapsed();
                for answer in answers.iter().filter(|answer| agreed.contains(&answer.partition)) {
                    self.located(source, answer)?;
                    // The rest follows in the next iteration.
                    if self.clock.elapsed().saturating_sub(began) >= LOCATE_SLICE {
                        break;
                    }
                }
                Ok(())
            }
            Err(failed) if failed.remedy == Remedy::Retry => {
                self.blocked(source, waiting)?;
                Err(failed.into())
            }
            Err(failed) => Err(failed.into()),
        }
    }

    fn check_topic_ids(&self, answer: &Committed) -> Result<(), WorkerError> {
        let Some(checkpoint) = Checkpoint::parse(&answer.metadata) else { return Ok(()) };
        self.options.same_raw(checkpoint.raw.as_deref(), self.options.raw_id.as_deref())?;
        Ok(self.options.same_state(checkpoint.state.as_deref())?)
    }

    /// A pending transaction blocks C. If its writer is dead, nothing else ends the transaction before its timeout. The last
    /// settled metadata names the writer, which is fenced.
    fn blocked(&mut self, source: &W::Source, waiting: &[PartitionId]) -> Result<(), WorkerError> {
        let settled = source.committed_unstable(waiting, REQUEST_TIMEOUT)?;
        let blocked = self.blocked_for(&settled);
        if blocked < REQUEST_TIMEOUT {
            return Ok(());
        }
        if blocked > self.options.transaction_timeout {
            return waiting
                .first()
                .map_or(Ok(()), |first| self.end_blocking(source, *first, Rounds::default()));
        }
        let writers = settled.iter().filter_map(|answer| Some(Checkpoint::parse(&answer.metadata)?.writer));
        let others = writers.filter(|writer| !writer.is_empty() && *writer != self.options.writer);
        let writers = self.without_live(source, others.collect())?;
        for writer in writers {
            tracing::info!(%writer, partitions = %ranges(waiting.iter().copied()),
                "a pending transaction of another instance blocks the committed offsets; fencing its writer");
            self.sink.fence(&writer, FENCE_TIMEOUT)?;
        }
        Ok(())
    }

    /// How long C has been blocked at the same settled offset, for the partition that has waited longest. A live writer
    /// advances the settled offset.
    fn blocked_for(&mut self, settled: &[Committed]) -> Duration {
        let now = self.clock.elapsed();
        let mut longest = Duration::ZERO;
        for answer in settled {
            if let Some(locating) = self.partitions.locating_mut(answer.partition) {
                let since = locating.blocked.filter(|(_, at)| *at == answer.offset);
                let since = since.map_or(now, |(since, _)| since);
                locating.blocked = Some((since, answer.offset));
                longest = longest.max(now.saturating_sub(since));
            }
        }
        longest
    }

    fn located(&mut self, source: &W::Source, answer: &Committed) -> Result<(), WorkerError> {
        let id = answer.partition;
        let Some(locating) = self.partitions.locating_mut(id) else { return Ok(()) };
        if let Some(mut state) = locating.state.take() {
            if state.was_committed_as(answer.offset, &answer.metadata) {
                // The response to the commit was lost, and the commit has succeeded.
                commit_state(&mut state, self.sink.state_end(id), &mut self.store)?;
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.rejections.committed(id, state.committed);
                }
                return self.start(source, state, None);
            }
            if answer.offset == Some(state.committed) {
                self.undo(&mut state)?;
                return self.start(source, state, None);
            }
        }
        self.begin(source, answer)
    }

    /// Starts to load the state of a partition that is not in memory.
    fn begin(&mut self, source: &W::Source, answer: &Committed) -> Result<(), WorkerError> {
        let id = answer.partition;
        let checkpoint = Checkpoint::parse(&answer.metadata);
        let changed = self.options.changed_rules(checkpoint.as_ref(), id)?;
        let Some(partition) = self.partitions.get(id) else { return Ok(()) };
        // The last restore ended early: the local state did not lead to the last committed block, so it is not used.
        let (ended_early, state_low) = (partition.early_ends > 0, partition.agreed.unwrap_or(0));
        let head = self.store.head(id.into())?.filter(|_| !ended_early);
        let plan = match (head, answer.offset) {
            _ if !changed.is_empty() => Plan::Restore,
            (Some(_), Some(confirmed)) if !self.options.keeps(Safeguard::Tails) => Plan::Load { confirmed },
            _ => plan(head, answer.offset, checkpoint.as_ref(), state_low),
        };
        match plan {
            Plan::Load { confirmed } => {
                let (checkpoint, committed) = (checkpoint.unwrap_or_default(), answer.offset.unwrap_or(0));
                let state = self.claim(answer, Some(&checkpoint), confirmed)?;
                self.begin_loading(state, committed, Next::Start(answer.clone(), checkpoint))
            }
            Plan::CatchUp { confirmed, from } => {
                let state = self.claim(answer, checkpoint.as_ref(), confirmed)?;
                let next = Next::Restore(answer.clone(), checkpoint, (from, confirmed));
                self.begin_loading(state, confirmed, next)
            }
            Plan::Restore => self.begin_restore(source, answer, checkpoint, Base::Empty(changed)),
        }
    }

    /// Undoes the open transaction in memory and in the local store. It was not committed: C is unchanged.
    fn undo(&mut self, state: &mut State) -> Result<(), StoreError> {
        if !self.options.keeps(Safeguard::Undo) {
            state.windows.commit(state.next);
        }
        state.undo_stored(&mut self.store, &self.options.kinds)?;
        state.abort();
        Ok(())
    }

    /// Truncates the local store to `from`. Owners that the store held at or beyond C are unconfirmed, and their records will be
    /// read again: they become claims. Returns state with these claims and empty windows.
    fn claim(
        &mut self,
        answer: &Committed,
        checkpoint: Option<&Checkpoint>,
        from: Offset,
    ) -> Result<Box<State>, WorkerError> {
        let id = answer.partition;
        let mut windows = self.empty_windows(checkpoint);
        let from = if self.options.keeps(Safeguard::Claims) { from } else { Offset::MAX };
        for (kind, window) in windows.iter_mut() {
            for (owner, identity) in self.store.truncate(kind.window(id), from)? {
                if answer.offset.is_some_and(|committed| owner >= committed) {
                    window.claim(identity, owner);
                }
            }
        }
        Ok(Box::new(State::new(id, windows, BTreeSet::new())))
    }

    /// Starts processing with state that was just loaded. `load` is the monotonic start time of the load and its number of
    /// identities.
    pub(crate) fn start_loaded(
        &mut self,
        source: &W::Source,
        mut state: Box<State>,
        load: (Duration, u64),
    ) -> Result<(), WorkerError> {
        state.resume_time(self.time.now_ms(&self.clock), self.options.kinds.time());
        state.schedule_window_resets(&self.options.kinds);
        for (_, window) in state.windows.iter_mut() {
            // Owners that were evicted while old blocks were read were already counted when the blocks were new.
            window.take_evicted();
        }
        self.start(source, state, Some(load))
    }

    /// Starts processing: the state is that of C. If that fails, the state is kept, and used again once C has been read again.
    pub(crate) fn start(
        &mut self,
        source: &W::Source,
        mut state: Box<State>,
        load: Option<(Duration, u64)>,
    ) -> Result<(), WorkerError> {
        let id = state.id;
        let resumed = self.resume_offset(source, &mut state);
        if resumed.is_ok() && state.windows.iter().any(|(_, window)| window.has_stale_filters()) {
            return self.begin_refilling(state, load);
        }
        let (now, held) = (self.clock.elapsed(), self.held_by_leftovers(id));
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let sought = resumed.and_then(|next| {
            let last = state.committed_epoch.filter(|epoch| epoch.covers(next));
            if held.is_none() { Ok(source.seek_behind(id, next, last)?) } else { Ok(()) }
        });
        if held.is_some() || sought.is_err() {
            partition.keep(state, held.unwrap_or(now));
            return sought;
        }
        partition.run(state);
        if let Some((began, _)) = load {
            self.report.restore_took(now.saturating_sub(began));
        }
        self.settle_position(source, id)
    }

    /// Adds a position that only this worker has to the next commit, although no record has arrived.
    fn settle_position(&mut self, source: &W::Source, id: PartitionId) -> Result<(), WorkerError> {
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Some(running) = partition.running_mut().filter(|it| it.state.uncommitted_position) else {
            return Ok(());
        };
        if let Err(failed) = self.transaction.begin(&mut self.sink, || self.clock.elapsed()) {
            // No record may be processed before the position is in a transaction: the blocks of a partition that goes back
            // must not cover its first records too.
            partition.relocate(self.clock.elapsed());
            return Err(failed.into());
        }
        self.transaction.touch(id, &mut running.state.open);
        if self.transaction.is_full(self.options.transaction_limit) { self.commit(source) } else { Ok(()) }
    }
}
