//! Statistics of the filters, by slice.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Bloom;
use super::filter::{Age, Filter};
use super::grid::{BLOCK_BYTES, Grid};

/// One slice of stream time and statistics of its filters.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterSlice {
    /// Start, epoch milliseconds; 0 while stream time is unknown.
    pub start_ms: i64,
    /// End, exclusive, epoch milliseconds.
    pub end_ms: i64,
    /// Identities inserted.
    pub ids: u64,
    /// Number of filters: more than one when the slice exceeded the capacity of the first.
    pub filters: u32,
    /// Share of bits set, 0 to 1.
    pub fill: f64,
    /// The probability that an absent identity passes one of its filters, computed from the bits that are set.
    pub false_positive_rate: f64,
    /// Bytes of its filters.
    pub bytes: u64,
}

impl Bloom {
    /// The probability that an absent identity passes a look-up for `queried`, computed from the bits that are
    /// set: 1 minus the product, over all filters queried, of the probability not to pass.
    #[must_use]
    pub fn false_positive_rate(&self, queried: &Range<i64>) -> f64 {
        union(self.filters().filter(|filter| filter.overlaps(queried, self.slice_ms)))
    }

    /// All slices, the oldest first.
    #[must_use]
    pub fn slices(&self) -> Vec<FilterSlice> {
        let mut by_start: BTreeMap<i64, Vec<&Filter>> = BTreeMap::new();
        for filter in self.filters() {
            by_start.entry(filter.design.slice_ms).or_default().push(filter);
        }
        by_start.into_iter().map(|(start_ms, filters)| self.slice(start_ms, &filters)).collect()
    }

    fn slice(&self, start_ms: i64, filters: &[&Filter]) -> FilterSlice {
        let blocks: u64 = filters.iter().map(|filter| filter.blocks()).sum();
        let set: f64 = filters.iter().map(|filter| filter.fill() * filter.blocks() as f64).sum();
        FilterSlice {
            start_ms,
            end_ms: start_ms.saturating_add(self.slice_ms),
            ids: filters.iter().map(|filter| filter.ids).sum(),
            filters: u32::try_from(filters.len()).unwrap_or(u32::MAX),
            fill: set / blocks.max(1) as f64,
            false_positive_rate: union(filters.iter().copied()),
            bytes: blocks * BLOCK_BYTES,
        }
    }

    /// Number of identities, including those of a slice that is partly expired.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.filters().map(|filter| filter.ids).sum()
    }

    /// All filters, and those for which columns are reserved.
    pub(super) fn ages(&self) -> impl Iterator<Item = Age> {
        self.grids.iter().flat_map(Grid::ages).flatten()
    }

    pub(super) fn filters(&self) -> impl Iterator<Item = &Filter> {
        self.grids.iter().flat_map(Grid::filters)
    }
}

/// The probability to pass at least one of the filters.
fn union<'a>(filters: impl Iterator<Item = &'a Filter>) -> f64 {
    let none: f64 = filters.map(|filter| (-filter.rate()).ln_1p()).sum();
    -none.exp_m1()
}
