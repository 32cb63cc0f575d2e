//! A sealed slice: the part of it that is in memory.
//!
//! The identities of a slice whose time has passed never change again. They are in a file, sorted by position, each with its owner
//! (`format/slice`). In memory are a filter over all of them and, for each page of the file, the first position in it. An
//! identity that the filter does not contain is not in the slice. Any other is looked up in one page, and found or not.
//!
//! Positions are hashes of the identities, so they are uniform whatever the ids are.

mod build;
mod filter;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub use build::{SliceBuilder, SliceCoverage};
use filter::SliceFilter;

use super::index::IndexKey;
use crate::dedupe::coordinates::Coordinates;
use crate::dedupe::format::{ShardEntry, SliceError, SliceFooter, SlicePage};

/// A sealed slice.
#[derive(Debug)]
pub struct Slice {
    footer: SliceFooter,
    filter: SliceFilter,
}

impl Slice {
    /// A slice with this footer, whose filter is empty until each shard of the footer is pushed.
    #[must_use]
    pub fn new(footer: SliceFooter) -> Self {
        Self { footer, filter: SliceFilter::default() }
    }

    /// Verifies and adds the next shard of the filter.
    pub fn push_shard(&mut self, bytes: &[u8], entry: ShardEntry) -> Result<(), SliceError> {
        self.filter.push_encoded(bytes, entry)
    }

    /// What the slice contains.
    #[must_use]
    pub fn footer(&self) -> &SliceFooter {
        &self.footer
    }

    /// Prefetches what [`Slice::may_contain`] reads.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.filter.prefetch(key.position.first);
    }

    /// Whether the slice may contain the identity: always for one that it contains, for 1 of 65,536 others.
    #[must_use]
    #[inline]
    pub fn may_contain(&self, key: &IndexKey) -> bool {
        self.filter.contains(key.position.first)
    }

    /// The pages in which the identity can be: one, or more if equal positions fill the end of a page.
    #[must_use]
    pub fn pages_of(&self, key: &IndexKey) -> RangeInclusive<usize> {
        let (fences, position) = (&self.footer.fences, key.position.first);
        let last = fences.partition_point(|fence| *fence <= position).saturating_sub(1);
        let first = fences.partition_point(|fence| *fence < position).saturating_sub(1);
        first..=last
    }

    /// The owners of the identity in one of its pages.
    pub fn owners_in(&self, page: &[u8], key: &IndexKey) -> Result<Vec<Coordinates>, SliceError> {
        SlicePage::parse(page, &self.footer.owners)?.owners_of(key.identity).collect()
    }

    /// Bytes in memory: 2.3 per identity.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.filter.memory_bytes() + (self.footer.fences.len() * size_of::<u64>()) as u64
    }
}
