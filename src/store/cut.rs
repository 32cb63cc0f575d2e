//! Removing blocks: from the end at an offset, from the front by expiry, or all of them.

use super::engine::{BATCH, Engine, Removal};
use super::segments::Readers;
use super::tail::{Packed, Place, Tail};
use crate::dedupe::{Block, Coordinates, Identity, Offset, PartitionId};
use crate::ports::{Head, StoreError};

/// Removes every owner at or beyond `from` and shows each to `gone`, by falling block.
///
/// From the end backwards, so that what remains after a crash is a prefix. A head that confirms
/// more than remains is lowered with the first batch: the blocks beyond `from` are then to be had
/// from the start of the state topic, unless the caller knows better and sets a head.
pub(super) fn cut(
    engine: &Engine,
    tail: &mut Tail,
    partition: PartitionId,
    from: Offset,
    gone: &mut dyn FnMut(Offset, Identity),
) -> Result<(), StoreError> {
    let Some(record) = tail.record else { return Ok(()) };
    let head = lowered(record.head, from);
    let mut remove: Vec<Removal> = Vec::new();
    let mut keep = None;
    let mut readers = Readers::default();
    for place in [Place::Waiting, Place::Settled] {
        let mut blocks = engine.walk(place, partition);
        while let Some(found) = blocks.next_back()?.filter(|found| found.next > from) {
            let bytes = engine.bytes(&found, &mut readers)?;
            let visit = |owner, identity| {
                if owner >= from {
                    gone(owner, identity);
                }
            };
            let bad = |cause| engine.bad_block(partition, found.first, &cause);
            engine.trusted(partition, &bytes)?.for_each(visit).map_err(bad)?;
            remove.push(found.removal());
            if found.first < from {
                keep = Some(Packed { place, ..front(Block::decode(&bytes).map_err(bad)?, from) });
                break;
            }
        }
    }
    // In each batch one operation is left for the record and one for what is kept of a split block.
    let mut batches = remove.chunks(BATCH - 2).peekable();
    if batches.peek().is_none() && head != record.head {
        return engine.commit(partition, tail, Some(head), &[], Vec::new());
    }
    while let Some(batch) = batches.next() {
        let kept = if batches.peek().is_none() { keep.take() } else { None };
        engine.commit(partition, tail, Some(head), batch, kept.into_iter().collect())?;
    }
    engine.look_at_end(partition, tail)
}

/// What remains true of a head when everything at or beyond `from` is gone.
pub(super) fn lowered(head: Head, from: Offset) -> Head {
    // A tail names a block that must be there whole.
    let is_left = |tail: &(u32, Offset)| tail.1 <= from;
    let settled = head.settled.filter(is_left);
    let head = Head { tail: head.tail.filter(is_left).or(settled), settled, ..head };
    if head.confirmed > from { Head { confirmed: from, state_next: 0, ..head } } else { head }
}

/// The part of a block below `from`.
fn front(mut block: Block, from: Offset) -> Packed {
    block.entries.truncate(block.entries.partition_point(|(owner, _)| *owner < from));
    block.next = from;
    Packed::new(&block)
}

/// Writes the blocks of these owners anew without them. The head comes with the last one: after a crash
/// in between, the one before still says that something is missing.
pub(super) fn forget(
    engine: &Engine,
    partition: PartitionId,
    owners: &[Offset],
    head: Head,
) -> Result<(), StoreError> {
    for owner in owners {
        let at = Coordinates { partition, offset: *owner };
        let Some(found) = engine.block_of(at)? else { continue };
        let bytes = engine.bytes(&found, &mut Readers::default())?;
        let bad = |cause| engine.bad_block(partition, found.first, &cause);
        let mut block = Block::decode(&bytes).map_err(bad)?;
        block.entries.retain(|(offset, _)| offset != owner);
        let mut tail = engine.take_tail(partition)?;
        // Where it stood, though it may now be small: a reader looks for an owner in one place only.
        let smaller = Packed { place: found.place(), ..Packed::new(&block) };
        engine.commit(partition, &mut tail, None, &[found.removal()], vec![smaller])?;
        // The measures of what was rewritten.
        engine.look_at_end(partition, &mut tail)?;
        engine.put_tail(partition, tail);
    }
    let mut tail = engine.take_tail(partition)?;
    engine.commit(partition, &mut tail, Some(head), &[], Vec::new())?;
    engine.put_tail(partition, tail);
    Ok(())
}

/// Removes the blocks that cover nothing at or beyond `first`, from the front.
pub(super) fn expire(
    engine: &Engine,
    tail: &mut Tail,
    partition: PartitionId,
    first: Offset,
) -> Result<(), StoreError> {
    let mut remove: Vec<Removal> = Vec::new();
    let mut oldest_next = Offset::MAX;
    for place in [Place::Settled, Place::Waiting] {
        let mut blocks = engine.walk(place, partition);
        while let Some(found) = blocks.next()? {
            if found.next > first {
                oldest_next = oldest_next.min(found.next);
                break;
            }
            remove.push(found.removal());
        }
    }
    for batch in remove.chunks(BATCH - 1) {
        engine.commit(partition, tail, None, batch, Vec::new())?;
    }
    tail.pieces.retain(|piece| piece.next > first);
    tail.oldest_next = oldest_next;
    Ok(())
}

/// Removes all blocks and the record. What a crash leaves half done counts as unconfirmed.
pub(super) fn clear(engine: &Engine, partition: PartitionId) -> Result<(), StoreError> {
    let mut tail = engine.take_tail(partition)?;
    if tail.record.is_none() {
        return Ok(());
    }
    let mut remove: Vec<Removal> = Vec::new();
    for place in [Place::Waiting, Place::Settled] {
        let mut blocks = engine.walk(place, partition);
        while let Some(found) = blocks.next_back()? {
            remove.push(found.removal());
        }
    }
    for batch in remove.chunks(BATCH - 1) {
        engine.commit(partition, &mut tail, Some(Head::default()), batch, Vec::new())?;
    }
    engine.call("write", || engine.waiting.remove(partition.to_be_bytes()))?;
    Ok(())
}
