//! Appends owners to the last run of a window, or to new runs.

use std::collections::BTreeMap;

use super::engine::{Engine, WindowChange};
use super::index::WindowIndex;
use super::joining::MergeSpan;
use super::run::{MOST_OWNERS, Run, rule_of};
use crate::dedupe::{Owner, OwnerRun, StoredOwner};
use crate::ports::{Head, StoreError};

/// Appends owners. The head is set with the last of them.
pub(super) fn append(
    engine: &Engine,
    index: &mut WindowIndex,
    appended: &OwnerRun<'_>,
    head: &Head,
    span: MergeSpan,
) -> Result<(), StoreError> {
    if appended.owners.is_empty() {
        return engine.commit(index, WindowChange::head(head.clone()));
    }
    check(index, appended)?;
    if appended.number > index.next_number {
        index.forget_recent();
    }
    let (file, begin) = index.files.current().unwrap_or_else(|| (engine.segments.allocate(), 0));
    let is_full = |run: &Run, owners: &[_]| run.owners as usize + owners.len() > MOST_OWNERS as usize;
    let mut parts = appended.owners.chunks(MOST_OWNERS as usize).peekable();
    let first = parts.peek().copied().unwrap_or_default();
    let continues = |run: &&Run| {
        let is_next = (run.file, run.file_end(), run.end()) == (file, begin, appended.number);
        let has_rule = [0, run.rule].contains(&rule_of(first)) || run.rule == 0;
        is_next && has_rule && !is_full(run, first) && !span.separates(run.times_ms.0, appended.times_ms.0)
    };
    let mut runs: Vec<Run> = index.last().filter(continues).cloned().into_iter().collect();
    let base = base(index, appended, head);
    let (mut number, mut bytes) = (appended.number, Vec::new());
    for owners in parts {
        if runs.last().is_none_or(|run| is_full(run, owners)) {
            let (times_ms, at) = (appended.times_ms, begin + bytes.len() as u64);
            runs.push(Run {
                number,
                owners: 0,
                forgotten: 0,
                rule: 0,
                times_ms,
                file,
                at,
                crc: 0,
                base: base.clone(),
            });
        }
        if let Some(run) = runs.last_mut() {
            bytes.extend(run.extend(owners));
            run.times_ms.1 = run.times_ms.1.max(appended.times_ms.1);
            number = run.end();
        }
    }
    engine.write_owners(file, begin, &bytes)?;
    let change = WindowChange { head: Some(head.clone()), insert: runs, ..WindowChange::default() };
    engine.commit(index, change)?;
    index.keep_recent(&bytes, engine.cached_bytes());
    Ok(())
}

fn check(index: &WindowIndex, appended: &OwnerRun<'_>) -> Result<(), StoreError> {
    let (window, number, next) = (index.window, appended.number, index.next_number);
    let is_impossible = |owner: &&StoredOwner| !Owner::is_possible(owner.at, owner.time_ms);
    let cause = if let Some(StoredOwner { at, time_ms, .. }) = appended.owners.iter().find(is_impossible) {
        let (partition, offset, ms) = (Owner::LAST_PARTITION, Owner::LAST_OFFSET, Owner::LATEST_MS);
        format!(
            "{at} at {time_ms} ms does not fit: the limits are partition {partition}, offset {offset}, and 0 to {ms} ms"
        )
    } else if number < next {
        format!("the next one is {next}")
    } else {
        return Ok(());
    };
    Err(StoreError::Corrupt(format!("rejected owners of journal {window} from number {number} on: {cause}")))
}

/// The head without the runs that begin.
fn base(index: &WindowIndex, appended: &OwnerRun<'_>, head: &Head) -> Head {
    let none = Head::default();
    // A restore writes owners together with the head behind them.
    let is_before = head.confirmed <= appended.number;
    let valid = if is_before { head } else { index.head.as_ref().unwrap_or(&none) };
    let Head { confirmed, state_next, confirmed_entry, time_ms, incomplete_ms, .. } = *valid;
    let last_entry = confirmed_entry;
    Head {
        confirmed,
        state_next,
        last_entry,
        confirmed_entry,
        time_ms,
        incomplete_ms,
        covered: BTreeMap::new(),
    }
}
