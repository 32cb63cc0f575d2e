//! The filter of a sealed slice, built once from all positions of the slice. It has no false negatives.
//!
//! It has two levels. The first is a blocked Bloom filter. It decides most look-ups in one cache line, and passes 1.2 % of the positions
//! that the slice does not contain. The second is a binary fuse filter (Graf and Lemire, 2022), in three cache lines. It is read only for
//! positions that pass the first level. Its fingerprints have 8 bits where the slice has the owners of its identities: then both levels
//! have about 1 false positive in 20,000, and 18.7 bits per identity. Without owners they have as many bits as the rate of false
//! positives requires ([`FilterBits`]).
//!
//! The filter is built and stored in shards of about 260,000 positions, which bounds the memory that building one needs. The second level
//! stays in shards. The first is one array, so that a look-up in many slices reads as little as possible ([`FirstLevels`]).

mod blocked;
mod fuse;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use blocked::{BlockBits, FilterBlock, blocks_of_shard, prefetch_block};
use fuse::{MOST_BITS, SecondLevel};

use super::Slice;
use super::build::PASSES;
use crate::dedupe::format::{ShardEntry, SliceError};
use crate::dedupe::window::huge_pages::prefer_huge_pages;
use crate::dedupe::window::positions::IndexKey;

/// Slices without owners that a window has, at most, in steady traffic: sixteen as [`super::FILTERS`] says, one that is not full and one
/// that has expired in part. A look-up can have a false positive in each.
const LOOKED_UP: f64 = 18.0;
/// Share of the positions that a slice does not contain and that pass the first level.
const FIRST_PASSES: f64 = 0.0125;

/// Bits of a fingerprint in the second level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilterBits(u32);

impl FilterBits {
    /// Where the owners of the slice are looked up after the filter.
    pub const WITH_OWNERS: Self = Self(8);

    /// The fewest bits with which at most this share, 1e-10 to 1, of the look-ups in a window have a false positive.
    pub fn at_rate(rate: f64) -> Self {
        let fits = |bits: &u32| Self(*bits).expected_rate() <= rate;
        Self((1..MOST_BITS).find(fits).unwrap_or(MOST_BITS))
    }

    /// Share of the look-ups in a full window that have a false positive.
    pub fn expected_rate(self) -> f64 {
        LOOKED_UP * self.rate()
    }

    /// Share of the look-ups in one slice that have a false positive.
    fn rate(self) -> f64 {
        FIRST_PASSES / 2.0f64.powi(self.0.cast_signed())
    }

    /// Bytes in memory for this many identities.
    pub(super) fn bytes_for(self, ids: u64) -> u64 {
        // 9.7 bits in the first level; the second has 1.13 fingerprints for each identity.
        let bits = 9.7 + 1.135 * f64::from(self.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let bytes = (ids as f64 * bits / 8.0) as u64;
        bytes
    }
}

/// Identities of a shard, on average: building one needs about 9 MB beside the identities.
const SHARD_IDS: u64 = 1 << 18;

/// The part of a position, from the high half of a product, which works for any number of parts. Parts are ranges of positions in
/// ascending order. Shards and blocks are such parts, so the blocks of a shard are consecutive.
#[inline]
pub(super) fn part_of(position: u64, parts: usize) -> usize {
    let (_, high) = position.carrying_mul(parts as u64, 0);
    usize::try_from(high).unwrap_or(usize::MAX)
}

/// Identities that a builder holds at a time, of this many.
pub(super) fn pass_ids(ids: u64) -> u64 {
    (ids / u64::from(PASSES)).max(SHARD_IDS).min(ids)
}

/// Builds a filter, shard by shard.
#[derive(Debug)]
pub(super) struct FilterBuilder {
    shards: u32,
    /// Blocks of a shard.
    blocks: usize,
    bits: FilterBits,
    /// Encoded shards.
    built: Vec<Vec<u8>>,
}

impl FilterBuilder {
    /// For about `ids` identities.
    pub fn new(ids: u64, bits: FilterBits) -> Self {
        let shards = u32::try_from(ids.div_ceil(SHARD_IDS).max(1)).unwrap_or(u32::MAX);
        Self::with_shards(ids, bits, shards)
    }

    pub fn with_shards(ids: u64, bits: FilterBits, shards: u32) -> Self {
        Self { shards, blocks: blocks_of_shard(ids, shards), bits, built: Vec::new() }
    }

    /// Number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Builds the next shard from its positions, which must be sorted and distinct.
    pub fn push(&mut self, positions: &[u64]) {
        let mut shard = fuse::build(positions, self.bits.0);
        let first = self.built.len() * self.blocks;
        let all = self.shards as usize * self.blocks;
        shard.extend(blocked::build(positions, first..first + self.blocks, all));
        self.built.push(shard);
    }

    /// Calls `write` with each encoded shard, and returns their sizes and checksums.
    pub fn finish<E>(self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<Vec<ShardEntry>, E> {
        let shards = self.built.into_iter().map(|bytes| {
            write(&bytes)?;
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            Ok(ShardEntry { bytes: length, crc: crc32c::crc32c(&bytes) })
        });
        shards.collect()
    }
}

/// A filter that is being read, shard by shard.
#[derive(Debug)]
pub(super) struct FilterReader {
    /// Number of shards.
    expected: usize,
    blocks: Vec<FilterBlock>,
    shards: Vec<SecondLevel>,
}

impl FilterReader {
    /// For a filter of this many shards.
    pub fn new(shards: usize) -> Self {
        Self { expected: shards, blocks: Vec::new(), shards: Vec::new() }
    }

    /// Verifies and appends the next encoded shard.
    pub fn push(&mut self, bytes: &[u8], entry: ShardEntry) -> Result<(), SliceError> {
        let computed = crc32c::crc32c(bytes);
        if computed != entry.crc {
            return Err(SliceError::Checksum { what: "a shard of the filter", found: entry.crc, computed });
        }
        let impossible = SliceError::Inconsistent("impossible shard of the filter");
        let Some((second, rest)) = SecondLevel::decode(bytes) else { return Err(impossible) };
        let Some(blocks) = blocked::decode(rest) else { return Err(impossible) };
        let of_shard = blocks.len();
        if self.shards.is_empty() {
            self.blocks.reserve_exact(self.expected * of_shard);
            prefer_huge_pages(self.blocks.spare_capacity_mut());
        }
        self.blocks.extend(blocks);
        self.shards.push(second);
        // Each shard has the same number of blocks: they are found by one product for all.
        if self.blocks.len() == of_shard * self.shards.len() { Ok(()) } else { Err(impossible) }
    }

    /// The filter of all shards.
    pub fn finish(self) -> SliceFilter {
        SliceFilter { blocks: Arc::new(self.blocks), shards: self.shards }
    }
}

/// A filter.
#[derive(Debug)]
pub(super) struct SliceFilter {
    blocks: Arc<Vec<FilterBlock>>,
    /// The second level.
    shards: Vec<SecondLevel>,
}

impl SliceFilter {
    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        blocked::contain(&self.blocks, position, BlockBits::of(position))
            && self.shard_of(position).is_some_and(|shard| shard.contains(position))
    }

    /// Prefetches the second level.
    #[inline]
    pub fn prefetch_second(&self, position: u64) {
        if let Some(shard) = self.shard_of(position) {
            shard.prefetch(position);
        }
    }

    #[inline]
    fn shard_of(&self, position: u64) -> Option<&SecondLevel> {
        self.shards.get(part_of(position, self.shards.len()))
    }

    /// Share of the look-ups that have a false positive.
    pub fn false_positive_rate(&self) -> f64 {
        self.shards.iter().find_map(SecondLevel::bits).map_or(0.0, |bits| FilterBits(bits).rate())
    }

    pub fn memory_bytes(&self) -> u64 {
        size_of_val(self.blocks.as_slice()) as u64
            + self.shards.iter().map(SecondLevel::memory_bytes).sum::<u64>()
    }
}

/// The first levels of the filters of several slices, which are looked up in together.
#[derive(Debug, Default)]
pub struct FirstLevels(Vec<Arc<Vec<FilterBlock>>>);

impl FirstLevels {
    /// Those of these slices.
    pub fn of<'a>(slices: impl Iterator<Item = &'a Slice>) -> Self {
        Self(slices.map(|slice| Arc::clone(&slice.filter.blocks)).collect())
    }

    /// Prefetches what [`FirstLevels::passing`] reads.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.0.iter().for_each(|blocks| prefetch_block(blocks, key.position.first));
    }

    /// The numbers of the slices that may contain an identity, in descending order: of others, 1.2 %.
    #[inline]
    pub fn passing(&self, key: &IndexKey) -> impl Iterator<Item = usize> {
        let position = key.position.first;
        let bits = BlockBits::of(position);
        let levels = self.0.iter().enumerate().rev();
        levels.filter(move |(_, blocks)| blocked::contain(blocks, position, bits)).map(|(at, _)| at)
    }
}
