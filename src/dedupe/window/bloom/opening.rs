//! Opening a filter: its size, its column, and which filters are dropped when memory is not sufficient.

use super::filter::{Design, Filter};
use super::grid::{BLOCK_BYTES, Grid};
use super::sizing::{Density, FEWEST_BLOCKS};
use super::{Bloom, OpenSlice};

/// Capacity in identities of the first filter of a partition without any history.
const SMALLEST: u64 = 1_024;
/// A filter has capacity for 1/16 more identities than expected.
const HEADROOM: u64 = 16;
/// The most by which a slice's next filter may be smaller or larger than the previous one, as a factor.
const MAX_FACTOR: u64 = 8;

/// The requirements on a new filter.
struct Requirements {
    /// The false-positive rate that it may reach.
    rate: f64,
    density: Density,
    /// Identities expected.
    ids: u64,
    /// Blocks for them, with headroom.
    rows: u64,
    /// Columns of a new grid.
    width: usize,
}

impl Requirements {
    /// Capacity in identities of a filter in this grid.
    fn capacity_in(&self, grid: &Grid) -> u64 {
        let same = grid.bits() == self.density.bits;
        let density = if same { self.density } else { Density::with_bits(self.rate, grid.bits()) };
        density.ids_in(grid.rows())
    }
}

impl Bloom {
    /// Opens a filter for an arrival at `arrived_ms`: the next one of the slice, or the first of a new slice. Returns
    /// its grid and column, or `None` when the memory limit does not allow even the smallest filter.
    #[cold]
    pub(super) fn make_room(&mut self, arrived_ms: i64) -> Option<(usize, usize)> {
        if !self.has_room_for_any() {
            while self.drop_oldest().is_some() {}
            return None;
        }
        // Which columns are free must depend only on the inserts, not on when `expire` was called. Otherwise a rebuilt
        // window would have other filters.
        self.expire(arrived_ms);
        if let Some(at) = self.room(arrived_ms) {
            return Some(at);
        }
        let (open, expected) = match self.open {
            Some(open) if arrived_ms < open.end_ms => (
                OpenSlice { place: open.place.saturating_add(1), ..open },
                self.expected_rest(&open, arrived_ms),
            ),
            ended => {
                if let Some(ended) = &ended {
                    self.close(ended);
                }
                (self.begin(arrived_ms), self.expected())
            }
        };
        let reserved = self.reserved_column((open.begin_ms, open.place));
        let open = OpenSlice { place: reserved.map_or(open.place, |(place, _)| place), ..open };
        let need = self.requirements(open.place, expected);
        let at = reserved.map(|(_, at)| at).or_else(|| self.column_for(&need));
        self.open = Some(OpenSlice { at, ..open });
        let (grid, column) = at?;
        let grid = self.grids.get_mut(grid)?;
        let design = Design { slice_ms: open.begin_ms, place: open.place, ids: need.capacity_in(grid) };
        // A further filter is queried whenever the first one is, so it gets the first one's start time. Its exact start
        // could not be restored: merged blocks do not contain it.
        let filter = Filter::new(design, grid.rows(), grid.bits(), open.first_ms.min(arrived_ms));
        grid.open(column, filter);
        at
    }

    /// A new open slice for an arrival.
    fn begin(&self, arrived_ms: i64) -> OpenSlice {
        let slice = self.limits.slice_at(arrived_ms);
        let (begin_ms, end_ms) = (slice.start, if arrived_ms > 0 { slice.end } else { i64::MAX });
        OpenSlice { at: None, place: 0, begin_ms, end_ms, first_ms: arrived_ms, ids: 0 }
    }

    /// Stores the count of a slice that ended. The first slice is usually incomplete, so its count is extrapolated to a
    /// whole slice.
    fn close(&mut self, open: &OpenSlice) {
        if self.is_counted_in_layout(open.begin_ms) {
            return;
        }
        let covered = open.end_ms.saturating_sub(open.first_ms);
        let first = self.held.is_empty();
        let whole = if first { scaled(open.ids, self.slice_ms, covered) } else { open.ids };
        self.held.push_back(whole.min(open.ids.saturating_mul(MAX_FACTOR)));
        let most = usize::try_from(self.limits.slices.max(1)).unwrap_or(usize::MAX);
        while self.held.len() > most {
            self.held.pop_front();
        }
    }

    /// Expected count of a new slice: the second largest of the last slices, so that the busiest hours
    /// of a day fit and a single peak is ignored.
    fn expected(&self) -> u64 {
        let mut held: Vec<u64> = self.held.iter().copied().collect();
        held.sort_unstable();
        held.iter().rev().nth(1).or(held.first()).copied().unwrap_or(SMALLEST).max(1)
    }

    /// Expected further count of a slice whose filters are full, if its rate stays the same.
    fn expected_rest(&self, open: &OpenSlice, arrived_ms: i64) -> u64 {
        let elapsed = arrived_ms.saturating_sub(open.first_ms);
        let ahead = scaled(open.ids, open.end_ms.saturating_sub(arrived_ms), elapsed);
        let newest = open.at.and_then(|(grid, column)| self.grids.get(grid)?.filter(column));
        let last = newest.map_or(SMALLEST, |filter| filter.ids);
        ahead.clamp(last.div_ceil(MAX_FACTOR), last.saturating_mul(MAX_FACTOR)).max(1)
    }

    fn requirements(&self, place: u32, expected: u64) -> Requirements {
        let rate = self.shares.of(place);
        let density = if place == 0 { self.density } else { Density::at_rate(rate) };
        let most_rows = self.limits.max_bytes / BLOCK_BYTES / u64::from(self.limits.alive());
        let wanted = density.blocks_for(with_headroom(expected));
        let rows = wanted.min(most_rows.max(FEWEST_BLOCKS));
        // Without history the first slice starts with a small filter. No other slice will use a column of that size.
        let width = if place == 0 && !self.held.is_empty() { self.limits.width() } else { 1 };
        Requirements { rate, density, ids: expected.min(density.ids_in(rows)), rows, width }
    }

    /// A column for a filter: a free one that fits, or one of a new grid. When the memory limit does not
    /// allow a new grid, the oldest filters are dropped, and then a smaller column is accepted too.
    fn column_for(&mut self, need: &Requirements) -> Option<(usize, usize)> {
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
            self.drop_oldest()?;
            if let Some(at) = self.free_column(need, need.ids.div_ceil(4)) {
                return Some(at);
            }
        }
    }

    /// The smallest free column for at least `least` identities. A column more than twice as large as required stays
    /// free, so that its grid is freed eventually and memory shrinks.
    fn free_column(&self, need: &Requirements, least: u64) -> Option<(usize, usize)> {
        let free = self.grids.iter().enumerate().filter_map(|(at, grid)| Some((at, grid, grid.free()?)));
        free.filter(|(_, grid, _)| {
            grid.rows() <= need.rows.saturating_mul(2) && need.capacity_in(grid) >= least
        })
        .min_by_key(|(_, grid, _)| grid.rows())
        .map(|(at, _, column)| (at, column))
    }

    /// Drops the oldest filter because of a limit; `None` when there is no filter.
    pub(super) fn drop_oldest(&mut self) -> Option<()> {
        let oldest = self.ages().min()?;
        let last_ms =
            self.filters().find(|filter| filter.design.age() == oldest).map(|filter| filter.last_ms);
        self.dropped_ms = self.dropped_ms.max(last_ms);
        self.drop_filters(|age| age == oldest);
        Some(())
    }
}

/// Capacity of a filter for `expected` identities.
pub(super) fn with_headroom(expected: u64) -> u64 {
    expected.saturating_add(expected / HEADROOM)
}

/// `count` arrivals in `of_ms`, extrapolated to `to_ms`.
fn scaled(count: u64, to_ms: i64, of_ms: i64) -> u64 {
    let (to, of) = (to_ms.max(0).unsigned_abs(), of_ms.max(1).unsigned_abs());
    u64::try_from(u128::from(count) * u128::from(to) / u128::from(of)).unwrap_or(u64::MAX)
}
