//! The filters that even traffic leads to, for capacity planning.

use super::BloomLimits;
use super::grid::Grid;
use super::opening::with_headroom;
use super::sizing::{Density, filter_rate};

/// One partition's filters once the window is full, for even traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FilterShape {
    /// 512-bit blocks of a slice's filter.
    pub blocks: u64,
    /// Bits that an identity sets in each of two blocks. A look-up tests those of the first block, and those of the
    /// second only if all of the first are set.
    pub bits: u32,
    /// Number of filters, one per slice: the slices of the window and one that is partly expired.
    pub filters: u32,
    /// Capacity of a filter in identities.
    pub ids_a_filter: u64,
    /// Most filters that one look-up queries.
    pub consulted: u32,
    /// Probability that an absent identity passes a look-up, when all filters hold the expected number of identities.
    pub expected_rate: f64,
    /// Bytes allocated for all filters.
    pub bytes: u64,
}

impl FilterShape {
    /// For slices of `ids_per_slice` identities. The memory limit is not applied.
    #[must_use]
    pub fn of(limits: &BloomLimits, ids_per_slice: u64) -> Self {
        let density = Density::at_rate(limits.shares().of(0));
        let blocks = density.blocks_for(with_headroom(ids_per_slice));
        let grids = u64::from(limits.alive()).div_ceil(limits.width() as u64);
        Self {
            blocks,
            bits: density.bits,
            filters: limits.alive(),
            ids_a_filter: density.ids_in(blocks),
            consulted: limits.consulted(),
            expected_rate: filter_rate(ids_per_slice, blocks, density.bits) * f64::from(limits.consulted()),
            bytes: Grid::bytes_for(blocks, limits.width()).saturating_mul(grids),
        }
    }
}
