//! One partition's window: the identities seen, how long they are held, and what an abort undoes.
//!
//! Invariants:
//! - Owners are either *committed* (below [`Window::next`]) or *pending* (of the open transaction, at
//!   or beyond it). Pending owners are visible to later records of the transaction, and are removed by
//!   [`Window::abort`].
//! - A verdict of `Duplicate` names an owner whose 16 bytes were compared. A fingerprint alone never decides.
//! - Claims, the owners at or beyond the committed offset that a crash left in local state, are not
//!   in the index: they distinguish a `Retry` from a `New` and never drop a record.
//! - An owner that arrived more than the window before a record's own time never makes it a duplicate, even if it has not been dropped yet.
//! - Owners are numbered in the order of arrival ([`Sequence`]), and the store finds them by that number. The next window that is loaded
//!   from the store has the same numbers.
//! - Owners expire only in [`Window::commit`] and [`Window::restore`], so an abort can undo
//!   everything else. They expire as a prefix: all owners below [`Window::first_live`].
//! - Old owners can be in sealed slices instead of the index ([`Window::seal`]). Those are a prefix of the owners that count.
//! - Stream time advances with each record, and an abort resets it to the last commit.
//!
//! Length: an identity is held from its arrival, in stream time, for at least the length of the window and at most 1/256
//! more, because the arrival times of owners are kept in a few hundred marks. An owner restored from a block may
//! stay longer by the span of that block, which [`Window::blocks`] keeps below 1/32 of the window. When more than
//! `max_ids` identities are held after a commit, the oldest are dropped, in steps of 1/256. The window is then
//! shorter than configured, and [`Window::effective_seconds`] reports its length.
//!
//! Callers process at most [`CHUNK`] records in two passes: [`Window::key`] at each, which prefetches,
//! then [`Window::verdict`] and [`Window::admit`]. The cache lines are loaded by then.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::dedupe::coordinates::{Offset, Sequence};
use crate::dedupe::identity::Identity;

mod arrival;
mod blocks;
mod elsewhere;
mod forget;
mod growth;
#[cfg(test)]
mod hostile;
mod huge_pages;
mod index;
mod limits;
mod marks;
mod overflow;
mod positions;
mod prefetch;
mod restoring;
mod sampled;
pub mod sealed;
mod sealing;
mod stream_time;
mod table;
mod topic_filter;
mod verdict;
mod windows;

pub(crate) use arrival::{Anchor, resume};
pub use elsewhere::CopyOf;
pub use growth::IndexBytes;
pub use index::OwnerIndex;
pub use limits::WindowBounds;
use marks::{IndexedOwner, Marks};
pub use positions::{IndexKey, Positions};
pub use restoring::OwnerRun;
pub use sampled::{CopyEstimate, CopySample, NewRecord};
use sealed::FilterBits;
use stream_time::StreamTime;
pub use stream_time::{RecordTime, TimeSource};
pub use topic_filter::{PartitionGroups, TopicFilter};
pub use verdict::Verdict;
pub(crate) use windows::Windows;

/// Records to prefetch before the first of them is decided: enough to hide the memory latency, few enough
/// that their cache lines are still cached.
pub const CHUNK: usize = 256;

/// Older identities, which are in filters only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloomPart {
    /// For how long identities are held in all, in stream time.
    pub length: Duration,
    /// Bits of the filters.
    pub bits: FilterBits,
}

/// Limits of a window. The one that is reached first applies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowLimits {
    /// For how long identities are held at least with their owners, in stream time.
    pub exact: Duration,
    /// Number of identities of this partition, those in filters included.
    pub max_ids: u64,
    /// What advances stream time.
    pub time: TimeSource,
    /// The part in filters, if the window is longer than its exact part.
    pub bloom: Option<BloomPart>,
}

impl WindowLimits {
    /// For how long identities are held in all, in stream time.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.bloom.map_or(self.exact, |bloom| bloom.length.max(self.exact))
    }
}

/// A committed owner in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredOwner {
    /// The offset of the record that had the identity first.
    pub offset: Offset,
    /// The identity, byte for byte; `None` when it was forgotten.
    pub identity: Option<Identity>,
}

/// The committed owners of a window, in the order of their arrival.
pub trait Owners {
    /// Why a look-up failed.
    type Error;
    /// The owner with this number, which the window holds. Where it has the `expected` identity, nothing else is verified.
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, Self::Error>;
}

/// The ids of one kind in one partition.
#[derive(Debug)]
pub struct Window {
    exact_ms: i64,
    length_ms: i64,
    bounds: WindowBounds,
    evicted: u64,
    time: StreamTime,
    positions: Positions,
    index: OwnerIndex,
    marks: Marks,
    pending: Vec<(Offset, Identity)>,
    /// Stream time at the arrival of each pending owner.
    arrived_ms: Vec<i64>,
    claims: HashMap<Identity, Offset>,
    next: Offset,
    /// Number of the next committed owner: the pending ones have the numbers from it on.
    next_number: Sequence,
    /// Owners below it have been dropped.
    first_live: Offset,
    /// Owners below it that have not been dropped are in sealed slices.
    sealed_next: Offset,
    /// What the last commit returned as the lowest offset whose owner must stay stored.
    first_needed: Offset,
    /// See [`Window::set_horizon`].
    horizon_ms: i64,
    /// What [`Window::inherit`] took over.
    inherited_ms: Option<i64>,
}

impl Window {
    /// Bytes of an owner of the open transaction beside its place in the index.
    pub const PENDING_BYTES: usize = size_of::<(Offset, Identity, i64)>();

    /// Creates a window that contains no identity and whose stream time is unknown. The positions are those of the store that has
    /// its owners.
    #[must_use]
    pub fn new(limits: WindowLimits, positions: Positions) -> Self {
        let ms = |length: Duration| i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        let (exact_ms, length_ms) = (ms(limits.exact), ms(limits.length()));
        Self {
            exact_ms,
            length_ms,
            bounds: WindowBounds { max_ids: limits.max_ids, ..WindowBounds::NONE },
            evicted: 0,
            time: StreamTime::new(limits.time),
            positions,
            index: OwnerIndex::default(),
            marks: Marks::new(length_ms),
            pending: Vec::new(),
            arrived_ms: Vec::new(),
            claims: HashMap::new(),
            next: 0,
            next_number: 0,
            first_live: 0,
            sealed_next: 0,
            first_needed: 0,
            horizon_ms: i64::MAX,
            inherited_ms: None,
        }
    }

    /// Advances stream time by a record before its verdict, whatever the verdict will be.
    pub fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) {
        self.time.observe(timestamp_ms, now_ms);
    }

    /// Pass one: computes the position of an identity and prefetches the memory at it.
    #[must_use]
    #[inline]
    pub fn key(&self, identity: Identity) -> IndexKey {
        let key = self.positions.key(identity);
        self.prefetch(&key);
        key
    }

    /// Prefetches the memory at a position.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.index.prefetch(key);
    }

    /// Pass two: the verdict on the record at `at`, which was observed last. Changes nothing.
    pub fn verdict<O: Owners>(&self, at: Offset, key: &IndexKey, owners: &O) -> Result<Verdict, O::Error> {
        let oldest = self.oldest_ms();
        let found = self.owner_of(key, owners, |(_, arrived)| arrived >= oldest)?;
        let known = found.map(|(owner, _)| owner);
        Ok(verdict::decide(at, known, self.claims.get(&key.identity).copied()))
    }

    /// When the record that was observed last counts as written.
    #[must_use]
    pub fn record_time(&self) -> RecordTime {
        self.time.record()
    }

    /// Stream time, epoch milliseconds, before which owners do not count for that record.
    fn oldest_ms(&self) -> i64 {
        self.time.record().own_ms.saturating_sub(self.length_ms)
    }

    /// The verdict on the record at `at` when this window has no owner of its identity.
    #[must_use]
    pub fn verdict_without_owner(&self, at: Offset, key: &IndexKey) -> Verdict {
        verdict::decide(at, None, self.claims.get(&key.identity).copied())
    }

    /// The newest owner of an identity, committed or pending, with the latest stream time at which it can have arrived; 0 while
    /// unknown. Where the time is known, `counts` decides by the earliest and latest time.
    #[inline]
    fn owner_of<O: Owners>(
        &self,
        key: &IndexKey,
        owners: &O,
        counts: impl Fn((i64, i64)) -> bool,
    ) -> Result<Option<(Offset, i64)>, O::Error> {
        let found = self.index.candidates(key, |number| {
            let pending = self.pending_at(number);
            let times =
                pending.map_or_else(|| self.marks.times_of(number), |(_, arrived)| (arrived, arrived));
            if times.1 > 0 && !counts(times) {
                return ControlFlow::Continue(());
            }
            let stored = |(offset, identity)| StoredOwner { offset, identity: Some(identity) };
            let found = pending.map(|(owner, _)| stored(owner));
            match found.map_or_else(|| owners.owner(number, Some(key.identity)), Ok) {
                Ok(owner) if owner.identity == Some(key.identity) => {
                    ControlFlow::Break(Ok((owner.offset, times.1)))
                }
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(Err(error)),
            }
        });
        found.break_value().transpose()
    }

    /// A pending owner with its arrival; `None` for a committed one.
    #[inline]
    fn pending_at(&self, number: Sequence) -> Option<((Offset, Identity), i64)> {
        let place = usize::try_from(number.checked_sub(self.next_number)?).ok()?;
        Some((*self.pending.get(place)?, *self.arrived_ms.get(place)?))
    }

    /// Adds the record at `at` as the owner of its identity, in the open transaction. Called after the verdicts `New`
    /// and `Retry`, in ascending offset order.
    pub fn admit(&mut self, at: Offset, key: &IndexKey) {
        debug_assert!(at >= self.next, "a record below the committed offset is admitted");
        debug_assert!(self.pending.last().is_none_or(|(last, _)| *last < at), "offsets must ascend");
        self.index.insert(key, self.next_number + self.pending.len() as Sequence);
        self.pending.push((at, key.identity));
        self.arrived_ms.push(self.time.ms());
    }

    /// Owners of the open transaction, in ascending offset order.
    #[must_use]
    pub fn pending(&self) -> &[(Offset, Identity)] {
        &self.pending
    }

    /// Commits the transaction up to `next`: pending owners become committed, claims below `next` are removed, and
    /// owners that have expired or exceed a limit are dropped. Returns the lowest offset whose owner must stay stored.
    ///
    /// Owners that are dropped now stay stored until the next commit, because only its checkpoint records
    /// that they are missing ([`Window::dropped_ms`]). Without them, a restart before that would report a complete window.
    pub fn commit(&mut self, next: Offset) -> Offset {
        debug_assert!(next >= self.next, "the committed offset must not decrease");
        debug_assert!(self.pending.last().is_none_or(|(last, _)| *last < next), "an owner is not committed");
        let most = self.max_owners_per_mark();
        self.first_needed = self.first_live;
        for ((owner, _), arrived) in self.pending.drain(..).zip(self.arrived_ms.drain(..)) {
            let owner = IndexedOwner { offset: owner, number: self.next_number };
            self.marks.add(owner, (arrived, arrived), most);
            self.next_number += 1;
        }
        self.commit_evicted();
        self.time.commit();
        self.next = self.next.max(next);
        self.clear_claims_below(next);
        self.expire();
        self.first_needed
    }

    /// Whether a commit without records drops owners, or lets the store remove those that were dropped before.
    #[must_use]
    pub fn drops_without_records(&self) -> bool {
        let (oldest_ms, most) = self.expiry_limits();
        self.first_live > self.first_needed || self.marks.has_expired(oldest_ms, most)
    }

    /// Undoes the open transaction: its pending owners and stream time.
    pub fn abort(&mut self) {
        // In reverse order, so that an evicting index restores what each insert had overwritten.
        while let Some((_, identity)) = self.pending.pop() {
            let number = self.next_number + self.pending.len() as Sequence;
            let removed = self.index.remove(&self.positions.key(identity), number);
            debug_assert!(removed, "a pending owner is not in the index");
        }
        self.arrived_ms.clear();
        self.time.undo();
    }

    /// Sets stream time from a checkpoint, forwards or back. Zero and negative values are ignored.
    pub fn set_stream_time(&mut self, ms: i64) {
        self.time.set(if ms > 0 { ms } else { self.time.ms() });
    }

    /// Adds a claim: an owner at or beyond the committed offset that a crash left in local state.
    pub fn claim(&mut self, identity: Identity, owner: Offset) {
        self.claims.insert(identity, owner);
    }

    /// Removes claims below `next`. [`Window::commit`] does this too.
    pub fn clear_claims_below(&mut self, next: Offset) {
        if !self.claims.is_empty() {
            self.claims.retain(|_, owner| *owner >= next);
        }
    }

    /// One past the last offset known to be committed.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.next
    }

    /// The number of the next owner that is committed.
    #[must_use]
    pub fn next_number(&self) -> Sequence {
        self.next_number
    }

    /// The lowest live offset: owners below it have been dropped.
    #[must_use]
    pub fn first_live(&self) -> Offset {
        self.first_live
    }

    /// Stream time, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn stream_time_ms(&self) -> i64 {
        self.time.ms()
    }

    /// Stream time at the first record of the open transaction, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn opened_ms(&self) -> i64 {
        self.time.opened_ms()
    }

    /// Stream time at the last commit, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn committed_time_ms(&self) -> i64 {
        self.time.committed_ms()
    }

    /// For how long identities are held at least with their owners, as configured.
    #[must_use]
    pub fn exact(&self) -> Duration {
        Duration::from_millis(self.exact_ms.unsigned_abs())
    }

    /// Configured length of the window.
    #[must_use]
    pub fn configured(&self) -> Duration {
        Duration::from_millis(self.length_ms.unsigned_abs())
    }

    /// Number of identities, including pending and sealed ones, with and without owners.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.index.live() + self.marks.sealed()
    }

    /// Number of owners at or beyond the committed offset: they distinguish a retry from a new record.
    #[must_use]
    pub fn claims(&self) -> usize {
        self.claims.len()
    }
}
