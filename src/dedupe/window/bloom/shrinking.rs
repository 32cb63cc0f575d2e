//! Releasing memory of filters before they expire, the oldest first.

use super::Bloom;
use super::filter::Filter;
use super::grid::Grid;
use super::sizing::FEWEST_BLOCKS;

impl Bloom {
    /// Sets the limit on the memory of the filters. [`Bloom::shrink`] and inserts apply it.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.limits.max_bytes = max_bytes;
    }

    /// Whether the limit allows at least the smallest filter.
    pub(super) fn has_room_for_any(&self) -> bool {
        self.limits.max_bytes >= Grid::bytes_for(FEWEST_BLOCKS, 1)
    }

    /// Drops the oldest filters until the rest is within the memory limit and holds at most `most_ids` identities. The
    /// limit on identities never drops the newest slice.
    pub fn shrink(&mut self, most_ids: u64) {
        while self.ids() > most_ids && self.filters().any(|filter| self.is_older(filter)) {
            self.drop_oldest();
        }
        if self.memory_bytes() <= self.limits.max_bytes {
            return;
        }
        self.narrow();
        while self.memory_bytes() > self.limits.max_bytes && self.drop_oldest().is_some() {
            self.narrow();
        }
    }

    fn is_older(&self, filter: &Filter) -> bool {
        self.open.is_none_or(|open| filter.design.slice_ms < open.begin_ms)
    }

    /// Releases the memory of free columns.
    fn narrow(&mut self) {
        self.grids.iter_mut().for_each(Grid::narrow);
        self.find_open();
    }

    /// Start of the oldest slice that has a filter, stream time, epoch milliseconds.
    #[must_use]
    pub fn oldest_slice_ms(&self) -> Option<i64> {
        self.filters().map(|filter| filter.design.slice_ms).min()
    }

    /// Takes over [`Bloom::dropped_ms`] from the filters that these replace.
    pub fn inherit_dropped(&mut self, dropped_ms: Option<i64>) {
        self.dropped_ms = self.dropped_ms.max(dropped_ms);
    }
}
