//! The store as the pipeline uses it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sled::IVec;

use super::append::append;
use super::binding::Binding;
use super::cut::{clear, expire, forget, truncate};
use super::engine::{Engine, SharedIndex};
use super::entry::FoundBlock;
use super::guard::run_guarded;
use super::index::{BlockIndex, Covering};
use super::joining::Joining;
use super::parts::consistent;
use super::sealed::HandleSealing;
use super::segments::Readers;
use crate::dedupe::{Block, Identity, Offset, PartitionId, Positions, SlicePartition, WindowId};
use crate::ports::{
    FilterJob, FilterSummary, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError,
    ToForget, VisitBlock, VisitOwner,
};

/// How long closing waits for the engine's threads.
const CLOSE_SILENCE: Duration = Duration::from_secs(10);
/// Most block files that all handles keep open for look-ups. A window has about nine files, so these are the files of some 28
/// partitions. A process may often open only 1,024 files.
const MAX_OPEN_FILES: usize = 256;

/// A handle of the open database. Clones share the database; each window is used by one handle at a time.
pub struct SledStore {
    pub(super) engine: Arc<Engine>,
    joining: Joining,
    /// The indexes that this handle has used before.
    windows: RefCell<HashMap<WindowId, SharedIndex>>,
    pub(super) readers: RefCell<Readers>,
    pub(super) sealing: HandleSealing,
}

impl Clone for SledStore {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.engine), self.joining.clone())
    }
}

impl SledStore {
    pub(super) fn new(engine: Engine) -> Self {
        Self::of(Arc::new(engine), Joining::default())
    }

    fn of(engine: Arc<Engine>, joining: Joining) -> Self {
        let (windows, readers, sealing) = Default::default();
        Self { engine, joining, windows, readers, sealing }
    }

    /// Runs `run` with the locked index of a window.
    pub(super) fn with<T>(
        &self,
        window: WindowId,
        run: impl FnOnce(&Engine, &mut BlockIndex) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (engine, mut windows) = (&*self.engine, self.windows.borrow_mut());
        let index = windows.entry(window).or_insert_with(|| engine.index(window)).lock();
        // A panic may have interrupted a change.
        let mut index =
            index.map_err(|_| engine.damaged("lock", "a thread panicked while it used the store"))?;
        engine.check()?;
        run(engine, &mut index)
    }

    /// Reads the bytes of a block while its index is not locked. If the index has changed meanwhile, another worker has
    /// taken the window and may have deleted the file. Otherwise an unreadable block is damaged.
    fn bytes(&self, found: &FoundBlock, readers: &mut Readers) -> Result<IVec, StoreError> {
        self.engine.read(found, readers)?.or_else(|cause| {
            self.with(found.window, |engine, index| match index.get(found.first) {
                Some(entry) if *entry == found.entry => Err(engine.bad_block(found, &cause)),
                _ => Err(StoreError::LeaseLost(found.window)),
            })
        })
    }

    /// Offers the owners of a window in a range of offsets, each once, while another handle appends to the window. That merges blocks: the
    /// next one is found by the offset up to which owners were offered, and not by where it begins. `check` is called for each block.
    pub(super) fn offer_owners(
        &self,
        window: WindowId,
        range: Range<Offset>,
        check: &dyn Fn() -> Result<(), StoreError>,
        offer: &mut dyn FnMut(Offset, Identity),
    ) -> Result<(), StoreError> {
        let (mut readers, mut from) = (Readers::default(), range.start);
        let next = |index: &BlockIndex, from| {
            let covering = index.block_of(from).map(|covering| covering.found);
            covering.or_else(|| index.blocks_from(from).next())
        };
        while from < range.end
            && let Some(found) = self.with(window, |_, index| Ok(next(index, from)))?
        {
            check()?;
            let bytes = self.bytes(&found, &mut readers)?;
            let view = self.engine.view(&found, &bytes)?;
            let offered = from..range.end;
            let read = view.for_each(|owner, identity| {
                if offered.contains(&owner) {
                    offer(owner, identity);
                }
            });
            read.map_err(|cause| self.engine.bad_block(&found, &cause))?;
            from = view.header.next;
        }
        Ok(())
    }

    /// The first offset in the blocks of a window.
    pub(in crate::store) fn first_stored(&self, window: WindowId) -> Result<Offset, StoreError> {
        self.with(window, |_, index| Ok(index.blocks_from(0).next().map_or(Offset::MAX, |found| found.first)))
    }

    /// The identity of an owner. Where possible, only compares it with the expected one.
    fn look_up(
        &self,
        (window, owner): (WindowId, Offset),
        expected: Option<Identity>,
    ) -> Result<Option<Identity>, StoreError> {
        let covering = self.with(window, |_, index| Ok(index.block_of(owner)))?;
        let Some(Covering { found, rank, identity }) = covering else { return Ok(None) };
        if identity.is_some() {
            return Ok(identity);
        }
        let mut readers = self.readers.borrow_mut();
        readers.most = self.share_of(MAX_OPEN_FILES);
        let read = |rank| readers.read_identity(&self.engine.segments, &found.entry, rank);
        if expected.is_some() && rank.and_then(read) == expected {
            return Ok(expected);
        }
        let bytes = self.bytes(&found, &mut readers)?;
        let bad = |cause| self.engine.bad_block(&found, &cause);
        self.engine.view(&found, &bytes)?.identity_of(owner).map_err(bad)
    }

    /// The share of this handle in a number of open files. If there are several, the first one is only cloned and reads nothing.
    pub(super) fn share_of(&self, files: usize) -> usize {
        files / Arc::strong_count(&self.engine).saturating_sub(1).max(1)
    }

    /// Sets the limits within which small blocks are merged (default: 5 minutes of stream time).
    #[must_use]
    pub fn joining(mut self, joining: Joining) -> Self {
        self.joining = joining;
        self
    }

    /// The directory of the database.
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// What the store belongs to.
    pub fn binding(&self) -> &Binding {
        &self.engine.binding
    }

    /// Bytes that the database's files use on disk.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let path = &self.engine.path;
        file_bytes(path).map_err(|e| StoreError::Io(format!("read the directory {}: {e}", path.display())))
    }

    /// Flushes and syncs, and closes the database if this is its last handle. After an earlier failure nothing is
    /// flushed, and that failure is returned again.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.sealing.end(&self.engine);
        let synced = self.engine.check().and_then(|()| self.engine.sync());
        let path = self.engine.path.clone();
        let failed = |cause: &dyn fmt::Display| StoreError::Io(format!("close {}: {cause}", path.display()));
        let last = Arc::into_inner(self.engine);
        // Closing waits for the engine's threads and never returns if one of them has died.
        let closed = run_guarded("store-close", CLOSE_SILENCE, move |_| last.map_or(Ok(()), Engine::close));
        synced.and(closed.map_err(|fault| failed(&fault))?.map_err(|cause| failed(&cause)))
    }
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("path", &self.engine.path).finish_non_exhaustive()
    }
}

impl Store for SledStore {
    fn positions(&self) -> Positions {
        self.engine.positions
    }

    fn release_lease(&mut self, window: WindowId) {
        // Another handle may delete the files.
        self.readers.get_mut().close();
        self.sealing.close_files();
        self.engine.unload_slices(window);
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        self.with(window, |_, index| Ok(index.head))
    }

    fn append_all(&mut self, blocks: &[Block], head: Head) -> Result<(), StoreError> {
        let Some(&Block { window, mut first, .. }) = blocks.first() else { return Ok(()) };
        for block in blocks {
            let is_ours = block.window == window && block.hash == self.engine.binding.hash;
            if !is_ours || block.first < first || !consistent(block) {
                return Err(StoreError::Corrupt(format!(
                    "rejected a block of partition {} for {}..{}: its owners are out of order or its hash differs \
                     from the store's",
                    block.window, block.first, block.next
                )));
            }
            first = block.next;
        }
        self.cut_sealed_before_append(window, blocks.first().map_or(0, |block| block.first))?;
        let bounds = self.joining.of(window);
        if self.with(window, |engine, index| append(engine, index, blocks, head, bounds))? {
            // A file must not stay open once it is deleted, or its space is not freed.
            self.readers.get_mut().close();
        }
        Ok(())
    }

    fn scan_from(
        &self,
        window: WindowId,
        mut from: Offset,
        visit: VisitBlock<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        let mut readers = Readers::default();
        // The visitor may use the store, so the index is not locked meanwhile.
        while let Some(found) = self.with(window, |_, index| Ok(index.blocks_from(from).next()))? {
            let bytes = self.bytes(&found, &mut readers)?;
            from = found.first + 1;
            if visit(&self.engine.view(&found, &bytes)?)?.is_break() {
                return Ok(Some(from));
            }
        }
        Ok(None)
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        self.with(window, |_, index| Ok(index.identities()))
    }

    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        let mut removed = Vec::new();
        let mut on_removed = |owner, identity| removed.push((owner, identity));
        self.with(window, |engine, index| truncate(engine, index, from, &mut on_removed))?;
        self.readers.get_mut().close();
        self.cut_sealed(window, from)?;
        removed.sort_unstable();
        Ok(removed)
    }

    fn forget(&mut self, window: WindowId, forgotten: ToForget<'_>, head: Head) -> Result<(), StoreError> {
        // First, as for blocks: the head is written last.
        self.forget_sealed(window, forgotten)?;
        self.with(window, |engine, index| forget(engine, index, forgotten.owners, head))
    }

    fn expire(&mut self, window: WindowId, first: Offset) -> Result<(), StoreError> {
        let blocks = self.with(window, |engine, index| expire(engine, index, first, usize::MAX))?;
        // Deleted files must not stay open, or their space is not freed.
        if blocks > 0 {
            self.readers.get_mut().close();
        }
        if self.engine.expire_slices(window, first)? {
            self.sealing.close_files();
        }
        Ok(())
    }

    fn identity_of(&self, window: WindowId, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.look_up((window, owner), None)
    }

    fn owns(&self, window: WindowId, owner: Offset, identity: Identity) -> Result<Option<bool>, StoreError> {
        Ok(self.look_up((window, owner), Some(identity))?.map(|known| known == identity))
    }

    fn clear(&mut self, window: WindowId) -> Result<(), StoreError> {
        self.with(window, clear)?;
        self.cut_sealed(window, 0)
    }

    fn clear_all(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        self.sealing.end(&self.engine);
        windows.iter().try_for_each(|window| self.with(*window, clear))?;
        self.readers.get_mut().close();
        self.sealing.close_files();
        // After all heads, also in sled's log.
        let groups: HashSet<_> = windows.iter().map(|window| self.engine.group_of(*window)).collect();
        for group in groups {
            self.engine.remove_slices(group)?;
        }
        Ok(())
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
        self.poll_task()
    }

    fn end_seal(&mut self) {
        self.sealing.end(&self.engine);
    }

    fn has_sealed(&self) -> bool {
        self.engine.sealed.is_any()
    }

    fn sealed(&self, window: WindowId) -> Vec<SlicePartition> {
        self.sealed_ranges(window)
    }

    fn find_sealed(&self, lookups: &mut [&mut SealedLookup]) {
        self.find_in_slices(lookups);
    }

    fn sealed_places(&self, lookup: &SealedLookup) -> Result<SealedPlaces, StoreError> {
        self.places_in_slices(lookup)
    }

    fn filters(&self, window: WindowId) -> Vec<FilterSummary> {
        self.filters_of(window)
    }

    fn scan_sealed(
        &self,
        windows: &[WindowId],
        range: Range<Offset>,
        visit: VisitOwner<'_>,
    ) -> Result<(), StoreError> {
        self.scan_slices(windows, &range, visit)
    }

    fn sealed_memory(&self, window: WindowId) -> u64 {
        self.slices_of(window).iter().map(|slice| slice.slice.memory_bytes()).sum()
    }

    fn stored_partitions(&self) -> Vec<PartitionId> {
        // A handle locks an index before it locks all of them.
        let windows: Vec<_> =
            self.engine.lock_windows().iter().map(|(id, of)| (*id, Arc::clone(of))).collect();
        let has_state = |index: &SharedIndex| index.lock().is_ok_and(|index| index.head.is_some());
        let stored =
            windows.iter().filter(|(_, index)| has_state(index)).map(|(window, _)| window.partition());
        stored.chain(self.engine.sealed_partitions()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Self::disk_bytes(self).map(Some)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.engine.sync()
    }
}

/// Bytes of all files below a directory.
pub(super) fn file_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => file_bytes(&entry.path())?,
            Ok(metadata) => metadata.len(),
            // The engine deletes files in the background.
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
    }
    Ok(bytes)
}
