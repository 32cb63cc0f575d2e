//! The Bloom filters of a window, for identities older than its exact part, and the range of blocks needed to rebuild them.
//!
//! Invariants:
//! - Only committed owners are in the filters, each inserted with the first stream time of its block. A block
//!   read again gives the same time, so filters rebuilt to the same [`FilterLayout`] are identical, bit for bit.
//! - The blocks from [`Filters::first_needed`] on are sufficient to rebuild the filters.
//! - Bits cannot be removed. When owners that are in the filters are undone, the filters are *stale*: they could
//!   report an unseen record as seen, and must be rebuilt before the next record.

use std::collections::{HashSet, VecDeque};

use super::Window;
use super::blocks::BLOCKS_PER_WINDOW;
use super::bloom::{Bloom, BloomLimits};
use super::index::IndexKey;
use crate::dedupe::coordinates::Offset;
use crate::dedupe::format::{BlockError, BlockView, FilterLayout};
use crate::dedupe::identity::Identity;

#[derive(Debug)]
pub(super) struct Filters {
    limits: BloomLimits,
    bloom: Bloom,
    /// Slices by number, the oldest first, each with its first owner.
    slices: VecDeque<(i64, Offset)>,
    /// One past the highest owner in the filters.
    end: Offset,
    stale: bool,
    /// Forgotten identities: their bits are still set, and are ignored until the identity is inserted again.
    /// The set is small, because an operator names each id. It is cleared when the filters are rebuilt.
    forgotten: HashSet<Identity>,
}

impl Filters {
    pub fn new(limits: BloomLimits) -> Self {
        Self {
            limits,
            bloom: Bloom::new(limits),
            slices: VecDeque::new(),
            end: 0,
            stale: false,
            forgotten: HashSet::new(),
        }
    }

    pub fn limits(&self) -> &BloomLimits {
        &self.limits
    }

    pub fn bloom(&self) -> &Bloom {
        &self.bloom
    }

    /// Gives filters that are still empty the sizes and places of a previous layout.
    pub fn follow(&mut self, layout: &FilterLayout) {
        self.bloom.follow(layout);
    }

    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.bloom.prefetch(key);
    }

    /// Stream time of the oldest arrival that still counts at stream time `now_ms`.
    pub fn oldest_ms(&self, now_ms: i64) -> i64 {
        self.bloom.queried(now_ms).start
    }

    /// Start of the slice that probably holds the identity, stream time; `None` when no slice does at `now_ms`.
    /// Arrivals since `exact_from_ms` are in the exact part; filters are not queried for them.
    pub fn probably(&self, key: &IndexKey, now_ms: i64, exact_from_ms: i64) -> Option<i64> {
        let queried = self.bloom.queried(now_ms);
        let since_ms = self.bloom.probably(key, &(queried.start..exact_from_ms.max(queried.end)))?;
        (!self.forgotten.contains(&key.identity)).then_some(since_ms)
    }

    /// Inserts committed owners of a block whose first stream time is `time_ms`, in ascending offset order.
    pub fn insert(&mut self, owners: impl Iterator<Item = (Offset, Identity)>, time_ms: i64) {
        let slice = time_ms.div_euclid(self.limits.slice_ms());
        let (slices, end, forgotten) = (&mut self.slices, &mut self.end, &mut self.forgotten);
        let inserts = owners.map(|(owner, identity)| {
            if !forgotten.is_empty() {
                forgotten.remove(&identity);
            }
            if slices.back().is_none_or(|(last, _)| *last < slice) {
                slices.push_back((slice, owner));
            }
            *end = owner + 1;
            (identity, time_ms)
        });
        self.bloom.insert_all(inserts);
    }

    /// Makes slices expire by this stream time where it is earlier than the one of [`Filters::expire`].
    pub fn set_horizon(&mut self, ms: i64) {
        self.bloom.set_horizon(ms);
    }

    /// Drops the slices that ended before the window.
    pub fn expire(&mut self, now_ms: i64) {
        if now_ms <= 0 {
            return;
        }
        self.bloom.expire(now_ms);
        // Arrivals from before any stream time was known count as arrived at `now_ms`.
        if let Some(first) = self.slices.front_mut().filter(|(slice, _)| *slice <= 0) {
            first.0 = now_ms.div_euclid(self.limits.slice_ms());
        }
        let oldest = self.oldest_ms(now_ms.min(self.bloom.horizon_ms()));
        let length = self.limits.slice_ms();
        while self.slices.len() > 1
            && self.slices.pop_front_if(|(slice, _)| (*slice + 1).saturating_mul(length) <= oldest).is_some()
        {
        }
    }

    /// Sets the limit on the memory of the filters.
    pub fn set_max_bytes(&mut self, max_bytes: u64) {
        self.limits.max_bytes = max_bytes;
        self.bloom.set_max_bytes(max_bytes);
    }

    /// Drops the oldest slices until the rest is within the memory limit and holds at most `most_ids`
    /// identities. When a single slice exceeds `most_ids`, the blocks of its first owners become unneeded, up to
    /// `first_live` of the exact part: those owners then stay in the filters only until the process ends.
    pub fn shrink(&mut self, most_ids: u64, first_live: Offset) {
        self.bloom.shrink(most_ids);
        let length = self.limits.slice_ms();
        let oldest = self.bloom.oldest_slice_ms().map(|ms| ms.div_euclid(length));
        while self.slices.len() > 1
            && self.slices.pop_front_if(|(slice, _)| oldest.is_none_or(|oldest| *slice < oldest)).is_some()
        {
        }
        let too_much = self.bloom.ids() > most_ids;
        if let Some(last) = self.slices.front_mut().filter(|_| too_much) {
            last.1 = last.1.max(first_live);
        }
    }

    /// Identities in the filters.
    pub fn ids(&self) -> u64 {
        self.bloom.ids()
    }

    /// How far back from `now_ms` the filters reach, in ms: as configured, or less when a limit dropped some of them.
    pub fn reach_ms(&self, now_ms: i64) -> i64 {
        let configured = now_ms.saturating_sub(self.oldest_ms(now_ms));
        // An owner is inserted with the first time of its block, and may have arrived later by up to the block's span.
        let span = i64::try_from(self.limits.exact.as_millis() / 32).unwrap_or(i64::MAX);
        let latest = self.bloom.dropped_ms().map(|dropped| dropped.saturating_add(span));
        let reach = latest.map_or(configured, |latest| now_ms.saturating_sub(latest));
        reach.clamp(0, configured)
    }

    /// Stream time of the latest owner that a limit dropped, if it would still count at `now_ms`.
    pub fn dropped_ms(&self, now_ms: i64) -> Option<i64> {
        self.bloom.dropped_ms().filter(|ms| *ms >= self.oldest_ms(now_ms))
    }

    /// Takes over [`Filters::dropped_ms`] from before a restart.
    pub fn inherit_dropped(&mut self, dropped_ms: Option<i64>) {
        self.bloom.inherit_dropped(dropped_ms);
    }

    /// The lowest offset whose block is needed to rebuild the filters.
    pub fn first_needed(&self) -> Offset {
        self.slices.front().map_or(self.end, |(_, first)| *first)
    }

    /// Ignores the identity's bits until it is inserted again.
    pub fn forget(&mut self, identity: Identity) {
        self.forgotten.insert(identity);
    }

    /// Marks the filters as stale if they contain owners at or beyond `from`.
    pub fn truncate(&mut self, from: Offset) {
        self.stale |= from < self.end;
    }

    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Empties the filters so that they can be rebuilt. Keeps the layout and [`Filters::dropped_ms`].
    pub fn clear(&mut self) {
        let (dropped, layout, horizon) =
            (self.bloom.dropped_ms(), self.bloom.layout(), self.bloom.horizon_ms());
        *self = Self::new(self.limits);
        self.set_horizon(horizon);
        if let Some(layout) = layout {
            self.follow(&layout);
        }
        self.bloom.inherit_dropped(dropped);
    }
}

impl Window {
    /// Stream time from which on every owner is in the exact part. A block spans up to 1/32 of the exact part, and
    /// owners dropped by the limit on the count, or overwritten, shorten it.
    pub(super) fn exact_from_ms(&self, oldest: i64) -> i64 {
        let shortened = self.marks.dropped_ms().max(self.marks.evicted_ms()).unwrap_or(i64::MIN);
        oldest.max(shortened).saturating_add(self.exact_ms / BLOCKS_PER_WINDOW + 1)
    }

    /// Inserts the pending owners into the filters with the times that a restore from their blocks would use.
    pub(super) fn commit_to_filters(&mut self) {
        let Some(filters) = self.filters.as_mut() else { return };
        let mut from = 0;
        for (end, time_ms) in self.cuts.drain(..) {
            let owners = self.pending.get(from..end).unwrap_or_default();
            filters.insert(owners.iter().copied(), time_ms);
            from = from.max(end);
        }
        // Owners that are in no block.
        for (owner, arrived_ms) in self.pending.iter().zip(&self.arrived_ms).skip(from) {
            filters.insert(std::iter::once(*owner), *arrived_ms);
        }
    }

    /// The lowest offset whose block is needed, for the exact part or to rebuild the filters.
    pub(super) fn first_needed(&self) -> Offset {
        let live = self.first_live;
        self.filters.as_ref().map_or(live, |filters| live.min(filters.first_needed()))
    }

    /// Whether the filters contain owners that were undone. Then the caller must call [`Window::empty_filters`], and
    /// [`Window::refill`] with every stored block, before the next record.
    #[must_use]
    pub fn has_stale_filters(&self) -> bool {
        self.filters.as_ref().is_some_and(Filters::is_stale)
    }

    /// Gives the filters of an empty window the sizes and places of a previous layout, before they are refilled.
    pub fn follow_filters(&mut self, layout: &FilterLayout) {
        if let Some(filters) = self.filters.as_mut() {
            filters.follow(layout);
        }
    }

    /// Empties the filters beyond the exact part.
    pub fn empty_filters(&mut self) {
        if let Some(filters) = self.filters.as_mut() {
            filters.clear();
        }
    }

    /// Inserts the owners below `below` of a stored block into the filters. Blocks must come in ascending offset order.
    pub fn refill(&mut self, view: &BlockView<'_>, below: Offset) -> Result<(), BlockError> {
        let Some(filters) = self.filters.as_mut() else { return Ok(()) };
        let mut owners = Vec::with_capacity(view.count());
        view.for_each(|owner, identity| owners.push((owner, identity)))?;
        filters.insert(owners.into_iter().filter(|(owner, _)| *owner < below), view.header.time_first_ms);
        filters.expire(view.header.time_last_ms);
        Ok(())
    }

    /// The probability that an unseen record gets the verdict `Probable`, computed from the bits that are set.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        self.bloom().map_or(0.0, |bloom| bloom.false_positive_rate(&bloom.queried(self.stream_time_ms())))
    }

    /// The filters beyond the exact part, read-only.
    #[must_use]
    pub fn bloom(&self) -> Option<&Bloom> {
        self.filters.as_ref().map(Filters::bloom)
    }
}
