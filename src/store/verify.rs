//! Verifies a whole database before it is used, and builds the indexes in memory.

use std::collections::HashMap;

use sled::{IVec, Tree};

use super::engine::Engine;
use super::error::{is_missing_data, needs_operator};
use super::index::WindowIndex;
use super::keys;
use super::open::OpenFailure;
use super::record::{self, Counts};
use super::run::Run;
use super::segments::Readers;
use crate::dedupe::{Sequence, WindowId};

/// Progress is reported once per this many entries.
const PROGRESS_INTERVAL: u64 = 256;

/// What was verified.
pub(super) struct Verified {
    pub windows: HashMap<WindowId, WindowIndex>,
    /// The windows whose last owners are not in their files.
    pub lost: Vec<LostEnd>,
}

/// The runs at the end of a window whose entries a power loss has kept, and not their owners.
pub(super) struct LostEnd {
    pub window: WindowId,
    /// The first of them.
    pub run: Run,
    /// What is missing.
    pub cause: String,
}

/// A window that is being verified.
struct Checked {
    index: WindowIndex,
    record: Counts,
    lost: Option<LostEnd>,
}

impl Checked {
    fn new(window: WindowId) -> Self {
        Self { index: WindowIndex::new(window), record: Counts::default(), lost: None }
    }
}

/// Verifies every run (entry, checksum, order of numbers), that look-ups find it, and that each window's record has the
/// right counts of runs and identities. Returns the first error found, or the indexes of all windows. The last runs of a window may lack their
/// owners.
pub(super) fn verify(engine: &Engine, report_progress: &dyn Fn()) -> Result<Verified, OpenFailure> {
    let mut windows: HashMap<WindowId, Checked> = HashMap::new();
    let mut readers = Readers::default();
    each_entry(&engine.runs, report_progress, |key, value| {
        if let Some(window) = keys::parse_record(&key) {
            let checked = windows.entry(window).or_insert_with(|| Checked::new(window));
            let record = record::decode(window, &value)
                .ok_or_else(|| format!("the record of journal {window} is damaged or of another version"))?;
            checked.index.head = Some(record.0);
            checked.record = record.1;
            return Ok(());
        }
        let (window, number) = keys::parse_run(&key).ok_or("a key is damaged")?;
        let Checked { index, lost, .. } = windows.entry(window).or_insert_with(|| Checked::new(window));
        let bad = |cause: &str| run_error(window, number, cause);
        let run = Run::decode(window, number, &value).ok_or_else(|| bad("their entry is damaged"))?;
        match (check_owners(engine, window, &run, &mut readers)?, &*lost) {
            // What a power loss takes is at the end.
            (Ok(()), Some(before)) => return Err(before.cause.clone().into()),
            (Err(cause), None) => *lost = Some(LostEnd { window, run: run.clone(), cause }),
            _ => {}
        }
        if index.next_number > number {
            return Err(bad("they overlap those before them").into());
        }
        index.insert(run);
        Ok(())
    })?;
    let mut verified = Verified { windows: HashMap::new(), lost: Vec::new() };
    for (window, Checked { mut index, record, lost }) in windows {
        check_counts(window, &index.counts(), &record)?;
        (index.next_number, index.missing_ms) = (record.next_number, record.missing_ms);
        verified.windows.insert(window, index);
        verified.lost.extend(lost);
    }
    Ok(verified)
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

fn run_error(window: WindowId, number: Sequence, cause: &str) -> String {
    format!("owners of journal {window} from number {number} on: {cause}")
}

/// Verifies the owners of a run. The inner error describes bytes that are missing or others than those that were written.
fn check_owners(
    engine: &Engine,
    window: WindowId,
    run: &Run,
    readers: &mut Readers,
) -> Result<Result<(), String>, OpenFailure> {
    let bad = |cause: &str| run_error(window, run.number, cause);
    let mut bytes = vec![0; run.bytes()];
    match readers.fill(&engine.segments, run.file, run.at, &mut bytes) {
        Err(cause) if needs_operator(&cause) => return Err(OpenFailure::Disk(cause)),
        Err(cause) if is_missing_data(&cause) => return Ok(Err(bad(&format!("file {}: {cause}", run.file)))),
        Err(cause) => return Err(bad(&format!("file {}: {cause}", run.file)).into()),
        Ok(()) => {}
    }
    match run.verified(&bytes) {
        Ok(_) => Ok(Ok(())),
        Err(cause) if run.has_bytes(&bytes) => Err(bad(&cause).into()),
        Err(cause) => Ok(Err(bad(&cause))),
    }
}

fn check_counts(window: WindowId, counted: &Counts, record: &Counts) -> Result<(), OpenFailure> {
    let is_same = (record.runs, record.identities) == (counted.runs, counted.identities);
    if is_same && counted.next_number <= record.next_number {
        return Ok(());
    }
    let of = |counts: &Counts| {
        let Counts { runs, identities, next_number, .. } = counts;
        format!("{runs} runs with {identities} identities below number {next_number}")
    };
    let (expected, found) = (of(record), of(counted));
    Err(OpenFailure::Unusable(format!("journal {window} should have {expected} but has {found}")))
}
