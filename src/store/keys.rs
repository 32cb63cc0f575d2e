//! Names of the trees and keys. Big endian, so that byte order is offset order.

use crate::dedupe::{Offset, PartitionId};

/// Tree of settled blocks: partition (u32) and first offset (u64) to an [`super::entry::Entry`].
pub(super) const SETTLED: &str = "entries";
/// Where an older version kept the settled blocks themselves.
pub(super) const FORMER: &str = "settled";
/// Tree of what changes often: partition (u32) to a [`super::record::Record`], and right behind it
/// the partition's small blocks that wait to be joined, keyed as settled ones.
pub(super) const WAITING: &str = "waiting";
/// Key in the default tree: the binding as JSON.
pub(super) const BINDING: &[u8] = b"binding";

/// Key of a block.
pub(super) type Key = [u8; 12];

/// The key of the block that begins at `first`.
pub(super) fn block(partition: PartitionId, first: Offset) -> Key {
    let mut key = [0; 12];
    let (head, tail) = key.split_at_mut(4);
    head.copy_from_slice(&partition.to_be_bytes());
    tail.copy_from_slice(&first.to_be_bytes());
    key
}

/// The first offset in a block's key; 0 when it is none.
pub(super) fn first(key: &[u8]) -> Offset {
    parse_block(key).map_or(0, |(_, first)| first)
}

/// Partition and first offset of a block's key; `None` when it is not one.
pub(super) fn parse_block(key: &[u8]) -> Option<(PartitionId, Offset)> {
    let (partition, first) = key.split_first_chunk::<4>()?;
    let first = <[u8; 8]>::try_from(first).ok()?;
    Some((u32::from_be_bytes(*partition), u64::from_be_bytes(first)))
}

/// Partition of a record's key; `None` when it is not one.
pub(super) fn parse_record(key: &[u8]) -> Option<PartitionId> {
    <[u8; 4]>::try_from(key).ok().map(u32::from_be_bytes)
}
