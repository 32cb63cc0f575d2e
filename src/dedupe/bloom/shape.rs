//! The filters of even traffic, as they will be allocated: for whoever plans.

use super::BloomLimits;
use super::grid::Grid;
use super::opening::with_headroom;
use super::sizing::{Density, filter_rate};

/// What one partition's filters are like once the window is full, if traffic is even.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// 512-bit blocks of a slice's filter.
    pub blocks: u64,
    /// Bits that an identity sets in each of two blocks: a look-up asks that many, and as many more
    /// only if they are all set.
    pub bits: u32,
    /// Filters, one a slice: the slices of the window and one that leaves it.
    pub filters: u32,
    /// Identities that a filter is made for.
    pub ids_a_filter: u64,
    /// Filters that one look-up asks at most.
    pub consulted: u32,
    /// Chance that an absent identity passes a look-up, when all filters hold what is expected.
    pub expected_rate: f64,
    /// Bytes allocated for all filters.
    pub bytes: u64,
}

impl Shape {
    /// For slices of `ids_a_slice` identities. The memory limit is not applied.
    #[must_use]
    pub fn of(limits: &BloomLimits, ids_a_slice: u64) -> Self {
        let density = Density::at_rate(limits.shares().of(0));
        let blocks = density.blocks_for(with_headroom(ids_a_slice));
        let grids = u64::from(limits.alive()).div_ceil(limits.width() as u64);
        Self {
            blocks,
            bits: density.bits,
            filters: limits.alive(),
            ids_a_filter: density.ids_in(blocks),
            consulted: limits.consulted(),
            expected_rate: filter_rate(ids_a_slice, blocks, density.bits) * f64::from(limits.consulted()),
            bytes: Grid::bytes_for(blocks, limits.width()).saturating_mul(grids),
        }
    }
}
