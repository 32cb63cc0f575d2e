//! The filter of a sealed slice, built once from all positions of the slice. It has no false negatives.
//!
//! It has two levels. The first is a blocked Bloom filter. It decides most look-ups in one cache line, and passes 1.2 % of the positions
//! that the slice does not contain. The second is a binary fuse filter with 8-bit fingerprints (Graf and Lemire, 2022), in three cache
//! lines. It is read only for positions that pass the first level, and passes 1 of 256. Both together have about 1 false positive in
//! 20,000, and 18.7 bits per identity.
//!
//! The filter consists of shards of about 260,000 positions, which bounds the memory that building one needs.

mod blocked;
mod shard;
#[cfg(test)]
mod tests;

use shard::FilterShard;

use super::build::PASSES;
use crate::dedupe::format::{ShardEntry, SliceError};

/// Identities of a shard, on average: building one needs about 9 MB beside the identities.
const SHARD_IDS: u64 = 1 << 18;

/// A filter, complete once all of its shards are pushed.
#[derive(Debug, Default)]
pub(super) struct SliceFilter {
    shards: Vec<FilterShard>,
}

impl SliceFilter {
    /// Number of shards for this many identities.
    pub fn shards_for(ids: u64) -> u32 {
        u32::try_from(ids.div_ceil(SHARD_IDS).max(1)).unwrap_or(u32::MAX)
    }

    /// Identities that a builder holds at a time, of this many.
    pub fn pass_ids(ids: u64) -> u64 {
        (ids / u64::from(PASSES)).max(SHARD_IDS).min(ids)
    }

    /// Bytes in memory for this many identities.
    pub fn bytes_for(ids: u64) -> u64 {
        // 19 bits.
        ids.saturating_mul(19) / 8
    }

    /// The shard of a position, from the high half of a product: shards are ranges of positions in ascending order.
    #[inline]
    pub fn shard_of(position: u64, shards: u32) -> u32 {
        let (_, high) = position.carrying_mul(u64::from(shards), 0);
        u32::try_from(high).unwrap_or(u32::MAX)
    }

    /// Builds the next shard from its positions, which must be sorted and distinct.
    pub fn push(&mut self, positions: &[u64]) -> Result<(), SliceError> {
        self.shards.push(FilterShard::build(positions)?);
        Ok(())
    }

    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        self.shard(position).is_some_and(|shard| shard.contains(position))
    }

    /// Prefetches the cache line that [`SliceFilter::contains`] reads first. For most positions that are not in the slice it reads no
    /// other.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        if let Some(shard) = self.shard(position) {
            shard.prefetch(position);
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(FilterShard::memory_bytes).sum()
    }

    /// Calls `write` with each encoded shard, and returns their sizes and checksums.
    pub fn encode<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<Vec<ShardEntry>, E> {
        let mut bytes = Vec::new();
        let shards = self.shards.iter().map(|shard| {
            bytes.clear();
            shard.encode(&mut bytes);
            write(&bytes)?;
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            Ok(ShardEntry { bytes: length, crc: crc32c::crc32c(&bytes) })
        });
        shards.collect()
    }

    /// Verifies and appends the next encoded shard.
    pub fn push_encoded(&mut self, bytes: &[u8], entry: ShardEntry) -> Result<(), SliceError> {
        let computed = crc32c::crc32c(bytes);
        if computed != entry.crc {
            return Err(SliceError::Checksum { what: "a shard of the filter", found: entry.crc, computed });
        }
        let shard = FilterShard::decode(bytes);
        self.shards.push(shard.ok_or(SliceError::Inconsistent("impossible shard of the filter"))?);
        Ok(())
    }

    #[inline]
    fn shard(&self, position: u64) -> Option<&FilterShard> {
        let at = Self::shard_of(position, u32::try_from(self.shards.len()).unwrap_or(u32::MAX));
        self.shards.get(at as usize)
    }
}
