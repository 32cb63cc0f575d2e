//! Standby copies: the local store follows journals whose partitions this process does not own.
//!
//! A copy is local state like that of a journal used earlier, so a takeover needs no rule of its own: it loads the copy and reads
//! the rest of the state topic (`recovery`). The records are read and applied by the code of a restore, which here does not end.
//! Nothing is written to Kafka, and the reader is no member of the group.
//!
//! - Only committed records are read, in their order, and the head of the store names what it has: after a crash the copy
//!   continues there. Owners that a repair undoes are removed by the entry of the repair, as in a restore.
//! - A copy is written only under the lease of its windows. It takes a lease only while no worker holds it, and a worker takes it
//!   away at any time.
//! - Old owners are sealed as they are by a worker ([`Sealer`]). Where nothing is sealed, the windows keep only stamps. Owners
//!   that no later worker needs are deleted ([`crate::pipeline::journal::expiry`]).

mod copies;
mod origin;
mod reading;
mod start;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, PartitionId};
use crate::metrics::StandbyStatus;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::loading::LoadPart;
use crate::pipeline::journal::local::Located;
use crate::pipeline::limits::Limits;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::progress::Progress;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::standby::copies::{Copies, RefusedCopy};
use crate::pipeline::worker::sealing::Sealer;
use crate::ports::{Committed, Remedy, Store, StoreError};

/// Work between two looks at what else has to be done.
const READ_TIME: Duration = Duration::from_millis(20);
/// Pause of a journal whose windows a worker holds.
const HELD_PAUSE: Duration = Duration::from_secs(2);
/// Pause after a failed call.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause of a journal that cannot be used.
const REFUSED_PAUSE: Duration = Duration::from_mins(1);

/// How soon there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandbyPace {
    /// There is more to read or to load now.
    Behind,
    /// All copies have been read to the end.
    CaughtUp,
}

/// The standby copies of a process.
///
/// Large because each step of a copy is one method, in the file of that step, and one more handles the failures of all.
pub struct Standby<W: WorkerPorts> {
    ctx: Context<W>,
    sealer: Sealer,
    /// Whether old owners are sealed.
    seals: bool,
    copies: Copies,
    /// The group's newest checkpoint of each journal, with its latest clock.
    group: BTreeMap<PartitionId, Checkpoint>,
    /// Monotonic time of the next attempt, after a failed call that concerns all journals.
    not_before: Duration,
}

/// The options of a copy: it holds everything that a worker needs, without limits on count and memory, which the next worker
/// applies.
fn options_of_copy(options: WorkerOptions) -> (WorkerOptions, bool) {
    // A table of fixed size needs all owners in the store.
    let seals = options.limits.when_full == Overflow::Shrink;
    let smallest_slice = options.limits.smallest_slice.filter(|_| seals);
    let limits = Limits {
        max_ids: u64::MAX,
        when_full: Overflow::Shrink,
        max_memory: None,
        max_disk: None,
        smallest_slice,
        ..options.limits
    };
    let load_part = LoadPart { threads: 1, ..options.load_part };
    let kinds = options.kinds.unlimited();
    (WorkerOptions { kinds, limits, load_part, ..options }, smallest_slice.is_some())
}

impl<W: WorkerPorts> Standby<W> {
    /// Without copies.
    pub fn new(
        log: W::Log,
        store: W::Store,
        clock: W::Clock,
        options: WorkerOptions,
        report: WorkerReport,
    ) -> Self {
        let copies = Copies::of(&options.kinds);
        let (options, seals) = options_of_copy(options);
        let ctx = Context::new(log, store, clock, options, report);
        Self {
            ctx,
            sealer: Sealer::of_copy(),
            seals,
            copies,
            group: BTreeMap::new(),
            not_before: Duration::ZERO,
        }
    }

    /// Makes the standby count its progress here.
    #[must_use]
    pub fn counting(mut self, progress: Progress) -> Self {
        self.ctx.progress = progress;
        self
    }

    /// Takes the committed offsets of the group, without those of open transactions. The journals of these partitions are followed.
    pub fn note_group(&mut self, committed: Vec<Committed>) {
        let now = self.ctx.clock.elapsed();
        for (id, answers) in self.ctx.options.by_journal(committed) {
            self.ctx.journals.assigned(id, now);
            // What limits have dropped is that of the newest one.
            if let Some(checkpoint) = Located::new(answers, None).checkpoint {
                self.group.insert(id, checkpoint);
            }
        }
    }

    /// Advances all copies by one part. Fails only when the process has to end: the local store cannot be used.
    pub fn iterate(&mut self) -> Result<StandbyPace, Fatal> {
        self.ctx.progress.advance();
        let now = self.ctx.clock.elapsed();
        let until = now + READ_TIME;
        if now >= self.not_before {
            self.advance(until)?;
        }
        let is_more = self.ctx.clock.elapsed() >= until || !self.copies.are_complete(&self.ctx.journals);
        Ok(if is_more { StandbyPace::Behind } else { StandbyPace::CaughtUp })
    }

    fn advance(&mut self, until: Duration) -> Result<(), Fatal> {
        self.ctx.limits.enforced.apply(&self.ctx.options, &mut self.ctx.journals);
        self.start_due()?;
        self.load(until)?;
        self.continue_paused(until)?;
        self.read(until)?;
        let kept = self.keep_small();
        kept.or_else(|error| self.failed(None, error))?;
        self.copies.measure(&self.ctx, self.ctx.clock.elapsed());
        Ok(())
    }

    /// Seals old owners, and deletes those that are not needed any more.
    fn keep_small(&mut self) -> Result<(), WorkerError> {
        if self.seals {
            self.sealer.advance(&mut self.ctx)?;
        } else {
            copies::empty_indexes(&mut self.ctx.journals);
        }
        let now = self.ctx.clock.elapsed();
        self.copies.expire(&mut self.ctx, &self.group, now)
    }

    /// Stops following, because a worker of this process starts: it uses the copies as its local state.
    pub fn release(&mut self) {
        self.ctx.store.end_seal();
        if let Err(failed) = self.ctx.remove_all() {
            tracing::debug!(%failed, "closing a partition of the state topic failed");
        }
        self.sealer = Sealer::of_copy();
        self.copies.clear();
        self.group.clear();
    }

    /// What the copies are like now.
    pub fn status(&self) -> StandbyStatus {
        let lasting = self.copies.refusals().filter(|(_, refusal)| refusal.is_lasting);
        let blocks =
            lasting.filter(|(id, _)| !self.has_all(*id)).map(|(_, refusal)| refusal.why.clone()).next();
        StandbyStatus { blocks, ..self.copies.status(&self.ctx.journals) }
    }

    /// Whether the local store has the last entry that the group has committed, so that a takeover need not read the journal.
    fn has_all(&self, id: PartitionId) -> bool {
        let committed =
            self.group.get(&id).and_then(|checkpoint| checkpoint.last_entry).map(|last| last.entry);
        let head = self.ctx.store.head(id.into()).ok().flatten();
        committed.is_some() && head.is_some_and(|head| head.last_entry == committed)
    }

    /// Handles a failure, of one journal or of all. Returns an error when the process has to end.
    fn failed(&mut self, id: Option<PartitionId>, error: WorkerError) -> Result<(), Fatal> {
        let now = self.ctx.clock.elapsed();
        match (error, id) {
            (WorkerError::Store(StoreError::LeaseLost(window)), _) => {
                tracing::debug!(journal = window.journal(), "a worker of this process has taken the journal");
                self.abandon(window.journal(), now + HELD_PAUSE);
            }
            (WorkerError::Store(StoreError::InFilter(window)), id) => {
                // Its windows have applied a record that its store has not.
                self.abandon(window.journal(), now);
                if let Err(error) = self.ctx.clear_filter(window) {
                    return self.failed(id, error.into());
                }
            }
            (WorkerError::Store(error), _) => {
                return Err(Fatal::State(format!(
                    "{error}; restart: damaged state is quarantined and rebuilt from topic {}",
                    self.ctx.options.state
                )));
            }
            (WorkerError::Kafka(failed), id) if failed.remedy == Remedy::Retry => {
                tracing::debug!(%failed, "reading the state topic for a standby copy failed; retrying");
                match id {
                    Some(id) => self.abandon(id, now + RETRY_PAUSE),
                    None => self.not_before = now + RETRY_PAUSE,
                }
            }
            (error, id) => {
                let is_lasting = match &error {
                    WorkerError::Kafka(failed) => failed.remedy == Remedy::Stop,
                    error => matches!(error, WorkerError::Fatal(Fatal::Operator(_))),
                };
                self.refuse(id, &RefusedCopy { why: error.to_string(), is_lasting });
            }
        }
        Ok(())
    }

    /// Pauses copies whose state topic cannot be used. Without them, a takeover restores the state as it does without a standby.
    fn refuse(&mut self, id: Option<PartitionId>, refusal: &RefusedCopy) {
        let not_before = self.ctx.clock.elapsed() + REFUSED_PAUSE;
        // The client returns each record once: without a journal, each of them may have lost one.
        let ids = id.map_or_else(|| self.ctx.journals.ids(|_| true), |id| vec![id]);
        let logged: Vec<PartitionId> =
            ids.iter().copied().filter(|id| self.copies.refuse(*id, refusal)).collect();
        if !logged.is_empty() {
            let RefusedCopy { why, is_lasting } = refusal;
            let then = if *is_lasting {
                "fails, too, if it has to read the state topic there"
            } else {
                "reads the state topic itself"
            };
            tracing::warn!(journals = %ranges(logged), "no standby copy: {why}; a takeover {then}");
        }
        for id in ids {
            self.abandon(id, not_before);
        }
    }

    /// Stops reading a journal until a monotonic time. What is in the store stays.
    fn abandon(&mut self, id: PartitionId, not_before: Duration) {
        self.ctx.journals.get_mut(id).into_iter().for_each(|journal| journal.unload(not_before));
        self.copies.stopped(id);
        self.close_journals();
    }

    /// Closes the journals that no copy needs.
    fn close_journals(&mut self) {
        if let Err(failed) = self.ctx.open_journals() {
            tracing::debug!(%failed, "closing a partition of the state topic failed");
        }
    }
}
