//! Searches and counts the owners of one partition.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::Serialize;

use super::whole::{scan_whole, sealed_end};
use crate::dedupe::{BlockError, HashKind, Identity, Offset, WindowId};
use crate::ports::{Head, SealedLookup, Store, StoreError};
use crate::store::OWNER_BYTES;

/// The record that owns an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Owned {
    /// Its offset in the raw topic.
    pub offset: Offset,
    /// Earliest possible stream time of its arrival, in epoch milliseconds: the first time of its run or mark.
    pub time_first_ms: i64,
    /// Latest possible stream time of its arrival, in epoch milliseconds: the last time of its run or mark.
    pub time_last_ms: i64,
}

/// Returns the newest owner of an identity among the offsets in `range`, if the store has one. Reads all owners of
/// the partition, about ten million identities per second, and one page of each slice.
pub fn find(
    store: &impl Store,
    window: WindowId,
    identity: Identity,
    range: Range<Offset>,
) -> Result<Option<Owned>, StoreError> {
    let mut found = find_sealed(store, window, identity, &range)?;
    let sealed = sealed_end(store, window);
    store.scan(window, &mut |run| {
        let (time_first_ms, time_last_ms) = run.times_ms;
        let newest =
            run.offsets_of(identity).filter(|offset| *offset >= sealed && range.contains(offset)).last();
        found = newest.map(|offset| Owned { offset, time_first_ms, time_last_ms }).or(found);
        Ok(())
    })?;
    Ok(found)
}

/// Every sealed owner is older than the others.
fn find_sealed(
    store: &impl Store,
    window: WindowId,
    identity: Identity,
    range: &Range<Offset>,
) -> Result<Option<Owned>, StoreError> {
    let owners = store.sealed_places(&SealedLookup::new(window, store.positions().key(identity)))?.owners;
    let here = owners.into_iter().filter(|owner| owner.partition == window.partition());
    let newest = here.map(|owner| owner.offset).filter(|offset| range.contains(offset)).max();
    let marks = store.sealed(window).into_iter().flat_map(|of| of.marks);
    Ok(newest.and_then(|offset| {
        let mark = marks.into_iter().find(|mark| offset < mark.next)?;
        let (time_first_ms, time_last_ms) = mark.time_ms;
        Some(Owned { offset, time_first_ms, time_last_ms })
    }))
}

pub(super) fn bad_block(window: WindowId, first: Offset, cause: &BlockError) -> StoreError {
    StoreError::Corrupt(format!("block of partition {window} at {first}: {cause}"))
}

/// Summary of the stored state of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredSummary {
    /// The confirmed offset and the state topic position, among others.
    pub head: Head,
    /// [`Store::missing_ms`].
    pub missing_ms: i64,
    /// Number of stored identities.
    pub ids: u64,
    /// Number of those that are in sealed slices.
    pub sealed_ids: u64,
    /// Number of identities at or beyond the confirmed offset. The next start decides whether they count.
    pub unconfirmed_ids: u64,
    /// Number of stored runs of owners. [`scan_whole`] makes a block of each.
    pub runs: u64,
    /// Number of blocks that [`scan_whole`] puts together from slices.
    pub sealed_blocks: u64,
    /// Bytes of the identities in these runs, with their offsets.
    pub bytes: u64,
    /// First offset that is covered, and one past the last one. `None` without owners.
    pub covered: Option<(Offset, Offset)>,
}

/// Counts what is stored for each of these windows, without those for which nothing is.
pub fn summarise(
    store: &impl Store,
    hash: HashKind,
    windows: &[WindowId],
) -> Result<BTreeMap<WindowId, StoredSummary>, StoreError> {
    let mut summaries = BTreeMap::new();
    for window in windows {
        if let Some(head) = head_of(store, *window)? {
            let missing_ms = store.missing_ms(*window)?;
            summaries.insert(*window, StoredSummary { head, missing_ms, ..StoredSummary::default() });
        }
    }
    let stored: Vec<_> = summaries.keys().copied().collect();
    let sealed: HashMap<_, _> = stored.iter().map(|window| (*window, sealed_end(store, *window))).collect();
    scan_whole(store, hash, &stored, &mut |view| {
        let header = &view.header;
        let window = header.window;
        let Some(summary) = summaries.get_mut(&window) else { return Ok(()) };
        summary.ids += view.count() as u64;
        if sealed.get(&window).is_some_and(|end| header.first < *end) {
            summary.sealed_blocks += 1;
            summary.sealed_ids += view.count() as u64;
        } else {
            summary.runs += 1;
            summary.bytes += (view.count() * OWNER_BYTES) as u64;
        }
        let first = summary.covered.map_or(header.first, |(first, _)| first);
        summary.covered = Some((first, header.next));
        let confirmed = summary.head.confirmed;
        if header.next > confirmed {
            let beyond = |offset: Offset, _| summary.unconfirmed_ids += u64::from(offset >= confirmed);
            view.for_each(beyond).map_err(|cause| bad_block(window, header.first, &cause))?;
        }
        Ok(())
    })?;
    Ok(summaries)
}

/// The head that applies to the blocks of a window: the head of its partition, for all kinds. `None` if nothing is
/// stored.
pub(super) fn head_of(store: &impl Store, window: WindowId) -> Result<Option<Head>, StoreError> {
    if store.head(window)?.is_none() {
        return Ok(None);
    }
    store.head(window.partition().into())
}
