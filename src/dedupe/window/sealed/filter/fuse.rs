//! The second level of a shard of the filter: a binary fuse filter, or the positions themselves.
//!
//! The library builds fingerprints of 8 or 32 bits. A position is in the filter when the fingerprints at its three places, combined by
//! exclusive or, are its own. That holds for each bit by itself, so a filter with fewer bits is made by leaving out the others.
//!
//! There are contents for which the library (xorf 0.13) builds a filter that lacks some of them, panics, or finds no filter: it counts the
//! positions of a place in eight bits, and its seeds are always the same. So a filter is compared with what it was built from.

use std::panic::catch_unwind;

use xorf::{BinaryFuse8, BinaryFuse32};

use crate::dedupe::window::prefetch::prefetch;

/// Bytes before the fingerprints: seed (8), length of a segment (4), number of starting places (4), bits of a fingerprint (4).
const DESCRIPTOR_BYTES: usize = 20;
/// Most bits of a fingerprint.
pub(super) const MOST_BITS: u32 = 32;
/// Fingerprints are read in words.
const WORD_BYTES: usize = 8;

/// Attempts to build a filter, each with other seeds.
pub(super) const ATTEMPTS: u64 = 3;
/// An odd number without a pattern, by which the seeds of the attempts differ.
pub(super) const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The second level of a shard.
#[derive(Debug)]
pub(super) enum SecondLevel {
    /// As almost always.
    Fuse(FuseFilter),
    /// The positions in ascending order, where no filter could be built: slower, larger, and without false positives.
    Exact(Box<[u64]>),
}

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

/// The encoded second level of these positions, which must be sorted and distinct, with fingerprints of 1 to 32 bits.
pub(super) fn build(positions: &[u64], bits: u32) -> Vec<u8> {
    build_verified(positions, |shift| catch_unwind(|| build_fuse(positions, shift, bits)).ok().flatten())
}

/// The first of some attempts that has all positions, or else the positions themselves.
pub(super) fn build_verified(positions: &[u64], attempt: impl FnMut(u64) -> Option<Vec<u8>>) -> Vec<u8> {
    let has_all = |encoded: &Vec<u8>| {
        SecondLevel::decode(encoded)
            .is_some_and(|(built, _)| positions.iter().all(|position| built.contains(*position)))
    };
    let shifts = (0..ATTEMPTS).map(|number| number.wrapping_mul(SEED_STEP));
    shifts.filter_map(attempt).find(has_all).unwrap_or_else(|| {
        let count = u32::try_from(positions.len()).unwrap_or(u32::MAX);
        let mut out = Vec::new();
        describe(0, [count, 0, 0], &mut out);
        out.extend(positions.iter().flat_map(|position| position.to_le_bytes()));
        out
    })
}

/// The library hashes the sum of a position and a seed that it selects, so positions that are shifted are those with another seed.
pub(super) fn build_fuse(positions: &[u64], shift: u64, bits: u32) -> Option<Vec<u8>> {
    let shifted = positions.iter().map(|position| position.wrapping_add(shift));
    let mut out = Vec::new();
    if bits <= u8::BITS {
        let fuse = BinaryFuse8::try_from_iterator(shifted).ok()?;
        let of = fuse.descriptor;
        describe(of.seed.wrapping_add(shift), [of.segment_length, of.segment_count_length, bits], &mut out);
        pack(fuse.fingerprints.iter().map(|print| u32::from(*print)), bits, &mut out);
    } else {
        let fuse = BinaryFuse32::try_from_iterator(shifted).ok()?;
        let of = fuse.descriptor;
        describe(of.seed.wrapping_add(shift), [of.segment_length, of.segment_count_length, bits], &mut out);
        pack(fuse.fingerprints.iter().copied(), bits, &mut out);
    }
    Some(out)
}

/// Appends the descriptor. `fields` has what follows the seed.
fn describe(seed: u64, fields: [u32; 3], out: &mut Vec<u8>) {
    out.extend_from_slice(&seed.to_le_bytes());
    out.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
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

impl SecondLevel {
    /// Whether the shard contains a position: always if it was built from it.
    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        match self {
            Self::Fuse(fuse) => fuse.contains(position),
            Self::Exact(positions) => positions.binary_search(&position).is_ok(),
        }
    }

    /// Prefetches what [`SecondLevel::contains`] reads.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        if let Self::Fuse(fuse) = self {
            fuse.prefetch(position);
        }
    }

    /// Bits of a fingerprint; `None` if there are no false positives.
    pub fn bits(&self) -> Option<u32> {
        if let Self::Fuse(fuse) = self { Some(fuse.bits) } else { None }
    }

    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::Fuse(fuse) => fuse.packed.len() as u64,
            Self::Exact(positions) => size_of_val::<[u64]>(positions) as u64,
        }
    }

    /// A second level, and the bytes that follow it; `None` when a look-up in it could be out of its bounds.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (descriptor, rest) = bytes.split_at_checked(DESCRIPTOR_BYTES)?;
        let (seed, fields) = descriptor.split_first_chunk()?;
        let fields: [[u8; 4]; 3] = fields.as_chunks().0.try_into().ok()?;
        let [segment_length, starts, bits] = fields.map(u32::from_le_bytes);
        if (starts, bits) == (0, 0) {
            let (positions, rest) = rest.split_at_checked((segment_length as usize).checked_mul(8)?)?;
            let positions: Box<[u64]> =
                positions.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
            return positions.is_sorted().then_some((Self::Exact(positions), rest));
        }
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
        let seed = u64::from_le_bytes(*seed);
        Some((Self::Fuse(FuseFilter { seed, segment_length, starts, bits, packed }), rest))
    }
}

impl FuseFilter {
    /// Whether the filter contains a position: always if it was built from it, for one in 2 to the power of its bits of others.
    /// As in `xorf`.
    #[inline]
    fn contains(&self, position: u64) -> bool {
        let hash = self.hash(position);
        let [first, second, third] = self.places(hash).map(|place| self.print(place));
        let found = first ^ second ^ third ^ hash ^ (hash >> 32);
        found & u64::from(mask(self.bits)) == 0
    }

    /// Prefetches what [`FuseFilter::contains`] reads.
    #[inline]
    fn prefetch(&self, position: u64) {
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
}

/// The finalizer of `MurmurHash3`.
fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
