//! What a window does with the filters beyond its exact part.

use super::{BLOCKS_A_WINDOW, Window};
use crate::dedupe::beyond::Beyond;
use crate::dedupe::bloom::{Bloom, Layout};
use crate::dedupe::{BlockError, BlockView, Offset};

impl Window {
    /// Stream time from which on every owner is in the exact part: blocks span up to 1/32 of it, and
    /// the limit on the count may have made it shorter, or the latest that was overwritten.
    pub(super) fn exact_from_ms(&self, oldest: i64) -> i64 {
        let shortened = self.marks.dropped_ms().max(self.marks.evicted_ms()).unwrap_or(i64::MIN);
        oldest.max(shortened).saturating_add(self.exact_ms / BLOCKS_A_WINDOW + 1)
    }

    /// Files the pending owners beyond, as reading their blocks again would.
    pub(super) fn commit_beyond(&mut self) {
        let Some(beyond) = self.beyond.as_mut() else { return };
        let mut from = 0;
        for (end, time_ms) in self.cuts.drain(..) {
            let owners = self.pending.get(from..end).unwrap_or_default();
            beyond.insert(owners.iter().copied(), time_ms);
            from = from.max(end);
        }
        // Owners that no block was made for.
        for (owner, arrived_ms) in self.pending.iter().zip(&self.arrived_ms).skip(from) {
            beyond.insert(std::iter::once(*owner), *arrived_ms);
        }
    }

    /// The lowest offset whose block is needed: for the exact part, or to rebuild what is beyond.
    pub(super) fn first_needed(&self) -> Offset {
        let live = self.index.first_live();
        self.beyond.as_ref().map_or(live, |beyond| live.min(beyond.first_needed()))
    }

    /// Whether owners were forgotten that the filters beyond the exact part still have. Then
    /// [`Window::empty_filters`] and [`Window::refill`] with every stored block, before the next record.
    #[must_use]
    pub fn has_stale_filters(&self) -> bool {
        self.beyond.as_ref().is_some_and(Beyond::is_stale)
    }

    /// Makes the filters of an empty window come to stand as they stood, when they are filled again.
    pub fn follow_filters(&mut self, layout: &Layout) {
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

    /// Takes the owners below `below` of a stored block into the filters; blocks come by rising offset.
    pub fn refill(&mut self, view: &BlockView<'_>, below: Offset) -> Result<(), BlockError> {
        let Some(beyond) = self.beyond.as_mut() else { return Ok(()) };
        let mut owners = Vec::with_capacity(view.count());
        view.for_each(|owner, identity| owners.push((owner, identity)))?;
        beyond.insert(owners.into_iter().filter(|(owner, _)| *owner < below), view.header.time_first_ms);
        beyond.expire(view.header.time_last_ms);
        Ok(())
    }

    /// The chance that a record never seen counts as probably seen, from the bits that are set.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        self.bloom().map_or(0.0, |bloom| bloom.false_positive_rate(&bloom.asked(self.stream_time_ms())))
    }

    /// The filters beyond the exact part, to look at.
    #[must_use]
    pub fn bloom(&self) -> Option<&Bloom> {
        self.beyond.as_ref().map(Beyond::bloom)
    }
}
