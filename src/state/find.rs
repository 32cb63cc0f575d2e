//! Questions that the blocks of one partition answer.

use std::ops::Range;

use serde::Serialize;

use crate::dedupe::{BlockError, Identity, KindId, Offset, PartitionId};
use crate::ports::{Head, Store, StoreError};

/// The record that owns an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Owned {
    /// Its offset in the raw topic.
    pub offset: Offset,
    /// It arrived at this stream time or later, ms since the epoch; the first time of its block.
    pub time_first_ms: i64,
    /// It arrived at this stream time or earlier, ms since the epoch; the last time of its block.
    pub time_last_ms: i64,
}

/// The newest owner of an identity among the offsets in `range`, if the store has one. Reads all
/// blocks of the partition: some ten million identities a second.
pub fn find(
    store: &impl Store,
    partition: PartitionId,
    identity: Identity,
    range: Range<Offset>,
) -> Result<Option<Owned>, StoreError> {
    let mut found = None;
    store.scan(partition, &mut |view| {
        let header = &view.header;
        if header.next <= range.start || header.first >= range.end {
            return Ok(());
        }
        let (time_first_ms, time_last_ms) = (header.time_first_ms, header.time_last_ms);
        let owners = view.owners_of(identity).map_err(|cause| bad_block(partition, header.first, &cause))?;
        let newest = owners.into_iter().rfind(|offset| range.contains(offset));
        found = newest.map(|offset| Owned { offset, time_first_ms, time_last_ms }).or(found);
        Ok(())
    })?;
    Ok(found)
}

pub(super) fn bad_block(partition: PartitionId, first: Offset, cause: &BlockError) -> StoreError {
    StoreError::Corrupt(format!("block of partition {partition} at {first}: {cause}"))
}

/// What a partition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// How far it is known to be committed, and where the state topic continues.
    pub head: Head,
    /// Identities stored.
    pub ids: u64,
    /// Those of them at or beyond the confirmed offset: the next start decides about them.
    pub unconfirmed_ids: u64,
    /// Blocks stored.
    pub blocks: u64,
    /// Bytes of the blocks, as encoded.
    pub bytes: u64,
    /// First offset that a block covers, and one past the last; `None` without blocks.
    pub covered: Option<(Offset, Offset)>,
}

/// Counts what a partition holds; `None` when nothing is known of it.
pub fn summarise(store: &impl Store, partition: PartitionId) -> Result<Option<Summary>, StoreError> {
    let Some(head) = head_of(store, partition)? else { return Ok(None) };
    let mut summary = Summary { head, ..Summary::default() };
    store.scan(partition, &mut |view| {
        let header = &view.header;
        summary.blocks += 1;
        summary.ids += view.count() as u64;
        summary.bytes += view.encoded().len() as u64;
        let first = summary.covered.map_or(header.first, |(first, _)| first);
        summary.covered = Some((first, header.next));
        if header.next > head.confirmed {
            let beyond = |offset: Offset, _| summary.unconfirmed_ids += u64::from(offset >= head.confirmed);
            view.for_each(beyond).map_err(|cause| bad_block(partition, header.first, &cause))?;
        }
        Ok(())
    })?;
    Ok(Some(summary))
}

/// How much of the blocks filed under this number is real: the head of the partition says it, for all kinds. `None` when
/// nothing is stored.
pub(super) fn head_of(store: &impl Store, filed: PartitionId) -> Result<Option<Head>, StoreError> {
    let (_, partition) = KindId::of_filed(filed);
    if store.head(filed)?.is_none() {
        return Ok(None);
    }
    store.head(partition)
}
