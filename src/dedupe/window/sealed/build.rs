//! Building of a slice file, shard by shard.

use super::filter::SliceFilter;
use crate::dedupe::coordinates::Coordinates;
use crate::dedupe::format::{OwnerLayout, SliceError, SliceFooter, SlicePage, SlicePartition};
use crate::dedupe::identity::{HashKind, Identity, KindId};
use crate::dedupe::window::index::IndexKey;

/// What a slice covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceCoverage {
    /// The hash of the identities.
    pub hash: HashKind,
    /// The kind whose windows the slice belongs to.
    pub kind: KindId,
    /// Stream time at the first and the last covered record, epoch milliseconds.
    pub time_ms: (i64, i64),
    /// The covered offsets, in ascending order of the partitions.
    pub partitions: Vec<SlicePartition>,
}

/// Builds a slice file in as many passes as its filter has shards. In each pass every owner of the slice is offered, and the builder
/// holds only those of one shard: about a million, in 40 MB.
///
/// `offer` all owners, then `end_pass`, until [`SliceBuilder::needs_pass`] is false; then `finish`.
#[derive(Debug)]
pub struct SliceBuilder {
    coverage: SliceCoverage,
    owners: OwnerLayout,
    shards: u32,
    shard: u32,
    held: Vec<(u64, Identity, Coordinates)>,
    filter: SliceFilter,
    fences: Vec<u64>,
    ids: u64,
}

impl SliceBuilder {
    /// A builder for about `ids` identities.
    pub fn new(coverage: SliceCoverage, ids: u64) -> Result<Self, SliceError> {
        let owners = OwnerLayout::new(coverage.partitions.clone())
            .ok_or(SliceError::Inconsistent("impossible partitions"))?;
        Ok(Self {
            coverage,
            owners,
            shards: SliceFilter::shards_for(ids),
            shard: 0,
            held: Vec::new(),
            filter: SliceFilter::default(),
            fences: Vec::new(),
            ids: 0,
        })
    }

    /// Whether the owners have to be offered once more.
    #[must_use]
    pub fn needs_pass(&self) -> bool {
        self.shard < self.shards
    }

    /// Offers an owner in the current pass.
    #[inline]
    pub fn offer(&mut self, identity: Identity, owner: Coordinates) {
        let position = IndexKey::at(identity).position.first;
        if SliceFilter::shard_of(position, self.shards) == self.shard {
            self.held.push((position, identity, owner));
        }
    }

    /// Ends a pass: appends the pages of its shard to `file`.
    pub fn end_pass(&mut self, file: &mut Vec<u8>) -> Result<(), SliceError> {
        self.held.sort_unstable();
        for page in self.held.chunks(SlicePage::capacity(&self.owners)) {
            self.fences.extend(page.first().map(|(position, ..)| *position));
            let entries = page.iter().map(|(_, identity, owner)| (*identity, *owner));
            SlicePage::encode(&self.owners, entries, file)?;
        }
        let mut positions: Vec<u64> = self.held.iter().map(|(position, ..)| *position).collect();
        positions.dedup();
        self.filter.push(&positions)?;
        self.ids += self.held.len() as u64;
        self.held.clear();
        self.shard += 1;
        Ok(())
    }

    /// Appends the filter and the footer to `file`, after the pages.
    pub fn finish(self, file: &mut Vec<u8>) {
        let shards = self.filter.encode(file);
        let SliceCoverage { hash, kind, time_ms, .. } = self.coverage;
        let footer = SliceFooter {
            hash,
            kind,
            time_ms,
            ids: self.ids,
            owners: self.owners,
            shards,
            fences: self.fences,
        };
        file.extend(footer.encode());
    }
}
