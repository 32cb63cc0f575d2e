//! The registered slices of all windows, in memory as in sled.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sled::Batch;

use super::SliceEntry;
use super::group::{DroppedEnds, SealedSlice, SliceGroup, SliceList, SliceReadError};
use crate::dedupe::{Coordinates, Identity, IndexKey, Offset, Slice, WindowId};
use crate::ports::{StoreError, ToForget};
use crate::store::engine::{Engine, OPERATION_BYTES, is_missing_data};
use crate::store::error::needs_operator;
use crate::store::keys;
use crate::store::open::OpenFailure;

/// The slices of all groups.
#[derive(Debug, Default)]
pub(in crate::store) struct SealedSlices {
    lists: Mutex<SliceLists>,
    /// Changes with every list.
    version: AtomicU64,
    /// Number of slices.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct SliceLists {
    groups: HashMap<SliceGroup, Arc<SliceList>>,
    dropped: DroppedEnds,
}

impl SealedSlices {
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

    /// The slices of a group.
    pub fn list(&self, group: SliceGroup) -> Arc<SliceList> {
        self.lock().groups.get(&group).cloned().unwrap_or_default()
    }

    /// One past the last owner that each window has dropped, where that is known.
    pub fn dropped(&self) -> DroppedEnds {
        self.lock().dropped.clone()
    }

    /// The numbers of all slice files.
    pub fn files(&self) -> Vec<u32> {
        self.lock().groups.values().flat_map(|slices| slices.iter()).map(|slice| slice.number).collect()
    }
}

impl Engine {
    /// Replaces the slices of a group by those that `change` returns, in sled first. Returns whether a file is no longer used.
    pub(in crate::store) fn change_slices(
        &self,
        group: SliceGroup,
        change: impl FnOnce(&[Arc<SealedSlice>], &DroppedEnds) -> Option<Vec<Arc<SealedSlice>>>,
    ) -> Result<bool, StoreError> {
        let mut lists = self.sealed.lock();
        let SliceLists { groups, dropped } = &mut *lists;
        let list = groups.entry(group).or_default();
        let Some(changed) = change(list, dropped) else { return Ok(false) };
        let has = |slices: &[Arc<SealedSlice>], number| slices.iter().any(|slice| slice.number == number);
        let unused = list.iter().map(|slice| slice.number).filter(|number| !has(&changed, *number));
        let unused: Vec<u32> = unused.collect();
        let mut batch = Batch::default();
        for number in &unused {
            batch.remove(&group.key(*number));
        }
        for slice in &changed {
            if !list.iter().any(|old| Arc::ptr_eq(old, slice)) {
                let key = group.key(slice.number);
                batch.insert(&key, slice.entry.encode(&key));
            }
        }
        self.write("write", || self.slices.apply_batch(batch))?;
        *list = Arc::new(changed.into());
        let count = groups.values().map(|slices| slices.len()).sum();
        self.sealed.count.store(count, Ordering::Release);
        self.sealed.version.fetch_add(1, Ordering::Release);
        drop(lists);
        let is_any_unused = !unused.is_empty();
        self.segments.retire(unused);
        self.flush_when_due(OPERATION_BYTES)?;
        Ok(is_any_unused)
    }

    /// Removes the owners of a window at or beyond `from` from its slices. A filter without owners cannot lose some of them: then all local
    /// state is damaged, and has to be restored. That does not happen in a crash, because only owners that are older than the exact part of
    /// the window are in such filters.
    pub(in crate::store) fn cut_slices(&self, window: WindowId, from: Offset) -> Result<bool, StoreError> {
        let (group, partition) = (self.group_of(window), window.partition());
        if let Some(dropped) = self.sealed.lock().dropped.get_mut(&window) {
            // Owners from here on are written again, and count although those at the same offsets were dropped.
            *dropped = (*dropped).min(from);
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
        if is_wrong {
            let cause = format!("owners of {window} from offset {from} on are undone, and a filter has them");
            return Err(self.damaged("remove owners", &cause));
        }
        Ok(is_unused)
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
                    let contained = |it: &&Identity| slice.slice.may_contain(&IndexKey::at(**it));
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
            let Some(slices) = lists.groups.get(&group).filter(|slices| !slices.is_empty()).cloned() else {
                return Ok(false);
            };
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

    /// Reads and verifies the footer and the filter of a slice file.
    pub(in crate::store) fn read_slice(&self, number: u32) -> Result<Slice, SliceReadError> {
        let file = File::open(self.segments.path(number)).map_err(SliceReadError::Io)?;
        let length = file.metadata().map_err(SliceReadError::Io)?.len();
        let read = |at, bytes: &mut [u8]| file.read_exact_at(bytes, at).map_err(SliceReadError::Io);
        Slice::read(length, read, SliceReadError::Damaged)
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

/// Reads and verifies all registered slices.
pub(in crate::store) fn read_all(
    engine: &Engine,
    report_progress: &dyn Fn(),
) -> Result<SealedSlices, OpenFailure> {
    let mut groups: HashMap<SliceGroup, Vec<Arc<SealedSlice>>> = HashMap::new();
    let is_shared = engine.binding.shares_slices == Some(true);
    for item in &engine.slices {
        report_progress();
        let (key, value) = item?;
        let (kind, partition, number) = keys::parse_slice(&key).ok_or("the key of a slice is damaged")?;
        let bad = |cause: &dyn Display| format!("slice file {number} of kind {}: {cause}", kind.number());
        let entry = SliceEntry::decode(&key, &value).ok_or_else(|| bad(&"its entry is damaged"))?;
        let slice = engine.read_slice(number).map_err(|error| match error {
            SliceReadError::Io(cause) if needs_operator(&cause) => OpenFailure::Disk(cause),
            SliceReadError::Io(cause) => bad(&cause).into(),
            SliceReadError::Damaged(cause) => bad(&cause).into(),
        })?;
        let footer = slice.footer();
        let is_ours =
            footer.kind == kind && footer.hash == engine.binding.hash && partition.is_none() == is_shared;
        if slice.footer_checksum() != entry.footer || !is_ours {
            return Err(bad(&"it is another slice than the registered one").into());
        }
        let group = SliceGroup { kind, partition };
        groups.entry(group).or_default().push(Arc::new(SealedSlice::new(number, Arc::new(slice), entry)));
    }
    for slices in groups.values_mut() {
        slices.sort_by_key(|slice| slice.entry.order);
    }
    let groups = groups.into_iter().map(|(group, slices)| (group, Arc::new(slices.into())));
    let groups: HashMap<SliceGroup, Arc<SliceList>> = groups.collect();
    Ok(SealedSlices {
        count: AtomicUsize::new(groups.values().map(|slices| slices.len()).sum()),
        lists: Mutex::new(SliceLists { groups, ..SliceLists::default() }),
        ..SealedSlices::default()
    })
}

/// An error of the file of a slice that was registered as one of the store: the file is damaged, unless it was deleted because the slice is
/// not registered any more.
pub(in crate::store) fn registered_error(
    engine: &Engine,
    window: WindowId,
    number: u32,
    error: &SliceReadError,
) -> StoreError {
    let is_registered = engine.sealed.files().contains(&number);
    if is_registered { read_error(engine, number, error) } else { StoreError::LeaseLost(window) }
}

/// An error of a slice file as one of the store.
pub(in crate::store) fn read_error(engine: &Engine, number: u32, error: &SliceReadError) -> StoreError {
    match error {
        SliceReadError::Io(cause) if !is_missing_data(cause) => engine.file_error("read", number, cause),
        SliceReadError::Io(cause) => engine.damaged("read", &format!("slice file {number}: {cause}")),
        SliceReadError::Damaged(cause) => engine.damaged("read", &format!("slice file {number}: {cause}")),
    }
}
