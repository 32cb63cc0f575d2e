//! Partition leases: several workers share one store, and each partition has one holder at a time.
//!
//! A worker may learn late that the group has assigned its partition to another worker of the same process. Its
//! further writes would corrupt the local state of the new holder. The group rejects its transactions, and this
//! module rejects its writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dedupe::{Block, Coordinates, Identity, Offset, PartitionId};
use crate::ports::{Head, Store, StoreError, Visit};

/// Id of the handle that holds a partition; 0 if none does. Locked while the holder writes, so that another handle
/// takes the partition only between two writes.
type Holder = Arc<Mutex<u64>>;

#[derive(Debug, Default)]
struct Holders {
    handles: AtomicU64,
    partitions: Mutex<HashMap<PartitionId, Holder>>,
}

/// A handle of a shared store, for one worker. `S` is a handle of the store itself.
#[derive(Debug)]
pub struct LeasedStore<S> {
    store: S,
    id: u64,
    holders: Arc<Holders>,
    /// The holders that this handle has looked up before.
    cached: HashMap<PartitionId, Holder>,
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

    fn with(store: S, holders: Arc<Holders>) -> Self {
        let id = holders.handles.fetch_add(1, Ordering::Relaxed) + 1;
        Self { store, id, holders, cached: HashMap::new() }
    }
}

impl<S> LeasedStore<S> {
    /// The store itself.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Releases the store.
    pub fn into_store(self) -> S {
        self.store
    }

    fn holder(&mut self, partition: PartitionId) -> Holder {
        let holders = &self.holders;
        let cached = self.cached.entry(partition);
        Arc::clone(
            cached.or_insert_with(|| Arc::clone(lock(&holders.partitions).entry(partition).or_default())),
        )
    }

    fn holds(&self, partition: PartitionId) -> bool {
        self.cached.get(&partition).is_some_and(|holder| *lock(holder) == self.id)
    }

    fn write<T>(
        &mut self,
        partition: PartitionId,
        write: impl FnOnce(&mut S) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let holder = self.holder(partition);
        let held = lock(&holder);
        if *held == self.id { write(&mut self.store) } else { Err(StoreError::LeaseLost(partition)) }
    }

    /// A failed read means nothing if another worker has taken and changed the partition in the meantime.
    fn if_held<T>(&self, partition: PartitionId, read: T) -> Result<T, StoreError> {
        if self.holds(partition) { Ok(read) } else { Err(StoreError::LeaseLost(partition)) }
    }

    /// A missing identity means nothing if another worker has taken the partition.
    fn check_missing<T>(
        &self,
        partition: PartitionId,
        answer: Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match answer {
            Ok(Some(found)) => Ok(Some(found)),
            missing => self.if_held(partition, missing)?,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> Store for LeasedStore<S> {
    fn acquire_lease(&mut self, partition: PartitionId) -> bool {
        let holder = self.holder(partition);
        std::mem::replace(&mut *lock(&holder), self.id) == self.id
    }

    fn head(&self, partition: PartitionId) -> Result<Option<Head>, StoreError> {
        self.store.head(partition)
    }

    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError> {
        self.write(block.partition, |store| store.append(block, head))
    }

    fn set_head(&mut self, partition: PartitionId, head: Head) -> Result<(), StoreError> {
        self.write(partition, |store| store.set_head(partition, head))
    }

    fn scan_from(
        &self,
        partition: PartitionId,
        from: Offset,
        visit: Visit<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        let scanned = self.store.scan_from(partition, from, visit);
        self.if_held(partition, scanned)?
    }

    fn ids(&self, partition: PartitionId) -> Result<u64, StoreError> {
        self.store.ids(partition)
    }

    fn truncate(
        &mut self,
        partition: PartitionId,
        from: Offset,
    ) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.write(partition, |store| store.truncate(partition, from))
    }

    fn forget(&mut self, partition: PartitionId, owners: &[Offset], head: Head) -> Result<(), StoreError> {
        self.write(partition, |store| store.forget(partition, owners, head))
    }

    fn expire(&mut self, partition: PartitionId, first: Offset) -> Result<(), StoreError> {
        self.write(partition, |store| store.expire(partition, first))
    }

    fn identity_of(&self, owner: Coordinates) -> Result<Option<Identity>, StoreError> {
        self.check_missing(owner.partition, self.store.identity_of(owner))
    }

    fn owns(&self, owner: Coordinates, identity: Identity) -> Result<Option<bool>, StoreError> {
        self.check_missing(owner.partition, self.store.owns(owner, identity))
    }

    fn clear(&mut self, partition: PartitionId) -> Result<(), StoreError> {
        self.write(partition, |store| store.clear(partition))
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        self.store.disk_bytes()
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.store.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn only_the_handle_that_took_a_partition_last_may_change_it() {
        let mut first = LeasedStore::new(MemoryStore::new());
        let mut second = first.another();
        assert_eq!(first.set_head(7, Head::default()), Err(StoreError::LeaseLost(7)), "no handle holds it");
        assert!(!first.acquire_lease(7));
        assert!(first.acquire_lease(7), "held without interruption");
        assert_eq!(first.set_head(7, Head::default()), Ok(()));
        assert!(!second.acquire_lease(7));
        assert_eq!(first.truncate(7, 0), Err(StoreError::LeaseLost(7)));
        assert_eq!(first.identity_of(Coordinates { partition: 7, offset: 1 }), Err(StoreError::LeaseLost(7)));
        assert_eq!(second.identity_of(Coordinates { partition: 7, offset: 1 }), Ok(None));
        assert!(!first.acquire_lease(7), "held, but another handle held it in between");
        assert_eq!(second.clear(7), Err(StoreError::LeaseLost(7)));
    }
}
