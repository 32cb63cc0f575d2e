//! What shortens a window below its configured length: limits on count, memory and disk, and the fixed table of an
//! evicting window.

use super::filters::Filters;
use super::index::OwnerIndex;
use super::marks::MARKS_PER_WINDOW;
use super::{Window, WindowLimits};
use crate::dedupe::format::Dropped;

/// Limits of a window besides age. They may change at any time; the next commit applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBounds {
    /// Identities in the exact part. An evicting window is limited by its table instead.
    pub max_ids: u64,
    /// Identities stored in blocks: those of the exact part, and those needed to rebuild the filters.
    /// The oldest slices are dropped first, then the exact part becomes shorter.
    pub max_stored: u64,
    /// Bytes of the filters beyond the exact part. The oldest filters are dropped first.
    pub filter_bytes: u64,
    /// Identities that are expected in the index when older ones are sealed. Not a limit: it determines the size of the next table.
    pub unsealed: u64,
}

impl WindowBounds {
    /// No limits besides age.
    pub const NONE: Self =
        Self { max_ids: u64::MAX, max_stored: u64::MAX, filter_bytes: u64::MAX, unsealed: u64::MAX };
}

impl Window {
    /// What limits dropped. A restart must take it over ([`Window::inherit`]), because blocks do not contain it.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        let now = self.time.ms();
        let exact = self.marks.dropped_ms().filter(|ms| *ms >= now.saturating_sub(self.exact_ms));
        let filters = self.filters.as_ref().and_then(|filters| filters.dropped_ms(now));
        Dropped { exact_ms: exact, filters_ms: filters }
    }

    /// Takes over [`Window::dropped`] from before a restart.
    pub fn inherit(&mut self, dropped: Dropped) {
        self.marks.inherit_dropped(dropped.exact_ms);
        if let Some(filters) = self.filters.as_mut() {
            filters.inherit_dropped(dropped.filters_ms);
        }
    }

    /// Notes that ids from before this stream time, in epoch milliseconds, may be missing for another reason than a
    /// limit of this window: the state was restored only in part, or started empty. Decisions do not change. The
    /// reported length of the window ([`Window::effective_seconds`] and the like) starts at this time and grows with
    /// stream time, up to the length of the window. A later time replaces an earlier one; an earlier one is ignored.
    /// Blocks do not contain the note: a restart must take over [`Window::incomplete_before_ms`].
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.marks.note_incomplete_before(ms);
    }

    /// The time noted by [`Window::note_incomplete_before`], as long as the configured window reaches back beyond it.
    #[must_use]
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        let oldest = self.time.ms().saturating_sub(self.configured_ms());
        self.marks.incomplete_ms().filter(|ms| *ms > oldest)
    }

    /// Whether the note, and no limit, is what shortens the window most.
    #[must_use]
    pub fn is_short_by_note(&self) -> bool {
        let dropped =
            self.marks.dropped_ms().max(self.filters.as_ref().and_then(|it| it.dropped_ms(self.time.ms())));
        self.incomplete_before_ms().is_some_and(|ms| dropped.is_none_or(|dropped| dropped <= ms))
    }

    /// [`Self::configured`] in milliseconds.
    #[must_use]
    pub fn configured_ms(&self) -> i64 {
        i64::try_from(self.configured().as_millis()).unwrap_or(i64::MAX)
    }

    /// An empty window of fixed memory: a table of `limits.max_ids` slots of 8 bytes, allocated once. When both
    /// buckets of a new identity are full, the oldest owner in them is overwritten. So the window
    /// may forget an identity before it expires, and never reports a new identity as a duplicate.
    /// An abort restores the owners that its transaction has overwritten.
    #[must_use]
    pub fn evicting(limits: WindowLimits) -> Self {
        Self { index: OwnerIndex::evicting(limits.max_ids), ..Self::new(limits) }
    }

    /// Number of slots of an evicting window; `None` for one that becomes shorter instead.
    #[must_use]
    pub fn slots(&self) -> Option<u64> {
        self.index.slots()
    }

    /// Sets all limits except age. The next commit applies them.
    pub fn set_bounds(&mut self, bounds: WindowBounds) {
        self.bounds = bounds;
        if let Some(filters) = self.filters.as_mut() {
            filters.set_max_bytes(bounds.filter_bytes);
        }
    }

    /// Most owners of one mark, so that a limit on the count drops few more owners than necessary.
    pub(super) fn max_owners_per_mark(&self) -> u64 {
        // Marks of an evicting window also count overwritten owners, until they expire.
        let marks = if self.slots().is_some() { MARKS_PER_WINDOW / 16 } else { MARKS_PER_WINDOW };
        (self.bounds.max_ids.min(self.bounds.max_stored) / marks).max(1)
    }

    /// Makes owners expire by this stream time instead of the window's own, where it is earlier: records of other partitions may
    /// still need them. Stream time in epoch milliseconds; the next commit applies it.
    pub fn set_horizon(&mut self, ms: i64) {
        self.horizon_ms = ms;
        if let Some(filters) = self.filters.as_mut() {
            filters.set_horizon(ms);
        }
    }

    /// Counts the owners that the committed transaction has overwritten.
    pub(super) fn commit_evicted(&mut self) {
        let Self { index, marks, evicted, .. } = self;
        index.commit(|owner| {
            *evicted += 1;
            marks.evicted(owner);
        });
    }

    /// Drops the owners that have expired or exceed a limit.
    pub(super) fn expire(&mut self) {
        let (now, evicts) = (self.time.ms(), self.slots().is_some());
        let horizon = now.min(self.horizon_ms);
        let most = if evicts { u64::MAX } else { self.bounds.max_ids }.min(self.bounds.max_stored);
        if let Some(dropped) = self.marks.drop_expired(now, horizon.saturating_sub(self.exact_ms), most) {
            self.index.expire(dropped.next, dropped.count);
            self.first_live = self.first_live.max(dropped.next);
        }
        if evicts && let Some(first) = self.marks.first_held() {
            self.index.expire(first, 0);
            self.first_live = self.first_live.max(first);
        }
        // The memory budget assumes tables for `max_ids`, even if the expected number is higher.
        let most = self.bounds.max_ids.min(self.bounds.unsealed);
        self.index.expect(self.expected_ids(now).min(most), most);
        let first_live = self.first_live;
        if let Some(filters) = self.filters.as_mut() {
            filters.expire(now);
            filters.shrink(self.bounds.max_stored, first_live);
        }
    }

    /// Number of identities that a full window will hold if they keep arriving at the same rate.
    fn expected_ids(&self, now: i64) -> u64 {
        let span = self.marks.span_ms(now).unwrap_or(0).clamp(1, self.exact_ms.max(1));
        let ids = u128::from(self.marks.count()) * u128::from(self.exact_ms.unsigned_abs())
            / u128::from(span.unsigned_abs());
        u64::try_from(ids).unwrap_or(u64::MAX)
    }

    /// How far back the window reaches, exact part and filters together, in seconds of stream time: the configured
    /// length, or less when a limit shortened it. An evicting window has gaps within this time:
    /// [`Window::evicted_share`], [`Window::certain_seconds`].
    #[must_use]
    pub fn effective_seconds(&self) -> f64 {
        let now = self.time.ms();
        let noted = self.marks.incomplete_ms().map_or(i64::MAX, |ms| now.saturating_sub(ms).max(0));
        let filters = self.filters.as_ref().map_or(0, |filters| filters.reach_ms(now).min(noted));
        self.exact_reach_ms().max(filters) as f64 / 1_000.0
    }

    /// [`Window::effective_seconds`] of the exact part alone.
    #[must_use]
    pub fn exact_seconds(&self) -> f64 {
        self.exact_reach_ms() as f64 / 1_000.0
    }

    fn exact_reach_ms(&self) -> i64 {
        self.marks.reach_ms(self.time.ms()).unwrap_or(i64::MAX).clamp(0, self.exact_ms)
    }

    /// How far back, in seconds of stream time, no owner has been overwritten.
    #[must_use]
    pub fn certain_seconds(&self) -> f64 {
        let evicted = self.marks.evicted_ms().map_or(i64::MAX, |ms| self.time.ms().saturating_sub(ms));
        evicted.clamp(0, self.exact_reach_ms()) as f64 / 1_000.0
    }

    /// Share of the owners of the exact part that were overwritten, 0 to 1: the probability that a copy of an
    /// identity of any age inside it is decided as new.
    #[must_use]
    pub fn evicted_share(&self) -> f64 {
        self.marks.evicted_share()
    }

    /// Number of owners overwritten since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Number of identities stored in blocks that are still needed.
    #[must_use]
    pub fn stored_ids(&self) -> u64 {
        self.filters.as_ref().map_or(0, Filters::ids).max(self.marks.count_with_evicted())
    }

    /// New identities per second of stream time, over the exact part; 0 while the exact part spans no time.
    #[must_use]
    pub fn ids_a_second(&self) -> f64 {
        let span = self.marks.span_ms(self.time.ms()).filter(|span| *span > 0);
        span.map_or(0.0, |span| self.marks.count_with_evicted() as f64 * 1_000.0 / span as f64)
    }

    /// Bytes allocated by the exact index.
    #[must_use]
    pub fn memory_in_index(&self) -> u64 {
        self.index.memory_bytes() as u64
    }

    /// Bytes allocated by the exact index, including the next table when the index is about to grow.
    #[must_use]
    pub fn index_bytes_ahead(&self) -> u64 {
        self.index.bytes_ahead()
    }
}
