//! Loads windows from stored blocks, and looks up the stored owners for a window.
//!
//! A worker with hundreds of millions of identities needs minutes to load its local state. It reads one slice of it in each
//! poll loop iteration. A member that does not poll is removed from the group, and the supervisor ends a process with a worker
//! whose iteration does not end.

use std::ops::ControlFlow;
use std::time::Duration;

use super::error::WorkerError;
use super::partition::Phase;
use super::safeguard::Safeguard;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{
    BlockError, Checkpoint, Identity, KindId, Offset, Owners, PartitionId, Window, WindowId, Windows,
};
use crate::metrics::RestoreSource;
use crate::ports::{Committed, Store, StoreError};

/// How often a load logs its progress.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The stored owners of one window.
pub struct Stored<'a, T> {
    /// The store.
    pub store: &'a T,
    /// The window.
    pub window: WindowId,
}

impl<T: Store> Owners for Stored<'_, T> {
    type Error = StoreError;

    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.look_up(owner, Store::identity_of).map(Some)
    }

    fn owns(&self, owner: Offset, identity: Identity) -> Result<bool, StoreError> {
        self.look_up(owner, |store, window, owner| store.owns(window, owner, identity))
    }
}

impl<T: Store> Stored<'_, T> {
    /// Looks up an owner. The window looks up only owners that it holds, and the store must hold them too.
    fn look_up<A>(
        &self,
        owner: Offset,
        read: impl FnOnce(&T, WindowId, Offset) -> Result<Option<A>, StoreError>,
    ) -> Result<A, StoreError> {
        let missing = || {
            let at = self.window;
            StoreError::Corrupt(format!(
                "the owner {at}@{owner} is in the window, but not in the local store"
            ))
        };
        read(self.store, self.window, owner)?.ok_or_else(missing)
    }
}

/// Removes the owners at or beyond `from` from the store, for each of these windows. The unnamed kind, the last one, goes
/// first: its head stands for all kinds, so it must not claim them complete when the machine loses the writes that follow.
pub(super) fn cut_back(store: &mut impl Store, windows: &[WindowId], from: Offset) -> Result<(), StoreError> {
    windows.iter().rev().try_for_each(|window| store.truncate(*window, from).map(drop))
}

/// Removes all blocks of these windows, in the same order for the same reason.
pub(super) fn clear(store: &mut impl Store, windows: &[WindowId]) -> Result<(), StoreError> {
    windows.iter().rev().try_for_each(|window| store.clear(*window))
}

/// Reads the owners of a window below `trusted` into an empty window and sets its stream time, in
/// epoch milliseconds. For the command-line tools; a worker reads in slices.
pub fn load_window(
    store: &impl Store,
    id: WindowId,
    (trusted, stream_time_ms): (Offset, i64),
    window: &mut Window,
) -> Result<(), StoreError> {
    window.reserve(store.ids(id)?);
    store.scan(id, &mut |view| {
        let restored = window.restore(view, trusted).map(drop);
        restored.map_err(|error| unusable(id.partition(), &error))
    })?;
    window.set_stream_time(stream_time_ms);
    Ok(())
}

/// A stored block that cannot be read.
pub(super) fn unusable(partition: PartitionId, error: &BlockError) -> StoreError {
    StoreError::Corrupt(format!("partition {partition}: {error}"))
}

/// How much local state the worker reads in one poll loop iteration, whichever bound is reached first; at least one block.
/// Between two slices the worker polls and processes the records of other partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSlice {
    /// Identities.
    pub ids: u64,
    /// Time.
    pub time: Duration,
}

impl Default for LoadSlice {
    fn default() -> Self {
        // About 5 million identities per second are loaded. The time is the same as for one slice of the state topic.
        Self { ids: 1_000_000, time: Duration::from_millis(20) }
    }
}

/// Local state that is being read, slice by slice.
#[derive(Debug)]
pub struct Loading {
    /// Monotonic time of its start.
    since: Duration,
    /// Monotonic time of the last progress message in the log.
    logged: Duration,
    task: Task,
    /// The kinds whose blocks are still to be read; the last one is being read.
    kinds: Vec<KindId>,
    /// Where reading continues, first offset of a block; `None` before the first block of a kind.
    from: Option<Offset>,
    /// Identities read.
    ids: u64,
    /// Identities stored when it began.
    total: u64,
}

/// The purpose of reading the blocks.
#[derive(Debug)]
enum Task {
    /// Fill empty windows with the owners below `trusted`.
    Windows { trusted: Offset, stream_time_ms: i64, next: Box<Next> },
    /// Refill the emptied filters of complete windows. Then the partition starts. `load` is the start time and the number of
    /// identities of the load before it.
    Filters { load: Option<(Duration, u64)> },
}

/// What follows after the local state is loaded.
#[derive(Debug)]
pub(super) enum Next {
    /// The partition starts: its state is complete up to the committed offset.
    Start(Committed, Checkpoint),
    /// The state topic is read from the first offset on; local state is correct below the second, a raw offset.
    Restore(Committed, Option<Checkpoint>, (Offset, Offset)),
}

impl Loading {
    /// Fraction of the identities read so far, in 0..=1.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.ids as f64 / self.total.max(1) as f64).min(1.0)
    }

    fn log(&mut self, id: PartitionId, now: Duration) {
        if now.saturating_sub(self.logged) >= LOG_INTERVAL {
            self.logged = now;
            let percent = self.share() * 100.0;
            tracing::info!(partition = id, ids = self.ids, "loading local state, {percent:.0} % read");
        }
    }
}

/// The unused rest of one iteration's slice.
struct Budget {
    ids: u64,
    until: Duration,
}

impl Budget {
    fn is_spent(&self, now: Duration) -> bool {
        self.ids == 0 || now >= self.until
    }
}

impl<W: World> Core<W> {
    /// Starts reading the local owners below `trusted` into the partition's empty windows.
    pub(super) fn begin_loading(
        &mut self,
        id: PartitionId,
        trusted: Offset,
        next: Next,
    ) -> Result<(), WorkerError> {
        let trusted = if self.options.keeps(Safeguard::Claims) { trusted } else { Offset::MAX };
        let head = self.store.head(id.into())?.unwrap_or_default();
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        partition.state_next = head.state_next;
        partition.forgets = head.forgets;
        partition.windows.iter_mut().for_each(|windows| windows.note_incomplete_before(head.incomplete_ms));
        let kinds = partition.windows.iter().flat_map(Windows::iter).map(|(kind, _)| kind).collect();
        let next = Box::new(next);
        let task = Task::Windows { trusted, stream_time_ms: head.stream_time_ms, next };
        self.begin_reading(id, kinds, task)
    }

    /// Starts rebuilding filters that hold forgotten owners: such a filter could report a new record as seen. Returns false
    /// when there are no such filters.
    pub(super) fn begin_refilling(
        &mut self,
        id: PartitionId,
        load: Option<(Duration, u64)>,
    ) -> Result<bool, WorkerError> {
        let windows = self.partitions.get_mut(id).and_then(|partition| partition.windows.as_mut());
        let stale = windows.into_iter().flat_map(Windows::iter_mut).filter(|(_, it)| it.has_stale_filters());
        let mut kinds = Vec::new();
        for (kind, window) in stale {
            window.empty_filters();
            kinds.push(kind);
        }
        if kinds.is_empty() {
            return Ok(false);
        }
        tracing::info!(partition = id, "rebuilding the Bloom filters");
        self.begin_reading(id, kinds, Task::Filters { load })?;
        Ok(true)
    }

    fn begin_reading(&mut self, id: PartitionId, kinds: Vec<KindId>, task: Task) -> Result<(), WorkerError> {
        let mut total = 0;
        for kind in &kinds {
            total += self.store.ids(kind.window(id))?;
        }
        let now = self.clock.elapsed();
        let loading = Loading { since: now, logged: now, task, kinds, from: None, ids: 0, total };
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.phase = Phase::Loading(Box::new(loading));
        }
        Ok(())
    }

    /// Reads one slice of local state, one partition after the other.
    pub(super) fn load_slice(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        let waiting = self.partitions.ids(|p| matches!(p.phase, Phase::Loading(_)));
        let LoadSlice { ids, time } = self.options.load_slice;
        let mut budget = Budget { ids: ids.max(1), until: self.clock.elapsed() + time };
        for (number, id) in waiting.into_iter().enumerate() {
            // The step after a load sends requests to the broker, which takes time too.
            if number > 0 && budget.is_spent(self.clock.elapsed()) {
                break;
            }
            self.load_some(id, &mut budget)?;
            self.loaded(source, id)?;
        }
        Ok(())
    }

    /// Reads blocks of a partition until all are read or the slice is used up.
    fn load_some(&mut self, id: PartitionId, budget: &mut Budget) -> Result<(), WorkerError> {
        let (store, clock) = (&self.store, &self.clock);
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Phase::Loading(loading) = &mut partition.phase else { return Ok(()) };
        let Some(windows) = partition.windows.as_mut() else { return Ok(()) };
        while let Some(kind) = loading.kinds.last().copied() {
            let window_id = kind.window(id);
            let Some(window) = windows.of_kind(kind) else { return Ok(()) };
            if let (None, Task::Windows { .. }) = (loading.from, &loading.task) {
                window.reserve(store.ids(window_id)?);
            }
            let (task, read) = (&loading.task, &mut loading.ids);
            let rest = store.scan_from(window_id, loading.from.unwrap_or(0), &mut |view| {
                let result = match task {
                    Task::Windows { trusted, .. } => window.restore(view, *trusted).map(drop),
                    Task::Filters { .. } => window.refill(view, partition.committed),
                };
                result.map_err(|error| unusable(id, &error))?;
                let ids = view.count() as u64;
                *read += ids;
                budget.ids = budget.ids.saturating_sub(ids);
                let spent = budget.is_spent(clock.elapsed());
                Ok(if spent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if rest.is_some() {
                loading.from = rest;
                loading.log(id, clock.elapsed());
                return Ok(());
            }
            if let Task::Windows { stream_time_ms, .. } = &loading.task {
                window.set_stream_time(*stream_time_ms);
            }
            loading.from = None;
            loading.kinds.pop();
        }
        Ok(())
    }

    /// Continues with a partition whose local state has been read to the end.
    fn loaded(&mut self, source: &W::Source, id: PartitionId) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Phase::Loading(loading) = &partition.phase else { return Ok(()) };
        if partition.windows.is_none() {
            partition.relocate(now);
            return Ok(());
        }
        if !loading.kinds.is_empty() {
            return Ok(());
        }
        let (since, ids) = (loading.since, loading.ids);
        // From here on the windows are complete, and they are kept when the next step fails.
        let done = Phase::Locating { not_before: now, blocked: None };
        let Phase::Loading(loading) = std::mem::replace(&mut partition.phase, done) else { return Ok(()) };
        match loading.task {
            Task::Filters { load } => self.start(source, id, load),
            Task::Windows { next, .. } => {
                self.report.restored(RestoreSource::Local, ids);
                self.loaded_windows(source, (since, ids), *next)
            }
        }
    }

    fn loaded_windows(
        &mut self,
        source: &W::Source,
        (since, ids): (Duration, u64),
        next: Next,
    ) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        match next {
            Next::Start(answer, checkpoint) => {
                let (id, committed) = (answer.partition, answer.offset.unwrap_or(0));
                let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
                partition.committed = committed;
                partition.next = committed;
                partition.tail = checkpoint.tail;
                partition.state_next = partition.state_next.max(checkpoint.state_next);
                partition.take_over(&checkpoint);
                let took = now.saturating_sub(since);
                tracing::info!(
                    partition = id,
                    ids,
                    offset = committed,
                    ?took,
                    "state loaded from the local store"
                );
                self.start(source, id, Some((since, ids)))
            }
            Next::Restore(answer, checkpoint, local) => {
                let started = self.begin_restore(source, &answer, checkpoint.as_ref(), Some(local));
                if let (Err(_), Some(partition)) = (&started, self.partitions.get_mut(answer.partition)) {
                    // State that ends below the committed offset must not be mistaken for the state of that offset at the
                    // next attempt.
                    partition.unload();
                    partition.relocate(now);
                }
                started
            }
        }
    }
}
