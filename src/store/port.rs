//! The store as the pipeline uses it: a handle changes only windows that it holds.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::append::append;
use super::cut::{clear, expire, forget, truncate, undo};
use super::engine::WindowChange;
use super::leases::SharedWindow;
use super::owners::SledStore;
use super::sealed::{SealedSlice, SliceReadError, registered_error};
use super::segments::Readers;
use crate::dedupe::{
    Coordinates, Identity, OwnerRun, PartitionId, Positions, SealedRange, Sequence, StoredOwner, WindowId,
};
use crate::locked::Locked;
use crate::ports::{
    FilterJob, FilterSummary, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError,
    ToForget, Undone, VisitOwner, VisitRun,
};

impl Store for SledStore {
    fn positions(&self) -> Positions {
        self.engine.positions
    }

    fn acquire_lease(&mut self, window: WindowId) -> bool {
        self.take(window)
    }

    fn acquire_free_lease(&mut self, window: WindowId) -> bool {
        self.take_free(window)
    }

    fn release_lease(&mut self, window: WindowId) {
        self.release(window);
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        self.with(window, |_, index| Ok(index.head.clone()))
    }

    fn missing_ms(&self, window: WindowId) -> Result<i64, StoreError> {
        self.with(window, |_, index| Ok(index.missing_ms))
    }

    fn append(&mut self, window: WindowId, owners: &OwnerRun<'_>, head: &Head) -> Result<(), StoreError> {
        self.write(&[window], |store| {
            let span = store.joining.of(window);
            store.with(window, |engine, index| append(engine, index, owners, head, span))
        })
    }

    fn set_head(&mut self, window: WindowId, head: &Head) -> Result<(), StoreError> {
        self.write(&[window], |store| {
            store.with(window, |engine, index| engine.commit(index, WindowChange::head(head.clone())))
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
        self.with(window, |_, index| Ok(index.next_number))
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        self.with(window, |_, index| Ok(index.identities()))
    }

    fn truncate(&mut self, window: WindowId, from: Sequence) -> Result<Vec<StoredOwner>, StoreError> {
        self.write(&[window], |store| {
            let sealed = store.engine.sealed_next(window);
            if from < sealed {
                return Err(StoreError::Corrupt(format!(
                    "rejected the removal of owners of journal {window} from number {from} on: those below {sealed} are sealed"
                )));
            }
            store.sealing.removed(window, from);
            let removed = store.with(window, |engine, index| truncate(engine, index, from))?;
            store.readers.get_mut().close();
            Ok(removed)
        })
    }

    fn undo(&mut self, window: WindowId, from: &[Coordinates], next: Sequence) -> Result<Undone, StoreError> {
        self.write(&[window], |store| {
            // First, because a filter may keep it from being done. Each time, because owners may have been sealed since.
            from.iter().try_for_each(|from| store.undo_sealed(window, *from))?;
            store.with(window, |engine, index| undo(engine, index, from, next))
        })
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: &Head) -> Result<(), StoreError> {
        self.write(&[window], |store| {
            // First, because the head is written last.
            store.forget_sealed(window, forgotten)?;
            store.with(window, |engine, index| forget(engine, index, forgotten.numbers, head))
        })
    }

    fn expire(&mut self, window: WindowId, first: Sequence, missing_ms: i64) -> Result<(), StoreError> {
        self.write(&[window], |store| {
            let runs = store.with(window, |engine, index| expire(engine, index, first, missing_ms))?;
            // Deleted files must not stay open, or their space is not freed.
            if runs > 0 {
                store.readers.get_mut().close();
            }
            if store.engine.expire_slices(window, first)? {
                store.sealing.close_files();
            }
            Ok(())
        })
    }

    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        let read = self.stored_owner(window, number, expected);
        // One that is found was there, whoever holds the window now.
        if matches!(read, Ok(Some(_))) { read } else { self.if_held(window, read)? }
    }

    fn clear(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        self.write(windows, |store| {
            store.sealing.end(&store.engine);
            windows.iter().try_for_each(|window| store.with(*window, clear))?;
            store.readers.get_mut().close();
            store.sealing.close_files();
            // After all heads, also in sled's log.
            windows.iter().try_for_each(|window| store.engine.remove_slices(*window))
        })
    }

    fn seals(&self) -> bool {
        true
    }

    fn begin_seal(&mut self, job: SealJob) -> Result<(), StoreError> {
        self.begin_task(job);
        Ok(())
    }

    fn begin_filter(&mut self, job: &FilterJob) -> Result<bool, StoreError> {
        Ok(self.begin_filter_task(job))
    }

    fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        self.poll_held()
    }

    fn end_seal(&mut self) {
        self.sealing.end(&self.engine);
    }

    fn has_sealed(&self) -> bool {
        self.engine.sealed.is_any()
    }

    fn sealed(&self, window: WindowId) -> Vec<SealedRange> {
        self.slices_of(window).iter().map(|slice| slice.range()).collect()
    }

    fn find_sealed(&self, lookups: &mut [&mut SealedLookup]) {
        self.find_in_slices(lookups);
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        self.places_in_slices(lookup)
    }

    fn filters(&self, window: WindowId) -> Vec<FilterSummary> {
        let slices = self.slices_of(window);
        let filters = slices.iter().filter(|slice| !slice.slice.has_owners());
        let summary = |slice: &Arc<SealedSlice>| FilterSummary {
            time_ms: slice.owner_time_ms(),
            ids: slice.ids(),
            bytes: slice.slice.memory_bytes(),
            false_positive_rate: slice.slice.false_positive_rate(),
        };
        filters.map(summary).collect()
    }

    fn scan_sealed(&self, windows: &[WindowId], visit: VisitOwner<'_>) -> Result<(), StoreError> {
        for window in windows {
            let slices = self.slices_of(*window);
            // They may not have been read.
            self.engine.check()?;
            for slice in slices.iter() {
                // The visitor may use the store.
                let mut readers = Readers::default();
                let failed = |cause| registered_error(&self.engine, *window, slice.number, &cause);
                let read = |at, bytes: &mut [u8]| {
                    let read = readers.fill(&self.engine.segments, slice.number, at, bytes);
                    read.map_err(|cause| failed(SliceReadError::Io(cause)))
                };
                let damaged = |cause| failed(SliceReadError::Damaged(cause));
                slice.slice.scan(0..=u64::MAX, read, damaged, |identity, owner| {
                    if slice.has(identity, owner) { visit(*window, identity, owner) } else { Ok(()) }
                })?;
            }
        }
        Ok(())
    }

    fn sealed_memory(&self, window: WindowId) -> u64 {
        self.slices_of(window).iter().map(|slice| slice.slice.memory_bytes()).sum()
    }

    fn stored_journals(&self) -> Vec<PartitionId> {
        // A handle locks an index before it locks all of them.
        let windows: Vec<_> =
            self.engine.windows.locked().iter().map(|(id, of)| (*id, Arc::clone(of))).collect();
        let has_state = |shared: &SharedWindow| shared.index.lock().is_ok_and(|index| index.head.is_some());
        let stored = windows.iter().filter(|(_, index)| has_state(index)).map(|(window, _)| window.journal());
        stored.chain(self.engine.sealed_journals()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Self::disk_bytes(self).map(Some)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.engine.sync()
    }
}
