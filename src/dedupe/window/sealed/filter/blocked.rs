//! The first level of the filter: a blocked Bloom filter (Putze, Sanders and Singler, 2007). All bits of a position are in one block.

use std::ops::Range;

use super::part_of;
use crate::dedupe::window::prefetch::prefetch_many;

/// Words of a block.
const WORDS: usize = 8;
/// Positions per block, on average: 9.7 bits for each. Then 10 slices have one false positive in 2,000 new records.
const BLOCK_POSITIONS: u64 = 53;
/// An odd number without a pattern: the low bits of the product depend on all low bits of a position.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// 512 bits, one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct FilterBlock([u64; WORDS]);

/// The bits of a position in its block: up to three bits in each of two different words.
///
/// They are drawn from the low 41 bits of the position, and its block from the high bits: 23 of them for 400 million positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockBits([(usize, u64); 2]);

impl BlockBits {
    #[inline]
    pub fn of(position: u64) -> Self {
        let drawn = position.wrapping_mul(FACTOR);
        let bit = |draw: u32| 1 << ((drawn >> (6 * draw)) % 64);
        let first = (drawn >> 36) % 8;
        let second = first + 1 + (drawn >> 39) % 4;
        Self([
            ((first % 8) as usize, bit(0) | bit(1) | bit(2)),
            ((second % 8) as usize, bit(3) | bit(4) | bit(5)),
        ])
    }
}

/// Blocks for this many positions: the same number for each shard. At least one.
pub(super) fn blocks_of_shard(positions: u64, shards: u32) -> usize {
    let blocks = positions.div_ceil(u64::from(shards.max(1))).div_ceil(BLOCK_POSITIONS).max(1);
    usize::try_from(blocks).unwrap_or(usize::MAX)
}

/// The encoded blocks of one shard, a part of `all`, from its positions: each word little endian.
pub(super) fn build(positions: &[u64], of_shard: Range<usize>, all: usize) -> Vec<u8> {
    let mut blocks = vec![FilterBlock([0; WORDS]); of_shard.len()];
    for position in positions {
        let at = part_of(*position, all).checked_sub(of_shard.start);
        let Some(block) = at.and_then(|at| blocks.get_mut(at)) else { continue };
        for (word, bits) in BlockBits::of(*position).0 {
            if let Some(set) = block.0.get_mut(word) {
                *set |= bits;
            }
        }
    }
    blocks.iter().flat_map(|block| block.0).flat_map(u64::to_le_bytes).collect()
}

/// All blocks in `bytes`; `None` if there is none or a part of one.
pub(super) fn decode(bytes: &[u8]) -> Option<impl ExactSizeIterator<Item = FilterBlock>> {
    let (words, rest) = bytes.as_chunks();
    let (blocks, no_words) = words.as_chunks::<WORDS>();
    let is_whole = rest.is_empty() && no_words.is_empty() && !blocks.is_empty();
    let block = |words: &[[u8; 8]; WORDS]| FilterBlock(words.map(u64::from_le_bytes));
    is_whole.then(|| blocks.iter().map(block))
}

/// Whether blocks contain a position with these bits: always if they were built from it, for 1.2 % of others.
#[inline]
pub(super) fn contain(blocks: &[FilterBlock], position: u64, BlockBits(words): BlockBits) -> bool {
    let Some(FilterBlock(block)) = blocks.get(part_of(position, blocks.len())) else { return false };
    // Without a branch between the words: the first one alone passes one position in nine.
    let missing = words.map(|(word, bits)| bits & !block.get(word).copied().unwrap_or_default());
    missing[0] | missing[1] == 0
}

/// Prefetches the block that [`contain`] reads.
#[inline]
pub(super) fn prefetch_block(blocks: &[FilterBlock], position: u64) {
    if let Some(block) = blocks.get(part_of(position, blocks.len())) {
        prefetch_many(block);
    }
}
