//! Verifies a whole database before it is used, and builds the indexes in memory.

use std::collections::HashMap;

use sled::{IVec, Tree};

use super::engine::Engine;
use super::entry::{BlockEntry, BlockPlace, FoundBlock};
use super::error::needs_operator;
use super::index::{BlockIndex, Indexed};
use super::keys;
use super::open::OpenFailure;
use super::record::WindowRecord;
use super::segments::Readers;
use crate::dedupe::{BlockView, Offset, WindowId};

/// Progress is reported once per this many entries.
const PROGRESS_INTERVAL: u64 = 256;

/// Verifies every block (key, checksum, hash, order), that look-ups find it, and that each window's record has the
/// right counts of blocks and identities. Returns the first error found, or the indexes of all windows.
pub(super) fn verify(
    engine: &Engine,
    report_progress: &dyn Fn(),
) -> Result<HashMap<WindowId, BlockIndex>, OpenFailure> {
    let mut windows: HashMap<WindowId, (BlockIndex, WindowRecord)> = HashMap::new();
    let nothing = |window| (BlockIndex::new(window), WindowRecord::default());
    let mut readers = Readers::default();
    for tree in [&engine.entries, &engine.waiting] {
        each_entry(tree, report_progress, |key, value| {
            if let Some(window) = keys::parse_record(&key) {
                let (index, record) = windows.entry(window).or_insert_with(|| nothing(window));
                *record = WindowRecord::decode(window, &value).ok_or_else(|| {
                    format!("the record of partition {window} is damaged or of another version")
                })?;
                index.head = Some(record.head);
                return Ok(());
            }
            let (window, first) = keys::parse_block(&key).ok_or("a key is damaged")?;
            let (index, _) = windows.entry(window).or_insert_with(|| nothing(window));
            let block = check_block(engine, (tree, &value), (window, first), &mut readers)?;
            if index.end() > first {
                return Err(block_error((window, first), "it overlaps the previous block").into());
            }
            index.insert(first, block);
            Ok(())
        })?;
    }
    let checked = windows.into_iter().map(|(window, (index, record))| {
        check_counts(window, &index.record(), &record)?;
        Ok((window, index))
    });
    checked.collect()
}

/// Visits all entries of a tree in the order of their keys. Returns the first error found.
pub(super) fn each_entry(
    tree: &Tree,
    report_progress: &dyn Fn(),
    mut visit: impl FnMut(IVec, IVec) -> Result<(), OpenFailure>,
) -> Result<(), OpenFailure> {
    let mut before: Option<IVec> = None;
    for (number, item) in (0u64..).zip(tree.iter()) {
        if number.is_multiple_of(PROGRESS_INTERVAL) {
            report_progress();
        }
        let (key, value) = item?;
        // After one flipped bit, an iteration of a tree found entries that a look-up did not find, because the tree's
        // index led into another tree. So every entry is looked up.
        if tree.get(&key)?.as_ref() != Some(&value) {
            return Err("the engine's index does not lead to all entries".into());
        }
        // Requiring ascending keys also ends the loop if the engine iterates in a cycle.
        if before.as_ref().is_some_and(|before| *before >= key) {
            return Err("keys are out of order".into());
        }
        before = Some(key.clone());
        visit(key, value)?;
    }
    Ok(())
}

fn block_error((window, first): (WindowId, Offset), cause: &str) -> String {
    format!("block of partition {window} at {first}: {cause}")
}

/// Verifies a block and returns what the index keeps of it. The stored value is the entry of a filed block, or a waiting block.
fn check_block(
    engine: &Engine,
    (tree, value): (&Tree, &[u8]),
    at: (WindowId, Offset),
    readers: &mut Readers,
) -> Result<Indexed, OpenFailure> {
    let bad = |cause: &str| block_error(at, cause);
    let stored = if *tree.name() == *keys::ENTRIES.as_bytes() {
        Some(BlockEntry::decode(value).ok_or_else(|| bad("its entry is damaged"))?)
    } else {
        None
    };
    let bytes = match stored.and_then(|entry| Some((entry, entry.location()?))) {
        None => value,
        Some((entry, location)) => readers.read(&engine.segments, &entry, location).map_err(|cause| {
            let message = bad(&format!("file {}: {cause}", location.file));
            if needs_operator(&cause) { OpenFailure::Disk(cause) } else { message.into() }
        })?,
    };
    let view = BlockView::verified(bytes).map_err(|e| bad(&e.to_string()))?;
    let waiting = BlockEntry::of(&view, BlockPlace::Waiting { time_ms: view.header.time_first_ms });
    let found = FoundBlock { window: at.0, first: at.1, entry: stored.unwrap_or(waiting) };
    if !found.is(&view) || view.header.hash != engine.binding.hash {
        return Err(bad("the bytes are those of another block").into());
    }
    Ok(Indexed::stored(found.entry, &view))
}

fn check_counts(window: WindowId, counted: &WindowRecord, record: &WindowRecord) -> Result<(), OpenFailure> {
    if (record.blocks, record.identities) == (counted.blocks, counted.identities) {
        return Ok(());
    }
    Err(OpenFailure::Unusable(format!(
        "partition {window} should have {} blocks with {} identities but has {} with {}",
        record.blocks, record.identities, counted.blocks, counted.identities
    )))
}
