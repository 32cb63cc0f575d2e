//! Appends blocks: large blocks are split, small ones are merged.

use std::mem;

use super::engine::{BATCH, Engine, Removal};
use super::joining::MergeBounds;
use super::keys;
use super::segments::Readers;
use super::tail::{BlockMeta, EncodedBlock, Place, Tail, encode_in_parts, merge};
use crate::dedupe::{Block, WindowId};
use crate::ports::{Head, StoreError};

/// Appends a block at or beyond the end. The head is set together with the block's last part.
pub(super) fn append(
    engine: &Engine,
    tail: &mut Tail,
    block: &Block,
    head: Head,
    bounds: MergeBounds,
) -> Result<(), StoreError> {
    let window = block.window;
    if block.first == block.next {
        return engine.commit(window, tail, Some(head), &[], Vec::new());
    }
    let mut encoded = encode_in_parts(block);
    let small = encoded.first().filter(|encoded| encoded.place == Place::Waiting).map(|encoded| encoded.meta);
    let starts_span = |span_ms| tail.starts_span(block.time_first_ms, span_ms);
    if small.is_none() || starts_span(bounds.span_ms) || starts_span(bounds.slice_ms) {
        settle(engine, tail, window)?;
    }
    let mut merged = Vec::new();
    if let Some(meta) = small {
        merged = tail.waiting_blocks.split_off(tail.waiting_blocks.len() - tail.merge_count(&meta));
        if !merged.is_empty() {
            encoded = encode_in_parts(&merged_block(engine, window, &merged, Some(block))?);
        }
    }
    write(engine, tail, window, &merged, encoded, head)?;
    tail.end = block.next;
    tail.oldest_next = tail.oldest_next.min(block.next);
    compact(engine, tail, window)
}

/// Rewrites the live blocks of one file when the window's files contain too many dead bytes.
fn compact(engine: &Engine, tail: &mut Tail, window: WindowId) -> Result<(), StoreError> {
    let Some(file) = tail.files.to_compact() else { return Ok(()) };
    tail.files.close_current();
    let (mut readers, mut blocks) = (Readers::default(), engine.blocks(Place::Settled, window));
    let mut moved: (Vec<Removal>, Vec<EncodedBlock>) = Default::default();
    while let Some(found) = blocks.next()? {
        let removal = found.removal();
        if removal.entry.is_none_or(|entry| entry.file != file) {
            continue;
        }
        let bytes = engine.bytes(&found, &mut readers)?;
        let meta = BlockMeta::of(&engine.trusted(window, &bytes)?, bytes.len());
        moved.1.push(EncodedBlock { place: Place::Settled, key: removal.key, bytes: bytes.to_vec(), meta });
        moved.0.push(removal);
        if moved.0.len() == BATCH / 2 - 1 {
            let (removed, encoded) = mem::take(&mut moved);
            engine.commit(window, tail, None, &removed, encoded)?;
        }
    }
    let (removed, encoded) = moved;
    if !removed.is_empty() {
        engine.commit(window, tail, None, &removed, encoded)?;
    }
    // Blocks that were durable in the old file must be durable in the new one before the old file is deleted.
    engine.durable(engine.segments.sync())
}

/// Merges the waiting blocks into one settled block.
fn settle(engine: &Engine, tail: &mut Tail, window: WindowId) -> Result<(), StoreError> {
    let waiting_blocks = mem::take(&mut tail.waiting_blocks);
    if waiting_blocks.is_empty() {
        return Ok(());
    }
    let mut encoded = encode_in_parts(&merged_block(engine, window, &waiting_blocks, None)?);
    for encoded in &mut encoded {
        encoded.place = Place::Settled;
    }
    engine.commit(window, tail, None, &removals(window, &waiting_blocks), encoded)
}

fn merged_block(
    engine: &Engine,
    window: WindowId,
    waiting_blocks: &[BlockMeta],
    new: Option<&Block>,
) -> Result<Block, StoreError> {
    let mut blocks = Vec::with_capacity(waiting_blocks.len() + 1);
    for meta in waiting_blocks {
        blocks.push(engine.waiting_block(window, meta.first)?);
    }
    blocks.extend(new.cloned());
    merge(blocks).ok_or_else(|| engine.damaged("merge", "no blocks to merge"))
}

fn removals(window: WindowId, waiting_blocks: &[BlockMeta]) -> Vec<Removal> {
    let removal = |meta: &BlockMeta| Removal {
        place: Place::Waiting,
        key: keys::block(window, meta.first),
        identities: meta.identities,
        entry: None,
    };
    waiting_blocks.iter().map(removal).collect()
}

/// Writes the parts of a block. The first batch also removes the merged blocks, and the last one sets the head. Only
/// blocks of about 100 parts need more than one batch, and such blocks are never merged. A crash between batches
/// leaves parts beyond the old head, like any crash before a commit.
fn write(
    engine: &Engine,
    tail: &mut Tail,
    window: WindowId,
    merged: &[BlockMeta],
    encoded: Vec<EncodedBlock>,
    head: Head,
) -> Result<(), StoreError> {
    let mut remove = removals(window, merged);
    let mut rest = encoded.into_iter().peekable();
    while rest.peek().is_some() {
        let room = BATCH - 1 - remove.len();
        let batch: Vec<_> = rest.by_ref().take(room).collect();
        let waits = batch.iter().find(|encoded| encoded.place == Place::Waiting).map(|encoded| encoded.meta);
        let head = rest.peek().is_none().then_some(head);
        engine.commit(window, tail, head, &remove, batch)?;
        remove.clear();
        tail.waiting_blocks.extend(waits);
    }
    Ok(())
}
