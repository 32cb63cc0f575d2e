//! Reading everything once, before anything is believed.

use std::collections::{BTreeSet, HashMap};

use sled::Tree;

use super::engine::Engine;
use super::entry::Entry;
use super::error::needs_operator;
use super::keys;
use super::open::Refusal;
use super::record::Record;
use super::segments::{Readers, Segments};
use super::tail::Place;
use crate::dedupe::{BlockView, HashKind, Offset, PartitionId};

/// A sign of life is given every so many entries.
const STRIDE: u64 = 256;

/// What has been seen of a partition.
#[derive(Default)]
struct Seen {
    record: Option<Record>,
    blocks: u64,
    identities: u64,
    next: Offset,
}

/// Checks every block (key, checksum, hash, order), that look-ups find it, and that each partition's record counts exactly
/// the blocks and identities that are there. Stops at the first thing wrong and says it. Gives the files
/// that are in use.
pub(super) fn verify(engine: &Engine, alive: &dyn Fn()) -> Result<BTreeSet<u32>, Refusal> {
    let mut partitions: HashMap<PartitionId, Seen> = HashMap::new();
    let mut used = BTreeSet::new();
    let mut readers = Readers::default();
    for (place, tree) in [(Place::Settled, &engine.settled), (Place::Waiting, &engine.waiting)] {
        let mut before: Option<sled::IVec> = None;
        for (number, entry) in (0u64..).zip(tree.iter()) {
            if number.is_multiple_of(STRIDE) {
                alive();
            }
            let (key, value) = entry?;
            reachable(tree, &key, &value)?;
            // Rising keys also mean that an engine running in circles comes to an end here.
            if before.as_ref().is_some_and(|before| *before >= key) {
                return Err("keys are out of order".into());
            }
            if let Some(partition) = keys::parse_record(&key) {
                let record = Record::decode(partition, &value)
                    .ok_or_else(|| format!("the record of partition {partition} is damaged"))?;
                partitions.entry(partition).or_default().record = Some(record);
            } else {
                let at = keys::parse_block(&key).ok_or("a key is damaged")?;
                let seen = partitions.entry(at.0).or_default();
                let bytes = match place {
                    Place::Waiting => value,
                    Place::Settled => filed(at, &value, (&engine.segments, &mut readers), &mut used)?,
                };
                check(seen, &bytes, (at.0, at.1, engine.hash)).map_err(|cause| wrong(at, &cause))?;
            }
            before = Some(key);
        }
    }
    partitions.iter().try_for_each(|(partition, seen)| complete(*partition, seen))?;
    Ok(used)
}

fn wrong((partition, first): (PartitionId, Offset), cause: &str) -> String {
    format!("block of partition {partition} at {first}: {cause}")
}

/// The bytes of a settled block.
fn filed(
    at: (PartitionId, Offset),
    entry: &[u8],
    (segments, readers): (&Segments, &mut Readers),
    used: &mut BTreeSet<u32>,
) -> Result<sled::IVec, Refusal> {
    let entry = Entry::decode(entry).ok_or_else(|| wrong(at, "its entry is damaged"))?;
    let bytes = readers.read(segments, &entry).map_err(|cause| {
        let told = wrong(at, &format!("file {}: {cause}", entry.file));
        if needs_operator(&cause) { Refusal::Disk(cause) } else { told.into() }
    })?;
    entry.verified(at, bytes).map_err(|cause| wrong(at, &cause))?;
    used.insert(entry.file);
    Ok(bytes.into())
}

/// After one flipped bit a tree was seen whose entries a walk finds and a look-up does not, because
/// its index led into another tree. So every entry is looked for in the ways that it will be.
fn reachable(tree: &Tree, key: &sled::IVec, bytes: &sled::IVec) -> Result<(), String> {
    let found = tree.get(key).map_err(|e| e.to_string())?;
    let last = tree.range::<&[u8], _>(..=&**key).next_back().transpose().map_err(|e| e.to_string())?;
    if found.as_ref() == Some(bytes) && last.is_some_and(|(last, _)| last == *key) {
        return Ok(());
    }
    Err("the engine's index does not lead to all entries".to_owned())
}

fn check(seen: &mut Seen, bytes: &[u8], expected: (PartitionId, Offset, HashKind)) -> Result<(), String> {
    let view = BlockView::verified(bytes).map_err(|e| e.to_string())?;
    let header = &view.header;
    if (header.partition, header.first, header.hash) != expected {
        return Err("it is another block".to_owned());
    }
    if seen.next > header.first {
        return Err("it overlaps the one before".to_owned());
    }
    seen.next = header.next;
    seen.blocks += 1;
    seen.identities += view.count() as u64;
    Ok(())
}

fn complete(partition: PartitionId, seen: &Seen) -> Result<(), String> {
    let record = seen.record.unwrap_or_default();
    if (record.blocks, record.identities) == (seen.blocks, seen.identities) {
        return Ok(());
    }
    Err(format!(
        "partition {partition} should have {} blocks with {} identities and has {} with {}",
        record.blocks, record.identities, seen.blocks, seen.identities
    ))
}
