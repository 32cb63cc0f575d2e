//! The store in memory, for simulations: the same answers, nothing on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cut::lowered;
use super::tail::consistent;
use crate::dedupe::{Block, BlockError, BlockView, Coordinates, Identity, Offset, PartitionId};
use crate::ports::{Head, Store, StoreError, Visit};

/// Blocks in a map. Clones share it, as clones of the store on disk do: a clone kept while a worker
/// is dropped is what a restarted worker finds.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    partitions: Arc<Mutex<BTreeMap<PartitionId, Partition>>>,
}

#[derive(Debug, Clone, Default)]
struct Partition {
    head: Head,
    blocks: BTreeMap<Offset, Vec<u8>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy that shares nothing: an older state to come back to.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self { partitions: Arc::new(Mutex::new(self.lock().clone())) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PartitionId, Partition>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Partition {
    fn end(&self) -> Result<Offset, StoreError> {
        let last = self.blocks.last_key_value().map(|(_, bytes)| BlockView::trusted(bytes).map_err(damaged));
        Ok(last.transpose()?.map_or(0, |view| view.header.next))
    }

    fn cut(&mut self, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.head = lowered(self.head, from);
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
                self.blocks.insert(block.first, block.encode());
            }
        }
        Ok(removed)
    }
}

impl Store for MemoryStore {
    fn head(&self, partition: PartitionId) -> Result<Option<Head>, StoreError> {
        Ok(self.lock().get(&partition).map(|stored| stored.head))
    }

    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError> {
        if !consistent(block) {
            return Err(StoreError::Corrupt(format!(
                "refused a block of partition {} at {}",
                block.partition, block.first
            )));
        }
        let mut partitions = self.lock();
        let stored = partitions.entry(block.partition).or_default();
        if stored.end()? > block.first {
            stored.cut(block.first)?;
        }
        if block.first < block.next {
            stored.blocks.insert(block.first, block.encode());
        }
        stored.head = head;
        Ok(())
    }

    fn set_head(&mut self, partition: PartitionId, head: Head) -> Result<(), StoreError> {
        self.lock().entry(partition).or_default().head = head;
        Ok(())
    }

    fn scan_from(
        &self,
        partition: PartitionId,
        from: Offset,
        visit: Visit<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        // Copied, so that the visitor may use the store.
        let stored = self.lock().get(&partition).cloned().unwrap_or_default();
        for (first, bytes) in stored.blocks.range(from..) {
            if visit(&BlockView::verified(bytes).map_err(damaged)?)?.is_break() {
                return Ok(Some(first + 1));
            }
        }
        Ok(None)
    }

    fn ids(&self, partition: PartitionId) -> Result<u64, StoreError> {
        let partitions = self.lock();
        let blocks = partitions.get(&partition).into_iter().flat_map(|stored| stored.blocks.values());
        blocks.map(|bytes| Ok(BlockView::trusted(bytes).map_err(damaged)?.count() as u64)).sum()
    }

    fn truncate(
        &mut self,
        partition: PartitionId,
        from: Offset,
    ) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.lock().get_mut(&partition).map_or_else(|| Ok(Vec::new()), |stored| stored.cut(from))
    }

    fn forget(&mut self, partition: PartitionId, owners: &[Offset], head: Head) -> Result<(), StoreError> {
        let mut partitions = self.lock();
        let stored = partitions.entry(partition).or_default();
        for owner in owners {
            let Some((_, bytes)) = stored.blocks.range_mut(..=*owner).next_back() else { continue };
            let mut block = Block::decode(bytes).map_err(damaged)?;
            block.entries.retain(|(offset, _)| offset != owner);
            *bytes = block.encode();
        }
        stored.head = head;
        Ok(())
    }

    fn expire(&mut self, partition: PartitionId, first: Offset) -> Result<(), StoreError> {
        if let Some(stored) = self.lock().get_mut(&partition) {
            while let Some(oldest) = stored.blocks.first_entry() {
                if BlockView::trusted(oldest.get()).map_err(damaged)?.header.next > first {
                    break;
                }
                oldest.remove();
            }
        }
        Ok(())
    }

    fn identity_of(&self, owner: Coordinates) -> Result<Option<Identity>, StoreError> {
        let partitions = self.lock();
        let Some(stored) = partitions.get(&owner.partition) else { return Ok(None) };
        let Some((_, bytes)) = stored.blocks.range(..=owner.offset).next_back() else { return Ok(None) };
        BlockView::trusted(bytes).and_then(|view| view.identity_of(owner.offset)).map_err(damaged)
    }

    fn clear(&mut self, partition: PartitionId) -> Result<(), StoreError> {
        self.lock().remove(&partition);
        Ok(())
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        let partitions = self.lock();
        let blocks = partitions.values().flat_map(|stored| stored.blocks.values());
        Ok(Some(blocks.map(|bytes| bytes.len() as u64).sum()))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn damaged(cause: BlockError) -> StoreError {
    StoreError::Corrupt(cause.to_string())
}
