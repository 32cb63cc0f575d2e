//! The first level of the filter: a blocked Bloom filter (Putze, Sanders and Singler, 2007). All bits of a position are in one block.

use std::ops::BitOr;

use crate::dedupe::window::prefetch::prefetch;

/// Words of a block.
const WORDS: usize = 8;
/// Positions per block, on average: 9.7 bits for each. Then 10 slices have one false positive in 2,000 new records.
const BLOCK_POSITIONS: usize = 53;
/// An odd number without a pattern. The positions of a shard have equal high bits; the high bits of the product differ.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// 512 bits, one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct FilterBlock([u64; WORDS]);

/// The blocks of a shard. At least one.
#[derive(Debug)]
pub(super) struct BlockedFilter {
    blocks: Vec<FilterBlock>,
}

impl BlockedFilter {
    pub fn build(positions: &[u64]) -> Self {
        let blocks = positions.len().div_ceil(BLOCK_POSITIONS).max(1);
        let mut filter = Self { blocks: vec![FilterBlock([0; WORDS]); blocks] };
        for position in positions {
            let at = filter.block_of(*position);
            let Some(block) = filter.blocks.get_mut(at) else { continue };
            for (word, bits) in words_of(*position) {
                if let Some(set) = block.0.get_mut(word) {
                    *set |= bits;
                }
            }
        }
        filter
    }

    /// Always for a position that the filter was built from, for 1.2 % of others.
    #[inline]
    pub fn contains(&self, position: u64) -> bool {
        let Some(block) = self.blocks.get(self.block_of(position)) else { return false };
        // Without a branch between the words: the first one alone passes one position in nine.
        let missing =
            words_of(position).map(|(word, bits)| bits & !block.0.get(word).copied().unwrap_or_default());
        missing.into_iter().fold(0, BitOr::bitor) == 0
    }

    /// Prefetches the block that [`BlockedFilter::contains`] reads.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        if let Some(block) = self.blocks.get(self.block_of(position)) {
            prefetch(block);
        }
    }

    pub fn memory_bytes(&self) -> u64 {
        (self.blocks.len() * size_of::<FilterBlock>()) as u64
    }

    /// Appends the blocks, each word little endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.blocks.iter().flat_map(|block| block.0).flat_map(u64::to_le_bytes));
    }

    /// A filter of all blocks in `bytes`; `None` if there is none or a part of one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks();
        let (blocks, no_words) = words.as_chunks::<WORDS>();
        let is_whole = rest.is_empty() && no_words.is_empty() && !blocks.is_empty();
        let block = |words: &[[u8; 8]; WORDS]| FilterBlock(words.map(u64::from_le_bytes));
        is_whole.then(|| Self { blocks: blocks.iter().map(block).collect() })
    }

    /// The block of a position, from the high half of a product, which works for any number of blocks. Its bits are drawn from the
    /// low bits of the same number.
    #[inline]
    fn block_of(&self, position: u64) -> usize {
        let (_, high) = position.wrapping_mul(FACTOR).carrying_mul(self.blocks.len() as u64, 0);
        usize::try_from(high).unwrap_or(usize::MAX)
    }
}

/// Two different words of a block, and up to three bits in each.
#[inline]
fn words_of(position: u64) -> [(usize, u64); 2] {
    let drawn = position.wrapping_mul(FACTOR);
    let bit = |draw: u32| 1 << ((drawn >> (6 * draw)) % 64);
    let first = (drawn >> 36) % 8;
    let second = first + 1 + (drawn >> 39) % 4;
    [((first % 8) as usize, bit(0) | bit(1) | bit(2)), ((second % 8) as usize, bit(3) | bit(4) | bit(5))]
}
