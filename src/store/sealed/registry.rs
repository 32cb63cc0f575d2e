//! The registered slices of all windows: in sled, and in memory those that are used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sled::Batch;

use super::entry::{Removal, SliceEntry};
use super::slices::{SealedSlice, SliceList, SliceReadError};
use super::stored::{StoredSlice, counted, read_registered};
use crate::dedupe::{Coordinates, Identity, IndexKey, PartitionId, Sequence, WindowId};
use crate::locked::Locked;
use crate::ports::StoreError;
use crate::store::engine::{BATCH, Engine, OPERATION_BYTES};
use crate::store::error::{is_missing_data, remedy};
use crate::store::keys;
use crate::store::open::OpenFailure;

/// The slices of all windows.
#[derive(Debug, Default)]
pub(in crate::store) struct SealedSlices {
    /// Those of windows that are in memory.
    lists: Mutex<SliceLists>,
    /// Changes with every list.
    version: AtomicU64,
    /// Number of registered slices.
    count: AtomicUsize,
}

type SliceLists = HashMap<WindowId, Arc<SliceList>>;

impl SealedSlices {
    /// So many, of which none is in memory.
    pub fn new(count: usize) -> Self {
        Self { count: AtomicUsize::new(count), ..Self::default() }
    }

    /// A number that changes whenever a list changes.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether there is any slice.
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Bytes in memory of the slices of all windows.
    #[cfg(test)]
    pub fn memory_bytes(&self) -> u64 {
        let lists = self.lists.locked();
        lists.values().flat_map(|slices| slices.iter()).map(|slice| slice.slice.memory_bytes()).sum()
    }
}

impl Engine {
    /// The slices of a window. They are read if they are not in memory. After a failure there are none, and every later call of the store
    /// returns that failure.
    pub(in crate::store) fn slices_of(&self, window: WindowId) -> Arc<SliceList> {
        self.load_parts(&mut self.sealed.lists.locked(), window)
            .map(|list| Arc::clone(list))
            .unwrap_or_default()
    }

    /// One past the number of the last owner of a window in slices; 0 when there is none.
    pub(in crate::store) fn sealed_next(&self, window: WindowId) -> Sequence {
        self.slices_of(window).last().map_or(0, |slice| slice.footer().range.next)
    }

    fn load_parts<'a>(
        &self,
        lists: &'a mut SliceLists,
        window: WindowId,
    ) -> Result<&'a mut Arc<SliceList>, StoreError> {
        let missing = match lists.entry(window) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(missing) => missing,
        };
        let mut slices = Vec::new();
        for stored in self.slice_entries(window)? {
            let read = read_registered(self, &stored, &|| ()).map_err(|failure| self.load_error(failure));
            slices.push(Arc::new(read?));
        }
        slices.sort_by_key(|slice| slice.footer().range.first);
        Ok(missing.insert(Arc::new(slices.into())))
    }

    fn slice_entries(&self, window: WindowId) -> Result<Vec<StoredSlice>, StoreError> {
        if !self.sealed.is_any() {
            return Ok(Vec::new());
        }
        let mut slices = Vec::new();
        let entries = self.call("read", || {
            for entry in self.slices.scan_prefix(keys::record(window)) {
                let (key, value) = entry?;
                StoredSlice::add(&mut slices, key, value);
            }
            Ok(())
        });
        // [`Engine::slices_of`] has no error, so no later call may succeed.
        entries.map_err(|failure| self.fail(failure))?;
        Ok(slices)
    }

    fn load_error(&self, failure: OpenFailure) -> StoreError {
        match failure {
            OpenFailure::Unusable(cause) => self.damaged("read", &cause),
            OpenFailure::Disk(cause) => self.fail(StoreError::Io(format!(
                "read a slice file in {}: {cause}; {}",
                self.path.display(),
                remedy(&cause)
            ))),
            OpenFailure::Rejected(error) => self.fail(StoreError::Io(error.to_string())),
        }
    }

    /// Removes the slices of a window from memory.
    pub(in crate::store) fn unload_parts(&self, window: WindowId) {
        if self.sealed.lists.locked().remove(&window).is_some() {
            // Other handles may have the list.
            self.sealed.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes all slices of a window, without reading them.
    pub(in crate::store) fn remove_slices(&self, window: WindowId) -> Result<(), StoreError> {
        let mut lists = self.sealed.lists.locked();
        let slices = self.slice_entries(window)?;
        if slices.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for slice in &slices {
            batch.remove(&slice.key);
        }
        self.write_slices(batch, slices.len(), 0)?;
        lists.remove(&window);
        self.sealed.version.fetch_add(1, Ordering::Release);
        drop(lists);
        let numbers = slices.iter().filter_map(|slice| keys::parse_slice(&slice.key));
        self.segments.retire(numbers.map(|(_, number)| number).collect());
        let removals = slices.iter().flat_map(|slice| &slice.removals);
        self.remove_keys(&removals.map(|(key, _)| key).collect::<Vec<_>>())
    }

    /// Removes keys of the slices' tree.
    pub(super) fn remove_keys(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), StoreError> {
        for part in keys.chunks(BATCH) {
            let mut batch = Batch::default();
            for key in part {
                batch.remove(key.as_ref());
            }
            self.write("write", || self.slices.apply_batch(batch))?;
            self.flush_when_due(part.len() * OPERATION_BYTES)?;
        }
        Ok(())
    }

    /// Writes what was removed from a slice since its entry was `old`, in batches that each have the number of removals so far.
    fn write_removals(&self, key: &[u8], old: &SliceEntry, new: &SliceEntry) -> Result<(), StoreError> {
        let (removed, mut written) = (new.removed_since(old).collect::<Vec<_>>(), old.removals());
        for part in removed.chunks(BATCH - 1) {
            let mut batch = Batch::default();
            for removal in part {
                let (key, value) = removal.encode(key);
                batch.insert(key, value);
                let replaces = matches!(removal, Removal::End(of, _) if old.ends.contains_key(of));
                written += u32::from(!replaces);
            }
            batch.insert(key, new.encode(key, written));
            self.write("write", || self.slices.apply_batch(batch))?;
            self.flush_when_due((part.len() + 1) * OPERATION_BYTES)?;
        }
        Ok(())
    }

    /// Writes changes of entries after which a window has so many slices instead of so many before, together with the number of all slices. The
    /// lists are locked meanwhile.
    fn write_slices(&self, mut batch: Batch, before: usize, after: usize) -> Result<(), StoreError> {
        let count = (self.sealed.count.load(Ordering::Acquire) + after).saturating_sub(before);
        batch.insert(keys::SLICE_COUNT, &counted(count));
        self.write("write", || self.slices.apply_batch(batch))?;
        self.sealed.count.store(count, Ordering::Release);
        self.flush_when_due((before + after) * OPERATION_BYTES)
    }

    /// Replaces the slices of a window by those that `change` returns, in sled first. Returns whether a file is no longer used.
    pub(in crate::store) fn change_slices(
        &self,
        window: WindowId,
        change: impl FnOnce(&[Arc<SealedSlice>]) -> Option<Vec<Arc<SealedSlice>>>,
    ) -> Result<bool, StoreError> {
        let mut lists = self.sealed.lists.locked();
        let list = self.load_parts(&mut lists, window)?;
        let Some(changed) = change(list) else { return Ok(false) };
        let has = |slices: &[Arc<SealedSlice>], number| slices.iter().any(|slice| slice.number == number);
        let unused: Vec<_> = list.iter().filter(|slice| !has(&changed, slice.number)).cloned().collect();
        let mut batch = Batch::default();
        for slice in &changed {
            let key = keys::slice(window, slice.number);
            match list.iter().find(|old| old.number == slice.number) {
                Some(old) if Arc::ptr_eq(old, slice) => {}
                Some(old) => self.write_removals(&key, &old.entry, &slice.entry)?,
                None => batch.insert(&key, slice.entry.encode(&key, 0)),
            }
        }
        for slice in &unused {
            batch.remove(&keys::slice(window, slice.number));
        }
        if !unused.is_empty() || changed.len() > list.len() {
            self.write_slices(batch, list.len(), changed.len())?;
        }
        *list = Arc::new(changed.into());
        self.sealed.version.fetch_add(1, Ordering::Release);
        drop(lists);
        self.segments.retire(unused.iter().map(|slice| slice.number).collect());
        // After the slices: without its slice a removal has no effect, and the next start deletes it.
        let none = SliceEntry::default();
        for slice in &unused {
            let removals = slice.entry.removed_since(&none);
            let key = keys::slice(window, slice.number);
            let keys: Vec<_> = removals.map(|removal| removal.encode(&key).0).collect();
            self.remove_keys(&keys)?;
        }
        Ok(!unused.is_empty())
    }

    /// Removes the owners of a partition at or beyond a raw offset from the slices of a window. A filter without owners cannot lose some of them:
    /// then nothing is changed ([`StoreError::InFilter`]). Returns whether a file is no longer used.
    pub(in crate::store) fn cut_slices(
        &self,
        window: WindowId,
        Coordinates { partition, offset }: Coordinates,
    ) -> Result<bool, StoreError> {
        let mut in_filter = false;
        let is_unused = self.change_slices(window, |slices| {
            let is_cut = |slice: &SealedSlice| {
                slice.partitions().any(|of| of.partition == partition && of.next > offset)
            };
            slices.iter().any(|slice| is_cut(slice)).then_some(())?;
            let cut = |slice: &Arc<SealedSlice>| {
                if !is_cut(slice) {
                    return Some(Arc::clone(slice));
                }
                let mut entry = slice.entry.clone();
                entry.ends.insert(partition, offset);
                let left = slice.with(entry);
                let is_used = left.partitions().next().is_some();
                in_filter |= is_used && !left.slice.has_owners();
                is_used.then_some(left)
            };
            let left = slices.iter().filter_map(cut).collect();
            (!in_filter).then_some(left)
        })?;
        if in_filter { Err(StoreError::InFilter(window)) } else { Ok(is_unused) }
    }

    /// Removes identities from the slices of a window.
    pub(in crate::store) fn forget_in_slices(
        &self,
        window: WindowId,
        identities: &[Identity],
    ) -> Result<(), StoreError> {
        let keys: Vec<_> = identities.iter().map(|identity| self.positions.key(*identity)).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let change = self.change_slices(window, |slices| {
            let mut is_changed = false;
            let forgotten = slices.iter().map(|slice| {
                let is_known = |key: &IndexKey| slice.entry.forgotten.contains(&key.identity);
                let is_new = |key: &&IndexKey| slice.slice.may_contain(key) && !is_known(key);
                let mut new = keys.iter().filter(is_new).peekable();
                if new.peek().is_none() {
                    return Arc::clone(slice);
                }
                is_changed = true;
                let mut entry = slice.entry.clone();
                entry.forgotten.extend(new.map(|key| key.identity));
                slice.with(entry)
            });
            let forgotten: Vec<_> = forgotten.collect();
            is_changed.then_some(forgotten)
        });
        change.map(drop)
    }

    /// Removes the slices that have only owners below a number. Returns whether there were any.
    pub(in crate::store) fn expire_slices(
        &self,
        window: WindowId,
        first: Sequence,
    ) -> Result<bool, StoreError> {
        self.change_slices(window, |slices| {
            let expired = slices.partition_point(|slice| slice.footer().range.next <= first);
            let left = slices.get(expired..).unwrap_or_default();
            (expired > 0).then(|| left.to_vec())
        })
    }

    /// The journals whose windows have slices. If a crash has interrupted the removal of a window's state, only these show that some
    /// of it is left.
    pub(in crate::store) fn sealed_journals(&self) -> Vec<PartitionId> {
        let entries = self.call("read", || self.slices.iter().keys().collect::<sled::Result<Vec<_>>>());
        // A database that cannot be read fails in the next call that returns an error.
        let entries = entries.unwrap_or_default();
        entries.iter().filter_map(|key| Some(keys::parse_slice(key)?.0.journal())).collect()
    }
}

/// An error of the file of a slice that was registered as one of the store: the file is damaged, unless it was deleted because the slice is
/// not registered any more.
pub(in crate::store) fn registered_error(
    engine: &Engine,
    window: WindowId,
    number: u32,
    error: &SliceReadError,
) -> StoreError {
    let key = keys::slice(window, number);
    match engine.call("read", || engine.slices.contains_key(key)) {
        Ok(true) => match error {
            SliceReadError::Io(cause) if !is_missing_data(cause) => engine.file_error("read", number, cause),
            SliceReadError::Io(cause) => engine.damaged("read", &format!("slice file {number}: {cause}")),
            SliceReadError::Damaged(cause) => {
                engine.damaged("read", &format!("slice file {number}: {cause}"))
            }
        },
        Ok(false) => StoreError::LeaseLost(window),
        Err(failure) => failure,
    }
}
