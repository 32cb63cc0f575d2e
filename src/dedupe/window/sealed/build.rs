//! Building of a slice file, shard by shard.

use std::mem;
use std::ops::{Range, RangeInclusive};

use super::filter::{FilterBits, FilterBuilder, part_of, pass_ids};
use crate::dedupe::format::{
    KnownOwner, OwnerLayout, SealedRange, SliceCover, SliceError, SliceFooter, SlicePage,
};
use crate::dedupe::identity::{HashKind, Identity, WindowId};
use crate::dedupe::window::positions::Positions;

/// What a slice covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceCoverage {
    /// A random number for the file.
    pub file: u64,
    /// The hash of the identities.
    pub hash: HashKind,
    /// The window that the slice belongs to.
    pub window: WindowId,
    /// The owners.
    pub range: SealedRange,
    /// What they cover, as far as it is known: of owners that are read in whole passes, the builder finds it in the first one.
    pub cover: SliceCover,
    /// The bits of the filter, if the slice has no owners.
    pub only_filter: Option<FilterBits>,
}

/// Bytes of pages that are written together.
const PART_BYTES: usize = 1 << 20;
/// Passes in which all owners are read.
pub(super) const PASSES: u32 = 4;

/// How the owners of a slice are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerScan {
    /// Each pass reads all of them, so there are at most four, and the builder holds a quarter of the slice.
    Everything,
    /// A pass reads only those in [`SliceBuilder::positions`], so there is a pass for each shard. They come in some runs, each in the
    /// order of the positions.
    ByPosition,
}

/// Builds a slice file in passes. In each pass the owners of the slice are offered, and the builder holds only those of some shards: at
/// least about 260,000, in 48 bytes each.
///
/// `offer` all owners, then `end_pass`, until [`SliceBuilder::needs_pass`] is false; then `finish`. An owner whose position is not in
/// [`SliceBuilder::positions`] need not be offered in this pass.
#[derive(Debug)]
pub struct SliceBuilder {
    coverage: SliceCoverage,
    owners: OwnerLayout,
    position_of: Positions,
    scan: OwnerScan,
    /// First shard of the pass.
    shard: u32,
    /// Positions of the pass.
    positions: RangeInclusive<u64>,
    held: Vec<(u64, Identity, KnownOwner)>,
    filter: FilterBuilder,
    fences: Vec<u64>,
    ids: u64,
    offered: u64,
}

impl SliceBuilder {
    /// A builder for a store with these positions.
    pub fn new(coverage: SliceCoverage, positions: Positions, scan: OwnerScan) -> Self {
        let bits = coverage.only_filter.unwrap_or(FilterBits::WITH_OWNERS);
        let filter = FilterBuilder::new(coverage.range.owners(), bits);
        Self::with_filter(coverage, positions, scan, filter)
    }

    pub(super) fn with_filter(
        coverage: SliceCoverage,
        position_of: Positions,
        scan: OwnerScan,
        filter: FilterBuilder,
    ) -> Self {
        let ids = coverage.range.owners();
        let held = match scan {
            OwnerScan::Everything => pass_ids(ids),
            OwnerScan::ByPosition => ids / u64::from(filter.shards()),
        };
        let mut builder = Self {
            coverage,
            owners: OwnerLayout::default(),
            position_of,
            scan,
            shard: 0,
            positions: 0..=0,
            // A shard has a few more than the average.
            held: Vec::with_capacity(usize::try_from(held / 64 * 65).unwrap_or(0)),
            filter,
            fences: Vec::new(),
            ids: 0,
            offered: 0,
        };
        builder.begin_pass(0);
        builder
    }

    /// Whether the owners have to be offered once more.
    pub fn needs_pass(&self) -> bool {
        self.shard < self.filter.shards()
    }

    /// Offers an owner in the current pass; `None` for one that its source has, and the slice shall not have.
    #[inline]
    pub fn offer(&mut self, identity: Identity, owner: Option<KnownOwner>) {
        let is_first_read = self.shard == 0 && self.scan == OwnerScan::Everything;
        if let Some(owner) = owner.filter(|_| is_first_read) {
            self.coverage.cover.add_owner(owner);
        }
        let position = self.position_of.key(identity).position.first;
        if self.positions.contains(&position) {
            self.offered += 1;
            self.held.extend(owner.map(|owner| (position, identity, owner)));
        }
    }

    /// Number of owners that were offered: after the last pass, that of all owners in the sources.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    fn shards_of_pass(&self) -> Range<u32> {
        let shards = self.filter.shards();
        let of_pass = match self.scan {
            OwnerScan::Everything => shards.div_ceil(PASSES),
            OwnerScan::ByPosition => 1,
        };
        self.shard..shards.min(self.shard + of_pass)
    }

    /// The positions of this pass.
    pub fn positions(&self) -> RangeInclusive<u64> {
        self.positions.clone()
    }

    fn begin_pass(&mut self, shard: u32) {
        self.shard = shard;
        // The inverse of `part_of`: the smallest position of a shard.
        let first_of =
            |shard: u32| (u128::from(shard) << 64).div_ceil(u128::from(self.filter.shards().max(1)));
        let Range { start, end } = self.shards_of_pass();
        let clamped = |position: u128| u64::try_from(position).unwrap_or(u64::MAX);
        self.positions = clamped(first_of(start))..=clamped(first_of(end).saturating_sub(1));
    }

    /// Ends a pass: writes the pages of its shards, in parts. `damaged` makes its error of one of the format.
    pub fn end_pass<E>(
        &mut self,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
        damaged: impl Fn(SliceError) -> E,
    ) -> Result<(), E> {
        if self.shard == 0 {
            let cover = mem::take(&mut self.coverage.cover);
            let impossible = SliceError::Inconsistent("impossible partitions or times");
            self.owners = OwnerLayout::new(cover).ok_or_else(|| damaged(impossible))?;
        }
        match self.scan {
            OwnerScan::Everything => self.held.sort_unstable(),
            // Some sorted runs, which this sort merges.
            OwnerScan::ByPosition => self.held.sort(),
        }
        self.ids += self.held.len() as u64;
        if self.coverage.only_filter.is_none() {
            self.write_pages(&mut write, &damaged)?;
        }
        self.build_shards();
        self.held.clear();
        self.begin_pass(self.shards_of_pass().end);
        Ok(())
    }

    fn write_pages<E>(
        &mut self,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
        damaged: impl Fn(SliceError) -> E,
    ) -> Result<(), E> {
        let mut part = Vec::new();
        for page in self.held.chunks(SlicePage::capacity(&self.owners)) {
            let place = SlicePage::place(self.coverage.file, self.fences.len());
            self.fences.extend(page.first().map(|(position, ..)| *position));
            let entries = page.iter().map(|(_, identity, owner)| (*identity, *owner));
            SlicePage::encode(&self.owners, place, entries, &mut part).map_err(&damaged)?;
            if part.len() >= PART_BYTES {
                write(&part)?;
                part.clear();
            }
        }
        write(&part)
    }

    /// Builds the shards of this pass.
    fn build_shards(&mut self) {
        let mut rest = self.held.as_slice();
        for shard in self.shards_of_pass() {
            let is_here = |(position, ..): &(u64, Identity, KnownOwner)| {
                part_of(*position, self.filter.shards() as usize) <= shard as usize
            };
            let (here, after) = rest.split_at(rest.partition_point(is_here));
            let mut positions: Vec<u64> = here.iter().map(|(position, ..)| *position).collect();
            positions.dedup();
            self.filter.push(&positions);
            rest = after;
        }
    }

    /// Writes the filter and the footer, in parts.
    pub fn finish<E>(self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let shards = self.filter.finish(&mut write)?;
        let SliceCoverage { file, hash, window, mut range, .. } = self.coverage;
        let (ids, owners, fences) = (self.ids, self.owners, self.fences);
        range.limit(ids);
        let footer = SliceFooter { file, hash, window, ids, range, owners, shards, fences };
        write(&footer.encode())
    }
}
