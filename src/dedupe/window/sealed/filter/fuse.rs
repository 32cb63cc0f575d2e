//! The second level of a shard of the filter: a binary fuse filter.

use xorf::{BinaryFuse8, Filter as _};

use crate::dedupe::format::SliceError;

/// Bytes before the fingerprints: seed (8), length of a segment (4), number of starting places (4).
const DESCRIPTOR_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct FuseFilter(BinaryFuse8);

/// An encoded filter of these positions, which must be distinct.
pub(super) fn build(positions: &[u64]) -> Result<Vec<u8>, SliceError> {
    let fuse = BinaryFuse8::try_from(positions);
    // 1,000 attempts with different seeds; each succeeds with a probability of more than one half.
    let fuse = fuse.map_err(|_| SliceError::Inconsistent("no filter can be built"))?;
    let mut out = fuse.descriptor.seed.to_le_bytes().to_vec();
    out.extend_from_slice(&fuse.descriptor.segment_length.to_le_bytes());
    out.extend_from_slice(&fuse.descriptor.segment_count_length.to_le_bytes());
    out.extend_from_slice(&fuse.fingerprints);
    Ok(out)
}

impl FuseFilter {
    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        self.0.contains(&position)
    }

    pub fn memory_bytes(&self) -> u64 {
        self.0.fingerprints.len() as u64
    }

    /// A filter, and the bytes that follow it; `None` when a look-up in it could be out of its bounds.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
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
        let (fingerprints, rest) = rest.split_at_checked(usize::try_from(places).ok()?)?;
        // The library does not export the type of the descriptor, so the fields of a small filter are replaced.
        let mut fuse = BinaryFuse8::try_from([0].as_slice()).ok()?;
        fuse.descriptor.seed = u64::from_le_bytes(*seed);
        fuse.descriptor.segment_length = segment_length;
        fuse.descriptor.segment_length_mask = segment_length - 1;
        fuse.descriptor.segment_count_length = segment_count_length;
        fuse.fingerprints = fingerprints.into();
        Some((Self(fuse), rest))
    }
}
