//! The second level of a shard of the filter: a binary fuse filter.
//!
//! The library builds fingerprints of 8 or 32 bits. A position is in the filter when the fingerprints at its three places, combined by
//! exclusive or, are its own. That holds for each bit by itself, so a filter with fewer bits is made by leaving out the others.

use xorf::{BinaryFuse8, BinaryFuse32};

use crate::dedupe::format::SliceError;
use crate::dedupe::window::prefetch::prefetch;

/// Bytes before the fingerprints: seed (8), length of a segment (4), number of starting places (4), bits of a fingerprint (4).
const DESCRIPTOR_BYTES: usize = 20;
/// Most bits of a fingerprint.
pub(super) const MOST_BITS: u32 = 32;
/// Fingerprints are read in words.
const WORD_BYTES: usize = 8;

/// Fingerprints of a number of bits, one after the other.
#[derive(Debug)]
pub(super) struct FuseFilter {
    seed: u64,
    segment_length: u32,
    /// Number of starting places.
    starts: u32,
    bits: u32,
    /// The fingerprints, and a word after them.
    packed: Box<[u8]>,
}

/// An encoded filter of these positions, which must be distinct, with fingerprints of 1 to 32 bits.
pub(super) fn build(positions: &[u64], bits: u32) -> Result<Vec<u8>, SliceError> {
    // 1,000 attempts with different seeds; each succeeds with a probability of more than one half.
    let failed = SliceError::Inconsistent("no filter can be built");
    let mut out = Vec::new();
    let mut describe = |seed: u64, segment_length: u32, starts: u32| {
        out.extend_from_slice(&seed.to_le_bytes());
        out.extend_from_slice(&segment_length.to_le_bytes());
        out.extend_from_slice(&starts.to_le_bytes());
        out.extend_from_slice(&bits.to_le_bytes());
    };
    if bits <= u8::BITS {
        let fuse = BinaryFuse8::try_from(positions).map_err(|_| failed)?;
        describe(fuse.descriptor.seed, fuse.descriptor.segment_length, fuse.descriptor.segment_count_length);
        pack(fuse.fingerprints.iter().map(|print| u32::from(*print)), bits, &mut out);
    } else {
        let fuse = BinaryFuse32::try_from(positions).map_err(|_| failed)?;
        describe(fuse.descriptor.seed, fuse.descriptor.segment_length, fuse.descriptor.segment_count_length);
        pack(fuse.fingerprints.iter().copied(), bits, &mut out);
    }
    Ok(out)
}

/// Appends the low bits of each fingerprint. The rest of the last byte is zero.
fn pack(prints: impl Iterator<Item = u32>, bits: u32, out: &mut Vec<u8>) {
    let (mut word, mut filled) = (0u64, 0);
    for print in prints {
        word |= u64::from(print & mask(bits)) << filled;
        filled += bits;
        while filled >= u8::BITS {
            out.extend(word.to_le_bytes().first());
            word >>= u8::BITS;
            filled -= u8::BITS;
        }
    }
    out.extend(word.to_le_bytes().first().filter(|_| filled > 0));
}

fn mask(bits: u32) -> u32 {
    u32::MAX.checked_shr(MOST_BITS - bits).unwrap_or(0)
}

impl FuseFilter {
    /// Whether the filter contains a position: always if it was built from it, for one in 2 to the power of [`FuseFilter::bits`] of others.
    /// As in `xorf`.
    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        let hash = self.hash(position);
        let [first, second, third] = self.places(hash).map(|place| self.print(place));
        let found = first ^ second ^ third ^ hash ^ (hash >> 32);
        found & u64::from(mask(self.bits)) == 0
    }

    /// Prefetches what [`FuseFilter::contains`] reads.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        for place in self.places(self.hash(position)) {
            if let Some(byte) = self.packed.get(self.byte_of(place)) {
                prefetch(byte);
            }
        }
    }

    #[inline]
    fn hash(&self, position: u64) -> u64 {
        mix(position.wrapping_add(self.seed))
    }

    /// The three places of a position with this hash.
    #[inline]
    fn places(&self, hash: u64) -> [u64; 3] {
        let (_, start) = hash.carrying_mul(u64::from(self.starts), 0);
        let in_segment = u64::from(self.segment_length - 1);
        let second = (start + u64::from(self.segment_length)) ^ ((hash >> 18) & in_segment);
        let third = (start + 2 * u64::from(self.segment_length)) ^ (hash & in_segment);
        [start, second, third]
    }

    /// The byte in which the fingerprint at a place begins.
    #[inline]
    fn byte_of(&self, place: u64) -> usize {
        usize::try_from(place * u64::from(self.bits) / 8).unwrap_or(usize::MAX)
    }

    /// The fingerprint at a place, and bits of others.
    #[inline]
    fn print(&self, place: u64) -> u64 {
        let word = self.packed.get(self.byte_of(place)..).and_then(|rest| rest.first_chunk::<WORD_BYTES>());
        word.map_or(0, |word| u64::from_le_bytes(*word) >> (place * u64::from(self.bits) % 8))
    }

    /// Bits of a fingerprint.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    pub fn memory_bytes(&self) -> u64 {
        self.packed.len() as u64
    }

    /// A filter, and the bytes that follow it; `None` when a look-up in it could be out of its bounds.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (descriptor, rest) = bytes.split_at_checked(DESCRIPTOR_BYTES)?;
        let (seed, lengths) = descriptor.split_first_chunk()?;
        let [segment_length, starts, bits] = lengths.as_chunks().0.try_into().ok()?;
        let [segment_length, starts, bits] = [segment_length, starts, bits].map(u32::from_le_bytes);
        let is_possible = segment_length.is_power_of_two()
            && starts > 0
            && starts.is_multiple_of(segment_length)
            && (1..=MOST_BITS).contains(&bits);
        if !is_possible {
            return None;
        }
        // The three places of a position are in consecutive segments, the first of them at one of the starting places.
        let places = u64::from(starts) + 2 * u64::from(segment_length);
        let length = usize::try_from((places * u64::from(bits)).div_ceil(8)).ok()?;
        let (prints, rest) = rest.split_at_checked(length)?;
        let packed = [prints, &[0; WORD_BYTES]].concat().into();
        Some((Self { seed: u64::from_le_bytes(*seed), segment_length, starts, bits, packed }, rest))
    }
}

/// The finalizer of `MurmurHash3`.
fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
