//! A shard of the filter: both levels over the same positions.

use xorf::{BinaryFuse8, Filter as _};

use super::blocked::BlockedFilter;
use crate::dedupe::format::SliceError;

/// Bytes of an encoded shard before its fingerprints: seed (8), length of a segment (4), number of starting places (4).
const DESCRIPTOR_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct FilterShard {
    blocked: BlockedFilter,
    fuse: BinaryFuse8,
}

impl FilterShard {
    /// Builds a shard from its positions, which must be distinct.
    pub fn build(positions: &[u64]) -> Result<Self, SliceError> {
        let fuse = BinaryFuse8::try_from(positions);
        // 1,000 attempts with different seeds; each succeeds with a probability of more than one half.
        let fuse = fuse.map_err(|_| SliceError::Inconsistent("no filter can be built"))?;
        Ok(Self { blocked: BlockedFilter::build(positions), fuse })
    }

    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        self.blocked.contains(position) && self.fuse.contains(&position)
    }

    #[inline]
    pub fn prefetch(&self, position: u64) {
        self.blocked.prefetch(position);
    }

    pub fn memory_bytes(&self) -> u64 {
        self.fuse.fingerprints.len() as u64 + self.blocked.memory_bytes()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let places = &self.fuse.descriptor;
        out.extend_from_slice(&places.seed.to_le_bytes());
        out.extend_from_slice(&places.segment_length.to_le_bytes());
        out.extend_from_slice(&places.segment_count_length.to_le_bytes());
        out.extend_from_slice(&self.fuse.fingerprints);
        self.blocked.encode(out);
    }

    /// A shard from its bytes; `None` when a look-up in it could be out of its bounds.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (descriptor, rest) = bytes.split_at_checked(DESCRIPTOR_BYTES)?;
        let (seed, lengths) = descriptor.split_first_chunk()?;
        let (segment_length, starts) = lengths.split_first_chunk()?;
        let segment_length = u32::from_le_bytes(*segment_length);
        let segment_count_length = u32::from_le_bytes(*starts.first_chunk()?);
        let is_possible = segment_length.is_power_of_two()
            && segment_count_length > 0
            && segment_count_length.is_multiple_of(segment_length);
        if !is_possible {
            return None;
        }
        // The three places of a position are in consecutive segments, the first of them at one of the starting places.
        let places = u64::from(segment_count_length) + 2 * u64::from(segment_length);
        let (fingerprints, blocks) = rest.split_at_checked(usize::try_from(places).ok()?)?;
        // The library does not export the type of the descriptor, so the fields of a small filter are replaced.
        let mut fuse = BinaryFuse8::try_from([0].as_slice()).ok()?;
        fuse.descriptor.seed = u64::from_le_bytes(*seed);
        fuse.descriptor.segment_length = segment_length;
        fuse.descriptor.segment_length_mask = segment_length - 1;
        fuse.descriptor.segment_count_length = segment_count_length;
        fuse.fingerprints = fingerprints.into();
        Some(Self { blocked: BlockedFilter::decode(blocks)?, fuse })
    }
}
