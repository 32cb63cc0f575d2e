//! Verifies a whole database before it is used.

use std::collections::{BTreeSet, HashMap};

use sled::Tree;

use super::engine::Engine;
use super::entry::Entry;
use super::error::needs_operator;
use super::keys;
use super::open::OpenFailure;
use super::record::Record;
use super::segments::{Readers, Segments};
use super::tail::Place;
use crate::dedupe::{BlockView, HashKind, Offset, WindowId};

/// Progress is reported once per this many entries.
const PROGRESS_INTERVAL: u64 = 256;

/// What was counted for one window.
#[derive(Default)]
struct Counted {
    record: Option<Record>,
    blocks: u64,
    identities: u64,
    next: Offset,
}

/// Verifies every block (key, checksum, hash, order), that look-ups find it, and that each window's record has the
/// right counts of blocks and identities. Returns the first error found, or the block files in use.
pub(super) fn verify(engine: &Engine, report_progress: &dyn Fn()) -> Result<BTreeSet<u32>, OpenFailure> {
    let mut partitions: HashMap<WindowId, Counted> = HashMap::new();
    let mut used = BTreeSet::new();
    let mut readers = Readers::default();
    for (place, tree) in [(Place::Settled, &engine.settled), (Place::Waiting, &engine.waiting)] {
        let mut before: Option<sled::IVec> = None;
        for (number, entry) in (0u64..).zip(tree.iter()) {
            if number.is_multiple_of(PROGRESS_INTERVAL) {
                report_progress();
            }
            let (key, value) = entry?;
            check_reachable(tree, &key, &value)?;
            // Requiring ascending keys also ends the loop if the engine iterates in a cycle.
            if before.as_ref().is_some_and(|before| *before >= key) {
                return Err("keys are out of order".into());
            }
            if let Some(window) = keys::parse_record(&key) {
                let record = Record::decode(window, &value)
                    .ok_or_else(|| format!("the record of partition {window} is damaged"))?;
                partitions.entry(window).or_default().record = Some(record);
            } else {
                let at = keys::parse_block(&key).ok_or("a key is damaged")?;
                let counted = partitions.entry(at.0).or_default();
                let bytes = match place {
                    Place::Waiting => value,
                    Place::Settled => settled_bytes(at, &value, (&engine.segments, &mut readers), &mut used)?,
                };
                check_block(counted, &bytes, (at.0, at.1, engine.hash))
                    .map_err(|cause| block_error(at, &cause))?;
            }
            before = Some(key);
        }
    }
    partitions.iter().try_for_each(|(window, counted)| check_counts(*window, counted))?;
    Ok(used)
}

fn block_error((window, first): (WindowId, Offset), cause: &str) -> String {
    format!("block of partition {window} at {first}: {cause}")
}

/// Reads and verifies the bytes of a settled block.
fn settled_bytes(
    at: (WindowId, Offset),
    entry: &[u8],
    (segments, readers): (&Segments, &mut Readers),
    used: &mut BTreeSet<u32>,
) -> Result<sled::IVec, OpenFailure> {
    let entry = Entry::decode(entry).ok_or_else(|| block_error(at, "its entry is damaged"))?;
    let bytes = readers.read(segments, &entry).map_err(|cause| {
        let message = block_error(at, &format!("file {}: {cause}", entry.file));
        if needs_operator(&cause) { OpenFailure::Disk(cause) } else { message.into() }
    })?;
    entry.verified(at, bytes).map_err(|cause| block_error(at, &cause))?;
    used.insert(entry.file);
    Ok(bytes.into())
}

/// After one flipped bit, an iteration of a tree found entries that a look-up did not find, because the tree's index
/// led into another tree. So every entry is looked up in each way that is used later.
fn check_reachable(tree: &Tree, key: &sled::IVec, bytes: &sled::IVec) -> Result<(), String> {
    let found = tree.get(key).map_err(|e| e.to_string())?;
    let last = tree.range::<&[u8], _>(..=&**key).next_back().transpose().map_err(|e| e.to_string())?;
    if found.as_ref() == Some(bytes) && last.is_some_and(|(last, _)| last == *key) {
        return Ok(());
    }
    Err("the engine's index does not lead to all entries".to_owned())
}

fn check_block(
    counted: &mut Counted,
    bytes: &[u8],
    expected: (WindowId, Offset, HashKind),
) -> Result<(), String> {
    let view = BlockView::verified(bytes).map_err(|e| e.to_string())?;
    let header = &view.header;
    if (header.window, header.first, header.hash) != expected {
        return Err("the bytes are those of another block".to_owned());
    }
    if counted.next > header.first {
        return Err("it overlaps the previous block".to_owned());
    }
    counted.next = header.next;
    counted.blocks += 1;
    counted.identities += view.count() as u64;
    Ok(())
}

fn check_counts(window: WindowId, counted: &Counted) -> Result<(), String> {
    let record = counted.record.unwrap_or_default();
    if (record.blocks, record.identities) == (counted.blocks, counted.identities) {
        return Ok(());
    }
    Err(format!(
        "partition {window} should have {} blocks with {} identities but has {} with {}",
        record.blocks, record.identities, counted.blocks, counted.identities
    ))
}
