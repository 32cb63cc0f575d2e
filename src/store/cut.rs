//! Removes owners: from a number to the end, those of a partition from an offset on, single ones, from the front (expiry), or all of them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use super::engine::{BATCH, Engine, WindowChange};
use super::index::WindowIndex;
use super::run::Run;
use super::segments::Readers;
use crate::dedupe::{Coordinates, Identity, Sequence, StoredOwner};
use crate::ports::{Head, StoreError, Undone};

/// Runs that are changed together: so many as one batch has room for, beside the record.
const RUNS: usize = BATCH - 1;
/// Owners of the runs in which some are undone together. They are read and written in a few milliseconds, and synced.
const UNDO_OWNERS: u32 = 65_536;

/// Removes every owner from the number `from` on, and returns them in their order.
///
/// The head is lowered first. Then runs are removed from the end backwards, so that a crash always leaves a prefix.
pub(super) fn truncate(
    engine: &Engine,
    index: &mut WindowIndex,
    from: Sequence,
) -> Result<Vec<StoredOwner>, StoreError> {
    let mut removed = Vec::new();
    let Some(head) = index.head.as_ref().map(|head| lowered(head, from)) else { return Ok(removed) };
    let mut change =
        WindowChange { next_number: Some(from.min(index.next_number)), ..WindowChange::default() };
    let mut readers = Readers::default();
    for run in index.runs_from(from).rev() {
        let owners = engine.owners(index.window, run, &mut readers)?;
        let keep = usize::try_from(from.saturating_sub(run.number)).unwrap_or(usize::MAX);
        let (kept, cut) = owners.split_at(keep.min(owners.len()));
        removed.extend(cut.iter().rev());
        if kept.is_empty() {
            change.remove.push(run.number);
        } else {
            change.insert.push(run.with(kept).0);
        }
    }
    removed.reverse();
    if index.head.as_ref() != Some(&head) {
        engine.commit(index, WindowChange::head(head))?;
    }
    index.forget_recent();
    engine.commit(index, change)?;
    Ok(removed)
}

/// The head without the owners from a number on. If it confirms some of them, the journal has to be read from its start.
fn lowered(head: &Head, from: Sequence) -> Head {
    let Head { confirmed, time_ms, incomplete_ms, .. } = *head;
    match confirmed.cmp(&from) {
        // Owners of its last entry stay.
        Ordering::Less => head.clone(),
        Ordering::Equal => head.confirmed_only(),
        Ordering::Greater => Head { confirmed: from, time_ms, incomplete_ms, ..Head::default() },
    }
}

/// Marks owners of partitions at or beyond an offset each as undone: those in some runs from the number `next` on.
pub(super) fn undo(
    engine: &Engine,
    index: &mut WindowIndex,
    from: &[Coordinates],
    next: Sequence,
) -> Result<Undone, StoreError> {
    let from: HashMap<_, _> = from.iter().map(|at| (at.partition, at.offset)).collect();
    let mut owners = 0;
    let is_first = |run: &&Run| {
        owners += run.owners;
        owners <= UNDO_OWNERS
    };
    let runs: Vec<Run> = index.runs_from(next).take(RUNS).take_while(is_first).cloned().collect();
    let end = runs.last().map_or(next, Run::end);
    let next = index.run_from(end).map(|run| run.number);
    let is_undone =
        |_, owner: &StoredOwner| from.get(&owner.at.partition).is_some_and(|first| owner.at.offset >= *first);
    Ok(Undone { owners: erase(engine, index, &runs, is_undone)?, next })
}

/// Marks the owners with these numbers as forgotten. The head is written last: after a crash before that, the old head still shows that they have to be
/// forgotten.
pub(super) fn forget(
    engine: &Engine,
    index: &mut WindowIndex,
    numbers: &[Sequence],
    head: &Head,
) -> Result<(), StoreError> {
    let runs = numbers.iter().filter_map(|number| index.run_of(*number));
    let runs: BTreeMap<Sequence, Run> = runs.map(|run| (run.number, run)).collect();
    for part in runs.into_values().collect::<Vec<_>>().chunks(RUNS) {
        erase(engine, index, part, |number, _| numbers.contains(&number))?;
    }
    engine.commit(index, WindowChange::head(head.clone()))
}

/// Removes the identities of some owners of runs, and returns those. The runs that change are written again elsewhere, together: a crash may leave the
/// old entries.
fn erase(
    engine: &Engine,
    index: &mut WindowIndex,
    runs: &[Run],
    is_erased: impl Fn(Sequence, &StoredOwner) -> bool,
) -> Result<Vec<(Sequence, Identity)>, StoreError> {
    let (mut erased, mut changed, mut readers) = (Vec::new(), Vec::new(), Readers::default());
    for run in runs {
        let (mut owners, before) = (engine.owners(index.window, run, &mut readers)?, erased.len());
        let chosen = (run.number..).zip(&mut owners).filter(|(number, owner)| is_erased(*number, owner));
        erased.extend(chosen.filter_map(|(number, owner)| Some((number, owner.identity.take()?))));
        if erased.len() > before {
            changed.push((run, owners));
        }
    }
    if changed.is_empty() {
        return Ok(erased);
    }
    let (file, begin) = index.files.current().unwrap_or_else(|| (engine.segments.allocate(), 0));
    let (mut insert, mut bytes) = (Vec::new(), Vec::new());
    for (run, owners) in changed {
        let (moved, stored) = Run { file, at: begin + bytes.len() as u64, ..run.clone() }.with(&owners);
        insert.push(moved);
        bytes.extend(stored);
    }
    engine.write_owners(file, begin, &bytes)?;
    // sled can make the entries durable at any time after the change. After a power loss they would lead to nothing.
    engine.durable(engine.segments.sync_file(file))?;
    index.forget_recent();
    engine.commit(index, WindowChange { insert, ..WindowChange::default() })?;
    Ok(erased)
}

/// Removes runs as [`remove_front`] does, because the window has dropped their owners. What it lacks now is noted with the first of them, and also if none
/// is removed: a dropped owner that stays in a run is removed when the others of its run are sealed, and one in a slice when that is merged.
pub(super) fn expire(
    engine: &Engine,
    index: &mut WindowIndex,
    first: Sequence,
    missing_ms: i64,
) -> Result<usize, StoreError> {
    if index.head.is_none() {
        return Ok(0);
    }
    let is_noted = missing_ms <= index.missing_ms;
    index.missing_ms = index.missing_ms.max(missing_ms);
    let removed = remove_front(engine, index, first, usize::MAX)?;
    if removed == 0 && !is_noted {
        engine.commit_record(index)?;
    }
    Ok(removed)
}

/// Removes, from the front, at most `most` of the runs that have no owner from the number `first` on. Returns how many.
pub(super) fn remove_front(
    engine: &Engine,
    index: &mut WindowIndex,
    first: Sequence,
    most: usize,
) -> Result<usize, StoreError> {
    let expired = index.runs_from(0).take_while(|run| run.end() <= first);
    let remove: Vec<_> = expired.map(|run| run.number).take(most).collect();
    let count = remove.len();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    Ok(count)
}

/// Removes all runs and the record. What a crash leaves behind counts as unconfirmed.
pub(super) fn clear(engine: &Engine, index: &mut WindowIndex) -> Result<(), StoreError> {
    if index.head.is_none() {
        return Ok(());
    }
    engine.commit(index, WindowChange::head(Head::default()))?;
    let remove = index.runs_from(0).rev().map(|run| run.number).collect();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    engine.delete_record(index.window)?;
    *index = WindowIndex::new(index.window);
    Ok(())
}
