//! A store in memory, with the same results as the store on disk: the store of the simulation, and the model that the
//! store on disk is compared with. It shares no bookkeeping with it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dedupd::dedupe::{
    Block, Identity, Offset, OwnerRun, PartitionId, Positions, Sequence, SlicePartition, StoredOwner,
    WindowId,
};
use dedupd::ports::{
    FilterJob, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError, ToForget, VisitRun,
};

#[path = "memory_leases.rs"]
mod memory_leases;
#[path = "memory_runs.rs"]
mod memory_runs;
#[path = "memory_slices.rs"]
mod memory_slices;

use memory_leases::Leases;
use memory_runs::{Before, Partition};
pub use memory_slices::SliceDefect;
use memory_slices::{MemoryTask, Slices, change, cut, expire_runs, forget_in_filters};

/// Owners in a map. Clones share the map, like clones of the store on disk: a restarted worker finds its state in a
/// clone that was kept while the old worker was dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    /// By which it holds windows. Without one it needs no leases.
    id: Option<u64>,
    /// The slice that this handle is writing.
    task: Option<MemoryTask>,
    /// Windows whose runs below an offset are to be removed.
    unneeded: Vec<(WindowId, Offset)>,
    /// The windows whose owners are being sealed or filtered.
    sealing: Vec<WindowId>,
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { contents: Arc::clone(&self.contents), id: self.id, ..Self::default() }
    }
}

type Partitions = BTreeMap<WindowId, Partition>;

#[derive(Debug, Default)]
struct Contents {
    partitions: Partitions,
    slices: Slices,
    /// Whether a slice has the owners of all partitions.
    shares_slices: bool,
    defect: SliceDefect,
    leases: Leases,
    /// What the last writes changed, oldest first. A power loss could undo them.
    unsynced: VecDeque<Undo>,
}

/// What a write changed.
#[derive(Debug)]
struct Undo {
    window: WindowId,
    before: Option<Before>,
    slices: Slices,
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
        let (partitions, slices, shares_slices) = {
            let contents = self.lock();
            (contents.partitions.clone(), contents.slices.clone(), contents.shares_slices)
        };
        let contents = Contents { partitions, slices, shares_slices, ..Contents::default() };
        Self { contents: Arc::new(Mutex::new(contents)), ..Self::default() }
    }

    /// Sets whether a slice has the owners of all partitions, and a defect.
    pub fn set_slices(&self, is_shared: bool, defect: SliceDefect) {
        let mut contents = self.lock();
        (contents.shares_slices, contents.defect) = (is_shared, defect);
    }

    fn has(&self, defect: SliceDefect) -> bool {
        self.lock().defect == defect
    }

    fn removed(&mut self, window: WindowId, from: Offset) {
        if let Some(task) = &mut self.task {
            task.removed(window, from);
        }
        self.unneeded.retain(|(other, next)| *other != window || *next <= from);
    }

    /// Number of writes that a power loss could undo.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// Simulates a power loss: undoes the last `writes` writes.
    pub fn lose(&self, writes: usize) {
        let mut contents = self.lock();
        for _ in 0..writes {
            let Some(Undo { window, before, slices }) = contents.unsynced.pop_back() else { break };
            contents.put(window, before);
            contents.slices = slices;
        }
        contents.unsynced.clear();
    }

    /// Simulates disk damage: a run that cannot be read any more. `pick` receives the number of runs and chooses one. Returns false if there is
    /// none.
    pub fn rot(&self, pick: impl FnOnce(usize) -> usize) -> bool {
        let mut contents = self.lock();
        let mut runs: Vec<_> =
            contents.partitions.values_mut().flat_map(|stored| stored.runs.values_mut()).collect();
        let place = (!runs.is_empty()).then(|| pick(runs.len()) % runs.len());
        let Some(run) = place.and_then(|place| runs.get_mut(place)) else { return false };
        Arc::make_mut(run).is_damaged = true;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a window at or beyond `from`. Changes nothing if `change` fails.
    fn write<T>(
        &self,
        window: WindowId,
        from: Offset,
        change: impl FnOnce(&mut Partitions, &mut Slices) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut contents = self.lock();
        let before = contents.partitions.get(&window).map(|stored| stored.before(from));
        let slices = contents.slices.clone();
        let Contents { partitions, slices: changing, .. } = &mut *contents;
        let changed = change(partitions, changing);
        if changed.is_err() {
            contents.put(window, before);
            contents.slices = slices;
        } else {
            contents.unsynced.push_back(Undo { window, before, slices });
            if contents.unsynced.len() > UNSYNCED {
                contents.unsynced.pop_front();
            }
        }
        changed
    }
}

impl MemoryStore {
    fn scan_runs(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        // Copied, so that the visitor may use the store.
        let stored = self.lock().partitions.get(&window).cloned().unwrap_or_default();
        for (first, run) in stored.runs.iter().filter(|(_, run)| run.end() > from) {
            let number = run.number.max(from);
            let owners = run.read_from(number)?;
            let covered = *first..run.next;
            if visit(&OwnerRun { covered, times_ms: run.times_ms, number, owners })?.is_break() {
                return Ok(Some(run.end()));
            }
        }
        Ok(None)
    }
}

impl Contents {
    fn put(&mut self, window: WindowId, before: Option<Before>) {
        let Some(Before { head, from, runs }) = before else {
            self.partitions.remove(&window);
            return;
        };
        let stored = self.partitions.entry(window).or_default();
        stored.head = head;
        stored.runs.retain(|first, _| *first < from);
        stored.runs.extend(runs);
    }
}

impl Store for MemoryStore {
    fn positions(&self) -> Positions {
        Positions::keyed([7; 16])
    }

    fn acquire_lease(&mut self, window: WindowId) -> bool {
        self.take(window, false)
    }

    fn acquire_free_lease(&mut self, window: WindowId) -> bool {
        self.take(window, true)
    }

    fn release_lease(&mut self, window: WindowId) {
        self.release(window);
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        Ok(self.lock().partitions.get(&window).map(|stored| stored.head))
    }

    fn append_all(&mut self, blocks: &[Block], number: Sequence, head: Head) -> Result<(), StoreError> {
        let Some(Block { window, first, .. }) = blocks.first() else { return Ok(()) };
        self.if_held(*window, ())?;
        let mut end = *first;
        for block in blocks {
            let covered = block.first..block.next;
            let is_sorted = block.entries.is_sorted_by(|a, b| a.0 < b.0) && block.window == *window;
            let is_covered = block.entries.iter().all(|(owner, _)| covered.contains(owner));
            if !is_sorted || !is_covered || block.first < end {
                return Err(StoreError::Corrupt(format!(
                    "rejected a block of partition {} at {}",
                    block.window, block.first
                )));
            }
            end = block.next;
        }
        self.removed(*window, *first);
        let keeps_removed = self.has(SliceDefect::KeepsRemoved);
        self.write(*window, *first, |partitions, slices| {
            if !keeps_removed {
                cut(slices, *window, *first)?;
            }
            let stored = partitions.entry(*window).or_default();
            if stored.end() > *first {
                stored.cut(*first)?;
            }
            if number < stored.next_number() {
                return Err(StoreError::Corrupt(format!("number {number} of partition {window} is taken")));
            }
            let mut number = number;
            for block in blocks.iter().filter(|block| block.first < block.next) {
                stored.add(block, number);
                number += block.entries.len() as Sequence;
            }
            stored.head = head;
            Ok(())
        })
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
        Ok(self.lock().partitions.get(&window).map_or(0, Partition::next_number))
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        let contents = self.lock();
        let runs = contents.partitions.get(&window).into_iter().flat_map(|stored| stored.runs.values());
        Ok(runs.flat_map(|run| &run.owners).filter(|owner| owner.identity.is_some()).count() as u64)
    }

    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.if_held(window, ())?;
        self.removed(window, from);
        let keeps_removed = self.has(SliceDefect::KeepsRemoved);
        self.write(window, from, |partitions, slices| {
            if !keeps_removed {
                cut(slices, window, from)?;
            }
            partitions.get_mut(&window).map_or_else(|| Ok(Vec::new()), |stored| stored.cut(from))
        })
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: Head) -> Result<(), StoreError> {
        self.if_held(window, ())?;
        let owners = forgotten.owners;
        if let Some(first) = owners.iter().min() {
            self.removed(window, *first);
        }
        let keeps_forgotten = self.has(SliceDefect::KeepsForgotten);
        let keeps_in_filters = self.has(SliceDefect::FilterKeepsForgotten);
        self.write(window, 0, |partitions, slices| {
            let is_forgotten = |offset| owners.contains(&offset) && !keeps_forgotten;
            change(slices, |slice| slice.without(window, Offset::MAX, is_forgotten));
            if !keeps_in_filters {
                forget_in_filters(slices, window, forgotten);
            }
            let stored = partitions.entry(window).or_default();
            owners.iter().try_for_each(|owner| stored.forget(*owner))?;
            stored.head = head;
            Ok(())
        })
    }

    fn expire(&mut self, window: WindowId, first: Offset, _missing_ms: i64) -> Result<(), StoreError> {
        self.if_held(window, ())?;
        self.write(window, 0, |partitions, slices| {
            // The ranges stay until all owners of the slice are dropped.
            change(slices, |slice| slice.without(window, Offset::MAX, |offset| offset < first));
            slices.retain(|slice| !slice.owners.is_empty());
            expire_runs(partitions, window, first);
            Ok(())
        })
    }

    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        _expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        let read = || {
            let contents = self.lock();
            let stored = contents.partitions.get(&window).into_iter().flat_map(|stored| stored.runs.values());
            let run = stored.rev().find(|run| run.number <= number && number < run.end());
            run.map_or(Ok(None), |run| Ok(run.read_from(number)?.first().copied()))
        };
        let read = read();
        if matches!(read, Ok(Some(_))) { read } else { self.if_held(window, read)? }
    }

    fn clear(&mut self, window: WindowId) -> Result<(), StoreError> {
        self.if_held(window, ())?;
        self.clear_window(window)
    }

    fn clear_all(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        windows.iter().try_for_each(|window| self.if_held(*window, ()))?;
        self.clear_windows(windows)
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
        self.unneeded.clear();
    }

    fn has_sealed(&self) -> bool {
        !self.lock().slices.is_empty()
    }

    fn sealed(&self, window: WindowId) -> Vec<SlicePartition> {
        self.sealed_ranges(window)
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        Ok(self.places_in_slices(lookup.window, &lookup.key))
    }

    fn stored_partitions(&self) -> Vec<PartitionId> {
        let partitions: BTreeSet<_> =
            self.lock().partitions.keys().map(|window| window.partition()).collect();
        partitions.into_iter().collect()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        let contents = self.lock();
        let runs = contents.partitions.values().flat_map(|stored| stored.runs.values());
        Ok(Some(runs.map(|run| run.owners.len() as u64 * 24).sum()))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.lock().unsynced.clear();
        Ok(())
    }
}
