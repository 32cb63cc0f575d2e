//! Starts the partitions of a journal whose windows are complete.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{PartitionId, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::partition::Partition;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::READ_TIME;
use crate::ports::Source;

/// Pause before the number of partitions of raw is read again, while a partition is missing.
const MISSING_PAUSE: Duration = Duration::from_millis(50);

impl<W: WorkerPorts> Access<'_, W> {
    /// Starts processing with windows that were just completed.
    pub(crate) fn start_completed(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let members = self.ctx.members(id);
        resume_clocks(self.ctx, &members);
        let now = self.ctx.clock.elapsed();
        let Some(journal) = self.ctx.journals.get_mut(id) else { return Ok(()) };
        journal.log_window_resets(&self.ctx.options.kinds);
        let resets = !journal.reset_kinds.is_empty();
        for (_, window) in journal.windows.iter_mut().flat_map(Windows::iter_mut) {
            // Owners that were evicted while old entries were read were already counted when the entries were new.
            window.take_evicted();
        }
        if let Some(since) = journal.missing_since.take() {
            let took = now.saturating_sub(since).as_secs_f64();
            self.ctx.report.metrics.parts.state.restore_seconds.observe(took);
        }
        for member in members {
            if let Some(partition) = self.ctx.partitions.get_mut(member) {
                partition.stated = now;
                // The reset is committed at once.
                partition.rewound |= resets;
                partition.uncommitted_position |= resets;
            }
        }
        self.start(id)
    }

    /// Starts processing, unless owners have to be undone first: the windows are those of the committed offsets. If that fails, they are kept, and used again once the offsets have been read
    /// again.
    pub(crate) fn start(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        if self.ctx.journals.get(id).is_some_and(Journal::is_undoing) {
            return Ok(());
        }
        let now = self.ctx.clock.elapsed();
        let not_before = match self.held_by_leftovers(id) {
            None if !self.is_complete(id)? => Some(now + MISSING_PAUSE),
            held => held,
        };
        if let Some(not_before) = not_before {
            self.ctx.journals.get_mut(id).into_iter().for_each(|journal| journal.relocate(not_before));
            return Ok(());
        }
        let members = self.ctx.members(id);
        let mut undone = Vec::new();
        for member in &members {
            undone.extend(self.resume_offset(*member)?);
        }
        if let Some(journal) = self.ctx.journals.get_mut(id).filter(|_| !undone.is_empty()) {
            return Ok(journal.begin_undoing(&mut self.ctx.store, &undone)?);
        }
        // One with a rejected record waits for the next attempt; the others continue.
        let is_due = |id: &PartitionId| {
            self.ctx.partitions.get(*id).is_some_and(|partition| !partition.rejections.waits(now))
        };
        let started: Vec<PartitionId> = members.into_iter().filter(is_due).collect();
        for member in &started {
            self.seek(*member)?;
        }
        if let Some(journal) = self.ctx.journals.get_mut(id) {
            journal.enter(Phase::Running);
            journal.has_run = true;
        }
        started.into_iter().try_for_each(|member| self.open(member))
    }

    /// Continues to undo owners, until the part is used up, and starts the journals in which all are undone.
    pub(super) fn undo_part(&mut self) -> Result<(), WorkerError> {
        let until = self.ctx.clock.elapsed() + READ_TIME;
        for id in self.ctx.journals.ids(|it| matches!(it.phase(), Phase::Undoing(_))) {
            let Context { journals, store, clock, .. } = &mut *self.ctx;
            let Some(journal) = journals.get_mut(id) else { continue };
            if journal.undo(store, || clock.elapsed() >= until)? {
                self.start(id)?;
            }
            if self.ctx.clock.elapsed() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Starts the partitions of running journals that have waited: for the next attempt of a rejected record, or until all topics had them.
    pub(super) fn start_waiting(&mut self) -> Result<(), WorkerError> {
        let (now, options) = (self.ctx.clock.elapsed(), &self.ctx.options);
        let waits = |partition: &Partition| {
            let journal = self.ctx.journals.get(partition.journal);
            let is_ready = options.partition_counts.covers(partition.id) && !partition.rejections.waits(now);
            !partition.is_started && is_ready && journal.is_some_and(Journal::is_running)
        };
        for id in self.ctx.partitions.ids(waits) {
            if self.ctx.partitions.get(id).is_some_and(Partition::is_located) {
                self.seek(id)?;
                self.open(id)?;
            } else if !self.committer.transaction.is_open() {
                // Its committed offset has to be read first, and its clean log belongs to those that are compared.
                let journal = self.ctx.options.journal_of(id);
                self.ctx.journals.get_mut(journal).into_iter().for_each(|it| it.is_checked = false);
                self.ctx.relocate(self.source, &[journal], Duration::ZERO)?;
            }
        }
        Ok(())
    }

    fn seek(&self, id: PartitionId) -> Result<(), WorkerError> {
        let Some(partition) = self.ctx.partitions.get(id) else { return Ok(()) };
        let (from, last) = partition.position();
        Ok(self.source.seek_behind(id, from, last)?)
    }

    /// Processes the records of a partition that was sought.
    fn open(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        self.ctx.partitions.get_mut(id).into_iter().for_each(Partition::start);
        self.commit_pending_position(id)
    }

    /// Before the first record: whether the worker has each partition that raw has now. The group can assign it a part of them
    /// in one step, and the last active instance may have processed partitions that this process does not know yet: it started before
    /// raw grew, and its topic monitor has not looked since. What that instance had, a broker reported before this worker was assigned anything.
    fn is_complete(&self, id: PartitionId) -> Result<bool, WorkerError> {
        let (ctx, options) = (&self.ctx, &self.ctx.options);
        if !ctx.needs_all_partitions() || ctx.journals.get(id).is_none_or(|journal| journal.has_run) {
            return Ok(true);
        }
        let raw = self.source.partition_count(REQUEST_TIMEOUT)?;
        options.partition_counts.note_raw(raw);
        // A broker that reports fewer partitions than are known has outdated metadata.
        Ok(raw >= ctx.known_partitions().len() && ctx.has_all_partitions())
    }

    /// Adds a position that only this worker has to the next commit, although no record has arrived.
    fn commit_pending_position(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let Access { ctx, committer, source, .. } = self;
        let Some(partition) =
            ctx.partitions.get_mut(id).filter(|it| it.is_started && it.uncommitted_position)
        else {
            return Ok(());
        };
        if let Err(failed) = committer.transaction.begin(&mut committer.sink, || ctx.clock.elapsed()) {
            // No record may be processed before the position is in a transaction: the section of a partition that goes back
            // must not cover its first records too.
            let journal = ctx.options.journal_of(id);
            ctx.relocate(source, &[journal], Duration::ZERO)?;
            return Err(failed.into());
        }
        committer.transaction.touch(id, &mut partition.open);
        if committer.transaction.is_full(ctx.options.transaction_limit) {
            committer.commit(ctx, source)
        } else {
            Ok(())
        }
    }
}

/// Continues the clocks of partitions that were located. Stream times of different partitions are compared, so those of a journal get the same
/// clock: that of the partition with the latest stream time, which no other one has reached.
fn resume_clocks<W: WorkerPorts>(ctx: &mut Context<W>, members: &[PartitionId]) {
    let (now_ms, source) = (ctx.time.now_ms(&ctx.clock), ctx.options.kinds.time());
    let mut latest = None;
    for id in members {
        if let Some(partition) = ctx.partitions.get_mut(*id) {
            partition.resume_time(now_ms, source);
            latest = latest.max(Some((partition.time.ms(), partition.ahead_ms)));
        }
    }
    let Some((_, ahead_ms)) = latest else { return };
    for id in members {
        ctx.partitions.get_mut(*id).into_iter().for_each(|partition| partition.ahead_ms = ahead_ms);
    }
}

/// Whether the open transaction commits a position that only this worker has. Such a transaction is committed without
/// records. Otherwise, if its markers were missing, the position could not be distinguished from one that an operator has
/// set since, nor its section from one that covered the same offsets before the log was truncated.
pub(crate) fn has_uncommitted_position<W: WorkerPorts>(ctx: &Context<W>) -> bool {
    ctx.partitions.iter().any(|partition| partition.is_started && partition.uncommitted_position)
}
