//! What a handle of the store does with slices.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::registry::registered_error;
use super::retry::RetryPause;
use super::slices::{SealedSlice, SliceList};
use super::task::{EndedTask, SealTask};
use crate::clock::monotonic;
use crate::dedupe::{Coordinates, Sequence, WindowId};
use crate::ports::{
    FilterJob, FoundSlices, SealJob, SealedLookup, SealedPlaces, Sealing, StoreError, ToForget,
};
use crate::store::cut::remove_front;
use crate::store::engine::{BATCH, Engine};
use crate::store::owners::SledStore;
use crate::store::segments::Readers;

/// Records by which a cache line is prefetched before it is read: with 24 slices they have 192 lines, enough for the time that memory takes.
const AHEAD: usize = 8;

/// The task of a handle, and the slices that it has looked up before.
#[derive(Default)]
pub(in crate::store) struct HandleSealing {
    task: Option<SealTask>,
    /// The window whose owners are being sealed or filtered.
    pub window: Option<WindowId>,
    /// A window whose runs below a number are removed, because a slice has their owners.
    unneeded: Option<(WindowId, Sequence)>,
    lists: RefCell<CachedLists>,
    /// Files of slices, apart from those of runs: with these there are too many, and those with the lowest numbers are closed.
    readers: RefCell<Readers>,
    limit: OpenLimit,
    reads: ReadTime,
    /// When owners are sealed again, and when slices are replaced again.
    pub retries: [RetryPause; 2],
}

/// Most files of slices that all handles keep open: a quarter of what the process may open, which are often 1,024.
struct OpenLimit(usize);

impl Default for OpenLimit {
    fn default() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self(usize::try_from(limit.unwrap_or(u64::MAX) / 4).unwrap_or(usize::MAX).clamp(32, 4_096))
    }
}

/// How long reads of pages take.
#[derive(Default)]
struct ReadTime {
    /// Moving average.
    average: Cell<Duration>,
    /// Reads during which others are slow too, presumably.
    slow: Cell<u32>,
}

impl ReadTime {
    /// A page in the page cache is read in some two microseconds, one on an SSD in 50 to 100.
    const WAITED: Duration = Duration::from_micros(5);
    /// Reads over which the average is taken.
    const READS: u32 = 64;
    /// A read that takes longer counts as this: the thread may have waited for a core. One of them does not make reads slow.
    const LONGEST: Duration = Duration::from_micros(100);
    /// Pages that were requested in advance are read quickly, which does not show that others would be.
    const SLOW_READS: u32 = 4_096;

    fn add(&self, read: Duration) {
        let average = self.average.get();
        let average = average.saturating_sub(average / Self::READS) + read.min(Self::LONGEST) / Self::READS;
        self.average.set(average);
        let left = if average > Self::WAITED { Self::SLOW_READS } else { self.slow.get().saturating_sub(1) };
        self.slow.set(left);
    }

    /// Whether some of the last reads had to wait for a disk.
    fn is_slow(&self) -> bool {
        self.slow.get() > 0
    }
}

/// Lists of slices, valid for a version of them.
#[derive(Default)]
struct CachedLists {
    version: u64,
    /// Those of the window that was looked up last, which most look-ups use again.
    last: Option<(WindowId, Arc<SliceList>)>,
    all: HashMap<WindowId, Arc<SliceList>>,
}

impl CachedLists {
    /// The slices of a window, and their version.
    fn list(&mut self, window: WindowId, engine: &Engine) -> (&Arc<SliceList>, u64) {
        let version = engine.sealed.version();
        if self.version != version {
            *self = Self { version, ..Self::default() };
        }
        let known = self.last.take().filter(|(known, _)| *known == window);
        let entry = known.unwrap_or_else(|| {
            let slices = self.all.entry(window).or_insert_with(|| engine.slices_of(window));
            (window, Arc::clone(slices))
        });
        (&self.last.insert(entry).1, version)
    }
}

impl HandleSealing {
    /// Whether another task can begin. Before that the runs of the last one are removed, while this handle holds its window.
    fn is_free(&self) -> bool {
        self.task.is_none() && self.unneeded.is_none()
    }

    /// Ends the task and discards its result.
    pub fn end(&mut self, engine: &Engine) {
        if let Some(task) = self.task.take() {
            task.discard(engine);
        }
        self.unneeded = None;
    }

    /// Closes the files of slices, and drops the lists of them. A file that was deleted must not stay open, or its space is not freed.
    pub fn close_files(&mut self) {
        self.readers.get_mut().close();
        *self.lists.get_mut() = CachedLists::default();
    }

    /// Called when owners of a window with these numbers or higher ones are removed: a slice that is being written from them is not used.
    pub fn removed(&mut self, window: WindowId, from: Sequence) {
        if let Some(task) = &mut self.task {
            task.removed(window, from);
        }
    }
}

impl SledStore {
    /// The slices of a window.
    pub(in crate::store) fn slices_of(&self, window: WindowId) -> Arc<SliceList> {
        self.with_slices(window, |slices, _| Arc::clone(slices))
    }

    #[inline]
    fn with_slices<R>(&self, window: WindowId, read: impl FnOnce(&Arc<SliceList>, u64) -> R) -> R {
        let mut lists = self.sealing.lists.borrow_mut();
        let (slices, version) = lists.list(window, &self.engine);
        read(slices, version)
    }

    /// Finds the slices that may contain identities. Begins to read their pages, if recent reads had to wait for a disk.
    pub(in crate::store) fn find_in_slices(&self, lookups: &mut [&mut SealedLookup]) {
        // Three steps for each look-up, between which its cache lines are loaded. Those of others are loaded during each step.
        for at in 0..lookups.len() + 2 * AHEAD {
            if let Some(lookup) = lookups.get(at) {
                self.with_slices(lookup.window, |slices, _| slices.prefetch(&lookup.key));
            }
            if let Some(lookup) = at.checked_sub(AHEAD).and_then(|at| lookups.get_mut(at)) {
                lookup.found = self.with_slices(lookup.window, |slices, version| {
                    Some(FoundSlices { version, slices: slices.passing(&lookup.key) })
                });
            }
            let passed = at.checked_sub(2 * AHEAD).and_then(|at| lookups.get_mut(at));
            if let Some(SealedLookup { window, key, found: Some(found) }) = passed.map(|lookup| &mut **lookup)
                && found.slices > 0
            {
                found.slices = self.with_slices(*window, |slices, _| slices.confirmed(key, found.slices));
            }
        }
        if self.sealing.reads.is_slow() {
            for lookup in lookups {
                self.read_ahead_in_slices(lookup);
            }
        }
    }

    fn slice_readers(&self) -> RefMut<'_, Readers> {
        let mut readers = self.sealing.readers.borrow_mut();
        readers.most = self.share_of(self.sealing.limit.0);
        readers
    }

    /// Begins to read the pages that [`SledStore::places_in_slices`] reads.
    fn read_ahead_in_slices(&self, lookup: &SealedLookup) {
        self.with_candidates(lookup, |candidates| {
            for slice in candidates.filter(|slice| slice.slice.has_owners()) {
                let mut readers = self.slice_readers();
                readers.read_ahead(&self.engine.segments, slice.number, slice.slice.bytes_of(&lookup.key));
            }
        });
    }

    /// The slices that may contain an identity.
    fn with_candidates<R>(
        &self,
        SealedLookup { window, key, found }: &SealedLookup,
        read: impl FnOnce(&mut dyn Iterator<Item = &SealedSlice>) -> R,
    ) -> R {
        self.with_slices(*window, |slices, version| {
            // The slices may have changed since it was found.
            let known = found.filter(|found| found.version == version);
            let bits = known.map_or_else(|| slices.confirmed(key, slices.passing(key)), |known| known.slices);
            read(&mut slices.candidates(key, bits))
        })
    }

    /// Removes the owners of a partition at or beyond a raw offset from slices. Called before they are removed from runs, so that a refused
    /// removal has changed nothing.
    pub(in crate::store) fn undo_sealed(
        &mut self,
        window: WindowId,
        from: Coordinates,
    ) -> Result<(), StoreError> {
        if self.engine.cut_slices(window, from)? {
            self.sealing.close_files();
        }
        self.sealing.removed(window, 0);
        Ok(())
    }

    /// Removes identities from slices, before owners with these numbers are removed from runs.
    pub(in crate::store) fn forget_sealed(
        &mut self,
        window: WindowId,
        ToForget { numbers, identities }: ToForget<'_>,
    ) -> Result<(), StoreError> {
        if let Some(first) = numbers.iter().min() {
            self.sealing.removed(window, *first);
        }
        self.engine.forget_in_slices(window, identities)
    }

    pub(in crate::store) fn begin_task(&mut self, job: SealJob) {
        if self.sealing.is_free() && self.sealing.retries[0].is_over() {
            self.sealing.window = Some(job.window);
            self.sealing.task = Some(SealTask::seal(self, job));
        }
    }

    /// Returns whether a task begins.
    pub(in crate::store) fn begin_filter_task(&mut self, job: &FilterJob) -> bool {
        if !self.sealing.is_free() || !self.sealing.retries[1].is_over() {
            return false;
        }
        self.sealing.task = SealTask::filter(self, job);
        let begins = self.sealing.task.is_some();
        if begins {
            self.sealing.window = Some(job.window);
        }
        begins
    }

    /// Continues with what follows a task: its runs are removed, a batch in each call, and slices are merged if there are many.
    pub(in crate::store) fn poll_task(&mut self) -> Result<Sealing, StoreError> {
        if self.remove_unneeded()? {
            return Ok(Sealing::Busy);
        }
        let Some(task) = self.sealing.task.take_if(|task| task.is_finished()) else {
            let is_paused = !self.sealing.retries[0].is_over();
            let waiting = if is_paused { Sealing::Paused } else { Sealing::Idle };
            return Ok(if self.sealing.task.is_some() { Sealing::Busy } else { waiting });
        };
        let EndedTask { window, is_new, done } = task.finish(&self.engine)?;
        self.sealing.close_files();
        let [sealing, replacing] = &mut self.sealing.retries;
        let retry = if is_new { sealing } else { replacing };
        let done = match done {
            Ok(done) => done,
            Err(cause) => {
                let pause = retry.begin();
                tracing::warn!(%cause, again_in_ms = pause.as_millis(), "a slice that was being written was discarded; all ids stay \
                    where they were");
                return Ok(Sealing::Failed);
            }
        };
        *retry = RetryPause::default();
        let is_urgent = done.as_ref().is_some_and(|job| job.is_urgent);
        if self.sealing.retries[1].is_over() {
            self.sealing.task = SealTask::merge(self, window, is_urgent);
        }
        let Some(job) = done else { return Ok(Sealing::Busy) };
        self.sealing.unneeded = Some((job.window, job.range.next));
        Ok(Sealing::Done(job))
    }

    /// Removes some runs whose owners are in a slice. Returns whether there were any.
    fn remove_unneeded(&mut self) -> Result<bool, StoreError> {
        let Some((window, next)) = self.sealing.unneeded else { return Ok(false) };
        let removed = self.with(window, |engine, index| remove_front(engine, index, next, BATCH))?;
        if removed < BATCH {
            self.sealing.unneeded = None;
        }
        self.readers.get_mut().close();
        Ok(true)
    }

    /// The owners of an identity in the slices of a window, and the filters that contain it.
    pub(in crate::store) fn places_in_slices(
        &self,
        lookup: &SealedLookup,
    ) -> Result<SealedPlaces, StoreError> {
        let SealedLookup { window, key, .. } = lookup;
        self.with_candidates(lookup, |candidates| {
            // The slices may not have been read.
            self.engine.check()?;
            let mut places = SealedPlaces::default();
            for slice in candidates.filter(|slice| !slice.entry.forgotten.contains(&key.identity)) {
                if !slice.slice.has_owners() {
                    places.filters.push(slice.owner_time_ms());
                    continue;
                }
                let mut readers = self.slice_readers();
                let read = |at, bytes: &mut [u8]| {
                    let began = monotonic();
                    readers.fill(&self.engine.segments, slice.number, at, bytes)?;
                    self.sealing.reads.add(began.elapsed());
                    Ok(())
                };
                let found = slice.owners_of(key, read);
                places.owners.extend(
                    found.map_err(|error| registered_error(&self.engine, *window, slice.number, &error))?,
                );
            }
            Ok(places)
        })
    }
}
