//! Loads windows from the local store.
//!
//! A worker with hundreds of millions of identities needs minutes to load its local state. It reads one slice of it in each
//! poll loop iteration, with a thread for each of several partitions. A member that does not poll is removed from the group, and
//! the supervisor ends a process with a worker whose iteration does not end.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, Identity, KindId, Offset, Sequence, WindowId};
use crate::metrics::RestoreSource;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::partition::Phase;
use crate::pipeline::partition::read_progress::ReadProgress;
use crate::pipeline::partition::sealed::{count_sealed, load_sealed};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Committed, Store, StoreError};

/// Removes the owners at or beyond `from` from the store, for each of these windows. The unnamed kind, the last one, goes
/// first: its head stands for all kinds, so it must not claim them complete when the machine loses the writes that follow.
pub(crate) fn cut_back(store: &mut impl Store, windows: &[WindowId], from: Offset) -> Result<(), StoreError> {
    windows.iter().rev().try_for_each(|window| store.truncate(*window, from).map(drop))
}

/// Removes all owners of these windows, in the same order for the same reason.
pub(crate) fn clear(store: &mut impl Store, windows: &[WindowId]) -> Result<(), StoreError> {
    windows.iter().rev().try_for_each(|window| store.clear(*window))
}

/// How much local state the worker reads in one poll loop iteration, whichever bound is reached first; at least one run of owners in
/// each thread. Between two slices the worker polls and processes the records of other partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSlice {
    /// Identities that each thread reads.
    pub ids: u64,
    /// Time after which the slice ends, even if fewer identities were read.
    pub time: Duration,
    /// Threads, each of which reads other partitions; at least 1.
    pub threads: usize,
}

impl Default for LoadSlice {
    fn default() -> Self {
        // About 5 million identities per second are loaded. The time is the same as for one slice of the state topic.
        Self { ids: 1_000_000, time: Duration::from_millis(20), threads: 1 }
    }
}

/// What the windows contain at the end of a load.
#[derive(Debug, Clone, Copy)]
struct LoadTarget {
    /// The owners below this offset.
    trusted: Offset,
    stream_time_ms: i64,
}

/// Local state that is being read, slice by slice.
#[derive(Debug)]
pub struct Loading {
    /// How much was read.
    pub(crate) progress: ReadProgress,
    target: LoadTarget,
    pub(crate) next: Box<AfterLoading>,
    /// The state, with the windows that are being filled.
    pub state: Box<DedupeState>,
    /// The kinds whose owners are still to be read; the last one is being read.
    kinds: Vec<KindId>,
    /// Where reading continues; `None` before the first owner of a kind.
    from: Option<Sequence>,
    /// Identities stored when it began.
    total: u64,
    /// In topic scope, the identities read in this slice, each with the latest stream time at which it can have arrived.
    read: Option<Vec<(Identity, i64)>>,
}

/// What follows after the local state is loaded.
#[derive(Debug)]
pub(crate) enum AfterLoading {
    /// The partition starts: its state is complete up to the committed offset.
    Start(Committed, Checkpoint),
    /// The state topic is read from the first offset on; local state is correct below the second, a raw offset.
    Restore(Committed, Option<Checkpoint>, (Offset, Offset)),
}

impl Loading {
    /// Fraction of the identities read so far, in 0..=1.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.progress.ids as f64 / self.total.max(1) as f64).min(1.0)
    }

    /// Identities still to be read.
    pub(crate) fn left(&self) -> u64 {
        self.total.saturating_sub(self.progress.ids)
    }

    /// Takes the identities that were read since the last call. Only in topic scope.
    pub(crate) fn take_read(&mut self) -> Vec<(Identity, i64)> {
        self.read.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The partitions that one thread reads in a slice, one after the other.
pub struct LocalRead<'a> {
    loadings: Vec<&'a mut Loading>,
    budget: Budget,
}

/// Divides the partitions among threads. The first ones begin at once.
pub(crate) fn distributed<'a>(
    loadings: Vec<&'a mut Loading>,
    threads: usize,
    budget: &Budget,
) -> Vec<LocalRead<'a>> {
    let count = threads.clamp(1, loadings.len().max(1));
    let mut reads: Vec<_> = (0..count).map(|_| LocalRead { loadings: Vec::new(), budget: *budget }).collect();
    for (number, loading) in loadings.into_iter().enumerate() {
        if let Some(read) = reads.get_mut(number % count) {
            read.loadings.push(loading);
        }
    }
    reads
}

impl LocalRead<'_> {
    /// Identities that were read so far.
    pub(crate) fn ids(reads: &[Self]) -> u64 {
        reads.iter().flat_map(|read| &read.loadings).map(|loading| loading.progress.ids).sum()
    }

    /// Reads owners until all are read or the slice is used up.
    pub fn run(&mut self, store: &impl Store, clock: &impl Clock) -> Result<(), StoreError> {
        for loading in &mut self.loadings {
            loading.read(store, clock, &mut self.budget)?;
            if self.budget.is_spent(clock.elapsed()) {
                break;
            }
        }
        Ok(())
    }
}

/// The unused rest of one iteration's slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) ids: u64,
    pub(crate) until: Duration,
}

impl Budget {
    fn is_spent(&self, now: Duration) -> bool {
        self.ids == 0 || now >= self.until
    }
}

/// Starts reading the local owners below `trusted` into the empty windows of this state.
pub(crate) fn begin_loading<W: WorkerPorts>(
    ctx: &mut Context<W>,
    mut state: Box<DedupeState>,
    trusted: Offset,
    next: AfterLoading,
) -> Result<(), WorkerError> {
    let trusted = if ctx.options.keeps(Safeguard::Claims) { trusted } else { Offset::MAX };
    let head = ctx.store.head(state.id.into())?.unwrap_or_default();
    state.state_next = head.state_next;
    state.windows.note_incomplete_before(head.incomplete_ms);
    let (id, now) = (state.id, ctx.clock.elapsed());
    let mut kinds = Vec::new();
    for (kind, window) in state.windows.iter_mut() {
        // A window that is longer than it was lacks what has expired.
        window.note_incomplete_before(ctx.store.missing_ms(kind.window(id))?);
        kinds.push(kind);
    }
    // Owners must not be removed while they are read.
    ctx.store.end_seal();
    let (mut total, mut sealed) = (0, 0);
    for kind in &kinds {
        total += ctx.store.ids(kind.window(id))?;
        sealed += count_sealed(&ctx.store, kind.window(id));
    }
    let read = ctx.topic.as_mut().map(|topic| {
        topic.filter.expect(total);
        Vec::new()
    });
    total += sealed;
    ctx.report.metrics.restored_ids(RestoreSource::Local).inc_by(sealed);
    // Sealed owners are not read.
    let mut progress = ReadProgress::start(now);
    progress.ids = sealed;
    let target = LoadTarget { trusted, stream_time_ms: head.stream_time_ms };
    let next = Box::new(next);
    let loading = Loading { progress, target, next, state, kinds, from: None, total, read };
    if let Some(partition) = ctx.partitions.get_mut(id) {
        partition.enter(Phase::Loading(Box::new(loading)));
    }
    Ok(())
}

impl Loading {
    /// Whether all owners are read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Reads owners until all are read or the slice is used up.
    fn read(
        &mut self,
        store: &impl Store,
        clock: &impl Clock,
        budget: &mut Budget,
    ) -> Result<(), StoreError> {
        let DedupeState { id, windows, .. } = &mut *self.state;
        while let Some(kind) = self.kinds.last().copied() {
            let window_id = kind.window(*id);
            let Some(window) = windows.of_kind(kind) else {
                self.kinds.pop();
                continue;
            };
            if self.from.is_none() {
                load_sealed(store, window_id, window);
                window.reserve(store.ids(window_id)?);
            }
            let (trusted, read, identities) = (self.target.trusted, &mut self.progress.ids, &mut self.read);
            let rest = store.scan_from(window_id, self.from.unwrap_or(0), &mut |run| {
                // Without those that are also in a slice.
                *read += window.load(run, trusted);
                let owners = run.owners.iter().filter_map(|owner| Some((owner.identity?, run.times_ms.1)));
                if let Some(into) = identities {
                    into.extend(owners);
                }
                failpoint::pass("block_loaded");
                budget.ids = budget.ids.saturating_sub(run.owners.len() as u64);
                let spent = budget.is_spent(clock.elapsed());
                Ok(if spent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if rest.is_some() {
                self.from = rest;
                let share = self.share();
                self.progress.log(clock.elapsed(), self.state.id, ("loading local state", share));
                return Ok(());
            }
            window.set_stream_time(self.target.stream_time_ms);
            self.from = None;
            self.kinds.pop();
        }
        Ok(())
    }
}
