//! Applies the records of the state topic to the copies.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::restore::{continue_search, restore_record};
use crate::pipeline::standby::Standby;
use crate::ports::{StateItem, StateLog};

/// How long a read waits for a record.
const WAIT: Duration = Duration::from_millis(5);

impl<W: WorkerPorts> Standby<W> {
    /// Reads until a monotonic time, or until there is nothing to read.
    pub(super) fn read(&mut self, until: Duration) -> Result<(), Fatal> {
        let is_read = |p: &Partition| matches!(p.phase(), Phase::Restoring(it) if it.forgetting.is_none());
        while self.ctx.partitions.iter().any(is_read) && self.ctx.clock.elapsed() < until {
            let items = match self.ctx.log.read(WAIT) {
                Ok(items) if items.is_empty() => break,
                Ok(items) => items,
                // A damaged batch concerns its partition only.
                Err(failed) => return self.failed(failed.damaged.map(|at| at.partition), failed.into()),
            };
            for item in items {
                let id = item.partition();
                self.apply(item).or_else(|error| self.failed(Some(id), error))?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, item: StateItem) -> Result<(), WorkerError> {
        let id = item.partition();
        let is_read = self.ctx.partitions.restoring_mut(id).is_some_and(|it| it.forgetting.is_none());
        match item {
            // Reading continues behind a forget record when its owners are found.
            _ if !is_read => {}
            StateItem::Block { offset, key, block, .. } => {
                restore_record(&mut self.ctx, id, offset, key.unwrap_or_default(), &block)?;
                self.note_cut(id);
                self.copies.read(id, offset + 1, false);
            }
            StateItem::End { next, .. } => {
                self.write(id)?;
                if self.copies.read(id, next, true) {
                    tracing::debug!(
                        partition = id,
                        next,
                        "standby copy: complete up to the end of the state topic"
                    );
                }
            }
            StateItem::Gone { .. } => {
                tracing::warn!(
                    partition = id,
                    "the state topic lost records while it was read for a standby copy; comparing again"
                );
                self.abandon(id, self.ctx.clock.elapsed());
            }
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

    /// Writes what was read to the store.
    fn write(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let (partitions, mut restorer) = self.ctx.restorer();
        partitions.restoring_mut(id).map_or(Ok(()), |restoring| restorer.write(restoring))
    }

    /// Continues the searches for the owners of forgotten identities.
    pub(super) fn search_forgotten(&mut self, until: Duration) -> Result<(), Fatal> {
        let is_searching =
            |p: &Partition| matches!(p.phase(), Phase::Restoring(it) if it.forgetting.is_some());
        for id in self.ctx.partitions.ids(is_searching) {
            let searched = continue_search(&mut self.ctx, id, until);
            let opened = searched.and_then(|range: Option<(Offset, Offset)>| match range {
                Some((from, _)) => Ok(self.ctx.log.open(id, Some(from))?),
                None => Ok(()),
            });
            opened.or_else(|error| self.failed(Some(id), error))?;
        }
        Ok(())
    }
}
