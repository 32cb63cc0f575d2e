//! The slice file: the identities of one sealed slice of a window, each with its owner, and the slice's filter.
//!
//! Layout, little endian (version 3):
//!
//! | bytes | field |
//! |---|---|
//! | pages × 4096 | pages: identities with their owners, in the order of their positions ([`SlicePage`]) |
//! | filter | the shards of the filter, one after the other |
//! | footer | [`SliceFooter`] |
//! | 4 | length of the footer in bytes |
//! | 4 | CRC32C of the footer |
//! | 4 | magic and version, `DDS3` |
//!
//! A page, a shard and the footer each have a checksum of their own, so that each can be read alone. That of a page depends on the file and on the
//! number of the page, and the footer lists those of the shards: a part of another file, or at another place, is damaged.

mod footer;
mod layout;
mod page;

use crate::dedupe::coordinates::{Coordinates, Offset, PartitionId, Sequence};
use crate::dedupe::identity::Digest;
pub use footer::{ShardEntry, SliceFooter};
pub use layout::{OwnerLayout, SliceCover};
pub use page::{PAGE_BYTES, SlicePage};

/// A range of consecutive owners that expire together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceMark {
    /// One past the number of the last one. The first one is at or beyond the end of the mark before it.
    pub next: Sequence,
    /// Number of owners that were neither forgotten nor undone.
    pub count: u64,
    /// The times of the window's clock when the first and the last of them arrived, epoch milliseconds; 0 while unknown. They never decrease
    /// from mark to mark.
    pub time_ms: (i64, i64),
}

/// Owners of a window that are sealed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRange {
    /// The number of the first one.
    pub first: Sequence,
    /// One past that of the last one.
    pub next: Sequence,
    /// The owners, in ascending order.
    pub marks: Vec<SliceMark>,
}

impl SealedRange {
    /// Number of owners, as counted by the marks.
    pub fn owners(&self) -> u64 {
        self.marks.iter().map(|mark| mark.count).sum()
    }

    /// Lowers the counts, those of the oldest marks first, until there are at most so many owners.
    pub fn limit(&mut self, owners: u64) {
        let mut excess = self.owners().saturating_sub(owners);
        for mark in &mut self.marks {
            let less = excess.min(mark.count);
            mark.count -= less;
            excess -= less;
        }
    }

    /// The times of the window's clock when the first and the last owner arrived, epoch milliseconds; 0 while unknown.
    pub fn time_ms(&self) -> (i64, i64) {
        let first = self.marks.first().map_or(0, |mark| mark.time_ms.0);
        (first, self.marks.last().map_or(0, |mark| mark.time_ms.1))
    }
}

/// The raw offsets of one partition that a slice covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlicePartition {
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The lowest raw offset of an owner.
    pub first: Offset,
    /// One past the highest one.
    pub next: Offset,
}

/// An owner as the state has it, beside its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownOwner {
    /// The record.
    pub at: Coordinates,
    /// The stream time of its partition at its arrival, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
    /// What stands for its content.
    pub digest: Digest,
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
