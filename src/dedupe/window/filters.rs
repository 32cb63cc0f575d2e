//! Operations of a window on the filters beyond its exact part.

use super::Window;
use super::beyond::Beyond;
use super::blocks::BLOCKS_PER_WINDOW;
use super::bloom::Bloom;
use crate::dedupe::coordinates::Offset;
use crate::dedupe::format::{BlockError, BlockView, FilterLayout};

impl Window {
    /// Stream time from which on every owner is in the exact part. A block spans up to 1/32 of the exact part, and
    /// owners dropped by the limit on the count, or overwritten, shorten it.
    pub(super) fn exact_from_ms(&self, oldest: i64) -> i64 {
        let shortened = self.marks.dropped_ms().max(self.marks.evicted_ms()).unwrap_or(i64::MIN);
        oldest.max(shortened).saturating_add(self.exact_ms / BLOCKS_PER_WINDOW + 1)
    }

    /// Inserts the pending owners into the filters with the times that a restore from their blocks would use.
    pub(super) fn commit_beyond(&mut self) {
        let Some(beyond) = self.beyond.as_mut() else { return };
        let mut from = 0;
        for (end, time_ms) in self.cuts.drain(..) {
            let owners = self.pending.get(from..end).unwrap_or_default();
            beyond.insert(owners.iter().copied(), time_ms);
            from = from.max(end);
        }
        // Owners that are in no block.
        for (owner, arrived_ms) in self.pending.iter().zip(&self.arrived_ms).skip(from) {
            beyond.insert(std::iter::once(*owner), *arrived_ms);
        }
    }

    /// The lowest offset whose block is needed, for the exact part or to rebuild the filters.
    pub(super) fn first_needed(&self) -> Offset {
        let live = self.index.first_live();
        self.beyond.as_ref().map_or(live, |beyond| live.min(beyond.first_needed()))
    }

    /// Whether the filters contain owners that were undone. Then the caller must call [`Window::empty_filters`], and
    /// [`Window::refill`] with every stored block, before the next record.
    #[must_use]
    pub fn has_stale_filters(&self) -> bool {
        self.beyond.as_ref().is_some_and(Beyond::is_stale)
    }

    /// Gives the filters of an empty window the sizes and places of a previous layout, before they are refilled.
    pub fn follow_filters(&mut self, layout: &FilterLayout) {
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.follow(layout);
        }
    }

    /// Empties the filters beyond the exact part.
    pub fn empty_filters(&mut self) {
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.clear();
        }
    }

    /// Inserts the owners below `below` of a stored block into the filters. Blocks must come in ascending offset order.
    pub fn refill(&mut self, view: &BlockView<'_>, below: Offset) -> Result<(), BlockError> {
        let Some(beyond) = self.beyond.as_mut() else { return Ok(()) };
        let mut owners = Vec::with_capacity(view.count());
        view.for_each(|owner, identity| owners.push((owner, identity)))?;
        beyond.insert(owners.into_iter().filter(|(owner, _)| *owner < below), view.header.time_first_ms);
        beyond.expire(view.header.time_last_ms);
        Ok(())
    }

    /// The probability that an unseen record gets the verdict `Probable`, computed from the bits that are set.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        self.bloom().map_or(0.0, |bloom| bloom.false_positive_rate(&bloom.asked(self.stream_time_ms())))
    }

    /// The filters beyond the exact part, read-only.
    #[must_use]
    pub fn bloom(&self) -> Option<&Bloom> {
        self.beyond.as_ref().map(Beyond::bloom)
    }
}
