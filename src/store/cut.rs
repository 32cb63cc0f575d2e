//! Removes blocks: from an offset to the end, from the front (expiry), or all of them.

use super::engine::{BATCH, Engine, Removal};
use super::segments::Readers;
use super::tail::{EncodedBlock, Place, Tail};
use crate::dedupe::{Block, Identity, Offset, WindowId};
use crate::ports::{Head, StoreError};

/// Removes every owner at or beyond `from` and calls `on_removed` for each, by descending block.
///
/// Blocks are removed from the end backwards, so that a crash always leaves a prefix. If the head confirms more than
/// remains, the first batch lowers it: the blocks beyond `from` are then read from the start of the state topic,
/// unless the caller has a better position and sets the head.
pub(super) fn truncate(
    engine: &Engine,
    tail: &mut Tail,
    window: WindowId,
    from: Offset,
    on_removed: &mut dyn FnMut(Offset, Identity),
) -> Result<(), StoreError> {
    let Some(record) = tail.record else { return Ok(()) };
    let head = record.head.lowered(from);
    let mut remove: Vec<Removal> = Vec::new();
    let mut keep = None;
    let mut readers = Readers::default();
    for place in [Place::Waiting, Place::Settled] {
        let mut blocks = engine.blocks(place, window);
        while let Some(found) = blocks.next_back()?.filter(|found| found.next > from) {
            let bytes = engine.bytes(&found, &mut readers)?;
            let visit = |owner, identity| {
                if owner >= from {
                    on_removed(owner, identity);
                }
            };
            let bad = |cause| engine.bad_block(window, found.first, &cause);
            engine.trusted(window, &bytes)?.for_each(visit).map_err(bad)?;
            remove.push(found.removal());
            if found.first < from {
                keep = Some(EncodedBlock { place, ..front_of(Block::decode(&bytes).map_err(bad)?, from) });
                break;
            }
        }
    }
    // Each batch reserves one operation for the record and one for the remaining part of a split block.
    let mut batches = remove.chunks(BATCH - 2).peekable();
    if batches.peek().is_none() && head != record.head {
        return engine.commit(window, tail, Some(head), &[], Vec::new());
    }
    while let Some(batch) = batches.next() {
        let kept = if batches.peek().is_none() { keep.take() } else { None };
        engine.commit(window, tail, Some(head), batch, kept.into_iter().collect())?;
    }
    engine.reload_end(window, tail)
}

/// The part of a block below `from`.
fn front_of(mut block: Block, from: Offset) -> EncodedBlock {
    block.entries.truncate(block.entries.partition_point(|(owner, _)| *owner < from));
    block.next = from;
    EncodedBlock::new(&block)
}

/// Rewrites the blocks of these owners without them. The head is written last: after a crash before that, the old
/// head still shows that identities have to be forgotten.
pub(super) fn forget(
    engine: &Engine,
    window: WindowId,
    owners: &[Offset],
    head: Head,
) -> Result<(), StoreError> {
    for owner in owners {
        let Some(found) = engine.block_of(window, *owner)? else { continue };
        let bytes = engine.bytes(&found, &mut Readers::default())?;
        let bad = |cause| engine.bad_block(window, found.first, &cause);
        let mut block = Block::decode(&bytes).map_err(bad)?;
        block.entries.retain(|(offset, _)| offset != owner);
        let mut tail = engine.take_tail(window)?;
        // The rewritten block stays in its tree even if it is now small: a reader looks for an owner in one tree
        // only.
        let smaller = EncodedBlock { place: found.place(), ..EncodedBlock::new(&block) };
        engine.commit(window, &mut tail, None, &[found.removal()], vec![smaller])?;
        // Reload the metadata of the rewritten block.
        engine.reload_end(window, &mut tail)?;
        engine.put_tail(window, tail);
    }
    let mut tail = engine.take_tail(window)?;
    engine.commit(window, &mut tail, Some(head), &[], Vec::new())?;
    engine.put_tail(window, tail);
    Ok(())
}

/// Removes, from the front, the blocks that cover no offset at or beyond `first`.
pub(super) fn expire(
    engine: &Engine,
    tail: &mut Tail,
    window: WindowId,
    first: Offset,
) -> Result<(), StoreError> {
    let mut remove: Vec<Removal> = Vec::new();
    let mut oldest_next = Offset::MAX;
    for place in [Place::Settled, Place::Waiting] {
        let mut blocks = engine.blocks(place, window);
        while let Some(found) = blocks.next()? {
            if found.next > first {
                oldest_next = oldest_next.min(found.next);
                break;
            }
            remove.push(found.removal());
        }
    }
    for batch in remove.chunks(BATCH - 1) {
        engine.commit(window, tail, None, batch, Vec::new())?;
    }
    tail.waiting_blocks.retain(|meta| meta.next > first);
    tail.oldest_next = oldest_next;
    Ok(())
}

/// Removes all blocks and the record. What a crash leaves behind counts as unconfirmed.
pub(super) fn clear(engine: &Engine, window: WindowId) -> Result<(), StoreError> {
    let mut tail = engine.take_tail(window)?;
    if tail.record.is_none() {
        return Ok(());
    }
    let mut remove: Vec<Removal> = Vec::new();
    for place in [Place::Waiting, Place::Settled] {
        let mut blocks = engine.blocks(place, window);
        while let Some(found) = blocks.next_back()? {
            remove.push(found.removal());
        }
    }
    for batch in remove.chunks(BATCH - 1) {
        engine.commit(window, &mut tail, Some(Head::default()), batch, Vec::new())?;
    }
    engine.call("write", || engine.waiting.remove(window.number().to_be_bytes()))?;
    Ok(())
}
