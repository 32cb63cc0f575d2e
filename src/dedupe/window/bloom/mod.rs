//! The Bloom part of one partition's window: identities beyond the exact part, at a few bytes each.
//!
//! It distinguishes *probably seen* from *never seen in the window*. Invariants:
//! - An identity that arrived inside `limits.bloom` passes, unless a limit (memory or number of identities) has
//!   dropped the oldest filters; [`Bloom::dropped_ms`] reports that.
//! - An absent identity passes with a probability of at most `limits.false_positive_rate`, for the look-up as a whole.
//!   [`sizing`] has the arithmetic, [`Bloom::false_positive_rate`] computes the rate from the bits in memory.
//! - A bit has no owner and cannot be removed. So only committed owners may be inserted. If committed owners are
//!   undone nevertheless, the filters must be rebuilt.
//! - The same inserts in the same order give the same bits, however often [`Bloom::expire`] is called
//!   in between. With the [`FilterLayout`](crate::dedupe::FilterLayout) of the filters at any later time, the inserts of the slices that
//!   were live then are sufficient.
//!
//! Stream time is divided into slices of `bloom / slices`. A slice is live until its end is
//! older than the window and is then dropped as a whole, so up to `slices + 1` slices are live.
//!
//! A slice has one filter, sized by the counts of the last slices. If a slice exceeds the capacity of its filter, it
//! gets a further filter with a smaller share of the rate. Filters of equal size share a grid, in which the
//! blocks of all filters in one row are adjacent. When a filter expires, its column is reused by the next one.
//! A grid is freed with its last filter, so a traffic peak costs its memory for one window.

mod copies;
mod filter;
mod grid;
mod layout;
mod limits;
mod opening;
mod shape;
mod shrinking;
pub mod sizing;
mod slices;

use std::collections::VecDeque;
use std::ops::Range;

use super::index::IndexKey;
use crate::dedupe::identity::Identity;
use filter::{Age, Filter};
use grid::{Grid, Mask};
pub use limits::BloomLimits;
use limits::ms;
pub use shape::FilterShape;
use sizing::{Density, Shares};
pub(crate) use slices::FilterSlice;

/// Number of inserts that are prefetched together.
const CHUNK: usize = 32;

/// The Bloom filters of one window: a grid of blocks for each slice of stream time.
#[derive(Debug)]
pub struct Bloom {
    limits: BloomLimits,
    slice_ms: i64,
    shares: Shares,
    /// Block density of a slice's first filter.
    density: Density,
    grids: Vec<Grid>,
    open: Option<OpenSlice>,
    /// Number of identities of each of the last slices.
    held: VecDeque<u64>,
    dropped_ms: Option<i64>,
    /// The followed layout: the start of its oldest slice and of its open slice.
    followed: Option<(i64, i64)>,
    /// See [`Bloom::set_horizon`].
    horizon_ms: i64,
}

/// The slice that receives inserts.
#[derive(Debug, Clone, Copy)]
struct OpenSlice {
    /// Grid and column of its newest filter; `None` when that has been dropped.
    at: Option<(usize, usize)>,
    /// Number of that filter within the slice.
    place: u32,
    /// Start and end of the slice, stream time; the end is `i64::MAX` while stream time is unknown.
    begin_ms: i64,
    end_ms: i64,
    /// Stream time at the slice's first arrival; 0 while unknown.
    first_ms: i64,
    /// Identities inserted, over all of its filters.
    ids: u64,
}

impl Bloom {
    /// Creates filters that contain no identity; no memory is allocated before the first slice.
    #[must_use]
    pub fn new(limits: BloomLimits) -> Self {
        let shares = limits.shares();
        Self {
            limits,
            slice_ms: limits.slice_ms(),
            shares,
            density: Density::at_rate(shares.of(0)),
            grids: Vec::new(),
            open: None,
            held: VecDeque::new(),
            dropped_ms: None,
            followed: None,
            horizon_ms: i64::MAX,
        }
    }

    /// The range of stream time that a look-up queries at stream time `now_ms`: older than the exact part, younger
    /// than the end of the window.
    #[must_use]
    pub fn queried(&self, now_ms: i64) -> Range<i64> {
        now_ms.saturating_sub(ms(self.limits.bloom))..now_ms.saturating_sub(ms(self.limits.exact))
    }

    /// Prefetches the memory that [`Bloom::probably`] reads.
    #[inline]
    pub fn prefetch(&self, key: &IndexKey) {
        self.grids.iter().for_each(|grid| grid.prefetch(key.position));
    }

    /// Start of a slice, stream time, that probably holds the identity. Queries the filters that may have arrivals in
    /// `queried`; `None` means that none of them contains the identity, with certainty.
    #[must_use]
    #[inline]
    pub fn probably(&self, key: &IndexKey, queried: &Range<i64>) -> Option<i64> {
        let mut wanted = Mask::of(key.position.first, 0);
        self.grids.iter().find_map(|grid| {
            if wanted.bits != grid.bits() {
                wanted = Mask::of(key.position.first, grid.bits());
            }
            grid.find(&wanted, key.position, queried, self.slice_ms)
        })
    }

    /// Inserts the identity of a committed owner that arrived at stream time `arrived_ms`. Zero and negative values mean
    /// unknown, and count as the first time that becomes known. An arrival from before the newest slice is inserted into
    /// the newest slice.
    #[inline]
    pub fn insert(&mut self, key: &IndexKey, arrived_ms: i64) {
        let arrived_ms = arrived_ms.max(0);
        if self.is_before_layout(arrived_ms) {
            return;
        }
        let room = self.room(arrived_ms).or_else(|| self.make_room(arrived_ms));
        if let Some(open) = &mut self.open {
            open.ids += 1;
        }
        match room.and_then(|(grid, column)| Some((self.grids.get_mut(grid)?, column))) {
            Some((grid, column)) => grid.insert(column, key.position, arrived_ms),
            None => self.dropped_ms = self.dropped_ms.max(Some(arrived_ms)),
        }
    }

    /// [`Bloom::insert`] for many owners, with prefetching.
    pub fn insert_all(&mut self, owners: impl IntoIterator<Item = (Identity, i64)>) {
        let mut owners =
            owners.into_iter().map(|(identity, arrived_ms)| (IndexKey::at(identity), arrived_ms));
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            chunk.extend(owners.by_ref().take(CHUNK));
            if chunk.is_empty() {
                return;
            }
            for (key, _) in &chunk {
                self.prefetch_insert(key);
            }
            for (key, arrived_ms) in &chunk {
                self.insert(key, *arrived_ms);
            }
        }
    }

    /// Prefetches the memory that the next [`Bloom::insert`] writes.
    #[inline]
    fn prefetch_insert(&self, key: &IndexKey) {
        if let Some((grid, column)) = self.open.and_then(|open| open.at)
            && let Some(grid) = self.grids.get(grid)
        {
            grid.prefetch_column(column, key.position);
        }
    }

    /// Grid and column of the open filter if it can take an arrival at `arrived_ms`.
    #[inline]
    fn room(&self, arrived_ms: i64) -> Option<(usize, usize)> {
        let open = self.open.as_ref().filter(|open| arrived_ms < open.end_ms)?;
        let (grid, column) = open.at.filter(|_| open.first_ms > 0 || arrived_ms == 0)?;
        let filter = self.grids.get(grid)?.filter(column)?;
        (!filter.is_full()).then_some((grid, column))
    }

    /// Makes slices expire by this stream time, epoch milliseconds, where it is earlier than the one that [`Bloom::expire`] or
    /// an insert is called with.
    pub fn set_horizon(&mut self, ms: i64) {
        self.horizon_ms = ms;
    }

    /// See [`Bloom::set_horizon`]; `i64::MAX` when it was not set.
    #[must_use]
    pub fn horizon_ms(&self) -> i64 {
        self.horizon_ms
    }

    /// Drops the slices that ended before the window at stream time `now_ms`, or at the horizon if that is earlier.
    pub fn expire(&mut self, now_ms: i64) {
        if now_ms <= 0 {
            return;
        }
        self.assign_unknown_time(now_ms);
        let oldest = now_ms.min(self.horizon_ms).saturating_sub(ms(self.limits.bloom));
        let slice = self.slice_ms;
        let expired = |(slice_ms, _): Age| slice_ms.saturating_add(slice) <= oldest;
        if self.ages().any(expired) {
            self.drop_filters(expired);
        }
    }

    /// Assigns arrivals from before stream time was known to the slice of `now_ms`.
    fn assign_unknown_time(&mut self, now_ms: i64) {
        let Some(open) = self.open.as_mut().filter(|open| open.first_ms <= 0) else { return };
        let slice = self.limits.slice_at(now_ms);
        let begin_ms = slice.start;
        (open.first_ms, open.begin_ms, open.end_ms) = (now_ms, begin_ms, slice.end);
        for filter in self.grids.iter_mut().flat_map(Grid::filters_mut).filter(|filter| filter.first_ms <= 0)
        {
            (filter.design.slice_ms, filter.first_ms, filter.last_ms) = (begin_ms, now_ms, now_ms);
        }
    }

    /// Drops the filters for which `dropped` returns true, and frees the grids that are empty then.
    fn drop_filters(&mut self, dropped: impl Fn(Age) -> bool) {
        self.grids.iter_mut().for_each(|grid| grid.free_all(&dropped));
        self.grids.retain(|grid| !grid.is_empty());
        self.find_open();
    }

    /// Finds the current position of the newest filter of the open slice.
    fn find_open(&mut self) {
        if let Some(open) = &mut self.open {
            let newest = |filter: &Filter| filter.design.age() == (open.begin_ms, open.place);
            let mut places = self.grids.iter().enumerate();
            open.at = places.find_map(|(at, grid)| Some((at, grid.column_of(newest)?)));
        }
    }

    /// Stream time, epoch milliseconds, of the latest arrival that a limit (memory or number of identities) dropped before it
    /// expired; `None` when there is none.
    #[must_use]
    pub fn dropped_ms(&self) -> Option<i64> {
        self.dropped_ms
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.grids.iter().map(Grid::memory_bytes).sum()
    }
}
