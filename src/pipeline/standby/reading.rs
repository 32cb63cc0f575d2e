//! Applies the entries of the journals to the copies.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Entry, Offset, PartitionId};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::{Lacking, Taken};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::restore;
use crate::pipeline::standby::{REFUSED_PAUSE, Standby};
use crate::ports::{StateItem, StateLog};

/// How long a read waits for a record.
const WAIT: Duration = Duration::from_millis(5);

impl<W: WorkerPorts> Standby<W> {
    /// Reads until a monotonic time, or until there is nothing to read.
    pub(super) fn read(&mut self, until: Duration) -> Result<(), Fatal> {
        while self.ctx.clock.elapsed() < until {
            match self.ctx.open_journals() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.failed(None, error),
            }
            let items = match self.ctx.log.read(WAIT) {
                Ok(items) if items.is_empty() => break,
                Ok(items) => items,
                // A damaged batch concerns its journal only.
                Err(failed) => {
                    let journal = failed.damaged.map(|at| at.partition);
                    return self.journal_failed(journal, failed.into());
                }
            };
            for item in items {
                self.apply(item)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, item: StateItem) -> Result<(), Fatal> {
        let journal = item.partition();
        match item {
            StateItem::Block { offset, key, block, .. } => {
                match self.ctx.take_record(journal, offset, key, block) {
                    Ok(Taken::Nothing) => Ok(()),
                    Ok(Taken::Entry(entry)) => self.apply_entry(journal, &entry),
                    Ok(Taken::Lacks(gap)) => {
                        for id in self.ctx.restoring_from(journal) {
                            self.misses_entries(id, gap);
                        }
                        Ok(())
                    }
                    Err(error) => self.journal_failed(Some(journal), error),
                }
            }
            StateItem::End { next, .. } => {
                let Some(next) = self.ctx.end_of_entries(journal, next) else { return Ok(()) };
                for id in self.ctx.restoring_from(journal) {
                    self.read_to_end(id, next).or_else(|error| self.failed(Some(id), error))?;
                }
                Ok(())
            }
            StateItem::Gone { .. } => {
                tracing::warn!(
                    journal,
                    "the state topic lost records while it was read for standby copies; comparing again"
                );
                let now = self.ctx.clock.elapsed();
                self.ctx.restoring_from(journal).into_iter().for_each(|id| self.abandon(id, now));
                self.ctx.reopen_journal(journal);
                Ok(())
            }
        }
    }

    fn apply_entry(&mut self, journal: PartitionId, entry: &Entry) -> Result<(), Fatal> {
        for id in self.ctx.restoring_from(journal) {
            match restore::apply_entry(&mut self.ctx, id, entry) {
                Ok(true) => {
                    self.note_cut(id);
                    self.copies.read(id, entry.at + 1, false);
                }
                Ok(false) => {
                    let number = entry.end.number;
                    self.misses_entries(id, Lacking { last: number, next: number });
                }
                Err(error) => {
                    self.failed(Some(id), error)?;
                    // The others have not read it.
                    self.ctx.reopen_journal(journal);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn misses_entries(&mut self, id: PartitionId, Lacking { last, next }: Lacking) {
        let topic = &self.ctx.options.state;
        let why = format!("topic {topic} lacks records of committed entries between {last} and {next}");
        self.refuse(Some(id), &why);
    }

    /// A failure that concerns all copies from a journal.
    fn journal_failed(&mut self, journal: Option<PartitionId>, error: WorkerError) -> Result<(), Fatal> {
        let Some(journal) = journal else { return self.failed(None, error) };
        let not_before = self.ctx.clock.elapsed() + REFUSED_PAUSE;
        let mut ids = self.ctx.restoring_from(journal).into_iter();
        let first = ids.next();
        ids.for_each(|id| self.abandon(id, not_before));
        self.failed(first, error)
    }

    /// The journal was read to its end.
    fn read_to_end(&mut self, id: PartitionId, next: Offset) -> Result<(), WorkerError> {
        let (partitions, mut restorer) = self.ctx.restorer();
        let Some(restoring) = partitions.restoring_mut(id) else { return Ok(()) };
        if restoring.forgetting.is_some() {
            return Ok(());
        }
        let next = next.max(restoring.needed);
        restorer.write(restoring)?;
        if self.copies.read(id, next, true) {
            tracing::debug!(partition = id, next, "standby copy: complete up to the end of the state topic");
        }
        Ok(())
    }

    /// Notes that the window is incomplete, when the log had lost its start before it was read.
    fn note_cut(&mut self, id: PartitionId) {
        let restoring = self.ctx.partitions.restoring_mut(id);
        let Some((restoring, first_ms)) = restoring.and_then(|it| it.first_ms.map(|ms| (it, ms))) else {
            return;
        };
        if self.copies.take_cut(id) {
            restoring.state.windows.note_incomplete_before(first_ms);
        }
    }

    /// Continues the searches for the owners of forgotten identities.
    pub(super) fn search_forgotten(&mut self, until: Duration) -> Result<(), Fatal> {
        match restore::search_forgotten(&mut self.ctx, until) {
            Ok(()) => Ok(()),
            Err((id, error)) => self.failed(Some(id), error),
        }
    }
}
