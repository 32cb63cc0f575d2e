//! A store in memory, with the same results as the store on disk: the store of the simulation, and the model that the
//! store on disk is compared with. It shares no bookkeeping with it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dedupd::dedupe::{
    Coordinates, Identity, OwnerRun, PartitionId, Positions, SealedRange, Sequence, StoredOwner, WindowId,
};
use dedupd::ports::{
    FilterJob, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError, ToForget, Undone,
    VisitRun,
};

#[path = "memory_leases.rs"]
mod memory_leases;
#[path = "memory_runs.rs"]
mod memory_runs;
#[path = "memory_slices.rs"]
mod memory_slices;

use memory_leases::Leases;
use memory_runs::MemoryWindow;
use memory_slices::MemoryTask;
pub use memory_slices::SliceDefect;

/// Owners in a map. Clones share the map, like clones of the store on disk: a restarted worker finds its state in a
/// clone that was kept while the old worker was dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    /// By which it holds windows. Without one it needs no leases.
    id: Option<u64>,
    /// What this handle seals.
    task: Option<MemoryTask>,
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { contents: Arc::clone(&self.contents), id: self.id, task: None }
    }
}

type Windows = BTreeMap<WindowId, Arc<MemoryWindow>>;

#[derive(Debug, Default)]
struct Contents {
    windows: Windows,
    defect: SliceDefect,
    leases: Leases,
    /// The windows before each of the last writes, oldest first. A power loss could undo them.
    unsynced: VecDeque<Windows>,
}

/// Maximum number of unsynced writes: a real database flushes on its own from time to time.
const UNSYNCED: usize = 64;

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy that shares nothing with this store: an older state to return to.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let contents = Contents { windows: self.lock().windows.clone(), ..Contents::default() };
        Self { contents: Arc::new(Mutex::new(contents)), ..Self::default() }
    }

    /// Sets a defect.
    pub fn set_defect(&self, defect: SliceDefect) {
        self.lock().defect = defect;
    }

    fn has(&self, defect: SliceDefect) -> bool {
        self.lock().defect == defect
    }

    /// Whether this handle writes a slice, or removes its runs.
    pub fn is_sealing(&self) -> bool {
        self.task.is_some()
    }

    /// Number of writes that a power loss could undo.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Simulates a power loss: undoes the last `writes` writes.
    pub fn lose(&self, writes: usize) {
        let mut contents = self.lock();
        let kept = contents.unsynced.len().saturating_sub(writes);
        let before = contents.unsynced.drain(..).nth(kept);
        contents.windows = before.unwrap_or_else(|| std::mem::take(&mut contents.windows));
    }

    /// Simulates disk damage: a run that cannot be read any more. `pick` receives the number of runs and chooses one. Returns false if there is
    /// none.
    pub fn rot(&self, pick: impl FnOnce(usize) -> usize) -> bool {
        let mut contents = self.lock();
        let windows = contents.windows.values_mut().map(Arc::make_mut);
        let mut runs: Vec<_> = windows.flat_map(|stored| stored.runs.values_mut()).collect();
        let place = (!runs.is_empty()).then(|| pick(runs.len()) % runs.len());
        let Some(run) = place.and_then(|place| runs.get_mut(place)) else { return false };
        Arc::make_mut(run).is_damaged = true;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, window: WindowId) -> Option<Arc<MemoryWindow>> {
        self.lock().windows.get(&window).cloned()
    }

    /// Changes windows. Changes nothing if `change` fails.
    fn write<T>(&self, change: impl FnOnce(&mut Windows) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut contents = self.lock();
        let mut windows = contents.windows.clone();
        let changed = change(&mut windows)?;
        let before = std::mem::replace(&mut contents.windows, windows);
        contents.unsynced.push_back(before);
        if contents.unsynced.len() > UNSYNCED {
            contents.unsynced.pop_front();
        }
        Ok(changed)
    }

    /// Changes a window, if anything of it is stored.
    fn change<T: Default>(
        &self,
        window: WindowId,
        change: impl FnOnce(&mut MemoryWindow) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.write(|windows| {
            windows.get_mut(&window).map_or_else(|| Ok(T::default()), |it| change(Arc::make_mut(it)))
        })
    }

    /// Changes a window, and sets its head.
    fn put<T>(
        &self,
        window: WindowId,
        head: &Head,
        change: impl FnOnce(&mut MemoryWindow) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.if_held(window, ())?;
        self.write(|windows| {
            let stored = Arc::make_mut(windows.entry(window).or_default());
            stored.head = head.clone();
            change(stored)
        })
    }

    /// Discards the slice that is being written, if owners are removed that it has.
    fn removed(&mut self, window: WindowId, from: Sequence) {
        self.task.take_if(|task| task.seals(window, from));
    }

    fn scan_runs(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        // Without the lock, so that the visitor may use the store.
        let stored = self.stored(window).unwrap_or_default();
        for (number, run, at) in stored.runs_from(from) {
            let owners = run.read()?.get(at..).unwrap_or_default();
            let run = OwnerRun { number, times_ms: run.times_ms, owners };
            if visit(&run)?.is_break() {
                return Ok(Some(run.end()));
            }
        }
        Ok(None)
    }
}

impl Store for MemoryStore {
    fn positions(&self) -> Positions {
        Positions::keyed([7; 16])
    }

    fn acquire_lease(&mut self, window: WindowId) -> bool {
        self.end_if_lost();
        self.take(window, false)
    }

    fn acquire_free_lease(&mut self, window: WindowId) -> bool {
        self.end_if_lost();
        self.take(window, true)
    }

    fn release_lease(&mut self, window: WindowId) {
        self.release(window);
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        Ok(self.stored(window).map(|stored| stored.head.clone()))
    }

    fn missing_ms(&self, window: WindowId) -> Result<i64, StoreError> {
        Ok(self.stored(window).map_or(0, |stored| stored.missing_ms))
    }

    fn append(&mut self, window: WindowId, owners: &OwnerRun<'_>, head: &Head) -> Result<(), StoreError> {
        self.put(window, head, |stored| stored.append(owners))
    }

    fn set_head(&mut self, window: WindowId, head: &Head) -> Result<(), StoreError> {
        self.put(window, head, |_| Ok(()))
    }

    fn scan_from(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        self.if_held(window, self.scan_runs(window, from, visit))?
    }

    fn next_number(&self, window: WindowId) -> Result<Sequence, StoreError> {
        Ok(self.stored(window).map_or(0, |stored| stored.next_number))
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        let stored = self.stored(window).unwrap_or_default();
        let owners = stored.runs.values().flat_map(|run| &run.owners);
        Ok(owners.filter(|owner| owner.identity.is_some()).count() as u64)
    }

    fn truncate(&mut self, window: WindowId, from: Sequence) -> Result<Vec<StoredOwner>, StoreError> {
        self.if_held(window, ())?;
        self.removed(window, from);
        self.change(window, |stored| stored.truncate(from))
    }

    fn undo(&mut self, window: WindowId, from: &[Coordinates], next: Sequence) -> Result<Undone, StoreError> {
        self.if_held(window, ())?;
        let keeps_removed = self.has(SliceDefect::KeepsRemoved);
        let undone = self.change(window, |stored| {
            if !keeps_removed {
                from.iter().try_for_each(|from| stored.undo_sealed(window, *from))?;
            }
            stored.undo(from, next)
        })?;
        if let Some((first, _)) = undone.owners.first() {
            self.removed(window, *first);
        }
        Ok(undone)
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: &Head) -> Result<(), StoreError> {
        let defect = self.lock().defect;
        self.put(window, head, |stored| {
            stored.forget_sealed(forgotten.identities, defect);
            forgotten.numbers.iter().try_for_each(|number| stored.forget(*number))
        })?;
        if let Some(first) = forgotten.numbers.iter().min() {
            self.removed(window, *first);
        }
        Ok(())
    }

    fn expire(&mut self, window: WindowId, first: Sequence, missing_ms: i64) -> Result<(), StoreError> {
        self.if_held(window, ())?;
        self.change(window, |stored| {
            stored.missing_ms = stored.missing_ms.max(missing_ms);
            stored.slices.retain(|slice| slice.range.next > first);
            stored.expire_runs(first);
            Ok(())
        })
    }

    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        _expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        let read = self.stored(window).map_or(Ok(None), |stored| stored.owner(number));
        if matches!(read, Ok(Some(_))) { read } else { self.if_held(window, read)? }
    }

    fn clear(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        windows.iter().try_for_each(|window| self.if_held(*window, ()))?;
        self.task.take_if(|task| windows.contains(&task.window));
        self.write(|stored| {
            stored.retain(|window, _| !windows.contains(window));
            Ok(())
        })
    }

    fn seals(&self) -> bool {
        true
    }

    fn begin_seal(&mut self, job: SealJob) -> Result<(), StoreError> {
        self.begin_task(job)
    }

    fn begin_filter(&mut self, job: &FilterJob) -> Result<bool, StoreError> {
        Ok(self.begin_filter_task(job))
    }

    fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        self.end_if_lost();
        self.poll_task()
    }

    fn end_seal(&mut self) {
        self.task = None;
    }

    fn has_sealed(&self) -> bool {
        self.lock().windows.values().any(|stored| !stored.slices.is_empty())
    }

    fn sealed(&self, window: WindowId) -> Vec<SealedRange> {
        let stored = self.stored(window).unwrap_or_default();
        stored.slices.iter().map(|slice| slice.range.clone()).collect()
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        Ok(self.stored(lookup.window).map_or_else(SealedPlaces::default, |stored| stored.places(&lookup.key)))
    }

    fn stored_journals(&self) -> Vec<PartitionId> {
        let journals: BTreeSet<_> = self.lock().windows.keys().map(|window| window.journal()).collect();
        journals.into_iter().collect()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        let contents = self.lock();
        let runs = contents.windows.values().flat_map(|stored| stored.runs.values());
        Ok(Some(runs.map(|run| size_of_val(run.owners.as_slice()) as u64).sum()))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.lock().unsynced.clear();
        Ok(())
    }
}
