//! Where the next filter comes from: its size, its column, and what goes when memory does not do.

use super::filter::{Design, Filter};
use super::grid::{BLOCK_BYTES, Grid};
use super::sizing::{Density, FEWEST_BLOCKS};
use super::{Bloom, Open};

/// Identities of the first filter of a partition nothing is known of.
const SMALLEST: u64 = 1_024;
/// A filter has room for 1/16 more than is expected.
const HEADROOM: u64 = 16;
/// How much smaller or larger a slice's next filter may be than the one before it.
const STRIDE: u64 = 8;

/// What a filter must offer.
struct Need {
    /// The false-positive rate it may reach.
    rate: f64,
    density: Density,
    /// Identities expected.
    ids: u64,
    /// Blocks for them, with headroom.
    rows: u64,
    /// Columns of a new grid.
    width: usize,
}

impl Need {
    /// Identities that a filter in this grid may hold.
    fn room_in(&self, grid: &Grid) -> u64 {
        let same = grid.bits() == self.density.bits;
        let density = if same { self.density } else { Density::with_bits(self.rate, grid.bits()) };
        density.ids_in(grid.rows())
    }
}

impl Bloom {
    /// A filter for what arrives at `arrived_ms`: the next of the slice, or the first of a new one.
    /// `None` when the memory limit does not allow for the smallest.
    #[cold]
    pub(super) fn make_room(&mut self, arrived_ms: i64) -> Option<(usize, usize)> {
        if !self.has_room_for_any() {
            while self.forget_oldest().is_some() {}
            return None;
        }
        // What is free must hang on the inserts alone, not on when somebody called `expire`.
        self.expire(arrived_ms);
        if let Some(at) = self.room(arrived_ms) {
            return Some(at);
        }
        let (open, expected) = match self.open {
            Some(open) if arrived_ms < open.end_ms => {
                (Open { place: open.place.saturating_add(1), ..open }, self.still_to_come(&open, arrived_ms))
            }
            ended => {
                if let Some(ended) = &ended {
                    self.close(ended);
                }
                (self.begin(arrived_ms), self.expected())
            }
        };
        let kept = self.column_kept_for((open.begin_ms, open.place));
        let open = Open { place: kept.map_or(open.place, |(place, _)| place), ..open };
        let need = self.need(open.place, expected);
        let at = kept.map(|(_, at)| at).or_else(|| self.column_for(&need));
        self.open = Some(Open { at, ..open });
        let (grid, column) = at?;
        let grid = self.grids.get_mut(grid)?;
        let design = Design { slice_ms: open.begin_ms, place: open.place, ids: need.room_in(grid) };
        // A further filter is asked whenever the first one is: where exactly it begins, a block that was
        // joined with others does not tell any more.
        let filter = Filter::new(design, grid.rows(), grid.bits(), open.first_ms.min(arrived_ms));
        grid.open(column, filter);
        at
    }

    /// The slice that begins with an arrival.
    fn begin(&self, arrived_ms: i64) -> Open {
        let slice = self.limits.slice_at(arrived_ms);
        let (begin_ms, end_ms) = (slice.start, if arrived_ms > 0 { slice.end } else { i64::MAX });
        Open { at: None, place: 0, begin_ms, end_ms, first_ms: arrived_ms, ids: 0 }
    }

    /// Notes what a slice held. The very first one is mostly a part of a slice: it counts for what it
    /// would have held as a whole.
    fn close(&mut self, open: &Open) {
        if self.is_accounted(open.begin_ms) {
            return;
        }
        let covered = open.end_ms.saturating_sub(open.first_ms);
        let first = self.held.is_empty();
        let whole = if first { scaled(open.ids, self.slice_ms, covered) } else { open.ids };
        self.held.push_back(whole.min(open.ids.saturating_mul(STRIDE)));
        let most = usize::try_from(self.limits.slices.max(1)).unwrap_or(usize::MAX);
        while self.held.len() > most {
            self.held.pop_front();
        }
    }

    /// What a new slice will hold: the second largest of the last slices, so that the busiest hours
    /// of a day fit and a single peak does not count.
    fn expected(&self) -> u64 {
        let mut held: Vec<u64> = self.held.iter().copied().collect();
        held.sort_unstable();
        held.iter().rev().nth(1).or(held.first()).copied().unwrap_or(SMALLEST).max(1)
    }

    /// What the slice will hold beyond its filters, if it goes on as it began.
    fn still_to_come(&self, open: &Open, arrived_ms: i64) -> u64 {
        let elapsed = arrived_ms.saturating_sub(open.first_ms);
        let ahead = scaled(open.ids, open.end_ms.saturating_sub(arrived_ms), elapsed);
        let newest = open.at.and_then(|(grid, column)| self.grids.get(grid)?.filter(column));
        let last = newest.map_or(SMALLEST, |filter| filter.ids);
        ahead.clamp(last.div_ceil(STRIDE), last.saturating_mul(STRIDE)).max(1)
    }

    fn need(&self, place: u32, expected: u64) -> Need {
        let rate = self.shares.of(place);
        let density = if place == 0 { self.density } else { Density::at_rate(rate) };
        let most_rows = self.limits.max_bytes / BLOCK_BYTES / u64::from(self.limits.alive());
        let wanted = density.blocks_for(with_headroom(expected));
        let rows = wanted.min(most_rows.max(FEWEST_BLOCKS));
        // Nothing known: the first slice begins small, and no other slice will want a column of it.
        let width = if place == 0 && !self.held.is_empty() { self.limits.width() } else { 1 };
        Need { rate, density, ids: expected.min(density.ids_in(rows)), rows, width }
    }

    /// A column for a filter: one that is free and fits, or one of a new grid; when memory does not
    /// allow for that, the oldest filters make way, and then a smaller column will do.
    fn column_for(&mut self, need: &Need) -> Option<(usize, usize)> {
        if let Some(at) = self.free_column(need, need.ids) {
            return Some(at);
        }
        loop {
            let left = self.limits.max_bytes.saturating_sub(self.memory_bytes());
            let fitting = (1..=need.width).rev().find(|width| Grid::bytes_for(need.rows, *width) <= left);
            if let Some(width) = fitting {
                self.grids.push(Grid::new(need.rows, width, need.density.bits));
                return Some((self.grids.len() - 1, 0));
            }
            self.forget_oldest()?;
            if let Some(at) = self.free_column(need, need.ids.div_ceil(4)) {
                return Some(at);
            }
        }
    }

    /// The smallest free column for `least` identities. One more than twice as large as needed stays
    /// free, so that its grid dies and memory shrinks.
    fn free_column(&self, need: &Need, least: u64) -> Option<(usize, usize)> {
        let free = self.grids.iter().enumerate().filter_map(|(at, grid)| Some((at, grid, grid.free()?)));
        free.filter(|(_, grid, _)| grid.rows() <= need.rows.saturating_mul(2) && need.room_in(grid) >= least)
            .min_by_key(|(_, grid, _)| grid.rows())
            .map(|(at, _, column)| (at, column))
    }

    /// Drops the filter of the oldest arrivals, for want of memory.
    pub(super) fn forget_oldest(&mut self) -> Option<()> {
        let oldest = self.ages().min()?;
        let last_ms =
            self.filters().find(|filter| filter.design.age() == oldest).map(|filter| filter.last_ms);
        self.forgotten_ms = self.forgotten_ms.max(last_ms);
        self.drop_filters(|age| age == oldest);
        Some(())
    }
}

/// Identities that a filter is sized for when so many are expected.
pub(super) fn with_headroom(expected: u64) -> u64 {
    expected.saturating_add(expected / HEADROOM)
}

/// `count` that came in `of_ms`, for a time of `to_ms`.
fn scaled(count: u64, to_ms: i64, of_ms: i64) -> u64 {
    let (to, of) = (to_ms.max(0).unsigned_abs(), of_ms.max(1).unsigned_abs());
    u64::try_from(u128::from(count) * u128::from(to) / u128::from(of)).unwrap_or(u64::MAX)
}
