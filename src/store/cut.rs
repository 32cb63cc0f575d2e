//! Removes owners: from an offset to the end, single ones, from the front (expiry), or all of them.

use super::engine::{Engine, WindowChange};
use super::index::WindowIndex;
use super::run::Run;
use super::segments::Readers;
use crate::dedupe::{Identity, Offset};
use crate::ports::{Head, StoreError};

/// Removes every owner at or beyond `from`, and returns them in no order.
///
/// If the head confirms more than remains, it is lowered first. Then runs are removed from the end backwards, so that a
/// crash always leaves a prefix.
pub(super) fn truncate(
    engine: &Engine,
    index: &mut WindowIndex,
    from: Offset,
) -> Result<Vec<(Offset, Identity)>, StoreError> {
    let mut removed = Vec::new();
    let Some(head) = index.head else { return Ok(removed) };
    let mut change = WindowChange::default();
    let mut readers = Readers::default();
    for run in index.runs_at(from).rev() {
        let owners = engine.owners(index.window, run, &mut readers)?;
        let keep = owners.partition_point(|owner| owner.offset < from);
        let (kept, cut) = owners.split_at(keep);
        removed.extend(cut.iter().filter_map(|it| Some((it.offset, it.identity?))));
        if keep > 0 {
            change.insert.push(Run { next: from, ..*run }.with(kept).0);
        } else {
            change.remove.push(run.first);
        }
    }
    let lowered = head.lowered(from);
    if lowered != head {
        engine.commit(index, WindowChange::head(lowered))?;
    }
    index.forget_recent();
    engine.commit(index, change)?;
    Ok(removed)
}

/// Marks these owners as forgotten. Their runs are written again elsewhere: a crash may leave the old entries. The head is written last: after a crash before
/// that, the old head still shows that identities have to be forgotten.
pub(super) fn forget(
    engine: &Engine,
    index: &mut WindowIndex,
    offsets: &[Offset],
    head: Head,
) -> Result<(), StoreError> {
    for offset in offsets {
        let Some(run) = index.runs_at(*offset).next().copied().filter(|run| run.first <= *offset) else {
            continue;
        };
        let mut owners = engine.owners(index.window, &run, &mut Readers::default())?;
        let owner = owners.iter_mut().find(|owner| owner.offset == *offset && owner.identity.is_some());
        let Some(owner) = owner else { continue };
        owner.identity = None;
        let (file, at) = index.files.current().unwrap_or_else(|| (engine.segments.allocate(), 0));
        let (moved, bytes) = Run { file, at, ..run }.with(&owners);
        engine.write_owners(file, at, &bytes)?;
        // sled can make the entry durable at any time after the change. After a power loss it would lead to nothing.
        engine.durable(engine.segments.sync_file(file))?;
        index.forget_recent();
        engine.commit(index, WindowChange { insert: vec![moved], ..WindowChange::default() })?;
    }
    engine.commit(index, WindowChange::head(head))
}

/// Removes runs as [`remove_front`] does, because the window has dropped their owners. What it lacks now is noted with the first of them, and also if none
/// is removed: a dropped owner that stays in a run is removed when the others of its run are sealed, and one in a slice when that is merged.
pub(super) fn expire(
    engine: &Engine,
    index: &mut WindowIndex,
    first: Offset,
    missing_ms: i64,
) -> Result<usize, StoreError> {
    let Some(head) = index.head else { return Ok(0) };
    let is_noted = missing_ms <= index.missing_ms;
    index.missing_ms = index.missing_ms.max(missing_ms);
    let removed = remove_front(engine, index, first, usize::MAX)?;
    if removed == 0 && !is_noted {
        engine.commit(index, WindowChange::head(head))?;
    }
    Ok(removed)
}

/// Removes, from the front, at most `most` of the runs that cover no offset at or beyond `first`. Returns their number.
pub(super) fn remove_front(
    engine: &Engine,
    index: &mut WindowIndex,
    first: Offset,
    most: usize,
) -> Result<usize, StoreError> {
    let expired = index.runs().take_while(|run| run.next <= first);
    let remove: Vec<_> = expired.map(|run| run.first).take(most).collect();
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
    let remove = index.runs().rev().map(|run| run.first).collect();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    engine.delete_record(index.window)?;
    *index = WindowIndex::new(index.window);
    Ok(())
}
