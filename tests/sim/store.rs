//! The local store. It survives its process unless a fault removes it.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::rc::Rc;

use dedupd::dedupe::{
    Coordinates, Digest, EntryName, Identity, KindId, OwnerRun, Positions, SealedRange, Sequence,
    StoredOwner, WindowId,
};
use dedupd::ports::{
    FilterJob, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError, ToForget, Undone,
    VisitRun,
};

use crate::memory_store::SliceDefect;
use crate::sim::chance::{Chance, Exposure, Fault};
use crate::sim::cluster::Cluster;
use crate::sim::disk::SimDisk;
use crate::sim::universe::{Sabotage, Universe};

/// A store whose process can crash before and after each write.
pub struct SimStore {
    universe: Rc<Universe>,
    worker: usize,
    inner: SimDisk,
    is_standby: bool,
}

impl SimStore {
    /// The store of a worker.
    pub fn new(universe: &Rc<Universe>, worker: usize, inner: SimDisk) -> Self {
        let defect = match universe.sabotage {
            Sabotage::SliceCutShort => SliceDefect::CutShort,
            Sabotage::SliceKeepsForgotten => SliceDefect::KeepsForgotten,
            Sabotage::SliceKeepsRemoved => SliceDefect::KeepsRemoved,
            Sabotage::FilterMisses => SliceDefect::FilterMisses,
            Sabotage::FilterKeepsForgotten => SliceDefect::FilterKeepsForgotten,
            _ => SliceDefect::None,
        };
        if let Some(memory) = inner.in_memory() {
            memory.set_defect(defect);
        }
        Self { universe: Rc::clone(universe), worker, inner, is_standby: false }
    }

    /// The store of a standby.
    pub fn of_standby(self) -> Self {
        Self { is_standby: true, ..self }
    }

    /// Reading owners takes time.
    fn read_run(&self) {
        let block_time = self.universe.block_time.get();
        if !block_time.is_zero() {
            self.universe.cluster.borrow_mut().advance(block_time);
        }
    }

    fn write<T>(
        &mut self,
        effect: impl FnOnce(&mut SimDisk) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Self { universe, worker, inner, .. } = self;
        let call = universe.call(*worker, Exposure::Crash, |_| Ok(effect(inner)));
        call.map_err(|failed| StoreError::Io(failed.what))?
    }
}

/// The start of the error that a worker returns for a damaged store.
const DAMAGED: &str = "local state is damaged";

/// Whether a worker has ended because its store is damaged, and a store can be.
pub fn is_damage(cluster: &Cluster, what: &str) -> bool {
    let has_rotted = cluster.chance.counts().contains_key(Fault::BitRot.name());
    what.contains(DAMAGED) && has_rotted
}

/// With a fault, damages stored owners.
pub fn rot(store: &SimDisk, chance: &mut Chance) {
    // Which files there are, and whether one is complete, depends on a thread meanwhile: a seed is one history.
    if store.is_written() || store.disk_bytes() == Ok(Some(0)) || !chance.hit(Fault::BitRot) {
        return;
    }
    let bit = chance.coin().then(|| chance.rng.usize(..));
    store.rot(&mut chance.rng, bit);
}

/// Prepares the store for a start of its process: a damaged store is replaced, and a power failure loses the last
/// unsynced writes.
pub fn survive(store: &mut SimDisk, cluster: &mut Cluster, process: usize) {
    if cluster.condemned.remove(&process) {
        *store = store.another_empty();
    }
    let Some(memory) = store.in_memory() else { return };
    let unsynced = memory.unsynced();
    if unsynced > 0 && cluster.chance.hit(Fault::WritesLost) {
        memory.lose(cluster.chance.rng.usize(1..=unsynced));
    }
}

/// Keeps the owners of an uncommitted entry, as if they were committed ones of the first record of their partition.
fn pass_off(store: &mut SimDisk, window: WindowId, from: Sequence) -> Result<(), StoreError> {
    let mut owners = store.truncate(window, from)?;
    let Some(head) = store.head(window)? else { return Ok(()) };
    owners.iter_mut().for_each(|owner| owner.at.offset = 0);
    let time_ms = owners.iter().map(|owner| owner.time_ms).max().unwrap_or(0).max(head.time_ms);
    let run = OwnerRun { number: from, times_ms: (time_ms, time_ms), owners: &owners };
    store.append(window, &run, &Head { confirmed: run.end(), ..head })
}

impl Store for SimStore {
    fn positions(&self) -> Positions {
        self.inner.positions()
    }

    fn acquire_lease(&mut self, window: WindowId) -> bool {
        self.inner.acquire_lease(window)
    }

    fn acquire_free_lease(&mut self, window: WindowId) -> bool {
        self.inner.acquire_free_lease(window)
    }

    fn release_lease(&mut self, window: WindowId) {
        self.inner.release_lease(window);
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        self.inner.head(window)
    }

    fn missing_ms(&self, window: WindowId) -> Result<i64, StoreError> {
        self.inner.missing_ms(window)
    }

    fn append(&mut self, window: WindowId, owners: &OwnerRun<'_>, head: &Head) -> Result<(), StoreError> {
        tracing::trace!(%window, ?owners, ?head, "append");
        let is_ahead = self.is_standby && self.universe.sabotage == Sabotage::StandbyHeadAhead;
        let owners = if is_ahead { OwnerRun { owners: &[], ..*owners } } else { *owners };
        let number = |entry: Option<EntryName>| entry.map_or(0, |entry| entry.number);
        let before = number(self.inner.head(window)?.and_then(|head| head.last_entry));
        if window.kind() == KindId::UNNAMED && number(head.last_entry) > before.saturating_add(1) {
            self.universe.joined.set(self.universe.joined.get() + 1);
        }
        self.write(|store| store.append(window, &owners, head))
    }

    fn set_head(&mut self, window: WindowId, head: &Head) -> Result<(), StoreError> {
        self.write(|store| store.set_head(window, head))
    }

    fn scan_from(
        &self,
        window: WindowId,
        from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        let read = &self.universe.loaded[self.worker];
        self.inner.scan_from(window, from, &mut |run| {
            read.set(read.get() + run.owners.len() as u64);
            self.read_run();
            visit(run)
        })
    }

    fn scan(
        &self,
        window: WindowId,
        visit: &mut dyn FnMut(&OwnerRun<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // A restore reads all owners when it reads that an id was forgotten.
        self.inner.scan_from(window, 0, &mut |run| {
            self.read_run();
            visit(run).map(ControlFlow::Continue)
        })?;
        Ok(())
    }

    fn next_number(&self, window: WindowId) -> Result<Sequence, StoreError> {
        self.inner.next_number(window)
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        self.inner.ids(window)
    }

    fn truncate(&mut self, window: WindowId, from: Sequence) -> Result<Vec<StoredOwner>, StoreError> {
        tracing::trace!(%window, from, worker = self.worker, "truncate");
        let ahead = self.universe.sabotage == Sabotage::StoreAhead;
        self.write(|store| {
            if ahead {
                return pass_off(store, window, from).map(|()| Vec::new());
            }
            store.truncate(window, from)
        })
    }

    fn undo(&mut self, window: WindowId, from: &[Coordinates], next: Sequence) -> Result<Undone, StoreError> {
        tracing::trace!(%window, ?from, next, worker = self.worker, "undo");
        let undone = self.write(|store| store.undo(window, from, next))?;
        let slices = &self.universe.undo_slices;
        slices.set(slices.get() + u64::from(undone.next.is_some()));
        self.read_run();
        Ok(undone)
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: &Head) -> Result<(), StoreError> {
        let is_ignored = self.universe.sabotage == Sabotage::ForgetIgnored;
        let forgotten = if is_ignored { ToForget::default() } else { forgotten };
        self.write(|store| store.forget(window, forgotten, head))
    }

    fn expire(&mut self, window: WindowId, first: Sequence, missing_ms: i64) -> Result<(), StoreError> {
        self.write(|store| store.expire(window, first, missing_ms))
    }

    fn owner(
        &self,
        window: WindowId,
        number: Sequence,
        expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        let owner = self.inner.owner(window, number, expected)?;
        let before = match number.checked_sub(1) {
            Some(before) if self.universe.sabotage == Sabotage::DigestOfAnother => {
                self.inner.owner(window, before, None)?
            }
            _ => return Ok(owner),
        };
        Ok(owner.map(|owner| StoredOwner { digest: before.map_or(owner.digest, |it| it.digest), ..owner }))
    }

    fn seals(&self) -> bool {
        true
    }

    fn begin_seal(&mut self, job: SealJob) -> Result<(), StoreError> {
        tracing::trace!(worker = self.worker, ?job, "begin to seal");
        self.inner.begin_seal(job)
    }

    fn begin_filter(&mut self, job: &FilterJob) -> Result<bool, StoreError> {
        self.inner.begin_filter(job)
    }

    fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        // Only what changes the store is a call that can fail.
        if !self.inner.is_sealing() {
            return self.inner.poll_seal();
        }
        let polled = self.write(SimDisk::poll_seal);
        if let Ok(Sealing::Done(job)) = &polled {
            tracing::trace!(worker = self.worker, ?job, "sealed");
            self.universe.sealed.set(self.universe.sealed.get() + job.range.owners());
        }
        polled
    }

    fn end_seal(&mut self) {
        self.inner.end_seal();
    }

    fn has_sealed(&self) -> bool {
        self.inner.has_sealed()
    }

    fn sealed(&self, window: WindowId) -> Vec<SealedRange> {
        self.inner.sealed(window)
    }

    fn find_sealed(&self, lookups: &mut [&mut SealedLookup]) {
        self.inner.find_sealed(lookups);
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        let mut places = self.inner.sealed_places(lookup)?;
        if self.universe.sabotage == Sabotage::SliceLosesDigests {
            places.owners.iter_mut().for_each(|owner| owner.digest = Digest::NONE);
        }
        let count = |hits: &Cell<u64>, is_hit: bool| hits.set(hits.get() + u64::from(is_hit));
        count(&self.universe.sealed_hits, !places.owners.is_empty());
        count(&self.universe.filter_hits, !places.filters.is_empty());
        let is_missed =
            self.universe.sabotage == Sabotage::SliceMisses && lookup.key.identity.0[0].is_multiple_of(4);
        Ok(if is_missed { SealedPlaces::default() } else { places })
    }

    fn clear(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        let cleared = &self.universe.cleared;
        cleared.set(cleared.get() + 1);
        self.write(|store| store.clear(windows))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.write(|store| store.sync())
    }
}
