//! Continues the loads of local state: one slice of them in each iteration, and what follows when one is complete.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::PartitionId;
use crate::metrics::RestoreSource;
use crate::pipeline::commit::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::loading::{AfterLoading, Budget, LoadSlice, Loading, LocalRead, distributed};
use crate::pipeline::partition::read_progress::ReadProgress;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::Recovery;
use crate::pipeline::recovery::restore::Base;
use crate::pipeline::safeguard::Safeguard;

/// Reads one slice of local state, until a monotonic time. Returns the partitions that are being loaded, those with the least left
/// to read first.
pub(crate) fn read_local_slice<W: WorkerPorts>(
    ctx: &mut Context<W>,
    until: Duration,
) -> Result<Vec<PartitionId>, WorkerError> {
    let mut loadings: Vec<_> = ctx.partitions.all_loading_mut().collect();
    if loadings.is_empty() {
        return Ok(Vec::new());
    }
    let LoadSlice { ids, threads, .. } = ctx.options.load_slice;
    loadings.sort_unstable_by_key(|loading| (loading.left(), loading.state.id));
    let waiting: Vec<PartitionId> = loadings.iter().map(|loading| loading.state.id).collect();
    let mut reads = distributed(loadings, threads, &Budget { ids: ids.max(1), until });
    let before = LocalRead::ids(&reads);
    let read = W::read_local(&ctx.store, &ctx.clock, &mut reads);
    ctx.report.metrics.restored_ids(RestoreSource::Local).inc_by(LocalRead::ids(&reads) - before);
    read?;
    let is_complete = ctx.options.keeps(Safeguard::FilterOfAll);
    if let Some(topic) = ctx.topic.as_mut().filter(|_| is_complete) {
        for loading in ctx.partitions.all_loading_mut() {
            let identities = loading.take_read();
            topic.filter.insert_all(loading.state.id, &identities);
        }
    }
    Ok(waiting)
}

impl Recovery {
    /// Reads one slice of local state. The partitions with the least left to read come first, so that they do not wait for one
    /// that takes minutes.
    pub(crate) fn load_slice<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
    ) -> Result<(), WorkerError> {
        let until = access.ctx.clock.elapsed() + access.ctx.options.load_slice.time;
        let waiting = read_local_slice(access.ctx, until)?;
        for (number, id) in waiting.into_iter().enumerate() {
            // The step after a load sends requests to the broker, which takes time too.
            if number > 0 && access.ctx.clock.elapsed() >= until {
                break;
            }
            // From here on the windows are complete.
            let now = access.ctx.clock.elapsed();
            let loaded = access.ctx.partitions.get_mut(id).and_then(|partition| partition.take_loaded(now));
            if let Some(loading) = loaded {
                self.loaded(access, *loading)?;
            }
        }
        Ok(())
    }

    /// Continues with a partition whose local state has been read to the end.
    fn loaded<W: WorkerPorts>(
        &mut self,
        access: &mut Access<'_, W>,
        loading: Loading,
    ) -> Result<(), WorkerError> {
        let Loading { progress: ReadProgress { since, ids, .. }, next, mut state, .. } = loading;
        match *next {
            AfterLoading::Start(answer, checkpoint) => {
                let committed = answer.offset.unwrap_or(0);
                state.tail = checkpoint.tail;
                state.state_next = state.state_next.max(checkpoint.state_next);
                state.complete(committed, &checkpoint);
                let took_ms = access.ctx.clock.elapsed().saturating_sub(since).as_millis();
                tracing::debug!(
                    partition = state.id,
                    ids,
                    offset = committed,
                    took_ms,
                    "state loaded from the local store"
                );
                self.start_loaded(access, state)
            }
            // State that ends below the committed offset is dropped when the restore cannot start.
            AfterLoading::Restore(answer, checkpoint, local) => {
                self.begin_restore(access, &answer, checkpoint, Base::Local(state, local))
            }
        }
    }
}
