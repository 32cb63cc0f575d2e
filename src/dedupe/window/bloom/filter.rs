//! The metadata of one filter: its slice, its capacity and its fill.

use std::ops::Range;

/// Number of blocks on which the fill is measured: all of a small filter, a part of a large one. The blocks of an
/// identity are random, so the first blocks represent all.
const SAMPLED: u64 = 4_096;
/// Bits of a block.
const BLOCK_BITS: f64 = 512.0;

/// Identifies and orders filters: the start of the slice (stream time, epoch milliseconds) and the number of the filter
/// within the slice.
pub(super) type Age = (i64, u32);

/// The parameters of a filter, fixed when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Design {
    /// Start of its slice, stream time, epoch milliseconds.
    pub slice_ms: i64,
    /// Number of the filter within its slice, from 0.
    pub place: u32,
    /// Capacity in identities.
    pub ids: u64,
}

impl Design {
    pub fn age(&self) -> Age {
        (self.slice_ms, self.place)
    }
}

/// One filter. Its bits are in a column of a grid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Filter {
    pub design: Design,
    /// Identities inserted.
    pub ids: u64,
    /// Stream time at the first and the last arrival, epoch milliseconds; 0 while unknown.
    pub first_ms: i64,
    pub last_ms: i64,
    blocks: u64,
    bits: u32,
    /// Over the sampled blocks: the number of bits set, and the sum of `share of bits set ^ bits`.
    set: u64,
    powers: f64,
}

impl Filter {
    /// An empty filter of `blocks` blocks. An identity sets up to `bits` bits in each of its two blocks.
    pub fn new(design: Design, blocks: u64, bits: u32, now_ms: i64) -> Self {
        Self { design, ids: 0, first_ms: now_ms, last_ms: now_ms, blocks, bits, set: 0, powers: 0.0 }
    }

    /// Counts an inserted identity that arrived at `arrived_ms`, stream time.
    #[inline]
    pub fn count(&mut self, arrived_ms: i64) {
        self.ids += 1;
        self.first_ms = self.first_ms.min(arrived_ms);
        self.last_ms = self.last_ms.max(arrived_ms);
    }

    /// Whether the block in this row is sampled: [`Filter::update_fill`] must be called for its changes.
    #[inline]
    pub fn is_sampled(row: usize) -> bool {
        (row as u64) < SAMPLED
    }

    /// Updates the fill: a sampled block had `before` bits set and now has `after`.
    pub fn update_fill(&mut self, before: u32, after: u32) {
        let power = |set: u32| (f64::from(set) / BLOCK_BITS).powi(self.bits.cast_signed());
        self.powers += power(after) - power(before);
        self.set += u64::from(after.saturating_sub(before));
    }

    /// The probability that an absent identity passes, computed from the bits that are set.
    ///
    /// The probability to pass at one block is the average of `fill ^ bits` over the blocks of the filter.
    /// The second block is chosen independently, so the probability for both is the square. It is measured on
    /// at most 4,096 blocks: exact for a filter of up to 4,096 blocks, otherwise within about 10 %.
    pub fn rate(&self) -> f64 {
        (self.powers / self.sampled() as f64).powi(2)
    }

    /// Share of bits set, 0 to 1.
    pub fn fill(&self) -> f64 {
        self.set as f64 / BLOCK_BITS / self.sampled() as f64
    }

    /// Whether it holds as many identities as its capacity.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.ids >= self.design.ids
    }

    /// Whether it can hold an identity that arrived in `queried`; `slice` is the length of a slice in ms.
    #[inline]
    pub fn overlaps(&self, queried: &Range<i64>, slice: i64) -> bool {
        self.first_ms < queried.end && self.design.slice_ms.saturating_add(slice) > queried.start
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn sampled(&self) -> u64 {
        self.blocks.clamp(1, SAMPLED)
    }
}
