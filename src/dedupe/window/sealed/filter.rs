//! The filter of a sealed slice: a binary fuse filter with 16-bit fingerprints (Graf and Lemire, 2022), built once from all
//! positions of the slice.
//!
//! It has no false negatives and about 2⁻¹⁶ false positives, in 18.1 bits per identity. It consists of shards of about a million
//! positions, which bounds the memory that building one needs.

use xorf::{BinaryFuse16, Filter as _};

use crate::dedupe::format::{ShardEntry, SliceError};
use crate::dedupe::window::prefetch::prefetch;

/// Identities of a shard, on average: building one needs about 35 MB beside the identities.
const SHARD_IDS: u64 = 1 << 20;
/// Bytes of an encoded shard before its fingerprints: seed (8), length of a segment (4), number of starting places (4).
const DESCRIPTOR_BYTES: usize = 16;

/// A filter, complete once all of its shards are pushed.
#[derive(Debug, Default)]
pub(super) struct SliceFilter {
    shards: Vec<BinaryFuse16>,
}

impl SliceFilter {
    /// Number of shards for this many identities.
    pub fn shards_for(ids: u64) -> u32 {
        u32::try_from(ids.div_ceil(SHARD_IDS).max(1)).unwrap_or(u32::MAX)
    }

    /// Identities that a builder holds at a time, of this many.
    pub fn pass_ids(ids: u64) -> u64 {
        (ids / 8).max(SHARD_IDS).min(ids)
    }

    /// Bytes in memory for this many identities.
    pub fn bytes_for(ids: u64) -> u64 {
        // 18.1 bits.
        ids.saturating_mul(181) / 80
    }

    /// The shard of a position, from the high half of a product: shards are ranges of positions in ascending order.
    #[inline]
    pub fn shard_of(position: u64, shards: u32) -> u32 {
        let (_, high) = position.carrying_mul(u64::from(shards), 0);
        u32::try_from(high).unwrap_or(u32::MAX)
    }

    /// Builds the next shard from its positions, which must be sorted and distinct.
    pub fn push(&mut self, positions: &[u64]) -> Result<(), SliceError> {
        let built = BinaryFuse16::try_from(positions);
        // 1,000 attempts with different seeds; each succeeds with a probability of more than one half.
        self.shards.push(built.map_err(|_| SliceError::Inconsistent("no filter can be built"))?);
        Ok(())
    }

    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        let at = Self::shard_of(position, u32::try_from(self.shards.len()).unwrap_or(u32::MAX));
        self.shards.get(at as usize).is_some_and(|shard| shard.contains(&position))
    }

    /// Prefetches the three fingerprints that [`SliceFilter::contains`] reads.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        let at = Self::shard_of(position, u32::try_from(self.shards.len()).unwrap_or(u32::MAX));
        let Some(shard) = self.shards.get(at as usize) else { return };
        for place in places(shard, position) {
            if let Some(fingerprint) = shard.fingerprints.get(place as usize) {
                prefetch(fingerprint);
            }
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| (shard.fingerprints.len() * 2) as u64).sum()
    }

    /// Appends the encoded shards to `out` and returns their sizes and checksums.
    pub fn encode(&self, out: &mut Vec<u8>) -> Vec<ShardEntry> {
        let shards = self.shards.iter().map(|shard| {
            let start = out.len();
            let places = &shard.descriptor;
            out.extend_from_slice(&places.seed.to_le_bytes());
            out.extend_from_slice(&places.segment_length.to_le_bytes());
            out.extend_from_slice(&places.segment_count_length.to_le_bytes());
            out.extend(shard.fingerprints.iter().flat_map(|fingerprint| fingerprint.to_le_bytes()));
            let bytes = out.get(start..).unwrap_or_default();
            ShardEntry { bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX), crc: crc32c::crc32c(bytes) }
        });
        shards.collect()
    }

    /// Verifies and appends the next encoded shard.
    pub fn push_encoded(&mut self, bytes: &[u8], entry: ShardEntry) -> Result<(), SliceError> {
        let computed = crc32c::crc32c(bytes);
        if computed != entry.crc {
            return Err(SliceError::Checksum { what: "a shard of the filter", found: entry.crc, computed });
        }
        self.shards.push(decoded(bytes).ok_or(SliceError::Inconsistent("impossible shard of the filter"))?);
        Ok(())
    }
}

/// The places of a position in a shard. A copy of what the library computes: if it differed, the wrong lines would be prefetched.
#[inline]
fn places(shard: &BinaryFuse16, position: u64) -> [u32; 3] {
    let of = &shard.descriptor;
    let mut hash = position.wrapping_add(of.seed);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    let (_, high) = hash.carrying_mul(u64::from(of.segment_count_length), 0);
    let first = u32::try_from(high).unwrap_or(u32::MAX);
    let low = |bits: u64| u32::try_from(bits & u64::from(of.segment_length_mask)).unwrap_or(u32::MAX);
    let second = first.wrapping_add(of.segment_length);
    let third = second.wrapping_add(of.segment_length);
    [first, second ^ low(hash >> 18), third ^ low(hash)]
}

/// A shard from its bytes; `None` when a look-up in it could be out of its bounds.
fn decoded(bytes: &[u8]) -> Option<BinaryFuse16> {
    let (descriptor, fingerprints) = bytes.split_at_checked(DESCRIPTOR_BYTES)?;
    let (seed, lengths) = descriptor.split_first_chunk()?;
    let (segment_length, starts) = lengths.split_first_chunk()?;
    let segment_length = u32::from_le_bytes(*segment_length);
    let segment_count_length = u32::from_le_bytes(*starts.first_chunk()?);
    let (pairs, rest) = fingerprints.as_chunks();
    // The three places of a position are in consecutive segments, the first of them at one of the starting places.
    let places = u64::from(segment_count_length) + 2 * u64::from(segment_length);
    let is_possible = segment_length.is_power_of_two()
        && segment_count_length.is_multiple_of(segment_length)
        && rest.is_empty()
        && pairs.len() as u64 == places;
    if !is_possible {
        return None;
    }
    // The library does not export the type of the descriptor, so the fields of a small filter are replaced.
    let mut shard = BinaryFuse16::try_from([0].as_slice()).ok()?;
    shard.descriptor.seed = u64::from_le_bytes(*seed);
    shard.descriptor.segment_length = segment_length;
    shard.descriptor.segment_length_mask = segment_length - 1;
    shard.descriptor.segment_count_length = segment_count_length;
    shard.fingerprints = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    Some(shard)
}
