//! The way back: from "a partition is ours" to "its records flow".
//!
//! The group's committed offset C says how far the truth goes, the state topic holds the truth, the
//! local store a copy of it that may be too old, too new or missing. `plan` compares them; the rest
//! carries the plan out, in slices short enough that the worker keeps polling.

use std::time::Duration;

use super::checkpoint::Checkpoint;
use super::loading::{Next, cut_back};
use super::local::{Plan, plan};
use super::order::Order;
use super::partition::{Partition, Phase};
use super::safeguard::Safeguard;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{KindId, Offset, PartitionId};
use crate::ports::{Committed, Remedy, Sink, Source, StateLog, Store};

/// Slice of a question to the broker between two polls.
const SLICE: Duration = Duration::from_secs(1);
/// Longest wait for a dead writer's transaction to end.
const FENCE: Duration = Duration::from_secs(5);
/// Slice of reading the state topic between two polls.
const READ: Duration = Duration::from_millis(20);

impl<W: World> Core<W> {
    /// Advances every partition that does not run yet by one slice.
    pub(super) fn recover(&mut self, source: &W::Source) -> Result<(), Trouble> {
        self.fit_tables(source)?;
        let now = self.clock.elapsed();
        let reach = &self.options.reach;
        let due = |p: &Partition| matches!(p.phase, Phase::Locating { not_before, .. } if not_before <= now);
        let waiting = self.partitions.ids(|p| due(p) && !p.rests(now) && reach.covers(p.id));
        if !waiting.is_empty() && !self.batch.is_open() {
            // Before anything is asked: what others do to the state must not come after the answer.
            for id in &waiting {
                self.hold(*id);
            }
            let free = self.without_leftovers(source, &waiting)?;
            if !free.is_empty() {
                self.locate(source, &free)?;
            }
        }
        let mut outcome = self.load_slice(source);
        if outcome.as_ref().is_err_and(Trouble::is_grave)
            || !self.partitions.iter().any(|p| matches!(p.phase, Phase::Restoring(_)))
        {
            return outcome;
        }
        for item in self.log.read(READ)? {
            // The log hands each record over once, so none is left out without its partition beginning again; and nothing is
            // started with a producer that is to be replaced, or behind a commit of which not everything is noted.
            let taken = if outcome.as_ref().is_err_and(Trouble::is_grave) {
                self.abandon_restore(item.partition());
                Ok(())
            } else {
                self.restored(source, item)
            };
            if taken.is_err() && !outcome.as_ref().is_err_and(Trouble::is_grave) {
                outcome = taken;
            }
        }
        outcome
    }

    /// Takes the partition's local state. What is in memory is only worth something if nobody else
    /// had it meanwhile.
    fn hold(&mut self, id: PartitionId) {
        let held: Vec<bool> =
            self.options.kinds.filed(id).into_iter().map(|filed| self.store.hold(filed)).collect();
        if held.contains(&false)
            && let Some(partition) = self.partitions.get_mut(id)
        {
            partition.unload();
        }
    }

    fn locate(&mut self, source: &W::Source, waiting: &[PartitionId]) -> Result<(), Trouble> {
        match source.committed(waiting, SLICE) {
            Ok(answers) => {
                self.report.reachable();
                // Before a repair, which commits too.
                answers.iter().try_for_each(|answer| self.is_of_these_topics(answer))?;
                let agreed = self.reconcile(source, &answers)?;
                let mut agreed = answers.iter().filter(|answer| agreed.contains(&answer.partition));
                agreed.try_for_each(|answer| self.located(source, answer))
            }
            Err(failed) if failed.remedy == Remedy::Retry => {
                self.blocked(source, waiting)?;
                Err(failed.into())
            }
            Err(failed) => Err(failed.into()),
        }
    }

    fn is_of_these_topics(&self, answer: &Committed) -> Result<(), Trouble> {
        let Some(checkpoint) = Checkpoint::parse(&answer.metadata) else { return Ok(()) };
        self.options.same_raw(checkpoint.raw.as_deref(), self.options.raw_id.as_deref())?;
        Ok(self.options.same_state(checkpoint.state.as_deref())?)
    }

    /// C is held back by a pending transaction. When its writer is dead, nobody else will end it
    /// before its timeout: learn who it was from the last settled metadata, and fence it.
    fn blocked(&mut self, source: &W::Source, waiting: &[PartitionId]) -> Result<(), Trouble> {
        let settled = source.committed_unstable(waiting, SLICE)?;
        let blocked = self.blocked_for(&settled);
        if blocked < SLICE {
            return Ok(());
        }
        if blocked > self.options.transaction_timeout {
            return self.clear_offsets(source, waiting);
        }
        let mut fenced: Vec<String> = vec![self.options.writer.clone()];
        for answer in settled {
            let Some(checkpoint) = Checkpoint::parse(&answer.metadata) else { continue };
            if !checkpoint.writer.is_empty() && !fenced.contains(&checkpoint.writer) {
                tracing::info!(writer = %checkpoint.writer, partition = answer.partition,
                    "a transaction of another instance holds the committed offset back; ending it");
                self.sink.fence(&checkpoint.writer, FENCE)?;
                fenced.push(checkpoint.writer);
            }
        }
        Ok(())
    }

    /// How long C has been held back at the same place, for the partition that waits longest. A writer
    /// that lives moves the settled offset on.
    fn blocked_for(&mut self, settled: &[Committed]) -> Duration {
        let now = self.clock.elapsed();
        let mut longest = Duration::ZERO;
        for answer in settled {
            let partition = self.partitions.get_mut(answer.partition);
            if let Some(Phase::Locating { blocked, .. }) = partition.map(|p| &mut p.phase) {
                let since = blocked.filter(|(_, at)| *at == answer.offset).map_or(now, |(since, _)| since);
                *blocked = Some((since, answer.offset));
                longest = longest.max(now.saturating_sub(since));
            }
        }
        longest
    }

    fn located(&mut self, source: &W::Source, answer: &Committed) -> Result<(), Trouble> {
        let id = answer.partition;
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        if partition.windows.is_some() {
            let sent = partition.open.as_ref().and_then(|open| open.sent.as_ref());
            if sent
                .is_some_and(|(next, metadata)| answer.offset == Some(*next) && answer.metadata == *metadata)
            {
                // The commit whose answer was lost did happen. By offset alone it could be another's, and
                // one that only took identities back has moved nothing else.
                self.committed(id)?;
                return self.start(source, id, None);
            }
            if answer.offset == Some(partition.committed) {
                return self.undo(source, id);
            }
            partition.unload();
        }
        let begun = self.begin(source, answer);
        if let (Err(_), Some(partition)) = (&begun, self.partitions.get_mut(id)) {
            // What is loaded by half must not pass for the state of C at the next attempt.
            partition.unload();
            partition.relocate(self.clock.elapsed());
        }
        begun
    }

    /// Begins the life of a partition whose state is not in memory.
    fn begin(&mut self, source: &W::Source, answer: &Committed) -> Result<(), Trouble> {
        let id = answer.partition;
        let checkpoint = Checkpoint::parse(&answer.metadata);
        if self.is_of_other_rules(id, checkpoint.as_ref())? {
            return self.begin_restore(source, answer, checkpoint.as_ref(), None);
        }
        // What is local did not lead to the last committed block.
        let is_misled = self.partitions.get(id).is_some_and(|partition| partition.early_ends > 0);
        let head = self.store.head(id)?.filter(|_| !is_misled);
        let plan = match (head, answer.offset) {
            (Some(_), Some(_)) if !self.options.keeps(Safeguard::Tails) => Plan::Load,
            _ => plan(head, answer.offset, checkpoint.as_ref()),
        };
        match plan {
            Plan::Load => {
                let (checkpoint, committed) = (checkpoint.unwrap_or_default(), answer.offset.unwrap_or(0));
                self.claim(answer, Some(&checkpoint), committed)?;
                self.begin_loading(id, committed, Next::Start(answer.clone(), checkpoint))
            }
            Plan::CatchUp { confirmed, from } => {
                self.claim(answer, checkpoint.as_ref(), confirmed)?;
                let next = Next::Restore(answer.clone(), checkpoint, (from, confirmed));
                self.begin_loading(id, confirmed, next)
            }
            Plan::Restore => self.begin_restore(source, answer, checkpoint.as_ref(), None),
        }
    }

    /// The transaction came to nothing: C is where it was.
    fn undo(&mut self, source: &W::Source, id: PartitionId) -> Result<(), Trouble> {
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        if let Some(windows) = partition.windows.as_mut().filter(|_| !self.options.keeps(Safeguard::Undo)) {
            windows.commit(partition.next);
        }
        if partition.open.as_ref().is_some_and(|open| open.tail.is_some()) {
            cut_back(&mut self.store, &self.options.kinds.filed(id), partition.committed)?;
        }
        partition.abort();
        self.start(source, id, None)
    }

    /// Cuts the local store back to `from`. What the store held at or beyond C is hearsay about records that will come again:
    /// claims.
    fn claim(
        &mut self,
        answer: &Committed,
        checkpoint: Option<&Checkpoint>,
        from: Offset,
    ) -> Result<(), Trouble> {
        let id = answer.partition;
        let mut windows = self.empty_windows(checkpoint);
        let from = if self.options.keeps(Safeguard::Claims) { from } else { Offset::MAX };
        for (kind, window) in windows.iter_mut() {
            for (owner, identity) in self.store.truncate(kind.filed(id), from)? {
                if answer.offset.is_some_and(|committed| owner >= committed) {
                    window.claim(identity, owner);
                }
            }
        }
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.fresh(windows);
        }
        Ok(())
    }

    /// The state is that of C: let the records come.
    pub(super) fn start(
        &mut self,
        source: &W::Source,
        id: PartitionId,
        load: Option<(Duration, u64)>,
    ) -> Result<(), Trouble> {
        let placed = self.place(source, id);
        if placed.is_ok() && self.begin_refilling(id, load)? {
            return Ok(());
        }
        if load.is_some() {
            self.resume_time(id);
            self.begin_anew(id);
        }
        // Before the first commit: whoever looks should see a limit that is in force.
        self.enforced.apply(&self.options, &mut self.partitions);
        let not_before = self.held_by_leftovers(id);
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        if let Some(windows) = partition.windows.as_mut().filter(|_| load.is_some()) {
            // What reading old blocks overwrote was counted when they were new.
            for (_, window) in windows.iter_mut() {
                window.take_evicted();
            }
        }
        if let Some(not_before) = not_before {
            // The state is complete: asking the group once more finds it.
            partition.relocate(not_before);
            return placed.map(drop);
        }
        let started = placed.and_then(|committed| {
            partition.order = Order::default();
            let last = partition.committed_epoch.filter(|epoch| epoch.covers(committed));
            source.seek_behind(id, committed, last)?;
            Ok(())
        });
        let now = self.clock.elapsed();
        if let Some(partition) = self.partitions.get_mut(id) {
            match &started {
                Ok(()) => partition.phase = Phase::Running,
                // The state is complete: asking the group once more finds it.
                Err(_) => partition.relocate(now),
            }
        }
        if let (Ok(()), Some((began, _))) = (&started, load) {
            self.report.restore_took(now.saturating_sub(began));
        }
        started?;
        self.settle_position(source, id)
    }

    /// Puts a position that only we know into the next commit, though no record has come.
    fn settle_position(&mut self, source: &W::Source, id: PartitionId) -> Result<(), Trouble> {
        let Some(partition) = self.partitions.get_mut(id).filter(|p| p.unsettled) else { return Ok(()) };
        self.batch.begin(&mut self.sink, || self.clock.elapsed())?;
        self.batch.touch(id, &mut partition.open);
        if self.batch.is_full(&self.options) { self.commit(source) } else { Ok(()) }
    }
}
