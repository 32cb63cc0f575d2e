//! Applies the entries of the journals to the copies.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Entry, Offset, PartitionId};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::reading::{Lacking, Taken};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::standby::Standby;
use crate::pipeline::standby::copies::RefusedCopy;
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
                    return self.failed(journal, failed.into());
                }
            };
            for item in items {
                self.apply(item)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, item: StateItem) -> Result<(), Fatal> {
        let id = item.partition();
        let applied = match item {
            StateItem::Record { offset, key, value, .. } => {
                match self.ctx.take_record(id, offset, key, value) {
                    Ok(Taken::Nothing) => Ok(()),
                    Ok(Taken::Entry(entry)) => self.apply_entry(id, &entry),
                    Ok(Taken::Lacks(gap)) => {
                        self.misses_entries(id, gap);
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
            StateItem::End { next, .. } => match self.ctx.end_of_entries(id, next) {
                Some(next) => self.read_to_end(id, next),
                None => Ok(()),
            },
            StateItem::Gone { .. } => {
                tracing::warn!(
                    journal = id,
                    "the state topic lost records while it was read for standby copies; comparing again"
                );
                self.abandon(id, self.ctx.clock.elapsed());
                Ok(())
            }
        };
        applied.or_else(|error| self.failed(Some(id), error))
    }

    fn apply_entry(&mut self, id: PartitionId, entry: &Entry) -> Result<(), WorkerError> {
        let number = entry.end.number;
        if self.ctx.apply_entry(id, entry)? {
            self.note_cut(id);
            let restoring = self.ctx.journals.get_mut(id).and_then(Journal::restoring_mut);
            if let Some(next) = restoring.map(|it| it.needed) {
                self.copies.read(id, next, false);
            }
        } else {
            self.misses_entries(id, Lacking::records_of(number));
        }
        Ok(())
    }

    fn misses_entries(&mut self, id: PartitionId, gap: Lacking) {
        let why = format!("topic {} partition {id} {}", self.ctx.options.state, gap.what());
        // A restore from the start of the journal may have them.
        self.refuse(Some(id), &RefusedCopy { why, is_lasting: false });
    }

    /// The journal was read to its end.
    fn read_to_end(&mut self, id: PartitionId, next: Offset) -> Result<(), WorkerError> {
        let (Some(restoring), mut restorer) = self.ctx.restorer(id) else { return Ok(()) };
        let next = next.max(restoring.needed);
        restorer.write(restoring)?;
        if self.copies.read(id, next, true) {
            tracing::debug!(journal = id, next, "standby copy: complete up to the end of the state topic");
        }
        Ok(())
    }

    /// Notes that the window is incomplete, when the log had lost its start before it was read.
    fn note_cut(&mut self, id: PartitionId) {
        let restoring = self.ctx.journals.get_mut(id).and_then(Journal::restoring_mut);
        let Some((restoring, first_ms)) = restoring.and_then(|it| it.first_ms.map(|ms| (it, ms))) else {
            return;
        };
        if self.copies.take_cut(id) {
            restoring.windows.note_incomplete_before(first_ms);
        }
    }

    /// Continues what copies are paused for.
    pub(super) fn continue_paused(&mut self, until: Duration) -> Result<(), Fatal> {
        match self.ctx.continue_paused(until) {
            Ok(()) => Ok(()),
            Err((id, error)) => self.failed(Some(id), error),
        }
    }
}
