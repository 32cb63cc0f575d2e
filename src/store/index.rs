//! The index of one window in memory. It is built when the store is opened and changed with every write, so that sled is
//! read only for the bytes of waiting blocks: looking up the index on disk for each owner took longer than reading it.

use std::collections::BTreeMap;

use super::entry::{BlockEntry, BlockPlace, FoundBlock, Location};
use super::files::Files;
use super::joining::MergeSpan;
use super::parts::{EncodedBlock, FULL_BYTES, MERGE_BYTES};
use super::ranks::Ranks;
use super::record::WindowRecord;
use crate::dedupe::{BlockView, Identity, Offset, WindowId};
use crate::ports::Head;

/// How many small blocks of one level are merged into one of the next.
const FAN_IN: usize = 16;
/// Upper bounds of the levels, in identities per block.
const LEVELS: [u32; 3] = [8, 128, u32::MAX];

/// The head, blocks and files of one window. Waiting blocks always follow all filed ones.
#[derive(Debug)]
pub(super) struct BlockIndex {
    pub window: WindowId,
    /// The stored head. `None` if nothing is stored.
    pub head: Option<Head>,
    /// The files of the filed blocks.
    pub files: Files,
    blocks: BTreeMap<Offset, Indexed>,
    identities: u64,
    /// Bytes of all identities in memory.
    cached_bytes: u64,
    /// No block that begins before this offset has its identities in memory.
    cached_from: Offset,
}

/// What is in memory of a block.
#[derive(Debug)]
pub(super) struct Indexed {
    entry: BlockEntry,
    ranks: Ranks,
    /// The bytes of its identities, if the block is one of the last ones.
    identities: Option<Box<[u8]>>,
}

impl Indexed {
    /// A block whose identities stay in the file.
    pub(super) fn stored(entry: BlockEntry, view: &BlockView<'_>) -> Self {
        Self { entry, ranks: Ranks::of(view), identities: None }
    }

    /// A block whose identities stay in memory for now.
    pub(super) fn cached(entry: BlockEntry, view: &BlockView<'_>) -> Self {
        Self { identities: Some(view.identities().into()), ..Self::stored(entry, view) }
    }

    fn cached_bytes(&self) -> u64 {
        self.identities.as_ref().map_or(0, |identities| identities.len() as u64)
    }
}

/// The block that covers an offset.
pub(super) struct Covering {
    pub found: FoundBlock,
    /// Number of owners before this one in the block; `None` if it owns nothing, or if that is not known.
    pub rank: Option<usize>,
    /// Its identity, if that is in memory.
    pub identity: Option<Identity>,
}

impl BlockIndex {
    /// The index of a window of which nothing is stored.
    pub(super) fn new(window: WindowId) -> Self {
        Self {
            window,
            head: None,
            files: Files::default(),
            blocks: BTreeMap::new(),
            identities: 0,
            cached_bytes: 0,
            cached_from: 0,
        }
    }

    /// The record that matches this index.
    pub(super) fn record(&self) -> WindowRecord {
        let head = self.head.unwrap_or_default();
        WindowRecord { head, blocks: self.blocks.len() as u64, identities: self.identities }
    }

    /// Number of identities in all blocks.
    pub(super) fn identities(&self) -> u64 {
        self.identities
    }

    /// One past the last covered offset; 0 when there is no block.
    pub(super) fn end(&self) -> Offset {
        self.blocks.last_key_value().map_or(0, |(_, last)| last.entry.next)
    }

    /// The block that starts at `first`.
    pub(super) fn get(&self, first: Offset) -> Option<&BlockEntry> {
        self.blocks.get(&first).map(|block| &block.entry)
    }

    /// The block that covers an offset.
    pub(super) fn block_of(&self, owner: Offset) -> Option<Covering> {
        let (first, block) = self.blocks.range(..=owner).next_back()?;
        let found = Some(self.found((first, block))).filter(|found| owner < found.entry.next)?;
        let rank = block.ranks.rank(*first, owner);
        let identities = block.identities.as_deref().map(|bytes| bytes.as_chunks().0);
        let identity = identities.and_then(|all| all.get(rank?)).copied().map(Identity);
        Some(Covering { found, rank, identity })
    }

    /// The blocks that start at or beyond `from`, by ascending offset.
    pub(super) fn blocks_from(&self, from: Offset) -> impl DoubleEndedIterator<Item = FoundBlock> {
        self.blocks.range(from..).map(|block| self.found(block))
    }

    fn found(&self, (first, block): (&Offset, &Indexed)) -> FoundBlock {
        FoundBlock { window: self.window, first: *first, entry: block.entry }
    }

    /// Adds a block and returns the one that it replaces.
    pub(super) fn insert(&mut self, first: Offset, block: Indexed) -> Option<BlockEntry> {
        let entry = &block.entry;
        if let BlockPlace::File(Location { file, at, .. }) = entry.place {
            self.files.add(file, at, entry.bytes);
        }
        self.identities += u64::from(entry.identities);
        self.cached_bytes += block.cached_bytes();
        self.cached_from = self.cached_from.min(first);
        let replaced = self.blocks.insert(first, block)?;
        self.uncount(&replaced);
        Some(replaced.entry)
    }

    pub(super) fn remove(&mut self, first: Offset) -> Option<BlockEntry> {
        let removed = self.blocks.remove(&first)?;
        self.uncount(&removed);
        Some(removed.entry)
    }

    /// Removes the identities of the first blocks from memory until those of the last ones take at most `max_bytes`.
    pub(super) fn limit_cached(&mut self, max_bytes: u64) {
        for (first, block) in self.blocks.range_mut(self.cached_from..) {
            if self.cached_bytes <= max_bytes {
                break;
            }
            self.cached_bytes -= block.cached_bytes();
            self.cached_from = first + 1;
            block.identities = None;
        }
    }

    fn uncount(&mut self, block: &Indexed) {
        let entry = &block.entry;
        self.cached_bytes -= block.cached_bytes();
        self.identities -= u64::from(entry.identities);
        if let Some(location) = entry.location() {
            self.files.remove(location.file, entry.bytes);
        }
    }

    /// The waiting blocks, by ascending offset.
    pub(super) fn waiting(&self) -> Vec<FoundBlock> {
        let waits = |block: &FoundBlock| block.entry.location().is_none();
        let mut waiting: Vec<_> = self.blocks_from(0).rev().take_while(waits).collect();
        waiting.reverse();
        waiting
    }
}

/// Whether a block of stream time `time_ms` starts a new span: it is not merged with these waiting blocks.
pub(super) fn starts_span(waiting: &[FoundBlock], time_ms: i64, bounds: MergeSpan) -> bool {
    waiting.last().is_some_and(|last| match last.entry.place {
        BlockPlace::Waiting { time_ms: last_ms } => bounds.separates(last_ms, time_ms),
        BlockPlace::File(_) => false,
    })
}

/// How many of the last waiting blocks must be merged with a new small block.
///
/// Merging is hierarchical. At a low rate of one identity per block, 16 blocks are merged at a time: 16 blocks of 1
/// become one of 16, 16 of those become one of 256, and those fill a full block. Each identity is therefore written
/// at most four times (the append, and once per level). Rewriting one growing block at every append instead would
/// write a full block ten times per second for each window. At most 3 × 16 small blocks wait at a time, so a merge
/// fits into one atomic batch.
pub(super) fn merge_count(waiting: &[FoundBlock], new: &EncodedBlock) -> usize {
    let bytes = |run: usize| -> usize {
        waiting.iter().rev().take(run).map(|block| block.entry.bytes as usize).sum::<usize>()
            + new.bytes.len()
    };
    if bytes(waiting.len()) >= MERGE_BYTES || waiting.len() >= LEVELS.len() * FAN_IN {
        return waiting.len();
    }
    let mut merged = 0;
    let mut identities = new.identities;
    for bound in LEVELS {
        if identities >= bound {
            continue;
        }
        let rest = waiting.iter().rev().skip(merged);
        let run: Vec<_> =
            rest.map(|block| block.entry.identities).take_while(|identities| *identities < bound).collect();
        if run.len() + 1 < FAN_IN {
            break;
        }
        identities += run.iter().sum::<u32>();
        merged += run.len();
    }
    if bytes(merged) >= FULL_BYTES { waiting.len() } else { merged }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{Block, HashKind};
    use crate::store::parts::BLOCK_BYTES;

    #[test]
    fn single_identities_are_written_at_most_four_times_and_few_blocks_wait() {
        let mut waiting: Vec<FoundBlock> = Vec::new();
        let (mut written, mut most) = (0u64, 0);
        let total = 100_000;
        for first in 0..total {
            let mut new = EncodedBlock {
                first,
                next: first + 1,
                identities: 1,
                time_ms: 0,
                goes_to_file: false,
                bytes: vec![0; 61 + 17],
            };
            let keep = waiting.len() - merge_count(&waiting, &new);
            for old in waiting.split_off(keep) {
                new.first = new.first.min(old.first);
                new.identities += old.entry.identities;
            }
            let bytes = 61 + 17 * new.identities;
            written += u64::from(new.identities);
            if bytes as usize >= FULL_BYTES {
                assert!(bytes as usize <= BLOCK_BYTES && waiting.is_empty());
            } else {
                let place = BlockPlace::Waiting { time_ms: 0 };
                let entry = BlockEntry { next: new.next, bytes, identities: new.identities, place };
                waiting.push(FoundBlock { window: 0.into(), first: new.first, entry });
            }
            most = most.max(waiting.len());
        }
        assert!(written > total && written <= 4 * total, "{written} identities written for {total}");
        assert!(most < 3 * FAN_IN, "{most} waiting blocks");
    }

    #[test]
    fn the_identities_of_the_last_blocks_are_in_memory() {
        let mut index = BlockIndex::new(0.into());
        let insert = |index: &mut BlockIndex, first: Offset, cached: bool| {
            let entries = (first..first + 10).map(|owner| (owner, Identity(u128::from(owner).to_le_bytes())));
            let empty = Block::empty(HashKind::Xxh3, 0.into(), first..first + 10, 0);
            let bytes = Block { entries: entries.collect(), ..empty }.encode();
            let view = BlockView::trusted(&bytes).unwrap();
            let entry = BlockEntry::of(&view, BlockPlace::Waiting { time_ms: 0 });
            let block = if cached { Indexed::cached(entry, &view) } else { Indexed::stored(entry, &view) };
            index.insert(first, block);
        };
        let in_memory = |index: &BlockIndex| -> Vec<Offset> {
            let known = |owner: &Offset| index.block_of(*owner).is_some_and(|block| block.identity.is_some());
            (0..60).filter(known).filter(|owner| owner.is_multiple_of(10)).collect()
        };
        insert(&mut index, 0, false);
        (10..60).step_by(10).for_each(|first| insert(&mut index, first, true));
        assert_eq!(in_memory(&index), [10, 20, 30, 40, 50]);
        index.limit_cached(3 * 160);
        assert_eq!(in_memory(&index), [30, 40, 50]);
        let covering = index.block_of(47).unwrap();
        assert_eq!((covering.rank, covering.identity), (Some(7), Some(Identity(47u128.to_le_bytes()))));
        assert_eq!(index.block_of(60).map(|covering| covering.rank), None);
        // A block that is rewritten in the middle is the first one to leave the memory again.
        insert(&mut index, 10, true);
        index.remove(50);
        assert_eq!((in_memory(&index), index.cached_bytes), (vec![10, 30, 40], 3 * 160));
        index.limit_cached(2 * 160);
        assert_eq!(in_memory(&index), [30, 40]);
        index.limit_cached(0);
        assert_eq!((in_memory(&index), index.cached_bytes), (vec![], 0));
    }

    #[test]
    fn a_rewritten_block_is_found_at_its_new_position_and_its_old_file_becomes_empty() {
        let entry = |file, at, next| BlockEntry {
            next,
            bytes: 100,
            identities: 3,
            place: BlockPlace::File(Location { file, at, crc: 0 }),
        };
        let mut index = BlockIndex::new(0.into());
        let at = |index: &BlockIndex, offset| index.block_of(offset).map(|covering| covering.found.entry);
        let (old, new, last) = (entry(1, 0, 20), entry(2, 0, 20), entry(2, 100, 30));
        let block = |entry| Indexed { entry, ranks: Ranks::Unknown, identities: None };
        let mut insert = |first, entry| index.insert(first, block(entry));
        assert_eq!((insert(10, old), insert(20, last)), (None, None));
        assert_eq!(
            (at(&index, 9), at(&index, 19), at(&index, 29), at(&index, 30)),
            (None, Some(old), Some(last), None)
        );
        assert_eq!(index.insert(10, block(new)), Some(old));
        assert_eq!((at(&index, 19), index.identities(), index.end()), (Some(new), 6, 30));
        assert_eq!(index.files.take_empty(), [1]);
        assert_eq!((index.remove(20), index.remove(20)), (Some(last), None));
        assert_eq!((at(&index, 29), index.identities(), index.end()), (None, 3, 20));
    }
}
