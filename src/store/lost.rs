//! Cuts windows back at the opening, when a power loss has kept entries of their last runs and not the owners.
//!
//! New owners are not fsynced, and sled makes their entries durable soon. Without these runs the window is as it was before they were written: each
//! has the head that was valid then, and the rest is read from the state topic.

use std::collections::{BTreeMap, HashMap};

use super::engine::{Engine, WindowChange};
use super::index::WindowIndex;
use super::open::OpenFailure;
use super::verify::LostTail;
use crate::dedupe::{KindId, PartitionId, WindowId};
use crate::ports::{Head, StoreError};

/// Removes the lost runs of all windows, durably. A partition of which a slice has owners that would not be confirmed any more is an error.
pub(super) fn cut_lost(
    engine: &Engine,
    windows: &mut HashMap<WindowId, WindowIndex>,
    lost: Vec<LostTail>,
) -> Result<(), OpenFailure> {
    let mut partitions: BTreeMap<PartitionId, Vec<LostTail>> = BTreeMap::new();
    for tail in lost {
        partitions.entry(tail.window.partition()).or_default().push(tail);
    }
    for (partition, tails) in &partitions {
        let bases = tails.iter().map(|tail| tail.run.base);
        let Some(base) = bases.min_by_key(|base| (base.confirmed, base.state_next)) else { continue };
        let unnamed = KindId::UNNAMED.window(*partition);
        for LostTail { window, run, cause } in tails {
            let (owners_from, confirmed) = (run.first, base.confirmed);
            tracing::warn!(%window, owners_from, confirmed, cause, "the last owners are not in the local state, as after a power loss; \
                reading them from the state topic");
        }
        let is_beyond = |window: &&WindowId| {
            window.partition() == *partition && sealed_end(engine, **window) > base.confirmed
        };
        if let Some(tail) = tails.first().filter(|_| windows.keys().any(|window| is_beyond(&window))) {
            return Err(tail.cause.clone().into());
        }
        // The head of the unnamed kind stands for all kinds, so it comes first. An older one stays.
        let index = windows
            .get_mut(&unnamed)
            .filter(|index| index.head.is_some_and(|head| head.confirmed >= base.confirmed));
        if let Some(index) = index {
            set_head(engine, index, base)?;
        }
        for tail in tails {
            if let Some(index) = windows.get_mut(&tail.window) {
                set_head(engine, index, base)?;
                let remove = index.runs_at(tail.run.first).rev().map(|run| run.first).collect();
                engine.commit(index, WindowChange { remove, ..WindowChange::default() })?;
            }
        }
    }
    if partitions.is_empty() { Ok(()) } else { Ok(engine.sync()?) }
}

fn set_head(engine: &Engine, index: &mut WindowIndex, base: Head) -> Result<(), StoreError> {
    let before = index.head.unwrap_or_default();
    let incomplete_ms = before.incomplete_ms.max(base.incomplete_ms);
    engine.commit(index, WindowChange::head(Head { incomplete_ms, ..base }))
}

/// One past the last owner of a window in slices.
fn sealed_end(engine: &Engine, window: WindowId) -> u64 {
    let slices = engine.slices_of_group(engine.group_of(window));
    slices.iter().filter_map(|slice| slice.offsets(window.partition())).map(|of| of.end).max().unwrap_or(0)
}
