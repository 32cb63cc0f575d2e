//! Continues the loads of local state: one part of them in each iteration, and what follows when one is complete.

use std::collections::BTreeSet;

use crate::clock::Clock;
use crate::dedupe::PartitionId;
use crate::pipeline::access::Access;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::loading::{AfterLoading, Loading};
use crate::pipeline::journal::restoring::Completed;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::restore::Base;

impl<W: WorkerPorts> Access<'_, W> {
    /// Reads one part of local state. The journals with the least left to read come first, so that they do not wait for one
    /// that takes minutes.
    pub(crate) fn load_part(&mut self) -> Result<(), WorkerError> {
        let until = self.ctx.clock.elapsed() + self.ctx.options.load_part.time;
        let waiting = self.ctx.read_local_part(until)?;
        for (number, id) in waiting.into_iter().enumerate() {
            // The step after a load sends requests to the broker, which takes time too.
            if number > 0 && self.ctx.clock.elapsed() >= until {
                break;
            }
            // From here on the windows are complete.
            let now = self.ctx.clock.elapsed();
            let loaded = self.ctx.journals.get_mut(id).and_then(|journal| journal.take_loaded(now));
            if let Some(loading) = loaded {
                self.loaded(id, *loading)?;
            }
        }
        Ok(())
    }

    /// Continues with a journal whose local state has been read to the end.
    fn loaded(&mut self, id: PartitionId, loading: Loading) -> Result<(), WorkerError> {
        let Loading { progress, head, next, windows, .. } = loading;
        match *next {
            AfterLoading::Start(located) => {
                let mut covered = head.covered;
                // Those of an entry that the head does not confirm. An older checkpoint was set back, or names what the head has.
                let unconfirmed = head.last_entry.filter(|_| head.last_entry != head.confirmed_entry);
                for (id, of, named) in located.sections() {
                    let known = covered.entry(id).or_insert(of);
                    if named.is_some() && named == unconfirmed {
                        *known = of;
                    }
                }
                let took_ms = self.ctx.clock.elapsed().saturating_sub(progress.since).as_millis();
                tracing::debug!(
                    journal = id,
                    ids = progress.ids,
                    took_ms,
                    "state loaded from the local store"
                );
                let last_entry = located.last_entry;
                self.completed(
                    id,
                    Completed { windows, located, last_entry, covered, ..Completed::default() },
                )
            }
            // State that ends before the last committed entry is dropped when the restore cannot start.
            AfterLoading::Restore(located, from) => {
                let base = Base { windows, head, from };
                self.begin_restore(id, located, Some(base), BTreeSet::new())
            }
        }
    }
}
