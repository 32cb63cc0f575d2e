//! Recovery: from the assignment of partitions to the processing of their records.
//!
//! The committed offsets of a journal's partitions mark the end of the durable history, and the journal holds that history. The local store is a
//! copy of it that may be too old, too new or missing. `plan` compares the three. The rest of this module carries out the
//! plan, in parts short enough that the worker keeps polling.

pub mod completed;
pub mod gap;
pub mod load;
pub mod locate;
pub mod read_whole;
pub mod restore;
pub mod start;
pub mod start_bounds;

use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::coordinates::ranges;
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::expiry::expire_stored;
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{StateLog, StoreError};

/// Time to read the state topic, or to undo owners, between two polls.
const READ_TIME: Duration = Duration::from_millis(20);
/// Interval between two deletions of what has left a window that is being restored.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);

impl<W: WorkerPorts> Context<W> {
    /// Whether the records of every partition are processed, and no position is only in this worker.
    pub(crate) fn has_nothing_pending(&self) -> bool {
        let is_settled = |p: &Partition| p.is_started && !p.uncommitted_position;
        self.journals.are_running() && self.partitions.iter().all(is_settled)
    }

    /// Whether this worker has all partitions of a journal. Before the first record it needs all that raw is known to have: the last active instance
    /// may have processed them. While records are processed, one that was added to raw does not hold the others until it is assigned, and
    /// clean and state have it too: nobody has processed it.
    fn has_members(&self, journal: &Journal) -> bool {
        let is_there = |id| self.partitions.get(id).is_some() && self.options.partition_counts.covers(id);
        journal.has_run || !self.needs_all_partitions() || self.known_partitions().all(is_there)
    }
}

impl<W: WorkerPorts> Access<'_, W> {
    /// Advances every journal that does not run yet by one part.
    pub(crate) fn recover(&mut self) -> Result<(), WorkerError> {
        self.fit_tables()?;
        if self.ctx.has_nothing_pending() {
            return self.ctx.open_journals().map(drop);
        }
        let advanced = self.advance();
        // Applied before the first commit, so that metrics and the status page show a limit as soon as it is in force.
        self.ctx.limits.enforced.apply(&self.ctx.options, &mut self.ctx.journals);
        advanced
    }

    fn advance(&mut self) -> Result<(), WorkerError> {
        self.start_waiting()?;
        let now = self.ctx.clock.elapsed();
        let due = |journal: &Journal| {
            matches!(journal.phase(), Phase::Locating(locating) if locating.not_before <= now)
                && self.ctx.has_members(journal)
        };
        let mut waiting = self.ctx.journals.ids(due);
        waiting.retain(|id| !self.ctx.members(*id).is_empty());
        if !waiting.is_empty() && !self.committer.transaction.is_open() {
            // The local state is taken before the committed offsets are read. Otherwise another worker could still change that
            // state after the response.
            for id in &waiting {
                self.ctx.take_leases(*id);
            }
            let free = self.without_leftovers(&waiting)?;
            if !free.is_empty() {
                self.locate(&free)?;
            }
        }
        let outcome = self.undo_part().and_then(|()| self.load_part());
        self.restore_part(outcome)
    }

    /// Reads one part of the state topic. `outcome` is the result of the iteration so far; a grave one ends the part.
    fn restore_part(&mut self, mut outcome: Result<(), WorkerError>) -> Result<(), WorkerError> {
        let is_grave = |outcome: &Result<(), WorkerError>| outcome.as_ref().is_err_and(WorkerError::is_grave);
        let until = self.ctx.clock.elapsed() + READ_TIME;
        if !is_grave(&outcome) {
            let continued = self.ctx.continue_paused(until).map_err(|(id, error)| {
                self.ctx.abandon_restore(id);
                error
            });
            outcome = continued.and(outcome);
        }
        loop {
            let left = until.saturating_sub(self.ctx.clock.elapsed());
            if is_grave(&outcome) || left.is_zero() {
                break;
            }
            match self.ctx.open_journals() {
                Ok(true) => {}
                opened => {
                    outcome = opened.map(drop).and(outcome);
                    break;
                }
            }
            let items = self.ctx.log.read(left)?;
            if items.is_empty() {
                break;
            }
            for item in items {
                // The log delivers each record once, so a journal of which one is skipped here is opened again. No
                // journal is started with a producer that is about to be replaced, or after a commit whose local effects
                // are incomplete.
                let result = if is_grave(&outcome) {
                    self.ctx.reopen_journal(item.partition());
                    Ok(())
                } else {
                    self.restored(item)
                };
                if result.is_err() && !is_grave(&outcome) {
                    outcome = result;
                }
            }
        }
        let now = self.ctx.clock.elapsed();
        self.ctx.journals.all_restoring_mut().for_each(|(id, restoring)| restoring.log_progress(now, id));
        if is_grave(&outcome) { outcome } else { expire_restored(self.ctx, now).and(outcome) }
    }

    /// Creates the producer, which fences a predecessor with the same transactional id, and ends open transactions.
    /// This comes before the first request for C, which would otherwise wait for the predecessor's transaction.
    pub(crate) fn make_ready(&mut self) -> Result<(), WorkerError> {
        if !self.torn.is_prepared {
            // In topic scope all instances have the same transactional id: only the one with all partitions may fence the others.
            if self.ctx.awaits_partitions() {
                return Ok(());
            }
            return self.prepare();
        }
        if !self.torn.offsets_cleared && !self.clear_own_offsets()? {
            return Ok(());
        }
        self.torn.offsets_cleared = true;
        self.clear_elsewhere()?;
        let result = self.settle_sides();
        if result.as_ref().is_err_and(WorkerError::is_grave) {
            return result;
        }
        // A retriable failure does not delay repairs: the next check of the side topics may depend on them.
        self.recover()?;
        result
    }

    /// Rebuilds tables of fixed size from the local state when the number of journals that share the memory has
    /// changed.
    fn fit_tables(&mut self) -> Result<(), WorkerError> {
        if self.committer.transaction.is_open() || self.ctx.options.limits.when_full == Overflow::Shrink {
            return Ok(());
        }
        let (limits, count) = (self.ctx.options.limits, self.ctx.options.windows_of(&self.ctx.journals));
        let needs_other = |journal: &Journal| {
            let windows = journal.running();
            windows.is_some_and(|it| it.iter().any(|(_, window)| limits.needs_other_table(window, count)))
        };
        let outdated = self.ctx.journals.ids(needs_other);
        if outdated.is_empty() {
            return Ok(());
        }
        tracing::info!(journals = %ranges(outdated.iter().copied()), "number of windows changed; reloading the state into tables of the new size");
        self.ctx.unload(self.source, &outdated)
    }
}

/// Deletes stored owners that have left the windows, as each commit does later. The state topic retains a day more than a window at least, and
/// often far more: all of it would be on the disk until the end of the restore, and in the filters of slices.
fn expire_restored<W: WorkerPorts>(ctx: &mut Context<W>, now: Duration) -> Result<(), WorkerError> {
    let due = ctx.journals.all_restoring_mut();
    for (id, restoring) in due.filter(|(_, it)| !it.is_paused() && it.next_expiry <= now) {
        restoring.next_expiry = now + EXPIRE_INTERVAL;
        // It is settled: the logs agree with the committed offsets.
        let checkpoint = restoring.located.checkpoint.as_ref();
        let expired = expire_stored(&mut ctx.store, id, &mut restoring.windows, checkpoint);
        StoreError::unless_lease_lost(expired)?;
    }
    Ok(())
}
