//! The filters as people see them: by slice.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Bloom;
use super::filter::{Age, Filter};
use super::grid::{BLOCK_BYTES, Grid};

/// One slice of stream time and what its filters hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Beginning, ms since the epoch; 0 while no time is known.
    pub start_ms: i64,
    /// End, exclusive, ms since the epoch.
    pub end_ms: i64,
    /// Identities inserted.
    pub ids: u64,
    /// Filters: more than one when the slice outgrew its design.
    pub filters: u32,
    /// Share of bits set, 0 to 1.
    pub fill: f64,
    /// The chance that an absent identity passes one of its filters, from the bits that are set.
    pub false_positive_rate: f64,
    /// Bytes of its filters.
    pub bytes: u64,
}

impl Bloom {
    /// The chance that a look-up about `asked` lets an absent identity pass, from the bits that are
    /// set now: 1 less the product over all filters asked of the chance not to pass.
    #[must_use]
    pub fn false_positive_rate(&self, asked: &Range<i64>) -> f64 {
        union(self.filters().filter(|filter| filter.overlaps(asked, self.slice_ms)))
    }

    /// The slices held, the oldest first.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        let mut by_start: BTreeMap<i64, Vec<&Filter>> = BTreeMap::new();
        for filter in self.filters() {
            by_start.entry(filter.design.slice_ms).or_default().push(filter);
        }
        by_start.into_iter().map(|(start_ms, filters)| self.slice(start_ms, &filters)).collect()
    }

    fn slice(&self, start_ms: i64, filters: &[&Filter]) -> Slice {
        let blocks: u64 = filters.iter().map(|filter| filter.blocks()).sum();
        let set: f64 = filters.iter().map(|filter| filter.fill() * filter.blocks() as f64).sum();
        Slice {
            start_ms,
            end_ms: start_ms.saturating_add(self.slice_ms),
            ids: filters.iter().map(|filter| filter.ids).sum(),
            filters: u32::try_from(filters.len()).unwrap_or(u32::MAX),
            fill: set / blocks.max(1) as f64,
            false_positive_rate: union(filters.iter().copied()),
            bytes: blocks * BLOCK_BYTES,
        }
    }

    /// Identities held, those of a slice that has begun to leave the window included.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.filters().map(|filter| filter.ids).sum()
    }

    /// The filters held, and those that columns are kept for.
    pub(super) fn ages(&self) -> impl Iterator<Item = Age> {
        self.grids.iter().flat_map(Grid::ages).flatten()
    }

    /// Filters held.
    pub(super) fn filters(&self) -> impl Iterator<Item = &Filter> {
        self.grids.iter().flat_map(Grid::filters)
    }
}

/// The chance to pass at least one of the filters.
fn union<'a>(filters: impl Iterator<Item = &'a Filter>) -> f64 {
    let none: f64 = filters.map(|filter| (-filter.rate()).ln_1p()).sum();
    -none.exp_m1()
}
