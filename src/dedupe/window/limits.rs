//! What shortens a window before its time: counts, memory, disk, and the table of one that evicts.

use super::{Window, WindowLimits};
use crate::dedupe::beyond::Beyond;
use crate::dedupe::index::Index;
use crate::dedupe::marks::MARKS_A_WINDOW;

/// What a window may hold at most, whatever its age. May change at any time; the next commit applies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Identities in the exact part. For a window that evicts, its table decides instead.
    pub max_ids: u64,
    /// Identities stored in blocks: of the exact part, and those that it takes to build the filters
    /// again. The oldest slices go first, then the exact part becomes shorter.
    pub max_stored: u64,
    /// Bytes of the filters beyond the exact part. The oldest go first.
    pub filter_bytes: u64,
}

impl Bounds {
    /// Nothing but age.
    pub const NONE: Self = Self { max_ids: u64::MAX, max_stored: u64::MAX, filter_bytes: u64::MAX };
}

/// Up to where owners were forgotten before their time, last stream time among them in ms since the epoch;
/// `None` where nothing was, or where all of them would be too old by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// In the exact part.
    pub exact_ms: Option<i64>,
    /// In the filters beyond it.
    pub beyond_ms: Option<i64>,
}

impl Window {
    /// What limits made it forget: what a restart has to be told, because blocks do not show it.
    #[must_use]
    pub fn lost(&self) -> Lost {
        let now = self.time.ms();
        let exact = self.marks.dropped_ms().filter(|ms| *ms >= now.saturating_sub(self.exact_ms));
        let beyond = self.beyond.as_ref().and_then(|beyond| beyond.lost_ms(now));
        Lost { exact_ms: exact, beyond_ms: beyond }
    }

    /// Takes over what was forgotten before a restart.
    pub fn inherit(&mut self, lost: Lost) {
        self.marks.inherit_dropped(lost.exact_ms);
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.inherit_lost(lost.beyond_ms);
        }
    }

    /// Says that ids from before this stream time, in ms since the epoch, may be missing, for another reason than a
    /// limit of this window: a state that was restored in part, or begun anew. Decisions stay what they are. What the
    /// window is said to reach begins there ([`Window::effective_seconds`] and the like) and grows with stream time,
    /// until it has passed by the window's length. A later time counts, an earlier one is ignored. Blocks do not show
    /// it: [`Window::incomplete_before_ms`] is what a restart has to be told.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.marks.note_incomplete_before(ms);
    }

    /// The latest stream time that was noted so, for as long as the window would reach beyond it.
    #[must_use]
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        let oldest = self.time.ms().saturating_sub(self.asked_ms());
        self.marks.incomplete_ms().filter(|ms| *ms > oldest)
    }

    /// Whether nothing makes the window shorter than what was noted so.
    #[must_use]
    pub fn is_short_by_note(&self) -> bool {
        let dropped =
            self.marks.dropped_ms().max(self.beyond.as_ref().and_then(|it| it.lost_ms(self.time.ms())));
        self.incomplete_before_ms().is_some_and(|ms| dropped.is_none_or(|dropped| dropped <= ms))
    }

    fn asked_ms(&self) -> i64 {
        i64::try_from(self.asked().as_millis()).unwrap_or(i64::MAX)
    }

    /// An empty window of fixed memory: a table of `limits.max_ids` slots of 8 bytes, made once. A new
    /// identity that finds both of its buckets full takes the place of the oldest owner in them. So it
    /// may forget an identity before its time, and never takes a new one for a known one.
    /// An abort puts back what its transaction had overwritten.
    #[must_use]
    pub fn evicting(limits: WindowLimits) -> Self {
        Self { index: Index::evicting(limits.max_ids), ..Self::new(limits) }
    }

    /// Slots of a window that evicts; `None` of one that becomes shorter instead.
    #[must_use]
    pub fn slots(&self) -> Option<u64> {
        self.index.slots()
    }

    /// Sets the limit on the number of identities; applied by the next commit.
    pub fn set_max_ids(&mut self, max_ids: u64) {
        self.bounds.max_ids = max_ids;
    }

    /// Sets all limits but age; applied by the next commit.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.set_max_bytes(bounds.filter_bytes);
        }
    }

    /// Owners that one mark may hold, so that a limit on the count drops little more than it must.
    pub(super) fn most_in_a_mark(&self) -> u64 {
        // Marks of a window that evicts also hold what was overwritten, for as long as the window is.
        let marks = if self.slots().is_some() { MARKS_A_WINDOW / 16 } else { MARKS_A_WINDOW };
        (self.bounds.max_ids.min(self.bounds.max_stored) / marks).max(1)
    }

    /// The open transaction is settled: so is what it overwrote.
    pub(super) fn settle_evicted(&mut self) {
        let Self { index, marks, evicted, .. } = self;
        index.settle(|owner| {
            *evicted += 1;
            marks.evicted(owner);
        });
    }

    /// Forgets what is too old or too much.
    pub(super) fn expire(&mut self) {
        let (now, evicts) = (self.time.ms(), self.slots().is_some());
        let most = if evicts { u64::MAX } else { self.bounds.max_ids }.min(self.bounds.max_stored);
        if let Some(dropped) = self.marks.drop_expired(now, now.saturating_sub(self.exact_ms), most) {
            self.index.expire(dropped.next, dropped.count);
        }
        if evicts && let Some(first) = self.marks.first_held() {
            self.index.expire(first, 0);
        }
        // Memory is reckoned with tables for what a window may hold, however much would come in its time.
        self.index.expect(self.expected_ids(now).min(self.bounds.max_ids), self.bounds.max_ids);
        let first_live = self.index.first_live();
        if let Some(beyond) = self.beyond.as_mut() {
            beyond.expire(now);
            beyond.shrink(self.bounds.max_stored, first_live);
        }
    }

    /// How many identities a full window will hold if they go on coming as they came.
    fn expected_ids(&self, now: i64) -> u64 {
        let span = self.marks.span_ms(now).unwrap_or(0).clamp(1, self.exact_ms.max(1));
        let ids = u128::from(self.marks.count()) * u128::from(self.exact_ms.unsigned_abs())
            / u128::from(span.unsigned_abs());
        u64::try_from(ids).unwrap_or(u64::MAX)
    }

    /// How far back memory reaches, exact part and filters together, in seconds of stream time: what
    /// was asked, or less when a limit made it forget earlier. A window that evicts has gaps inside:
    /// [`Window::evicted_share`], [`Window::certain_seconds`].
    #[must_use]
    pub fn effective_seconds(&self) -> f64 {
        let now = self.time.ms();
        let noted = self.marks.incomplete_ms().map_or(i64::MAX, |ms| now.saturating_sub(ms).max(0));
        let beyond = self.beyond.as_ref().map_or(0, |beyond| beyond.reach_ms(now).min(noted));
        self.exact_reach_ms().max(beyond) as f64 / 1_000.0
    }

    /// The same of the exact part alone.
    #[must_use]
    pub fn exact_seconds(&self) -> f64 {
        self.exact_reach_ms() as f64 / 1_000.0
    }

    fn exact_reach_ms(&self) -> i64 {
        self.marks.reach_ms(self.time.ms()).unwrap_or(i64::MAX).clamp(0, self.exact_ms)
    }

    /// How far back, in seconds of stream time, no owner was overwritten.
    #[must_use]
    pub fn certain_seconds(&self) -> f64 {
        let evicted = self.marks.evicted_ms().map_or(i64::MAX, |ms| self.time.ms().saturating_sub(ms));
        evicted.clamp(0, self.exact_reach_ms()) as f64 / 1_000.0
    }

    /// Share of the owners of the exact part that were overwritten, 0 to 1: how likely a copy of an
    /// identity of any age inside it is taken for new.
    #[must_use]
    pub fn evicted_share(&self) -> f64 {
        self.marks.evicted_share()
    }

    /// Owners overwritten since this was asked last.
    pub fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    /// Identities stored in blocks that are still needed.
    #[must_use]
    pub fn stored_ids(&self) -> u64 {
        self.beyond.as_ref().map_or(0, Beyond::ids).max(self.marks.filed())
    }

    /// New identities a second of stream time, over the exact part; 0 while that spans no time.
    #[must_use]
    pub fn ids_a_second(&self) -> f64 {
        let span = self.marks.span_ms(self.time.ms()).filter(|span| *span > 0);
        span.map_or(0.0, |span| self.marks.filed() as f64 * 1_000.0 / span as f64)
    }

    /// Bytes of the exact index.
    #[must_use]
    pub fn memory_in_index(&self) -> u64 {
        self.index.memory_bytes() as u64
    }

    /// Bytes of the exact index, the next table of one that is about to grow included.
    #[must_use]
    pub fn index_bytes_ahead(&self) -> u64 {
        self.index.bytes_ahead()
    }
}
