//! The registered slices of all windows: in sled, and in memory those that are used.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sled::Batch;

use super::entry::{Removal, SliceEntry};
use super::group::{DroppedEnds, SealedSlice, SliceGroup, SliceList, SliceReadError};
use super::stored::{StoredSlice, counted, read_registered};
use crate::dedupe::{Coordinates, Identity, Offset, PartitionId, WindowId};
use crate::ports::{StoreError, ToForget};
use crate::store::engine::{BATCH, Engine, OPERATION_BYTES};
use crate::store::error::{is_missing_data, remedy};
use crate::store::keys;
use crate::store::open::OpenFailure;

/// The slices of all groups.
#[derive(Debug, Default)]
pub(in crate::store) struct SealedSlices {
    lists: Mutex<SliceLists>,
    /// Changes with every list.
    version: AtomicU64,
    /// Number of registered slices.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct SliceLists {
    /// Those of groups that are in memory.
    groups: HashMap<SliceGroup, Arc<SliceList>>,
    dropped: DroppedEnds,
}

impl SealedSlices {
    /// Those of groups that are in memory, of so many.
    pub fn new(groups: HashMap<SliceGroup, Arc<SliceList>>, count: usize) -> Self {
        let lists = Mutex::new(SliceLists { groups, ..SliceLists::default() });
        Self { lists, count: AtomicUsize::new(count), ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, SliceLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that changes whenever a list changes.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether there is any slice.
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// One past the last owner that each window has dropped, where that is known.
    pub fn dropped(&self) -> DroppedEnds {
        self.lock().dropped.clone()
    }

    /// Bytes in memory of the slices of all groups.
    #[cfg(test)]
    pub fn memory_bytes(&self) -> u64 {
        let lists = self.lock();
        lists.groups.values().flat_map(|slices| slices.iter()).map(|slice| slice.slice.memory_bytes()).sum()
    }
}

impl Engine {
    /// The slices of a group. They are read if they are not in memory. After a failure there are none, and every later call of the store
    /// returns that failure.
    pub(in crate::store) fn slices_of_group(&self, group: SliceGroup) -> Arc<SliceList> {
        let mut lists = self.sealed.lock();
        self.load_slices(&mut lists.groups, group).map(|list| Arc::clone(list)).unwrap_or_default()
    }

    fn load_slices<'a>(
        &self,
        groups: &'a mut HashMap<SliceGroup, Arc<SliceList>>,
        group: SliceGroup,
    ) -> Result<&'a mut Arc<SliceList>, StoreError> {
        let missing = match groups.entry(group) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(missing) => missing,
        };
        let mut slices = Vec::new();
        for stored in self.slice_entries(group)? {
            let read = read_registered(self, &stored, &|| ()).map_err(|failure| self.load_error(failure));
            slices.push(Arc::new(read?.1));
        }
        slices.sort_by_key(|slice| slice.entry.order);
        Ok(missing.insert(Arc::new(slices.into())))
    }

    fn slice_entries(&self, group: SliceGroup) -> Result<Vec<StoredSlice>, StoreError> {
        if !self.sealed.is_any() {
            return Ok(Vec::new());
        }
        let mut slices = Vec::new();
        let entries = self.call("read", || {
            for entry in self.slices.scan_prefix(group.prefix()) {
                let (key, value) = entry?;
                StoredSlice::add(&mut slices, key, value);
            }
            Ok(())
        });
        // [`Engine::slices_of_group`] has no error, so no later call may succeed.
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

    /// Removes the slices of a window from memory, unless all partitions share them.
    pub(in crate::store) fn unload_slices(&self, window: WindowId) {
        let group = self.group_of(window);
        if group.partition.is_some() && self.sealed.lock().groups.remove(&group).is_some() {
            // Other handles may have the list.
            self.sealed.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes all slices of a group, without reading them. Returns whether there were any.
    pub(in crate::store) fn remove_slices(&self, group: SliceGroup) -> Result<bool, StoreError> {
        let mut lists = self.sealed.lock();
        // Owners that are written again count.
        lists.dropped.retain(|window, _| self.group_of(*window) != group);
        let slices = self.slice_entries(group)?;
        if slices.is_empty() {
            return Ok(false);
        }
        let mut batch = Batch::default();
        for slice in &slices {
            batch.remove(&slice.key);
        }
        self.write_slices(batch, (slices.len(), 0))?;
        lists.groups.remove(&group);
        self.sealed.version.fetch_add(1, Ordering::Release);
        drop(lists);
        let numbers = slices.iter().filter_map(|slice| keys::parse_slice(&slice.key));
        self.segments.retire(numbers.map(|(.., number)| number).collect());
        let removals = slices.iter().flat_map(|slice| &slice.removals);
        self.remove_keys(&removals.map(|(key, _)| key).collect::<Vec<_>>())?;
        Ok(true)
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

    /// Writes changes of entries after which a group has so many slices instead of so many before, together with the number of all slices. The
    /// lists are locked meanwhile.
    fn write_slices(&self, mut batch: Batch, (before, after): (usize, usize)) -> Result<(), StoreError> {
        let count = (self.sealed.count.load(Ordering::Acquire) + after).saturating_sub(before);
        batch.insert(keys::SLICE_COUNT, &counted(count));
        self.write("write", || self.slices.apply_batch(batch))?;
        self.sealed.count.store(count, Ordering::Release);
        self.flush_when_due((before + after) * OPERATION_BYTES)
    }

    /// Replaces the slices of a group by those that `change` returns, in sled first. Returns whether a file is no longer used.
    pub(in crate::store) fn change_slices(
        &self,
        group: SliceGroup,
        change: impl FnOnce(&[Arc<SealedSlice>], &DroppedEnds) -> Option<Vec<Arc<SealedSlice>>>,
    ) -> Result<bool, StoreError> {
        let mut lists = self.sealed.lock();
        let SliceLists { groups, dropped } = &mut *lists;
        let list = self.load_slices(groups, group)?;
        let Some(changed) = change(list, dropped) else { return Ok(false) };
        let has = |slices: &[Arc<SealedSlice>], number| slices.iter().any(|slice| slice.number == number);
        let unused: Vec<_> = list.iter().filter(|slice| !has(&changed, slice.number)).cloned().collect();
        let mut batch = Batch::default();
        for slice in &changed {
            let key = group.key(slice.number);
            match list.iter().find(|old| old.number == slice.number) {
                Some(old) if Arc::ptr_eq(old, slice) => {}
                Some(old) => self.write_removals(&key, &old.entry, &slice.entry)?,
                None => batch.insert(&key, slice.entry.encode(&key, 0)),
            }
        }
        for slice in &unused {
            batch.remove(&group.key(slice.number));
        }
        if !unused.is_empty() || changed.len() > list.len() {
            self.write_slices(batch, (list.len(), changed.len()))?;
        }
        *list = Arc::new(changed.into());
        self.sealed.version.fetch_add(1, Ordering::Release);
        drop(lists);
        self.segments.retire(unused.iter().map(|slice| slice.number).collect());
        // After the slices: without its slice a removal has no effect, and the next start deletes it.
        let none = SliceEntry::default();
        for slice in &unused {
            let removals = slice.entry.removed_since(&none);
            let keys: Vec<_> = removals.map(|removal| removal.encode(&group.key(slice.number)).0).collect();
            self.remove_keys(&keys)?;
        }
        Ok(!unused.is_empty())
    }

    /// Removes the owners of a window at or beyond `from` from its slices. A filter without owners cannot lose some of them: then nothing is
    /// changed ([`StoreError::InFilter`]). Only owners that are older than the exact part of the window are in such filters.
    pub(in crate::store) fn cut_slices(&self, window: WindowId, from: Offset) -> Result<bool, StoreError> {
        let (group, partition) = (self.group_of(window), window.partition());
        if let Some(dropped) = self.sealed.lock().dropped.get_mut(&window) {
            // Owners from here on are written again, and count although those at the same offsets were dropped.
            *dropped = (*dropped).min(from);
        }
        if from == 0 && group.partition.is_some() {
            return self.remove_slices(group);
        }
        let mut is_wrong = false;
        let is_unused = self.change_slices(group, |slices, dropped| {
            let is_cut = |slice: &Arc<SealedSlice>| slice.offsets(partition).is_some_and(|of| of.end > from);
            slices.iter().any(is_cut).then_some(())?;
            let cut = |slice: &Arc<SealedSlice>| {
                if !is_cut(slice) {
                    return Arc::clone(slice);
                }
                let mut entry = slice.entry.clone();
                entry.ends.insert(partition, from);
                slice.with(entry)
            };
            let left = used(slices.iter().map(cut), group, dropped);
            is_wrong = left.iter().any(|slice| slice.is_wrong());
            (!is_wrong).then_some(left)
        })?;
        if is_wrong { Err(StoreError::InFilter(window)) } else { Ok(is_unused) }
    }

    /// Removes single owners of a window, and identities, from its slices.
    pub(in crate::store) fn forget_in_slices(
        &self,
        window: WindowId,
        ToForget { owners, identities, before }: ToForget<'_>,
    ) -> Result<(), StoreError> {
        if owners.is_empty() && identities.is_empty() {
            return Ok(());
        }
        let partition = window.partition();
        let change = self.change_slices(self.group_of(window), |slices, _| {
            let mut is_changed = false;
            let forgotten = slices.iter().map(|slice| {
                let offsets = slice.offsets(partition).unwrap_or_default();
                let is_here = |offset: &Offset| offsets.contains(offset);
                let mut entry = slice.entry.clone();
                let owners = owners.iter().copied().filter(is_here);
                entry.forgotten.extend(owners.map(|offset| Coordinates { partition, offset }));
                // A record may be forgotten again by a restore, when a later one has the identity.
                if !slice.slice.has_owners() && offsets.start < before {
                    let contained = |it: &&Identity| slice.slice.may_contain(&self.positions.key(**it));
                    entry.forgotten_ids.extend(identities.iter().filter(contained));
                }
                if entry == slice.entry {
                    return Arc::clone(slice);
                }
                is_changed = true;
                slice.with(entry)
            });
            let forgotten: Vec<_> = forgotten.collect();
            is_changed.then_some(forgotten)
        });
        change.map(drop)
    }

    /// Notes that a window has dropped its owners below `first`, and removes the slices of which all windows have dropped everything.
    pub(in crate::store) fn expire_slices(
        &self,
        window: WindowId,
        first: Offset,
    ) -> Result<bool, StoreError> {
        let group = self.group_of(window);
        {
            let mut lists = self.sealed.lock();
            let slices = Arc::clone(self.load_slices(&mut lists.groups, group)?);
            if slices.is_empty() {
                return Ok(false);
            }
            let before = lists.dropped.insert(window, first).unwrap_or(0);
            let offsets = slices.iter().filter_map(|slice| slice.offsets(window.partition()));
            let mut ended = offsets.filter(|of| before < of.end && of.end <= first);
            if ended.next().is_none() {
                return Ok(false);
            }
        }
        self.change_slices(group, |slices, dropped| {
            let left = used(slices.iter().cloned(), group, dropped);
            (left.len() < slices.len()).then_some(left)
        })
    }

    /// The windows that share the slices of this one.
    pub(in crate::store) fn group_of(&self, window: WindowId) -> SliceGroup {
        SliceGroup::of(window, self.binding.shares_slices == Some(true))
    }

    /// The partitions that have slices of their own. If a crash has interrupted the removal of a window's state, only these show that some
    /// of it is left.
    pub(in crate::store) fn sealed_partitions(&self) -> Vec<PartitionId> {
        let entries = self.call("read", || self.slices.iter().keys().collect::<sled::Result<Vec<_>>>());
        // A database that cannot be read fails in the next call that returns an error.
        let entries = entries.unwrap_or_default();
        entries.iter().filter_map(|key| keys::parse_slice(key)?.1).collect()
    }
}

/// The slices that have an owner which a window has not dropped.
fn used(
    slices: impl Iterator<Item = Arc<SealedSlice>>,
    group: SliceGroup,
    dropped: &DroppedEnds,
) -> Vec<Arc<SealedSlice>> {
    slices.filter(|slice| !slice.live(group.kind, dropped).is_empty()).collect()
}

/// An error of the file of a slice that was registered as one of the store: the file is damaged, unless it was deleted because the slice is
/// not registered any more.
pub(in crate::store) fn registered_error(
    engine: &Engine,
    window: WindowId,
    number: u32,
    error: &SliceReadError,
) -> StoreError {
    let key = engine.group_of(window).key(number);
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
