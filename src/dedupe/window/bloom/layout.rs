//! The layout of the filters: their sizes and places, without their bits. With it, filters rebuilt from stored owners
//! are identical bit for bit, although their sizes depended on slices that have expired since.

use super::Bloom;
use super::filter::Age;
use super::grid::Grid;
use super::limits::ms;
use crate::dedupe::format::{FilterLayout, GridLayout};

/// Most bytes of filters that are allocated from a layout text. The text is untrusted input.
const MAX_BYTES: u64 = 1 << 36;

impl Bloom {
    /// The current layout; `None` while there are no filters or stream time is unknown.
    #[must_use]
    pub fn layout(&self) -> Option<FilterLayout> {
        let open = self.open.filter(|open| {
            open.first_ms > 0 && self.followed.is_none_or(|(_, last)| last <= open.begin_ms)
        })?;
        let number = |slice_ms: i64| slice_ms.checked_div(self.slice_ms).unwrap_or(0);
        let back = |(slice_ms, place): Age| {
            (number(open.begin_ms).saturating_sub(number(slice_ms)).max(0).unsigned_abs(), place)
        };
        let grids = self.grids.iter().map(|grid| GridLayout {
            rows: grid.rows(),
            bits: grid.bits(),
            columns: grid.ages().map(|age| age.map(back)).collect(),
        });
        Some(FilterLayout {
            bloom_ms: ms(self.limits.bloom),
            slice_ms: self.slice_ms,
            open: number(open.begin_ms),
            held: self.held.iter().copied().collect(),
            grids: grids.collect(),
        })
    }

    /// Gives empty filters the sizes and places of `layout`. Identities of slices older than those of the layout are
    /// then not inserted: these slices had expired, or a limit had dropped them. Has no effect when
    /// the lengths of the window or its slices have changed, or the memory limit is lower than the layout requires.
    pub fn follow(&mut self, layout: &FilterLayout) {
        let is_ours = (layout.bloom_ms, layout.slice_ms) == (ms(self.limits.bloom), self.slice_ms);
        let bytes = layout.grids.iter().map(|grid| Grid::bytes_for(grid.rows, grid.columns.len()));
        let fits = bytes.fold(0, u64::saturating_add) <= self.limits.max_bytes.min(MAX_BYTES);
        if !is_ours || !fits || self.open.is_some() {
            return;
        }
        let slice_at = |back: u64| layout.open.saturating_sub_unsigned(back).saturating_mul(layout.slice_ms);
        let oldest =
            layout.grids.iter().flat_map(|grid| grid.columns.iter().flatten()).map(|(back, _)| *back).max();
        self.followed = Some((slice_at(oldest.unwrap_or(0)), slice_at(0)));
        self.held = layout.held.iter().copied().collect();
        for shape in &layout.grids {
            let mut grid = Grid::new(shape.rows, shape.columns.len(), shape.bits);
            for (column, (back, place)) in
                shape.columns.iter().enumerate().filter_map(|(at, age)| Some((at, (*age)?)))
            {
                grid.reserve(column, (slice_at(back), place));
            }
            self.grids.push(grid);
        }
    }

    /// Whether an arrival at this time had already been dropped when the followed layout was taken.
    #[inline]
    pub(super) fn is_before_layout(&self, arrived_ms: i64) -> bool {
        self.followed.is_some_and(|(oldest, _)| arrived_ms > 0 && arrived_ms < oldest && self.open.is_none())
    }

    /// Whether the followed layout contains the count of this slice.
    pub(super) fn is_counted_in_layout(&self, begin_ms: i64) -> bool {
        self.followed.is_some_and(|(_, open)| begin_ms < open)
    }

    /// The column that is reserved for this filter or a later one of its slice, with the number of that filter.
    pub(super) fn reserved_column(&self, age: Age) -> Option<(u32, (usize, usize))> {
        let reserved = self.grids.iter().enumerate().filter_map(|(at, grid)| Some((at, grid.reserved(age)?)));
        reserved.min_by_key(|(_, (age, _))| *age).map(|(at, (age, column))| (age.1, (at, column)))
    }
}
