//! Begins copies: takes the windows, compares the local state with the journal, and opens it.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::loading::{AfterLoading, Loading, cut_unconfirmed};
use crate::pipeline::journal::local::{Located, UNDONE};
use crate::pipeline::journal::restoring::{ReadPurpose, Restoring};
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::standby::origin::{Origin, origin};
use crate::pipeline::standby::{HELD_PAUSE, RETRY_PAUSE, Standby};
use crate::ports::{Head, LogBounds, LogId, LogReads, Store};

/// Journals that are begun one by one when a common request has failed. Each request can take its whole time limit.
const APART: usize = 4;

impl<W: WorkerPorts> Standby<W> {
    /// Begins the copies whose time has come.
    pub(super) fn start_due(&mut self) -> Result<(), Fatal> {
        let now = self.ctx.clock.elapsed();
        let is_due = |it: &Journal| matches!(it.phase(), Phase::Locating(it) if it.not_before <= now);
        let due = self.ctx.journals.ids(|it| is_due(it) && self.ctx.options.partition_counts.covers(it.id));
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
        let logs: Vec<LogId> = due.iter().copied().map(LogId::state).collect();
        let bounds = match (self.ctx.log.bounds(&logs, REQUEST_TIMEOUT), due) {
            (Ok(bounds), _) => bounds,
            (Err(failed), [id]) => return self.failed(Some(*id), failed.into()).map(|()| true),
            (Err(failed), _) => {
                tracing::debug!(%failed, "requesting where the logs of standby copies end failed; requesting one by one");
                return Ok(false);
            }
        };
        for (id, bounds) in due.iter().zip(&bounds) {
            self.start(*id, bounds).or_else(|error| self.failed(Some(*id), error))?;
        }
        Ok(true)
    }

    /// Takes the windows of a journal, unless a worker of this process holds one of them.
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
        self.check_rules(id)?;
        let windows = self.ctx.options.kinds.windows_of(id);
        let head = self.usable_head(id)?;
        match origin(head.as_ref().map(|head| head.state_next), log) {
            Origin::Later => {
                self.abandon(id, self.ctx.clock.elapsed() + RETRY_PAUSE);
                Ok(())
            }
            Origin::Empty { from } => {
                self.ctx.store.clear(&unnamed_first(windows))?;
                let windows = self.ctx.empty_windows(self.group.get(&id));
                self.follow(id, windows, Head::default(), from, log);
                Ok(())
            }
            Origin::Local { from } => {
                cut_unconfirmed(&mut self.ctx.store, windows, &head.unwrap_or_default(), false)?;
                let windows = self.ctx.empty_windows(self.group.get(&id));
                self.ctx.begin_loading(id, windows, AfterLoading::Restore(Located::default(), from))
            }
        }
    }

    /// Fails when the group's state was made by other identity rules.
    fn check_rules(&self, id: PartitionId) -> Result<(), Fatal> {
        if self.ctx.options.changed_rules(self.group.get(&id), id)?.is_empty() {
            return Ok(());
        }
        let what = "the group's offset was committed with another identity rule, and the change is accepted here only";
        Err(Fatal::State(format!("journal {id}: {what}")))
    }

    /// The head of the local state, if that can be continued. Slices are of no use to a copy that does not seal.
    fn usable_head(&self, id: PartitionId) -> Result<Option<Head>, WorkerError> {
        let mut windows = self.ctx.options.kinds.windows_of(id).into_iter();
        let has_slices = windows.any(|window| !self.ctx.store.sealed(window).is_empty());
        let head = self.ctx.store.head(id.into())?;
        Ok(head.filter(|head| head.confirmed_entry != Some(UNDONE) && (self.seals || !has_slices)))
    }

    /// Loads local state, and follows each journal that is loaded.
    pub(super) fn load(&mut self, until: Duration) -> Result<(), Fatal> {
        let loading = match self.ctx.read_local_part(until) {
            Ok(loading) => loading,
            Err(error) => return self.failed(None, error),
        };
        for id in loading {
            let now = self.ctx.clock.elapsed();
            let loaded = self.ctx.journals.get_mut(id).and_then(|journal| journal.take_loaded(now));
            let Some(Loading { next, windows, head, .. }) = loaded.map(|it| *it) else { continue };
            let AfterLoading::Restore(_, from) = *next else { continue };
            let followed = self.ctx.log.bounds(&[LogId::state(id)], REQUEST_TIMEOUT);
            let followed = followed.map_err(WorkerError::from).map(|bounds| match bounds.first() {
                Some(log) if matches!(origin(Some(from), log), Origin::Local { .. }) => {
                    self.follow(id, windows, head, from.max(log.low), log);
                }
                // The log was truncated or its start deleted meanwhile.
                _ => self.abandon(id, now + RETRY_PAUSE),
            });
            followed.or_else(|error| self.failed(Some(id), error))?;
        }
        Ok(())
    }

    /// Reads the journal from an offset on.
    fn follow(&mut self, id: PartitionId, windows: Windows, head: Head, from: Offset, log: &LogBounds) {
        tracing::debug!(journal = id, from, until = log.stable, "standby copy: following the state topic");
        let is_cut = head.confirmed_entry.is_none() && log.low > 0;
        let located = Located { checkpoint: self.group.get(&id).cloned(), ..Located::default() };
        let (now, rules) = (self.ctx.clock.elapsed(), self.ctx.options.rules());
        let restoring =
            Restoring { rules, located, ..Restoring::new(ReadPurpose::Copy, windows, head, from, log, now) };
        if let Some(journal) = self.ctx.journals.get_mut(id) {
            journal.enter(Phase::Restoring(Box::new(restoring)));
        }
        self.ctx.reopen_journal(id);
        self.copies.started(id, from, is_cut);
    }
}
