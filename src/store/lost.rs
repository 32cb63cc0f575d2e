//! Cuts windows back at the opening, when a power loss has kept entries of their last runs and not the owners.
//!
//! New owners are not fsynced, and sled makes their entries durable soon. Without these runs the window is as it was before they were written: each
//! has the head that was valid then, and the rest is read from the journal. All windows of a journal are cut back to the same entry of it.

use std::collections::{BTreeMap, HashMap};

use super::cut::truncate;
use super::engine::{Engine, WindowChange};
use super::index::WindowIndex;
use super::open::OpenFailure;
use super::verify::LostEnd;
use crate::dedupe::{EntryName, PartitionId, Sequence, WindowId};
use crate::ports::{Head, StoreError};

/// Removes the lost runs of all windows, durably. A journal of which a slice has owners that would not be confirmed any more is an error.
pub(super) fn cut_lost(
    engine: &Engine,
    windows: &mut HashMap<WindowId, WindowIndex>,
    lost: Vec<LostEnd>,
) -> Result<(), OpenFailure> {
    let mut journals: BTreeMap<PartitionId, BTreeMap<WindowId, LostEnd>> = BTreeMap::new();
    for end in lost {
        journals.entry(end.window.journal()).or_default().insert(end.window, end);
    }
    for (journal, ends) in &journals {
        let of_journal = windows.values_mut().filter(|index| index.window.journal() == *journal);
        cut_journal(engine, of_journal.collect(), ends)?;
    }
    if journals.is_empty() { Ok(()) } else { Ok(engine.sync()?) }
}

fn cut_journal(
    engine: &Engine,
    mut windows: Vec<&mut WindowIndex>,
    ends: &BTreeMap<WindowId, LostEnd>,
) -> Result<(), OpenFailure> {
    // The head of the unnamed kind stands for all kinds, so it comes first.
    windows.sort_unstable_by_key(|index| index.window);
    let lost = |index: &WindowIndex| ends.get(&index.window).map(|lost| lost.run.number);
    let mut entry = u64::MAX;
    // A run has owners of several entries, so one window may have to go back further than another.
    let common = loop {
        let cuts = windows.iter().filter_map(|index| cut(index, lost(index), entry));
        let Some(oldest) = cuts.min_by_key(|head| number(head.confirmed_entry)) else { return Ok(()) };
        if number(oldest.confirmed_entry) == entry {
            break oldest;
        }
        entry = number(oldest.confirmed_entry);
    };
    for index in windows {
        let window = index.window;
        let mut head = match cut(index, lost(index), entry) {
            Some(head) => head,
            None if is_after(index, entry) => Head { confirmed: index.next_number, ..common.clone() },
            None => continue,
        };
        if let Some(LostEnd { run, cause, .. }) = ends.get(&window) {
            let (owners_from, confirmed) = (run.number, head.confirmed);
            tracing::warn!(%window, owners_from, confirmed, cause, "the last owners are not in the local state, as after a power loss; \
                reading them from the state topic");
        }
        if engine.sealed_next(window) > head.confirmed {
            let cause = format!("owners of journal {window} were sealed that are not confirmed any more");
            return Err(cause.into());
        }
        head.incomplete_ms = head.incomplete_ms.max(index.head.as_ref().map_or(0, |head| head.incomplete_ms));
        cut_window(engine, index, lost(index), head)?;
    }
    Ok(())
}

/// The newest known head of a window that is valid without the entries behind this one, and without its owners from the number `lost` on. `None` if the
/// window has no others.
fn cut(index: &WindowIndex, lost: Option<Sequence>, entry: u64) -> Option<Head> {
    if lost.is_none() && (index.last().is_none() || !is_after(index, entry)) {
        return None;
    }
    let head = index
        .head
        .as_ref()
        .filter(|_| lost.is_none())
        .map(|head| Head { covered: BTreeMap::new(), ..head.confirmed_only() });
    let known = index.runs_from(0).map(|run| run.base.clone()).chain(head);
    let valid = known.filter(|head| {
        number(head.confirmed_entry) <= entry && lost.is_none_or(|lost| head.confirmed <= lost)
    });
    Some(valid.max_by_key(|head| head.confirmed).unwrap_or_default())
}

/// Whether a window may have owners of entries behind this one.
fn is_after(index: &WindowIndex, entry: u64) -> bool {
    index.head.as_ref().is_some_and(|head| number(head.last_entry) > entry)
}

fn number(entry: Option<EntryName>) -> u64 {
    entry.map_or(0, |entry| entry.number)
}

fn cut_window(
    engine: &Engine,
    index: &mut WindowIndex,
    lost: Option<Sequence>,
    head: Head,
) -> Result<(), StoreError> {
    let confirmed = head.confirmed;
    engine.commit(index, WindowChange::head(head))?;
    // They cannot be read.
    let lost = index.runs_from(lost.unwrap_or(Sequence::MAX)).rev();
    let remove = lost.map(|run| run.number).collect();
    engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
    truncate(engine, index, confirmed).map(drop)
}
