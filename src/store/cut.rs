//! Removes identities: from an offset to the end, single ones, from the front (expiry), or all of them.

use super::engine::{Engine, WindowChange};
use super::entry::FoundBlock;
use super::index::{BlockIndex, Covering};
use super::parts::EncodedBlock;
use super::segments::Readers;
use crate::dedupe::{Block, Identity, Offset};
use crate::ports::{Head, StoreError};

/// Removes every owner at or beyond `from` and calls `on_removed` for each, by descending block.
///
/// If the head confirms more than remains, it is lowered first. Then blocks are removed from the end backwards, so that a
/// crash always leaves a prefix.
pub(super) fn truncate(
    engine: &Engine,
    index: &mut BlockIndex,
    from: Offset,
    on_removed: &mut dyn FnMut(Offset, Identity),
) -> Result<(), StoreError> {
    let Some(head) = index.head else { return Ok(()) };
    let mut change = WindowChange::default();
    let mut readers = Readers::default();
    for found in index.blocks_from(0).rev().take_while(|found| found.entry.next > from) {
        let bytes = engine.bytes(&found, &mut readers)?;
        let visit = |owner, identity| {
            if owner >= from {
                on_removed(owner, identity);
            }
        };
        let bad = |cause| engine.bad_block(&found, &cause);
        engine.view(&found, &bytes)?.for_each(visit).map_err(bad)?;
        if found.first < from {
            let mut block = Block::decode(&bytes).map_err(bad)?;
            block.entries.truncate(block.entries.partition_point(|(owner, _)| *owner < from));
            block.next = from;
            change.insert.push(in_place_of(&found, &block));
        } else {
            change.remove.push(found.first);
        }
    }
    let lowered = head.lowered(from);
    if lowered != head {
        engine.commit(index, WindowChange::head(lowered))?;
    }
    engine.commit(index, change)
}

/// Rewrites the blocks of these owners without them. The head is written last: after a crash before that, the old
/// head still shows that identities have to be forgotten.
pub(super) fn forget(
    engine: &Engine,
    index: &mut BlockIndex,
    owners: &[Offset],
    head: Head,
) -> Result<(), StoreError> {
    for owner in owners {
        let Some(Covering { found, .. }) = index.block_of(*owner) else { continue };
        let mut block = engine.block(&found)?;
        block.entries.retain(|(offset, _)| offset != owner);
        let insert = vec![in_place_of(&found, &block)];
        engine.commit(index, WindowChange { insert, ..WindowChange::default() })?;
    }
    engine.commit(index, WindowChange::head(head))
}

/// A smaller block that replaces a stored one. A filed block stays settled even if it is now small, because waiting
/// blocks follow all filed ones.
fn in_place_of(found: &FoundBlock, block: &Block) -> EncodedBlock {
    EncodedBlock { goes_to_file: found.entry.location().is_some(), ..EncodedBlock::new(block) }
}

/// Removes, from the front, at most `most` of the blocks that cover no offset at or beyond `first`. Returns their number.
pub(super) fn expire(
    engine: &Engine,
    index: &mut BlockIndex,
    first: Offset,
    most: usize,
) -> Result<usize, StoreError> {
    let expired = index.blocks_from(0).take_while(|found| found.entry.next <= first);
    let remove: Vec<_> = expired.map(|found| found.first).take(most).collect();
    let count = remove.len();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    Ok(count)
}

/// Removes all blocks and the record. What a crash leaves behind counts as unconfirmed.
pub(super) fn clear(engine: &Engine, index: &mut BlockIndex) -> Result<(), StoreError> {
    if index.head.is_none() {
        return Ok(());
    }
    engine.commit(index, WindowChange::head(Head::default()))?;
    let remove = index.blocks_from(0).rev().map(|found| found.first).collect();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    engine.delete_record(index.window)?;
    *index = BlockIndex::new(index.window);
    Ok(())
}
