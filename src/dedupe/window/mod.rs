//! A window: the identities of one kind that the partitions of a journal have had, how long they are held, and what an abort undoes.
//!
//! Invariants:
//! - Owners are either *committed* (below [`Window::next_number`]) or *pending* (of the open transaction). Pending owners are visible to later
//!   records of the transaction, and are removed by [`Window::abort`].
//! - A verdict of `Duplicate` names an owner whose 16 bytes were compared. A fingerprint alone never decides.
//! - Claims, owners that a crash left in local state and that were not committed, are not in the index: they distinguish a `Retry` from
//!   a `New` and never drop a record.
//! - Two records are copies if the intervals between which they can have been written are at most the window apart ([`RecordTime`]), in
//!   whatever partitions they are, and however far these are read.
//! - Owners are numbered in the order of arrival ([`Sequence`]), and the store finds them by that number.
//! - Each owner has a *stamp*, the latest stream time of all partitions at its arrival, which never decreases from one owner to the
//!   next. It expires when its stamp is more than the window before the window's clock ([`Window::set_horizon`]), so owners expire as a prefix.
//!   No partition reads a record from before that clock.
//! - Owners expire only in [`Window::commit`], [`Window::restore`] and [`Window::load`], so an abort can undo everything else.
//! - Old owners can be in sealed slices instead of the index ([`Window::seal`]). Those are a prefix of the owners that count.
//!
//! Length: an identity is held for at least the length of the window and at most 1/256 more, because stamps are kept in a few hundred
//! marks. When more than `max_ids` identities are held after a commit, the oldest are dropped, in steps of 1/256. The window is then
//! shorter than configured, and [`Window::effective_seconds`] reports its length.
//!
//! Callers process records in parts of some dozens, in two passes: [`Window::prefetch`] for each, then [`Window::verdict`] and [`Window::admit`]. The
//! cache lines are loaded by then.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::dedupe::coordinates::{Coordinates, Offset, PartitionId, Sequence};
use crate::dedupe::format::Owner;
use crate::dedupe::identity::Identity;

mod arrival;
mod forget;
mod growth;
#[cfg(test)]
mod hostile;
mod huge_pages;
mod index;
mod limits;
mod marks;
mod overflow;
mod owner;
mod positions;
mod prefetch;
mod restoring;
pub mod sealed;
mod sealing;
mod stream_time;
mod table;
mod verdict;
mod windows;

pub(crate) use arrival::{Anchor, resume};
pub use growth::IndexBytes;
pub use index::OwnerIndex;
pub use limits::WindowBounds;
use marks::Marks;
pub use owner::{OwnerRun, Owners, StampedOwner, StoredOwner, for_each_run};
pub use positions::{IndexKey, Positions};
use sealed::FilterBits;
pub use stream_time::{RecordTime, StreamTime, TimeSource};
pub use verdict::Verdict;
pub(crate) use windows::Windows;

/// Most records that a caller polls and decides together: few enough that the cache lines of the first pass are still cached in the
/// second.
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
    /// Number of identities, those in filters included.
    pub max_ids: u64,
    /// What advances stream time.
    pub time: TimeSource,
    /// The part in filters, if the window is longer than its exact part.
    pub bloom: Option<BloomPart>,
}

impl WindowLimits {
    /// For how long identities are held in all, in stream time.
    pub fn length(&self) -> Duration {
        self.bloom.map_or(self.exact, |bloom| bloom.length.max(self.exact))
    }
}

/// The identities of one kind.
#[derive(Debug)]
pub struct Window {
    exact_ms: i64,
    length_ms: i64,
    bounds: WindowBounds,
    evicted: u64,
    positions: Positions,
    index: OwnerIndex,
    marks: Marks,
    pending: Vec<StampedOwner>,
    claims: HashMap<Identity, Coordinates>,
    /// Number of the next committed owner: the pending ones have the numbers from it on.
    next_number: Sequence,
    /// Owners below it have been dropped.
    first_live: Sequence,
    /// Owners below it that have not been dropped are in sealed slices.
    sealed_next: Sequence,
    /// What the last commit returned as the lowest number whose owner must stay stored.
    first_needed: Sequence,
    /// See [`Window::set_horizon`].
    horizon_ms: i64,
    /// The latest stamp.
    latest_ms: i64,
    /// What [`Window::inherit`] took over.
    inherited_ms: Option<i64>,
}

impl Window {
    /// Bytes of an owner of the open transaction beside its place in the index.
    pub const PENDING_BYTES: usize = size_of::<StampedOwner>();

    /// Creates a window that contains no identity. The positions are those of the store that has its owners.
    pub fn new(limits: WindowLimits, positions: Positions) -> Self {
        let ms = |length: Duration| i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        let (exact_ms, length_ms) = (ms(limits.exact), ms(limits.length()));
        Self {
            exact_ms,
            length_ms,
            bounds: WindowBounds { max_ids: limits.max_ids, ..WindowBounds::NONE },
            evicted: 0,
            positions,
            index: OwnerIndex::default(),
            marks: Marks::new(length_ms),
            pending: Vec::new(),
            claims: HashMap::new(),
            next_number: 0,
            first_live: 0,
            sealed_next: 0,
            first_needed: 0,
            horizon_ms: 0,
            latest_ms: 0,
            inherited_ms: None,
        }
    }

    /// Pass one: computes the position of an identity and prefetches the memory at it.
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

    /// Pass two: the verdict on the record at `at`. Changes nothing.
    pub fn verdict<O: Owners>(
        &self,
        at: Coordinates,
        time: RecordTime,
        key: &IndexKey,
        owners: &O,
    ) -> Result<Verdict, O::Error> {
        let known = self.owner_of(time, key, owners)?;
        Ok(verdict::decide(at, known, self.claims.get(&key.identity).copied()))
    }

    /// The first owner that is found of an identity, committed or pending, that counts for a record of this time. A late record can be near
    /// two that are more than the window apart.
    #[inline]
    fn owner_of<O: Owners>(
        &self,
        time: RecordTime,
        key: &IndexKey,
        owners: &O,
    ) -> Result<Option<Owner>, O::Error> {
        let found = self.index.candidates(key, |number| {
            let pending = self.pending_at(number);
            // No owner is newer than its stamp: an older one need not be read.
            if pending.is_none() && self.marks.times_of(number).1 < time.oldest_ms(self.length_ms) {
                return ControlFlow::Continue(());
            }
            let stored = pending.map(|pending| Ok(pending.owner.into()));
            match stored.unwrap_or_else(|| owners.owner(number, Some(key.identity))) {
                Ok(StoredOwner { at, time_ms, identity: Some(identity), digest })
                    if identity == key.identity && self.counts(time_ms, time) =>
                {
                    ControlFlow::Break(Ok(Owner { at, time_ms, identity, digest }))
                }
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(Err(error)),
            }
        });
        found.break_value().transpose()
    }

    /// Whether an owner that arrived at this stream time of its partition, 0 while unknown, counts for a record of this time.
    #[inline]
    pub fn counts(&self, time_ms: i64, time: RecordTime) -> bool {
        time.is_near(time_ms..=time_ms, self.length_ms)
    }

    /// A pending owner; `None` for a committed one.
    #[inline]
    fn pending_at(&self, number: Sequence) -> Option<StampedOwner> {
        let place = usize::try_from(number.checked_sub(self.next_number)?).ok()?;
        self.pending.get(place).copied()
    }

    /// Adds a record as the owner of its identity, in the open transaction. Called after the verdicts `New` and `Retry`. The stamp is at least
    /// that of the owner before it.
    pub fn admit(&mut self, owner: StampedOwner, key: &IndexKey) {
        self.index.insert(key, self.next_number + self.pending.len() as Sequence);
        self.pending.push(owner);
    }

    /// Owners of the open transaction, in the order of their arrival.
    pub fn pending(&self) -> &[StampedOwner] {
        &self.pending
    }

    /// Commits the transaction: pending owners become committed, and owners that have expired or exceed a limit are dropped. Returns the
    /// lowest number whose owner must stay stored.
    ///
    /// Owners that are dropped now stay stored until the next commit, because only its checkpoint records
    /// that they are missing ([`Window::dropped_ms`]). Without them, a restart before that would report a complete window.
    pub fn commit(&mut self) -> Sequence {
        let most = self.max_owners_per_mark();
        self.first_needed = self.first_live;
        for StampedOwner { stamp_ms, .. } in self.pending.drain(..) {
            self.marks.add(self.next_number, stamp_ms, stamp_ms, most);
            self.latest_ms = self.latest_ms.max(stamp_ms);
            self.next_number += 1;
        }
        self.commit_evicted();
        self.expire();
        self.first_needed
    }

    /// Whether a commit without records drops owners, or lets the store remove those that were dropped before.
    pub fn drops_without_records(&self) -> bool {
        let (oldest_ms, most) = self.expiry_limits();
        self.first_live > self.first_needed || self.marks.has_expired(oldest_ms, most)
    }

    /// Undoes the open transaction.
    pub fn abort(&mut self) {
        // In reverse order, so that an evicting index restores what each insert had overwritten.
        while let Some(StampedOwner { owner, .. }) = self.pending.pop() {
            let number = self.next_number + self.pending.len() as Sequence;
            let removed = self.index.remove(&self.positions.key(owner.identity), number);
            debug_assert!(removed, "a pending owner is not in the index");
        }
    }

    /// Adds a claim: an owner that a crash left in local state, and that was not committed.
    pub fn claim(&mut self, identity: Identity, at: Coordinates) {
        self.claims.insert(identity, at);
    }

    /// Removes the claims of a partition below an offset.
    pub fn clear_claims_below(&mut self, partition: PartitionId, next: Offset) {
        if !self.claims.is_empty() {
            self.claims.retain(|_, at| at.partition != partition || at.offset >= next);
        }
    }

    /// The number of the next owner that is committed.
    pub fn next_number(&self) -> Sequence {
        self.next_number
    }

    /// The lowest live number: owners below it have been dropped.
    pub fn first_live(&self) -> Sequence {
        self.first_live
    }

    /// The latest stamp, epoch milliseconds; 0 while unknown.
    pub fn latest_ms(&self) -> i64 {
        self.latest_ms
    }

    /// For how long identities are held at least with their owners, as configured.
    pub fn exact(&self) -> Duration {
        Duration::from_millis(self.exact_ms.unsigned_abs())
    }

    /// Configured length of the window.
    pub fn configured(&self) -> Duration {
        Duration::from_millis(self.length_ms.unsigned_abs())
    }

    /// Number of identities, including pending and sealed ones, with and without owners.
    pub fn ids(&self) -> u64 {
        self.index.live() + self.marks.sealed
    }

    /// Number of owners that were not committed: they distinguish a retry from a new record.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }
}
