//! Begins copies: takes the windows, compares the local state with the log, and opens the log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::partition::loading::{AfterLoading, Loading, begin_loading, clear, cut_back};
use crate::pipeline::partition::restoring::{ReadPurpose, Restoring};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::load::read_local_slice;
use crate::pipeline::standby::origin::{Origin, origin};
use crate::pipeline::standby::{HELD_PAUSE, RETRY_PAUSE, Standby};
use crate::ports::{Committed, Head, LogBounds, LogId, LogTails, Store};

/// Partitions that are begun one by one when a common request has failed. Each request can take its whole time limit.
const APART: usize = 4;

impl<W: WorkerPorts> Standby<W> {
    /// Begins the copies whose time has come.
    pub(super) fn start_due(&mut self) -> Result<(), Fatal> {
        let now = self.ctx.clock.elapsed();
        let is_due = |p: &Partition| matches!(p.phase(), Phase::Locating(it) if it.not_before <= now);
        let due = self.ctx.partitions.ids(|p| is_due(p) && self.ctx.options.partition_limit.covers(p.id));
        let due: Vec<PartitionId> = due.into_iter().filter(|id| self.take_windows(*id, now)).collect();
        if due.is_empty() {
            return Ok(());
        }
        if self.start_all(&due)? {
            return Ok(());
        }
        // A partition without a leader must not delay the others.
        for id in due.into_iter().take(APART) {
            self.start_all(&[id])?;
        }
        Ok(())
    }

    /// Begins these copies. Returns whether their logs could be requested.
    fn start_all(&mut self, due: &[PartitionId]) -> Result<bool, Fatal> {
        let journals: BTreeSet<PartitionId> = due.iter().map(|id| self.ctx.options.journal_of(*id)).collect();
        let logs: Vec<LogId> = journals.iter().copied().map(LogId::state).collect();
        let bounds = match (self.ctx.log.bounds(&logs, REQUEST_TIMEOUT), due) {
            (Ok(bounds), _) => journals.into_iter().zip(bounds).collect::<BTreeMap<_, _>>(),
            (Err(failed), [id]) => return self.failed(Some(*id), failed.into()).map(|()| true),
            (Err(failed), _) => {
                tracing::debug!(%failed, "requesting where the logs of standby copies end failed; requesting one by one");
                return Ok(false);
            }
        };
        for id in due {
            let Some(bounds) = bounds.get(&self.ctx.options.journal_of(*id)) else { continue };
            self.start(*id, bounds).or_else(|error| self.failed(Some(*id), error))?;
        }
        Ok(true)
    }

    /// Takes the windows of a partition, unless a worker of this process holds one of them.
    fn take_windows(&mut self, id: PartitionId, now: Duration) -> bool {
        let windows = self.ctx.options.kinds.windows_of(id);
        let is_held = !windows.iter().all(|window| self.ctx.store.acquire_free_lease(*window));
        if is_held {
            self.ctx.release_leases(id);
            self.abandon(id, now + HELD_PAUSE);
        }
        !is_held
    }

    fn start(&mut self, id: PartitionId, log: &LogBounds) -> Result<(), WorkerError> {
        let checkpoint = self.group.get(&id).cloned().flatten();
        self.check_rules(id, checkpoint.as_ref())?;
        let head = self.usable_head(id)?;
        match origin(head.map(|head| (head.state_next, head.confirmed)), log) {
            Origin::Later => {
                self.abandon(id, self.ctx.clock.elapsed() + RETRY_PAUSE);
                Ok(())
            }
            Origin::Empty { from } => {
                clear(&mut self.ctx.store, &self.ctx.options.kinds.windows_of(id))?;
                let state = self.state(id, Head::default());
                self.follow(state, (from, log), None);
                Ok(())
            }
            Origin::Local { from, confirmed } => {
                cut_back(&mut self.ctx.store, &self.ctx.options.kinds.windows_of(id), confirmed)?;
                let mut state = self.state(id, head.unwrap_or_default());
                if !self.seals {
                    for (kind, window) in state.windows.iter_mut() {
                        window.number_from(self.ctx.store.next_number(kind.window(id))?);
                    }
                    self.follow(state, (from, log), Some(confirmed));
                    return Ok(());
                }
                let answer = Committed { partition: id, offset: None, metadata: String::new() };
                let next = AfterLoading::Restore(answer, checkpoint, (from, confirmed));
                begin_loading(&mut self.ctx, state, confirmed, next)
            }
        }
    }

    /// Fails when the group's state was made by other identity rules.
    fn check_rules(&self, id: PartitionId, checkpoint: Option<&Checkpoint>) -> Result<(), Fatal> {
        if self.ctx.options.changed_rules(checkpoint, id)?.is_empty() {
            return Ok(());
        }
        let what = "the group's offset was committed with another identity rule, and the change is accepted here only";
        Err(Fatal::State(format!("partition {id}: {what}")))
    }

    /// The head of the local state, if that can be continued. Slices are of no use to a copy that does not seal.
    fn usable_head(&self, id: PartitionId) -> Result<Option<Head>, WorkerError> {
        let mut windows = self.ctx.options.kinds.windows_of(id).into_iter();
        let has_slices = windows.any(|window| !self.ctx.store.sealed(window).is_empty());
        Ok(self.ctx.store.head(id.into())?.filter(|_| self.seals || !has_slices))
    }

    /// State with empty windows that continue at this head.
    fn state(&self, id: PartitionId, head: Head) -> Box<DedupeState> {
        let mut windows = self.ctx.empty_windows(None);
        // Nothing expires before it is known by which time (`Copies::expire`).
        windows.set_horizon(0);
        windows.set_stream_time(head.stream_time_ms);
        windows.note_incomplete_before(head.incomplete_ms);
        let mut state = Box::new(DedupeState::new(id, windows, BTreeSet::new()));
        state.state_next = head.state_next;
        state
    }

    /// Loads local state, and follows the log of each partition that is loaded.
    pub(super) fn load(&mut self, until: Duration) -> Result<(), Fatal> {
        let loading = match read_local_slice(&mut self.ctx, until) {
            Ok(loading) => loading,
            Err(error) => return self.failed(None, error),
        };
        for id in loading {
            let now = self.ctx.clock.elapsed();
            let loaded = self.ctx.partitions.get_mut(id).and_then(|partition| partition.take_loaded(now));
            let Some(Loading { next, state, .. }) = loaded.map(|it| *it) else { continue };
            let AfterLoading::Restore(_, _, (from, confirmed)) = *next else { continue };
            let followed =
                self.ctx.log.bounds(&[LogId::state(self.ctx.options.journal_of(id))], REQUEST_TIMEOUT);
            let followed = followed.map_err(WorkerError::from).map(|bounds| match bounds.first() {
                Some(log) if matches!(origin(Some((from, confirmed)), log), Origin::Local { .. }) => {
                    self.follow(state, (from.max(log.low), log), Some(confirmed));
                }
                // The log was truncated or its start deleted meanwhile.
                _ => self.abandon(id, now + RETRY_PAUSE),
            });
            followed.or_else(|error| self.failed(Some(id), error))?;
        }
        Ok(())
    }

    /// Reads the log from an offset on.
    fn follow(
        &mut self,
        mut state: Box<DedupeState>,
        (from, log): (Offset, &LogBounds),
        confirmed: Option<Offset>,
    ) {
        let id = state.id;
        let checkpoint = self.group.get(&id).cloned().flatten();
        tracing::debug!(partition = id, from, until = log.stable, "standby copy: following the state topic");
        state.state_next = from;
        let (now, rules) = (self.ctx.clock.elapsed(), self.ctx.options.rules());
        let purpose = ReadPurpose::Copy { seals: self.seals };
        let restoring =
            Restoring { confirmed, checkpoint, ..Restoring::new(purpose, state, (from, log), rules, now) };
        if let Some(partition) = self.ctx.partitions.get_mut(id) {
            partition.enter(Phase::Restoring(Box::new(restoring)));
        }
        self.ctx.await_end(id);
        self.copies.started(id, from, confirmed.is_none() && log.low > 0);
    }
}
