//! Verifies a whole database before it is used, and builds the indexes in memory.

use std::collections::HashMap;

use sled::{IVec, Tree};

use super::engine::Engine;
use super::error::needs_operator;
use super::index::WindowIndex;
use super::keys;
use super::open::OpenFailure;
use super::record::WindowRecord;
use super::run::Run;
use super::segments::Readers;
use crate::dedupe::{Offset, WindowId};

/// Progress is reported once per this many entries.
const PROGRESS_INTERVAL: u64 = 256;

/// Verifies every run (entry, checksum, order), that look-ups find it, and that each window's record has the
/// right counts of runs and identities. Returns the first error found, or the indexes of all windows.
pub(super) fn verify(
    engine: &Engine,
    report_progress: &dyn Fn(),
) -> Result<HashMap<WindowId, WindowIndex>, OpenFailure> {
    let mut windows: HashMap<WindowId, (WindowIndex, WindowRecord)> = HashMap::new();
    let nothing = |window| (WindowIndex::new(window), WindowRecord::default());
    let mut readers = Readers::default();
    each_entry(&engine.runs, report_progress, |key, value| {
        if let Some(window) = keys::parse_record(&key) {
            let (index, record) = windows.entry(window).or_insert_with(|| nothing(window));
            *record = WindowRecord::decode(window, &value).ok_or_else(|| {
                format!("the record of partition {window} is damaged or of another version")
            })?;
            (index.head, index.missing_ms) = (Some(record.head), record.missing_ms);
            return Ok(());
        }
        let (window, first) = keys::parse_run(&key).ok_or("a key is damaged")?;
        let (index, _) = windows.entry(window).or_insert_with(|| nothing(window));
        let run = check_run(engine, window, first, &value, &mut readers)?;
        if index.end() > first || index.next_number() > run.number {
            return Err(run_error(window, first, "they overlap those before them").into());
        }
        index.insert(run);
        Ok(())
    })?;
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

fn run_error(window: WindowId, first: Offset, cause: &str) -> String {
    format!("owners of partition {window} from {first} on: {cause}")
}

/// Verifies the entry of a run and its owners.
fn check_run(
    engine: &Engine,
    window: WindowId,
    first: Offset,
    value: &[u8],
    readers: &mut Readers,
) -> Result<Run, OpenFailure> {
    let bad = |cause: &str| run_error(window, first, cause);
    let run = Run::decode(window, first, value).ok_or_else(|| bad("their entry is damaged"))?;
    let mut bytes = vec![0; run.bytes()];
    readers.fill(&engine.segments, (run.file, run.at), &mut bytes).map_err(|cause| {
        let message = bad(&format!("file {}: {cause}", run.file));
        if needs_operator(&cause) { OpenFailure::Disk(cause) } else { message.into() }
    })?;
    run.verified(&bytes).map_err(|cause| bad(&cause))?;
    Ok(run)
}

fn check_counts(window: WindowId, counted: &WindowRecord, record: &WindowRecord) -> Result<(), OpenFailure> {
    if (record.runs, record.identities) == (counted.runs, counted.identities) {
        return Ok(());
    }
    Err(OpenFailure::Unusable(format!(
        "partition {window} should have {} runs with {} identities but has {} with {}",
        record.runs, record.identities, counted.runs, counted.identities
    )))
}
