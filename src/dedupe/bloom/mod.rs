//! The Bloom part of one partition's window: identities beyond the exact set, at a few bytes each.
//!
//! It tells *probably seen* from *never seen in the window*. What always holds:
//! - An identity that arrived inside `limits.bloom` passes, unless the memory limit made the oldest
//!   go first; [`Bloom::forgotten_ms`] says so.
//! - An absent identity passes with at most `limits.false_positive_rate`, for the look-up as a whole.
//!   [`sizing`] has the arithmetic, [`Bloom::false_positive_rate`] what the bits in memory give.
//! - A bit has no owner and is never taken back. So only committed owners may be inserted, and when
//!   committed owners are undone after all, the filters must be built anew.
//! - The same inserts in the same order give the same bits, however often [`Bloom::expire`] is called
//!   in between. With the [`Layout`] of the filters at any later time, the inserts of the slices that
//!   were alive then will do.
//!
//! Stream time at arrival is cut into slices of `bloom / slices`. A slice lives until its end is
//! older than the window and is then dropped whole, so up to `slices + 1` are alive.
//!
//! A slice has one filter, shaped from what the last slices held. One that outgrows its design gets a
//! further filter with a tighter share of the rate. Filters of equal size share a grid, in which the
//! blocks of all of them for one row stand side by side; a filter that expires leaves its column to
//! the next. A grid dies with its last filter, so a peak costs its memory for one window.

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

use super::Identity;
use super::index::Look;
pub use copies::FilterCopy;
use filter::{Age, Filter};
use grid::{Grid, Mask};
pub use layout::Layout;
pub use limits::BloomLimits;
use limits::ms;
pub use shape::Shape;
use sizing::{Density, Shares};
pub use slices::Slice;

/// Inserts looked at before the first of them is done.
const CHUNK: usize = 32;

/// One partition's filters.
#[derive(Debug)]
pub struct Bloom {
    limits: BloomLimits,
    slice_ms: i64,
    shares: Shares,
    /// How densely a slice's first filter uses its blocks.
    density: Density,
    grids: Vec<Grid>,
    open: Option<Open>,
    /// What the last slices held.
    held: VecDeque<u64>,
    forgotten_ms: Option<i64>,
    /// The layout that is followed: its oldest slice and the one that was open then.
    followed: Option<(i64, i64)>,
}

/// The slice that is being written.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Grid and column of its newest filter; `None` when that is gone.
    at: Option<(usize, usize)>,
    /// Which filter of the slice that is.
    place: u32,
    /// Beginning and end of the slice, stream time; the end is beyond all times while time is unknown.
    begin_ms: i64,
    end_ms: i64,
    /// Stream time at the slice's first arrival; 0 while unknown.
    first_ms: i64,
    /// Identities inserted into all of its filters.
    ids: u64,
}

impl Bloom {
    /// No identities.
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
            forgotten_ms: None,
            followed: None,
        }
    }

    /// Tells how many identities a slice will hold, before the first one comes: so that a restore
    /// does not begin small.
    pub fn expect(&mut self, ids_a_slice: u64) {
        self.held.clear();
        self.held.push_back(ids_a_slice);
    }

    /// The time that a look-up asks about at stream time `now_ms`: older than the exact part, younger
    /// than the end of memory.
    #[must_use]
    pub fn asked(&self, now_ms: i64) -> Range<i64> {
        now_ms.saturating_sub(ms(self.limits.bloom))..now_ms.saturating_sub(ms(self.limits.exact))
    }

    /// Starts to load what [`Bloom::probably`] will read.
    #[inline]
    pub fn prefetch(&self, look: &Look) {
        self.grids.iter().for_each(|grid| grid.prefetch(look.position));
    }

    /// The beginning of a slice, in stream time, that probably holds the identity. Asks the filters
    /// of which some arrivals may lie in `asked`; `None` means that none of them has it, for certain.
    #[must_use]
    #[inline]
    pub fn probably(&self, look: &Look, asked: &Range<i64>) -> Option<i64> {
        let mut wanted = Mask::of(look.position.first, 0);
        self.grids.iter().find_map(|grid| {
            if wanted.bits != grid.bits() {
                wanted = Mask::of(look.position.first, grid.bits());
            }
            grid.find(&wanted, look.position, asked, self.slice_ms)
        })
    }

    /// Remembers the identity of a committed owner that arrived at stream time `arrived_ms`; 0 and
    /// less is unknown, and counts as the first time that becomes known. A time before the newest
    /// slice is filed in that one.
    #[inline]
    pub fn insert(&mut self, look: &Look, arrived_ms: i64) {
        let arrived_ms = arrived_ms.max(0);
        if self.is_past(arrived_ms) {
            return;
        }
        let room = self.room(arrived_ms).or_else(|| self.make_room(arrived_ms));
        if let Some(open) = &mut self.open {
            open.ids += 1;
        }
        match room.and_then(|(grid, column)| Some((self.grids.get_mut(grid)?, column))) {
            Some((grid, column)) => grid.insert(column, look.position, arrived_ms),
            None => self.forgotten_ms = self.forgotten_ms.max(Some(arrived_ms)),
        }
    }

    /// [`Bloom::insert`] for many, with the memory on its way before it is needed.
    pub fn insert_all(&mut self, owners: impl IntoIterator<Item = (Identity, i64)>) {
        let mut owners = owners.into_iter().map(|(identity, arrived_ms)| (Look::at(identity), arrived_ms));
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            chunk.clear();
            chunk.extend(owners.by_ref().take(CHUNK));
            if chunk.is_empty() {
                return;
            }
            if let Some((grid, column)) = self.open.and_then(|open| open.at)
                && let Some(grid) = self.grids.get(grid)
            {
                for (look, _) in &chunk {
                    grid.prefetch_column(column, look.position);
                }
            }
            for (look, arrived_ms) in &chunk {
                self.insert(look, *arrived_ms);
            }
        }
    }

    /// Where an identity that arrives at `arrived_ms` can be written without further ado.
    #[inline]
    fn room(&self, arrived_ms: i64) -> Option<(usize, usize)> {
        let open = self.open.as_ref().filter(|open| arrived_ms < open.end_ms)?;
        let (grid, column) = open.at.filter(|_| open.first_ms > 0 || arrived_ms == 0)?;
        let filter = self.grids.get(grid)?.filter(column)?;
        (!filter.is_full()).then_some((grid, column))
    }

    /// Drops the slices that ended before the window at stream time `now_ms`.
    pub fn expire(&mut self, now_ms: i64) {
        if now_ms <= 0 {
            return;
        }
        self.date(now_ms);
        let (oldest, slice) = (now_ms.saturating_sub(ms(self.limits.bloom)), self.slice_ms);
        let gone = |(slice_ms, _): Age| slice_ms.saturating_add(slice) <= oldest;
        if self.ages().any(gone) {
            self.drop_filters(gone);
        }
    }

    /// Files what came before any time was known under `now_ms`.
    fn date(&mut self, now_ms: i64) {
        let Some(open) = self.open.as_mut().filter(|open| open.first_ms <= 0) else { return };
        let slice = self.limits.slice_at(now_ms);
        let begin_ms = slice.start;
        (open.first_ms, open.begin_ms, open.end_ms) = (now_ms, begin_ms, slice.end);
        for filter in self.grids.iter_mut().flat_map(Grid::filters_mut).filter(|filter| filter.first_ms <= 0)
        {
            (filter.design.slice_ms, filter.first_ms, filter.last_ms) = (begin_ms, now_ms, now_ms);
        }
    }

    /// Takes filters out, and gives back the memory of grids that are empty then.
    fn drop_filters(&mut self, gone: impl Fn(Age) -> bool) {
        self.grids.iter_mut().for_each(|grid| grid.free_all(&gone));
        self.grids.retain(|grid| !grid.is_empty());
        self.find_open();
    }

    /// Looks up anew where the newest filter of the slice that is being written stands.
    fn find_open(&mut self) {
        if let Some(open) = &mut self.open {
            let newest = |filter: &Filter| filter.design.age() == (open.begin_ms, open.place);
            let mut places = self.grids.iter().enumerate();
            open.at = places.find_map(|(at, grid)| Some((at, grid.column_of(newest)?)));
        }
    }

    /// Stream time, ms since the epoch, of the latest arrival that was forgotten before its time
    /// because the memory limit did not do; `None` when all is remembered that should be.
    #[must_use]
    pub fn forgotten_ms(&self) -> Option<i64> {
        self.forgotten_ms
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.grids.iter().map(Grid::memory_bytes).sum()
    }
}
