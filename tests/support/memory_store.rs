//! A store in memory, with the same results as the store on disk: the store of the simulation, and the model that the
//! store on disk is compared with. It shares no bookkeeping with it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dedupd::dedupe::{
    Block, BlockError, BlockView, Identity, Offset, PartitionId, Positions, SlicePartition, WindowId,
};
use dedupd::ports::{
    FilterJob, Head, SealJob, SealedLookup, SealedPlaces, Sealing, Store, StoreError, ToForget, VisitBlock,
};

#[path = "memory_slices.rs"]
mod memory_slices;

pub use memory_slices::SliceDefect;
use memory_slices::{MemoryTask, Slices, change, cut, expire_blocks, forget_in_filters};

/// Blocks in a map. Clones share the map, like clones of the store on disk: a restarted worker finds its state in a
/// clone that was kept while the old worker was dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    /// The slice that this handle is writing.
    task: Option<MemoryTask>,
    /// Windows whose blocks below an offset are to be removed.
    unneeded: Vec<(WindowId, Offset)>,
}

impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self { contents: Arc::clone(&self.contents), ..Self::default() }
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

/// A partition before a write: its head, and its blocks at or beyond `from`. The write changes no other.
#[derive(Debug)]
struct Before {
    head: Head,
    from: Offset,
    blocks: BTreeMap<Offset, Arc<Vec<u8>>>,
}

#[derive(Debug, Clone, Default)]
struct Partition {
    head: Head,
    blocks: BTreeMap<Offset, Arc<Vec<u8>>>,
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

    /// Simulates disk damage. `pick` receives the number of blocks and chooses one. Flips bit number `bit` of that
    /// block (modulo its length), or removes all of its bytes. Returns false if there is no block.
    pub fn rot(&self, pick: impl FnOnce(usize) -> usize, bit: Option<usize>) -> bool {
        let mut contents = self.lock();
        let mut blocks: Vec<_> =
            contents.partitions.values_mut().flat_map(|stored| stored.blocks.values_mut()).collect();
        let Some(place) = (!blocks.is_empty()).then(|| pick(blocks.len()) % blocks.len()) else {
            return false;
        };
        let Some(block) = blocks.get_mut(place) else { return false };
        let bytes = Arc::make_mut(block);
        match bit.map(|bit| bit % (bytes.len() * 8).max(1)) {
            Some(bit) => bytes.iter_mut().skip(bit / 8).take(1).for_each(|byte| *byte ^= 1 << (bit % 8)),
            None => bytes.clear(),
        }
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

impl Contents {
    fn put(&mut self, window: WindowId, before: Option<Before>) {
        let Some(Before { head, from, blocks }) = before else {
            self.partitions.remove(&window);
            return;
        };
        let stored = self.partitions.entry(window).or_default();
        stored.head = head;
        stored.blocks.retain(|first, _| *first < from);
        stored.blocks.extend(blocks);
    }
}

impl Partition {
    /// A block that begins before `from` may reach beyond it.
    fn before(&self, from: Offset) -> Before {
        let from = self.blocks.range(..from).next_back().map_or(from, |(first, _)| *first);
        let blocks = self.blocks.range(from..).map(|(first, bytes)| (*first, Arc::clone(bytes))).collect();
        Before { head: self.head, from, blocks }
    }

    fn end(&self) -> Result<Offset, StoreError> {
        let last = self.blocks.last_key_value().map(|(_, bytes)| BlockView::verified(bytes).map_err(damaged));
        Ok(last.transpose()?.map_or(0, |view| view.header.next))
    }

    fn cut(&mut self, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.head = self.head.lowered(from);
        let mut removed = Vec::new();
        let mut blocks = self.blocks.split_off(&from);
        if let Some((first, bytes)) = self.blocks.pop_last() {
            blocks.insert(first, bytes);
        }
        for bytes in blocks.values() {
            let mut block = Block::decode(bytes).map_err(damaged)?;
            let keep = block.entries.partition_point(|(owner, _)| *owner < from);
            removed.extend(block.entries.drain(keep..));
            block.next = block.next.min(from);
            if block.first < from {
                self.blocks.insert(block.first, Arc::new(block.encode()));
            }
        }
        Ok(removed)
    }
}

impl Store for MemoryStore {
    fn positions(&self) -> Positions {
        Positions::keyed([7; 16])
    }

    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        Ok(self.lock().partitions.get(&window).map(|stored| stored.head))
    }

    fn append_all(&mut self, blocks: &[Block], head: Head) -> Result<(), StoreError> {
        let Some(Block { window, first, .. }) = blocks.first() else { return Ok(()) };
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
            if stored.end()? > *first {
                stored.cut(*first)?;
            }
            for block in blocks.iter().filter(|block| block.first < block.next) {
                stored.blocks.insert(block.first, Arc::new(block.encode()));
            }
            stored.head = head;
            Ok(())
        })
    }

    fn scan_from(
        &self,
        window: WindowId,
        from: Offset,
        visit: VisitBlock<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        // Copied, so that the visitor may use the store.
        let stored = self.lock().partitions.get(&window).cloned().unwrap_or_default();
        for (first, bytes) in stored.blocks.range(from..) {
            if visit(&BlockView::verified(bytes).map_err(damaged)?)?.is_break() {
                return Ok(Some(first + 1));
            }
        }
        Ok(None)
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        let contents = self.lock();
        let blocks = contents.partitions.get(&window).into_iter().flat_map(|stored| stored.blocks.values());
        blocks.map(|bytes| Ok(BlockView::verified(bytes).map_err(damaged)?.count() as u64)).sum()
    }

    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
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
            for owner in owners {
                let Some((_, bytes)) = stored.blocks.range_mut(..=*owner).next_back() else { continue };
                let mut block = Block::decode(bytes).map_err(damaged)?;
                block.entries.retain(|(offset, _)| offset != owner);
                *bytes = Arc::new(block.encode());
            }
            stored.head = head;
            Ok(())
        })
    }

    fn expire(&mut self, window: WindowId, first: Offset) -> Result<(), StoreError> {
        self.write(window, 0, |partitions, slices| {
            // The ranges stay until all owners of the slice are dropped.
            change(slices, |slice| slice.without(window, Offset::MAX, |offset| offset < first));
            slices.retain(|slice| !slice.owners.is_empty());
            expire_blocks(partitions, window, first)
        })
    }

    fn identity_of(&self, window: WindowId, owner: Offset) -> Result<Option<Identity>, StoreError> {
        let contents = self.lock();
        let Some(stored) = contents.partitions.get(&window) else { return Ok(None) };
        let Some((_, bytes)) = stored.blocks.range(..=owner).next_back() else { return Ok(None) };
        BlockView::verified(bytes).and_then(|view| view.identity_of(owner)).map_err(damaged)
    }

    fn clear(&mut self, window: WindowId) -> Result<(), StoreError> {
        self.clear_window(window)
    }

    fn clear_all(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
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
        let blocks = contents.partitions.values().flat_map(|stored| stored.blocks.values());
        Ok(Some(blocks.map(|bytes| bytes.len() as u64).sum()))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.lock().unsynced.clear();
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn damaged(cause: BlockError) -> StoreError {
    StoreError::Corrupt(cause.to_string())
}
