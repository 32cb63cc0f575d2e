//! What shortens a window below its configured length: limits on count, memory and disk, and the fixed table of an
//! evicting window.

use super::index::OwnerIndex;
use super::marks::MARKS_PER_WINDOW;
use super::{Positions, Window, WindowLimits};
use crate::dedupe::coordinates::Coordinates;
use crate::dedupe::identity::Identity;

/// Limits of a window besides age. They may change at any time; the next commit applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowBounds {
    /// Identities. An evicting window is limited by its table instead.
    pub max_ids: u64,
    /// Identities that the store has, including overwritten ones.
    pub max_stored: u64,
    /// Identities that are expected in the index when older ones are sealed. Not a limit: it determines the size of the next table.
    pub unsealed: u64,
}

impl WindowBounds {
    /// No limits besides age.
    pub const NONE: Self = Self { max_ids: u64::MAX, max_stored: u64::MAX, unsealed: u64::MAX };
}

impl Window {
    /// The time, epoch milliseconds, from which on owners are needed. All that limits the window, or reports its length, is
    /// measured by it.
    pub(super) fn needed_from_ms(&self) -> i64 {
        self.horizon_ms.saturating_sub(self.length_ms)
    }

    /// The latest stamp, epoch milliseconds, of the owners that limits dropped before they expired; `None` when there are none, or
    /// when none of them is needed any more. A restart must take it over ([`Window::inherit`]), because blocks do not contain it.
    pub fn dropped_ms(&self) -> Option<i64> {
        self.marks.dropped_ms.filter(|ms| *ms >= self.needed_from_ms())
    }

    /// For how long its oldest owner has been held, stream time in milliseconds.
    pub fn held_ms(&self) -> i64 {
        self.marks.span_ms(self.latest_ms).unwrap_or(0)
    }

    /// Longest time between the stamps of two owners that are stored together, ms.
    pub fn longest_run_ms(&self) -> i64 {
        self.marks.longest_ms
    }

    /// Takes over [`Window::dropped_ms`] from before a restart. Owners from before that time are dropped with the next ones that expire.
    pub fn inherit(&mut self, dropped_ms: Option<i64>) {
        self.inherited_ms = self.inherited_ms.max(dropped_ms);
        self.marks.dropped_ms = self.marks.dropped_ms.max(dropped_ms);
    }

    /// Notes that ids from before this stream time, in epoch milliseconds, may be missing for another reason than a
    /// limit of this window: the state was restored only in part, or started empty. Decisions do not change. The
    /// reported length of the window ([`Window::effective_seconds`] and the like) starts at this time and grows with
    /// stream time, up to the length of the window. A later time replaces an earlier one; an earlier one is ignored.
    /// Blocks do not contain the note: a restart must take over [`Window::incomplete_before_ms`].
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.marks.note_incomplete_before(ms);
    }

    /// The time noted by [`Window::note_incomplete_before`], as long as owners from before it are needed.
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        self.marks.incomplete_ms.filter(|ms| *ms > self.needed_from_ms())
    }

    /// Latest stream time, epoch milliseconds, of the owners that it lacks, also where they are not needed; 0 when there are none.
    pub fn missing_ms(&self) -> i64 {
        self.marks.dropped_ms.max(self.marks.incomplete_ms).unwrap_or(0)
    }

    /// Whether the note, and no limit, is what shortens the window most.
    pub fn is_short_by_note(&self) -> bool {
        let dropped = self.marks.dropped_ms;
        self.incomplete_before_ms().is_some_and(|ms| dropped.is_none_or(|dropped| dropped < ms))
    }

    /// [`Self::configured`] in milliseconds.
    pub fn configured_ms(&self) -> i64 {
        self.length_ms
    }

    /// An empty window of fixed memory: a table of `limits.max_ids` slots of 8 bytes, allocated once. When both
    /// buckets of a new identity are full, the oldest owner in them is overwritten. So the window
    /// may forget an identity before it expires, and never reports a new identity as a duplicate.
    /// An abort restores the owners that its transaction has overwritten.
    pub fn evicting(limits: WindowLimits, positions: Positions) -> Self {
        Self { index: OwnerIndex::evicting(limits.max_ids), ..Self::new(limits, positions) }
    }

    /// Number of slots of an evicting window; `None` for one that becomes shorter instead.
    pub fn slots(&self) -> Option<u64> {
        self.index.slots()
    }

    /// Sets all limits except age. The next commit applies them.
    pub fn set_bounds(&mut self, bounds: WindowBounds) {
        self.bounds = bounds;
    }

    /// Most owners of one mark, so that a limit on the count drops few more owners than necessary.
    pub(super) fn max_owners_per_mark(&self) -> u64 {
        // Marks of an evicting window also count overwritten owners, until they expire.
        let marks = if self.slots().is_some() { MARKS_PER_WINDOW / 16 } else { MARKS_PER_WINDOW };
        (self.bounds.max_ids.min(self.bounds.max_stored) / marks).max(1)
    }

    /// Sets the window's clock, epoch milliseconds, by which owners expire: no partition reads a record from before it. 0 while unknown. The next commit
    /// applies it.
    pub fn set_horizon(&mut self, ms: i64) {
        self.horizon_ms = ms;
    }

    /// Counts the owners that the committed transaction has overwritten.
    pub(super) fn commit_evicted(&mut self) {
        let Self { index, marks, evicted, .. } = self;
        index.commit(|number| {
            *evicted += 1;
            marks.evicted(number);
        });
    }

    /// The stamp before which owners have expired, epoch milliseconds, and the most owners that stay.
    pub(super) fn expiry_limits(&self) -> (i64, u64) {
        // The owners that a restart restores include some that were dropped before it. What this window itself has dropped shows nothing
        // about the others: after a rewind, newer owners can have earlier times.
        let oldest_ms = self.needed_from_ms().max(self.inherited_ms.unwrap_or(i64::MIN));
        let most = if self.slots().is_some() { u64::MAX } else { self.bounds.max_ids };
        (oldest_ms, most.min(self.bounds.max_stored))
    }

    /// Drops the owners that have expired or exceed a limit.
    pub fn expire(&mut self) {
        let (now, evicts) = (self.latest_ms, self.slots().is_some());
        let (oldest_ms, most) = self.expiry_limits();
        if let Some(dropped) = self.marks.drop_expired(now, oldest_ms, most) {
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
    }

    /// Number of identities that a full window will hold if they keep arriving at the same rate.
    fn expected_ids(&self, now: i64) -> u64 {
        let span = self.marks.span_ms(now).unwrap_or(0).clamp(1, self.length_ms.max(1));
        let ids = u128::from(self.marks.count) * u128::from(self.length_ms.unsigned_abs())
            / u128::from(span.unsigned_abs());
        u64::try_from(ids).unwrap_or(u64::MAX)
    }

    /// How far back the window reaches from its clock, in seconds of stream time: the configured
    /// length, or less when a limit shortened it. An evicting window has gaps within this time:
    /// [`Window::evicted_share`], [`Window::certain_seconds`].
    pub fn effective_seconds(&self) -> f64 {
        self.reach_ms() as f64 / 1_000.0
    }

    /// For how long identities are held at least with their owners, in seconds of stream time.
    pub fn exact_seconds(&self) -> f64 {
        self.reach_ms().min(self.exact_ms) as f64 / 1_000.0
    }

    fn reach_ms(&self) -> i64 {
        self.marks.reach_ms(self.horizon_ms).unwrap_or(i64::MAX).clamp(0, self.length_ms)
    }

    /// How far back, in seconds of stream time, owners are held, and none has been overwritten.
    pub fn certain_seconds(&self) -> f64 {
        let evicted = self.marks.evicted_ms.map_or(i64::MAX, |ms| self.horizon_ms.saturating_sub(ms));
        evicted.clamp(0, self.reach_ms().min(self.exact_ms)) as f64 / 1_000.0
    }

    /// Share of the owners of the window that were overwritten, 0 to 1: the probability that a copy of an
    /// identity of any age inside it is decided as new.
    pub fn evicted_share(&self) -> f64 {
        self.marks.evicted_share()
    }

    /// Number of owners overwritten since the last call.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Bytes allocated.
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.pending.capacity() * Self::PENDING_BYTES
            + self.claims.capacity() * (size_of::<(Identity, Coordinates)>() + 1)
    }

    /// Number of identities that the store has, including overwritten ones.
    pub fn stored_ids(&self) -> u64 {
        self.marks.count_with_evicted()
    }

    /// New identities per second of stream time, over the window; 0 while the window spans no time.
    pub fn ids_a_second(&self) -> f64 {
        let span = self.marks.span_ms(self.latest_ms).filter(|span| *span > 0);
        span.map_or(0.0, |span| self.marks.count_with_evicted() as f64 * 1_000.0 / span as f64)
    }

    /// Bytes allocated by the exact index.
    pub fn memory_in_index(&self) -> u64 {
        self.index.memory_bytes() as u64
    }
}
