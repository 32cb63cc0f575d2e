//! A restore from a journal, in parts short enough that the worker keeps polling.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, Entry, KindId, Offset, PartitionId, Windows};
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::failpoint;
use crate::pipeline::journal::local::{Located, is_behind_the_log, usable};
use crate::pipeline::journal::reading::{Lacking, Taken};
use crate::pipeline::journal::restoring::{ReadPurpose, Restoring};
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{Head, LogBounds, StateItem, Store};

/// Local state that a restore begins with.
#[derive(Debug)]
pub(crate) struct Base {
    pub windows: Windows,
    pub head: Head,
    /// The journal is read from this offset on.
    pub from: Offset,
}

impl<W: WorkerPorts> Access<'_, W> {
    /// Starts reading a journal: all of it, or what follows the local state. The identity rules of the kinds `changed` have changed. When that
    /// fails, the journal stays in `Locating`, without windows.
    pub(crate) fn begin_restore(
        &mut self,
        id: PartitionId,
        located: Located,
        base: Option<Base>,
        changed: BTreeSet<KindId>,
    ) -> Result<(), WorkerError> {
        let bounds = self.state_bounds(id)?;
        if let Some(checkpoint) = &located.checkpoint {
            check_length(&self.ctx.options, id, bounds.high, checkpoint)?;
        }
        let local = base.as_ref().map(|base| base.from);
        let is_behind = local.is_some_and(|from| is_behind_the_log(from, &bounds));
        if is_behind && bounds.low >= bounds.stable && !located.has_offset() {
            let covered = base.as_ref().and_then(|base| base.head.covered.first_key_value());
            let (id, next) = covered.map_or((id, None), |(id, covered)| (*id, Some(covered.next)));
            return Err(self.expired(&located, id, next));
        }
        let usable = usable(local, &bounds, located.has_offset());
        let (windows, head) = if let Some(base) = base.filter(|_| usable.is_some()) {
            (base.windows, base.head)
        } else {
            self.ctx.store.clear(&unnamed_first(self.ctx.options.kinds.windows_of(id)))?;
            (self.ctx.empty_windows(located.checkpoint.as_ref()), Head::default())
        };
        let from = usable.unwrap_or(bounds.low);
        tracing::debug!(journal = id, from, until = bounds.stable, "restoring state from the state topic");
        let now = self.ctx.clock.elapsed();
        let restoring = Restoring {
            emptied: self.ctx.options.kinds_by_other_rules(located.checkpoint.as_ref()),
            reset_kinds: changed,
            rules: self.ctx.options.rules(),
            located,
            ..Restoring::new(ReadPurpose::Start, windows, head, from, &bounds, now)
        };
        if let Some(journal) = self.ctx.journals.get_mut(id) {
            journal.enter(Phase::Restoring(Box::new(restoring)));
        }
        self.ctx.reopen_journal(id);
        if from < bounds.stable {
            failpoint::pass("before_state_open");
            return Ok(());
        }
        let ended = self.end_restore(id, from);
        if ended.is_err() {
            self.ctx.abandon_restore(id);
        }
        ended
    }

    /// Processes one item read from a journal. A restore that misses an entry restarts: otherwise its end would be mistaken for that of a
    /// complete restore.
    pub(crate) fn restored(&mut self, item: StateItem) -> Result<(), WorkerError> {
        let id = item.partition();
        let done = match item {
            StateItem::Record { offset, key, value, .. } => {
                match self.ctx.take_record(id, offset, key, value) {
                    Ok(Taken::Nothing) => return Ok(()),
                    Ok(Taken::Entry(entry)) => self.ctx.restore_entry(id, &entry),
                    Ok(Taken::Lacks(gap)) => self.ctx.misses_entries(id, gap),
                    Err(error) => Err(error),
                }
            }
            StateItem::End { next, .. } => {
                let Some(next) = self.ctx.end_of_entries(id, next) else { return Ok(()) };
                let restoring = self.ctx.journals.get_mut(id).and_then(Journal::restoring_mut);
                match restoring {
                    Some(it) => {
                        let next = next.max(it.needed);
                        self.end_restore(id, next)
                    }
                    None => return Ok(()),
                }
            }
            StateItem::Gone { .. } => {
                tracing::warn!(
                    journal = id,
                    "topic {} lost records while it was read; restarting the restore",
                    self.ctx.options.state
                );
                self.ctx.abandon_restore(id);
                Ok(())
            }
        };
        if done.is_err() {
            self.ctx.abandon_restore(id);
        }
        done
    }

    fn end_restore(&mut self, id: PartitionId, next: Offset) -> Result<(), WorkerError> {
        let now = self.ctx.clock.elapsed();
        let (restoring, mut restorer) = self.ctx.restorer(id);
        restoring.map_or(Ok(()), |restoring| restorer.write(restoring))?;
        // When anything below fails, the journal is read again.
        let restoring = self.ctx.journals.get_mut(id).and_then(|journal| journal.take_restoring(now));
        let Some(restoring) = restoring else { return Ok(()) };
        let Some(restoring) = self.ctx.if_whole(id, restoring, next)? else { return Ok(()) };
        restoring.log_left_out(&self.ctx.options.state);
        let took_ms = now.saturating_sub(restoring.progress.since).as_millis();
        tracing::debug!(
            journal = id,
            ids = restoring.progress.ids,
            took_ms,
            "state restored from the state topic"
        );
        self.completed(id, restoring.completed(next))
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Adds an entry to the restore of a journal.
    fn restore_entry(&mut self, id: PartitionId, entry: &Entry) -> Result<(), WorkerError> {
        let number = entry.end.number;
        if self.apply_entry(id, entry)? {
            Ok(())
        } else {
            self.misses_entries(id, Lacking::records_of(number))
        }
    }

    /// Discards the restore of a journal, so that it is read again.
    pub(crate) fn abandon_restore(&mut self, id: PartitionId) {
        let now = self.clock.elapsed();
        drop(self.journals.get_mut(id).and_then(|journal| journal.take_restoring(now)));
        self.reopen_journal(id);
    }

    /// Adds an entry to the restore of a journal, if that needs it. Returns false when records of it are missing.
    pub(crate) fn apply_entry(&mut self, id: PartitionId, entry: &Entry) -> Result<bool, WorkerError> {
        let (Some(restoring), mut restorer) = self.restorer(id) else { return Ok(true) };
        if entry.at < restoring.needed {
            return Ok(true);
        }
        if !restoring.located.has_offset() && restoring.purpose == ReadPurpose::Start {
            restorer.options.same_group(&entry.key)?;
        }
        let is_whole = restorer.entry(restoring, entry)?;
        if restoring.is_paused() {
            // What follows in the log is read once the pause has ended, also what the client has read already.
            self.reopen_journal(id);
        }
        Ok(is_whole)
    }

    /// Continues what restores are paused for. Where that ends, the journal is read on. Returns the journal in which it failed.
    pub(crate) fn continue_paused(&mut self, until: Duration) -> Result<(), (PartitionId, WorkerError)> {
        let is_paused = |it: &Journal| matches!(it.phase(), Phase::Restoring(it) if it.is_paused());
        for id in self.journals.ids(is_paused) {
            let continued = self.continue_undoing(id, until).and_then(|()| self.continue_search(id, until));
            continued.map_err(|error| (id, error))?;
            if self.clock.elapsed() >= until {
                break;
            }
        }
        Ok(())
    }

    fn continue_undoing(&mut self, id: PartitionId, until: Duration) -> Result<(), WorkerError> {
        let Context { journals, store, clock, .. } = self;
        let Some(restoring) = journals.get_mut(id).and_then(Journal::restoring_mut) else { return Ok(()) };
        let Some(undoing) = restoring.undoing.as_mut() else { return Ok(()) };
        if undoing.advance(store, &mut restoring.windows, || clock.elapsed() >= until)? {
            restoring.undoing = None;
        }
        Ok(())
    }

    fn continue_search(&mut self, id: PartitionId, until: Duration) -> Result<(), WorkerError> {
        let restoring = self.journals.get_mut(id).and_then(Journal::restoring_mut);
        let Some(forgetting) = restoring.and_then(|restoring| restoring.forgetting.as_mut()) else {
            return Ok(());
        };
        forgetting.read(&self.store, || self.clock.elapsed() >= until)?;
        let (Some(restoring), mut restorer) = self.restorer(id) else { return Ok(()) };
        match restoring.forgetting.take_if(|it| it.is_done()) {
            Some(forgetting) => restorer.delete_forgotten(restoring, forgetting),
            None => Ok(()),
        }
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
