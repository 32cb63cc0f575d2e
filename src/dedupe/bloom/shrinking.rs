//! How filters give memory back before their time: the oldest first.

use super::Bloom;
use super::filter::Filter;
use super::grid::Grid;
use super::sizing::FEWEST_BLOCKS;

impl Bloom {
    /// Sets the limit on the memory of the filters; applied by [`Bloom::shrink`] and by what is inserted.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.limits.max_bytes = max_bytes;
    }

    /// Whether the limit allows for any filter at all.
    pub(super) fn has_room_for_any(&self) -> bool {
        self.limits.max_bytes >= Grid::bytes_for(FEWEST_BLOCKS, 1)
    }

    /// Forgets the oldest filters until the others keep within the limit on memory and hold at most
    /// `most_ids` identities. For the sake of the latter the newest slice stays.
    pub fn shrink(&mut self, most_ids: u64) {
        while self.ids() > most_ids && self.filters().any(|filter| self.is_older(filter)) {
            self.forget_oldest();
        }
        if self.memory_bytes() <= self.limits.max_bytes {
            return;
        }
        self.narrow();
        while self.memory_bytes() > self.limits.max_bytes && self.forget_oldest().is_some() {
            self.narrow();
        }
    }

    fn is_older(&self, filter: &Filter) -> bool {
        self.open.is_none_or(|open| filter.design.slice_ms < open.begin_ms)
    }

    /// Gives back the columns that no filter stands in.
    fn narrow(&mut self) {
        self.grids.iter_mut().for_each(Grid::narrow);
        self.find_open();
    }

    /// The beginning of the oldest slice that a filter is left of, stream time, ms since the epoch.
    #[must_use]
    pub fn oldest_slice_ms(&self) -> Option<i64> {
        self.filters().map(|filter| filter.design.slice_ms).min()
    }

    /// Takes over from filters that these replace what was forgotten before its time.
    pub fn inherit_forgotten(&mut self, forgotten_ms: Option<i64>) {
        self.forgotten_ms = self.forgotten_ms.max(forgotten_ms);
    }
}
