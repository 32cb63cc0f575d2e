//! Appends blocks: large blocks are split, small ones are merged.

use std::borrow::Cow;
use std::mem;

use super::cut::truncate;
use super::engine::{BATCH, Engine, WindowChange};
use super::entry::FoundBlock;
use super::index::{BlockIndex, merge_count, starts_span};
use super::joining::MergeSpan;
use super::parts::{EncodedBlock, encode_in_parts, fits_with, merge, merge_into};
use super::segments::Readers;
use crate::dedupe::{Block, Offset};
use crate::ports::{Head, StoreError};

/// Appends blocks, which replace everything at or beyond the first offset. The head is set together with the last part of
/// the last block. Returns whether the blocks of a file were rewritten, so that the file is no longer read.
pub(super) fn append(
    engine: &Engine,
    index: &mut BlockIndex,
    blocks: &[Block],
    head: Head,
    bounds: MergeSpan,
) -> Result<bool, StoreError> {
    if let Some(block) = blocks.first().filter(|block| block.first < index.end()) {
        truncate(engine, index, block.first, &mut |_, _| ())?;
    }
    let mut joined = join(blocks, bounds).into_iter().peekable();
    while let Some(block) = joined.next() {
        let head = joined.peek().is_none().then_some(head);
        append_one(engine, index, &block, head, bounds)?;
    }
    compact(engine, index)
}

/// Joins neighbouring blocks until they fill a stored block, within the spans in which waiting blocks are merged: the result
/// is the same as if each block had been appended alone, but an identity is written once.
fn join(blocks: &[Block], bounds: MergeSpan) -> Vec<Cow<'_, Block>> {
    let mut joined: Vec<Cow<'_, Block>> = Vec::new();
    for block in blocks {
        let is_joined = |last: &Block| {
            !bounds.separates(last.time_first_ms, block.time_first_ms) && fits_with(last, block)
        };
        match joined.last_mut().filter(|last| is_joined(last)) {
            Some(last) => merge_into(last.to_mut(), block),
            None => joined.push(Cow::Borrowed(block)),
        }
    }
    joined
}

/// Appends one block at the end. Only blocks of about 100 parts need more than one batch, and such blocks are never merged.
/// A crash between batches leaves parts beyond the old head, like any crash before a commit.
fn append_one(
    engine: &Engine,
    index: &mut BlockIndex,
    block: &Block,
    head: Option<Head>,
    bounds: MergeSpan,
) -> Result<(), StoreError> {
    if block.first == block.next {
        return engine.commit(index, WindowChange { head, ..WindowChange::default() });
    }
    let mut insert = encode_in_parts(block);
    let mut waiting = index.waiting();
    let small = insert.first().filter(|first| !first.goes_to_file);
    if small.is_none() || starts_span(&waiting, block.time_first_ms, bounds) {
        merge_waiting(engine, index, &mem::take(&mut waiting))?;
    }
    let merged = waiting.split_off(waiting.len() - small.map_or(0, |small| merge_count(&waiting, small)));
    if !merged.is_empty() {
        insert = merged_parts(engine, &merged, Some(block))?;
    }
    engine.commit(index, WindowChange { head, remove: firsts(&merged), insert })
}

/// Rewrites the live blocks of one file when the window's files contain too many dead bytes. Returns whether it did. Each
/// commit makes the new blocks durable before sled refers to them, and the old file is deleted after that.
fn compact(engine: &Engine, index: &mut BlockIndex) -> Result<bool, StoreError> {
    let Some(file) = index.files.to_compact() else { return Ok(false) };
    index.files.close_current();
    let is_in_file =
        |found: &FoundBlock| found.entry.location().is_some_and(|location| location.file == file);
    let blocks: Vec<FoundBlock> = index.blocks_from(0).filter(is_in_file).collect();
    let mut readers = Readers::default();
    for some in blocks.chunks(BATCH / 2) {
        let mut insert = Vec::with_capacity(some.len());
        for found in some {
            let bytes = engine.bytes(found, &mut readers)?;
            let view = engine.view(found, &bytes)?;
            insert.push(EncodedBlock::of(&view.header, view.count(), bytes.to_vec()));
        }
        engine.commit(index, WindowChange { insert, ..WindowChange::default() })?;
    }
    Ok(true)
}

/// Merges the waiting blocks into one filed block.
fn merge_waiting(engine: &Engine, index: &mut BlockIndex, waiting: &[FoundBlock]) -> Result<(), StoreError> {
    let mut insert = merged_parts(engine, waiting, None)?;
    for part in &mut insert {
        part.goes_to_file = true;
    }
    engine.commit(index, WindowChange { head: None, remove: firsts(waiting), insert })
}

/// The parts of the block that these waiting blocks and a new one make together.
fn merged_parts(
    engine: &Engine,
    waiting: &[FoundBlock],
    new: Option<&Block>,
) -> Result<Vec<EncodedBlock>, StoreError> {
    let mut blocks = Vec::with_capacity(waiting.len() + 1);
    for found in waiting {
        blocks.push(engine.block(found)?);
    }
    blocks.extend(new.cloned());
    Ok(merge(blocks).map_or_else(Vec::new, |whole| encode_in_parts(&whole)))
}

fn firsts(waiting: &[FoundBlock]) -> Vec<Offset> {
    waiting.iter().map(|found| found.first).collect()
}
