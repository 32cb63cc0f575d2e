//! Partition leases: several workers share one store, and each window has one holder at a time.
//!
//! A worker may learn late that the group has assigned its window to another worker of the same process. Its
//! further writes would corrupt the local state of the new holder. The group rejects its transactions, and this
//! module rejects its writes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dedupe::{
    Block, Identity, Offset, PartitionId, Positions, Sequence, SlicePartition, StoredOwner, WindowId,
};
use crate::ports::{
    FilterJob, FilterSummary, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError,
    ToForget, VisitOwner, VisitRun,
};

/// Stands for the handle of a window that none holds.
const NOBODY: u64 = 0;

/// Id of the handle that holds a window; [`NOBODY`] if none does. Locked while the holder writes, so that another handle
/// takes the window only between two writes.
type Holder = Arc<Mutex<u64>>;

#[derive(Debug, Default)]
struct Holders {
    handles: AtomicU64,
    partitions: Mutex<HashMap<WindowId, Holder>>,
}

/// A handle of a shared store, for one worker. `S` is a handle of the store itself.
#[derive(Debug)]
pub struct LeasedStore<S> {
    store: S,
    id: u64,
    holders: Arc<Holders>,
    /// The holders that this handle has looked up before.
    cached: HashMap<WindowId, Holder>,
    /// The windows whose owners are being sealed or filtered.
    sealing: Vec<WindowId>,
}

impl<S: Store + Clone> LeasedStore<S> {
    /// Creates the first handle.
    pub fn new(store: S) -> Self {
        Self::with(store, Arc::default())
    }

    /// Creates a handle for another worker.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::with(self.store.clone(), Arc::clone(&self.holders))
    }

    /// Another handle for the same worker, with the leases of this one: a thread of it can read.
    #[must_use]
    pub fn reader(&self) -> Self {
        let (holders, cached) = (Arc::clone(&self.holders), self.cached.clone());
        Self { store: self.store.clone(), id: self.id, holders, cached, sealing: Vec::new() }
    }

    fn with(store: S, holders: Arc<Holders>) -> Self {
        let id = holders.handles.fetch_add(1, Ordering::Relaxed) + 1;
        Self { store, id, holders, cached: HashMap::new(), sealing: Vec::new() }
    }
}

impl<S> LeasedStore<S> {
    /// The store without leases: a write that bypasses them is not seen by the other holders.
    pub fn store(&self) -> &S {
        &self.store
    }

    pub(crate) fn into_store(self) -> S {
        self.store
    }

    fn holder(&mut self, window: WindowId) -> Holder {
        let holders = &self.holders;
        let cached = self.cached.entry(window);
        Arc::clone(cached.or_insert_with(|| Arc::clone(lock(&holders.partitions).entry(window).or_default())))
    }

    fn write<T>(
        &mut self,
        window: WindowId,
        write: impl FnOnce(&mut S) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let holder = self.holder(window);
        let held = lock(&holder);
        if *held == self.id { write(&mut self.store) } else { Err(StoreError::LeaseLost(window)) }
    }

    /// Discards a read, also a failed one, if another worker has taken the window: it may have changed it meanwhile.
    fn if_held<T>(&self, window: WindowId, read: T) -> Result<T, StoreError> {
        let holds = self.cached.get(&window).is_some_and(|holder| *lock(holder) == self.id);
        if holds { Ok(read) } else { Err(StoreError::LeaseLost(window)) }
    }

    /// Discards a missing identity if another worker has taken the window.
    fn found<T>(
        &self,
        window: WindowId,
        read: Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if matches!(read, Ok(Some(_))) { read } else { self.if_held(window, read)? }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> Store for LeasedStore<S> {
    fn positions(&self) -> Positions {
        self.store.positions()
    }

    fn acquire_lease(&mut self, window: WindowId) -> bool {
        let holder = self.holder(window);
        std::mem::replace(&mut *lock(&holder), self.id) == self.id
    }

    fn acquire_free_lease(&mut self, window: WindowId) -> bool {
        let holder = self.holder(window);
        let mut held = lock(&holder);
        if *held == NOBODY {
            *held = self.id;
        }
        *held == self.id
    }

    fn release_lease(&mut self, window: WindowId) {
        let holder = self.holder(window);
        let mut held = lock(&holder);
        if *held == self.id {
            self.store.release_lease(window);
            *held = NOBODY;
        }
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        self.store.head(window)
    }

    fn append_all(&mut self, blocks: &[Block], number: Sequence, head: Head) -> Result<(), StoreError> {
        let Some(block) = blocks.first() else { return Ok(()) };
        self.write(block.window, |store| store.append_all(blocks, number, head))
    }

    fn scan_from(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        let scanned = self.store.scan_from(window, from, visit);
        self.if_held(window, scanned)?
    }

    fn next_number(&self, window: WindowId) -> Result<Sequence, StoreError> {
        self.store.next_number(window)
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        self.store.ids(window)
    }

    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.write(window, |store| store.truncate(window, from))
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: Head) -> Result<(), StoreError> {
        self.write(window, |store| store.forget(window, forgotten, head))
    }

    fn expire(&mut self, window: WindowId, first: Offset) -> Result<(), StoreError> {
        self.write(window, |store| store.expire(window, first))
    }

    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        self.found(window, self.store.owner(window, number, expected))
    }

    fn clear(&mut self, window: WindowId) -> Result<(), StoreError> {
        self.write(window, |store| store.clear(window))
    }

    fn clear_all(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        let holders: Vec<Holder> = windows.iter().map(|window| self.holder(*window)).collect();
        let held: Vec<MutexGuard<'_, u64>> = holders.iter().map(|holder| lock(holder)).collect();
        if let Some((window, _)) = windows.iter().zip(&held).find(|(_, holder)| ***holder != self.id) {
            return Err(StoreError::LeaseLost(*window));
        }
        self.store.clear_all(windows)
    }

    fn seals(&self) -> bool {
        self.store.seals()
    }

    fn begin_seal(&mut self, job: SealJob) -> Result<(), StoreError> {
        self.sealing = job.windows().collect();
        self.store.begin_seal(job)
    }

    fn begin_filter(&mut self, job: &FilterJob) -> Result<bool, StoreError> {
        let begins = self.store.begin_filter(job)?;
        self.sealing = if begins { job.windows.clone() } else { Vec::new() };
        Ok(begins)
    }

    /// No other handle can take one of the windows while the slice is registered.
    fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        let holders: Vec<Holder> =
            self.sealing.clone().into_iter().map(|window| self.holder(window)).collect();
        let held: Vec<MutexGuard<'_, u64>> = holders.iter().map(|holder| lock(holder)).collect();
        if held.iter().any(|holder| **holder != self.id) {
            self.store.end_seal();
            self.sealing.clear();
        }
        let polled = self.store.poll_seal();
        drop(held);
        if matches!(polled, Ok(Sealing::Idle | Sealing::Failed | Sealing::Paused)) {
            self.sealing.clear();
        }
        polled
    }

    fn end_seal(&mut self) {
        self.store.end_seal();
    }

    fn has_sealed(&self) -> bool {
        self.store.has_sealed()
    }

    fn sealed(&self, window: WindowId) -> Vec<SlicePartition> {
        self.store.sealed(window)
    }

    fn find_sealed(&self, lookups: &mut [&mut SealedLookup]) {
        self.store.find_sealed(lookups);
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        self.store.sealed_places(lookup)
    }

    fn filters(&self, window: WindowId) -> Vec<FilterSummary> {
        self.store.filters(window)
    }

    fn scan_sealed(
        &self,
        windows: &[WindowId],
        range: Range<Offset>,
        visit: VisitOwner<'_>,
    ) -> Result<(), StoreError> {
        self.store.scan_sealed(windows, range, visit)
    }

    fn sealed_memory(&self, window: WindowId) -> u64 {
        self.store.sealed_memory(window)
    }

    fn stored_partitions(&self) -> Vec<PartitionId> {
        self.store.stored_partitions()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.store.disk_bytes()
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.store.sync()
    }
}
