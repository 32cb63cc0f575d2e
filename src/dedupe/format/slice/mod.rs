//! The slice file: the identities of one sealed slice of a window, each with its owner, and the slice's filter.
//!
//! Layout, little endian (version 1):
//!
//! | bytes | field |
//! |---|---|
//! | pages × 4096 | pages: identities with their owners, in the order of their positions ([`SlicePage`]) |
//! | filter | the shards of the filter, one after the other |
//! | footer | [`SliceFooter`] |
//! | 4 | length of the footer in bytes |
//! | 4 | CRC32C of the footer |
//! | 4 | magic and version, `DDS1` |
//!
//! A page, a shard and the footer each have a checksum of their own, so that each can be read alone. That of a page depends on the file and on the
//! number of the page, and the footer lists those of the shards: a part of another file, or at another place, is damaged.

mod footer;
mod page;

use crate::dedupe::coordinates::{Coordinates, Offset, PartitionId};
pub use footer::{ShardEntry, SliceFooter};
pub use page::{PAGE_BYTES, SlicePage};

/// A range of consecutive owners of one partition that expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceMark {
    /// One past the raw offset of the last one. The first one is at or beyond the end of the mark before it.
    pub next: Offset,
    /// Number of owners.
    pub count: u64,
    /// Stream time when the first and the last of them arrived, epoch milliseconds; 0 while unknown.
    pub time_ms: (i64, i64),
}

/// The raw offsets of one partition that a slice covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePartition {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// First raw offset covered.
    pub first: Offset,
    /// One past the last raw offset covered; greater than `first`.
    pub next: Offset,
    /// The owners in it, in ascending order.
    pub marks: Vec<SliceMark>,
}

impl SlicePartition {
    /// Number of owners, as counted by its marks: those of a mark that was cut are all included.
    #[must_use]
    pub fn owners(&self) -> u64 {
        self.marks.iter().map(|mark| mark.count).sum()
    }

    /// The one of a partition among these, which are in ascending order, with its index.
    #[must_use]
    pub fn find(all: &[Self], partition: PartitionId) -> Option<(usize, &Self)> {
        // Where it is if none is missing.
        let expected = partition.checked_sub(all.first()?.partition)? as usize;
        let is_there = all.get(expected).is_some_and(|of| of.partition == partition);
        let at =
            if is_there { expected } else { all.binary_search_by_key(&partition, |of| of.partition).ok()? };
        Some((at, all.get(at)?))
    }
}

/// Why bytes are not a slice file, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// Shorter than its fields require.
    #[error("{0} is truncated")]
    Truncated(&'static str),
    /// The last four bytes are not those of a slice file that this version can read.
    #[error("not a slice file, or of a newer format: it ends with {0:02x?}")]
    Magic([u8; 4]),
    /// The checksum of a part does not match its content.
    #[error("checksum mismatch of {what}: stored {found:08x}, computed {computed:08x}")]
    Checksum {
        /// The part.
        what: &'static str,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// The checksum matches but a field has an impossible value.
    #[error("slice file is inconsistent: {0}")]
    Inconsistent(&'static str),
}

/// How the owners of a slice are stored: as an index into its partitions and a distance from the partition's first offset, both
/// with the same number of bytes in all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerLayout {
    partitions: Vec<SlicePartition>,
    partition_bytes: usize,
    offset_bytes: usize,
}

impl OwnerLayout {
    /// The layout for partitions in ascending order; `None` if they are not, or if one covers nothing.
    #[must_use]
    pub fn new(partitions: Vec<SlicePartition>) -> Option<Self> {
        let ascend = partitions.is_sorted_by(|a, b| a.partition < b.partition);
        let span = |of: &SlicePartition| of.next.checked_sub(of.first).filter(|span| *span > 0);
        let longest = partitions.iter().map(span).try_fold(0, |longest, span| Some(span?.max(longest)))?;
        let partition_bytes = match partitions.len() {
            0..=1 => 0,
            2..=256 => 1,
            257..=65_536 => 2,
            _ => 3,
        };
        let bits = u64::BITS - longest.saturating_sub(1).leading_zeros();
        let offset_bytes = bits.div_ceil(8).max(1) as usize;
        ascend.then_some(Self { partitions, partition_bytes, offset_bytes })
    }

    /// The covered partitions, in ascending order.
    #[must_use]
    pub fn partitions(&self) -> &[SlicePartition] {
        &self.partitions
    }

    /// Bytes of an identity with its owner: 17 to 27.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        16 + self.partition_bytes + self.offset_bytes
    }

    /// Appends an owner; returns false, and appends nothing, when the slice does not cover it.
    fn push(&self, owner: Coordinates, out: &mut Vec<u8>) -> bool {
        let Some((at, of)) = SlicePartition::find(&self.partitions, owner.partition) else { return false };
        if !(of.first..of.next).contains(&owner.offset) {
            return false;
        }
        out.extend_from_slice(at.to_le_bytes().get(..self.partition_bytes).unwrap_or_default());
        let distance = (owner.offset - of.first).to_le_bytes();
        out.extend_from_slice(distance.get(..self.offset_bytes).unwrap_or_default());
        true
    }

    /// Reads an owner from the bytes that [`OwnerLayout::push`] appended.
    fn read(&self, bytes: &[u8]) -> Option<Coordinates> {
        let (place, distance) = bytes.split_at_checked(self.partition_bytes)?;
        let of = self.partitions.get(usize::try_from(number(place)?).ok()?)?;
        let offset = of.first.checked_add(number(distance)?).filter(|offset| *offset < of.next)?;
        Some(Coordinates { partition: of.partition, offset })
    }
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}
