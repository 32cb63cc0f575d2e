//! The account of one filter: whose it is, how full it may become, how full it is.

use std::ops::Range;

/// Blocks that the fill is measured on: all of a small filter, a part of a large one. Which block an
/// identity falls into is random, so the first ones stand for all.
const SAMPLED: u64 = 4_096;
/// Bits of a block.
const BLOCK_BITS: f64 = 512.0;

/// What tells filters apart, and orders them: the beginning of the slice, stream time, ms since the epoch, and which
/// filter of the slice it is.
pub(super) type Age = (i64, u32);

/// What a filter is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Design {
    /// Beginning of its slice, stream time, ms since the epoch.
    pub slice_ms: i64,
    /// Which filter of the slice it is, from 0.
    pub place: u32,
    /// Identities it is made for.
    pub ids: u64,
}

impl Design {
    pub fn age(&self) -> Age {
        (self.slice_ms, self.place)
    }
}

/// One filter. Its bits stand in a column of a grid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Filter {
    pub design: Design,
    /// Identities inserted.
    pub ids: u64,
    /// Stream time at the first and the last arrival, ms since the epoch; 0 while unknown.
    pub first_ms: i64,
    pub last_ms: i64,
    blocks: u64,
    bits: u32,
    /// Of the sampled blocks: bits set, and the sum of `share of bits set ^ bits` over them.
    set: u64,
    powers: f64,
}

impl Filter {
    /// An empty filter of `blocks` blocks that will get `bits` bits an identity in each of two.
    pub fn new(design: Design, blocks: u64, bits: u32, now_ms: i64) -> Self {
        Self { design, ids: 0, first_ms: now_ms, last_ms: now_ms, blocks, bits, set: 0, powers: 0.0 }
    }

    /// Counts an identity that arrived at `arrived_ms`.
    #[inline]
    pub fn count(&mut self, arrived_ms: i64) {
        self.ids += 1;
        self.first_ms = self.first_ms.min(arrived_ms);
        self.last_ms = self.last_ms.max(arrived_ms);
    }

    /// Whether changes of this block are to be told to [`Filter::refill`].
    #[inline]
    pub fn samples(row: usize) -> bool {
        (row as u64) < SAMPLED
    }

    /// A sampled block had `before` bits set and has `after`.
    pub fn refill(&mut self, before: u32, after: u32) {
        let power = |set: u32| (f64::from(set) / BLOCK_BITS).powi(self.bits.cast_signed());
        self.powers += power(after) - power(before);
        self.set += u64::from(after.saturating_sub(before));
    }

    /// The chance that an absent identity passes, from the bits that are set.
    ///
    /// For a given filter the chance to pass at one block is the average of `fill ^ bits` over its
    /// blocks; the second block is chosen independently, so both together are its square. Measured on
    /// at most 4,096 blocks: exact in a filter of no more, else within about a tenth.
    pub fn rate(&self) -> f64 {
        (self.powers / self.sampled() as f64).powi(2)
    }

    /// Share of bits set, 0 to 1.
    pub fn fill(&self) -> f64 {
        self.set as f64 / BLOCK_BITS / self.sampled() as f64
    }

    /// Whether it holds as many identities as it was made for.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.ids >= self.design.ids
    }

    /// Whether it can hold anything that arrived in `asked`; `slice` is the length of a slice in ms.
    #[inline]
    pub fn overlaps(&self, asked: &Range<i64>, slice: i64) -> bool {
        self.first_ms < asked.end && self.design.slice_ms.saturating_add(slice) > asked.start
    }

    /// Its blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn sampled(&self) -> u64 {
        self.blocks.clamp(1, SAMPLED)
    }
}
