//! How the filters stand: their sizes and places, without their bits. With it, filters that are built again from
//! stored owners are the same bit for bit, although they were shaped after slices that have expired since.

use std::fmt::{self, Display, Formatter};

use super::filter::Age;
use super::grid::Grid;
use super::limits::ms;
use super::{Bloom, BloomLimits};

/// Bytes of the largest filters that are laid out from a text: it may come from anywhere.
const LARGEST: u64 = 1 << 36;

/// The shape of a partition's filters at one moment, and what the size of the next ones depends on.
///
/// As text `<window ms>,<slice ms>,<open slice>|<held>,…|<rows>.<bits>.<column>.…|…`: the open slice by its number,
/// what the last slices held, then the grids. A column is `-`, or tells how many slices before the open one its filter
/// belongs to and, behind a `+`, which of the slice's filters it is, if not the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    bloom_ms: i64,
    slice_ms: i64,
    open: i64,
    held: Vec<u64>,
    grids: Vec<GridLayout>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GridLayout {
    rows: u64,
    bits: u32,
    /// By column: how many slices before the open one, and which filter of the slice.
    columns: Vec<Option<(u64, u32)>>,
}

impl Bloom {
    /// How the filters stand; `None` while there are none, or while no time is known.
    #[must_use]
    pub fn layout(&self) -> Option<Layout> {
        let open = self
            .open
            .filter(|open| open.first_ms > 0 && self.followed.is_none_or(|(_, to)| to <= open.begin_ms))?;
        let number = |slice_ms: i64| slice_ms.checked_div(self.slice_ms).unwrap_or(0);
        let back = |(slice_ms, place): Age| {
            (number(open.begin_ms).saturating_sub(number(slice_ms)).max(0).unsigned_abs(), place)
        };
        let grids = self.grids.iter().map(|grid| GridLayout {
            rows: grid.rows(),
            bits: grid.bits(),
            columns: grid.ages().map(|age| age.map(back)).collect(),
        });
        Some(Layout {
            bloom_ms: ms(self.limits.bloom),
            slice_ms: self.slice_ms,
            open: number(open.begin_ms),
            held: self.held.iter().copied().collect(),
            grids: grids.collect(),
        })
    }

    /// Makes filters that are still empty come to stand as they stood. Older slices than those of the layout are not
    /// taken in: they had left the window by then, or had been forgotten for want of room. Without effect when the
    /// window is another one, or has less memory.
    pub fn follow(&mut self, layout: &Layout) {
        let fits = layout.is_for(&self.limits) && layout.bytes() <= self.limits.max_bytes.min(LARGEST);
        if !fits || self.open.is_some() {
            return;
        }
        let slice_at = |back: u64| layout.begin_ms(back);
        let oldest =
            layout.grids.iter().flat_map(|grid| grid.columns.iter().flatten()).map(|(back, _)| *back).max();
        self.followed = Some((slice_at(oldest.unwrap_or(0)), slice_at(0)));
        self.held = layout.held.iter().copied().collect();
        for shape in &layout.grids {
            let mut grid = Grid::new(shape.rows, shape.columns.len(), shape.bits);
            for (column, (back, place)) in
                shape.columns.iter().enumerate().filter_map(|(at, age)| Some((at, (*age)?)))
            {
                grid.keep(column, (slice_at(back), place));
            }
            self.grids.push(grid);
        }
    }

    /// Whether what arrived then was gone when the layout was taken.
    #[inline]
    pub(super) fn is_past(&self, arrived_ms: i64) -> bool {
        self.followed.is_some_and(|(oldest, _)| arrived_ms > 0 && arrived_ms < oldest && self.open.is_none())
    }

    /// Whether the layout has the account of this slice.
    pub(super) fn is_accounted(&self, begin_ms: i64) -> bool {
        self.followed.is_some_and(|(_, open)| begin_ms < open)
    }

    /// The column that is kept for this filter, or for the next of the slice; and which one that is.
    pub(super) fn column_kept_for(&self, age: Age) -> Option<(u32, (usize, usize))> {
        let kept = self.grids.iter().enumerate().filter_map(|(at, grid)| Some((at, grid.kept(age)?)));
        kept.min_by_key(|(_, (age, _))| *age).map(|(at, (age, column))| (age.1, (at, column)))
    }
}

impl Layout {
    /// Reads the text form; `None` when it is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let mut numbers =
            parts.next()?.split(',').map(|number| number.parse::<i64>().ok().filter(|n| *n > 0));
        let (bloom_ms, slice_ms, open) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let held = parts.next()?.split(',').filter(|text| !text.is_empty()).map(|number| number.parse().ok());
        let held = held.collect::<Option<Vec<u64>>>()?;
        let grids = parts.map(GridLayout::parse).collect::<Option<Vec<_>>>()?;
        Some(Self { bloom_ms, slice_ms, open, held, grids })
    }

    /// Whether it is the layout of such a window.
    fn is_for(&self, limits: &BloomLimits) -> bool {
        (self.bloom_ms, self.slice_ms) == (ms(limits.bloom), limits.slice_ms())
    }

    fn begin_ms(&self, back: u64) -> i64 {
        self.open.saturating_sub_unsigned(back).saturating_mul(self.slice_ms)
    }

    fn bytes(&self) -> u64 {
        let bytes = self.grids.iter().map(|grid| Grid::bytes_for(grid.rows, grid.columns.len()));
        bytes.fold(0, u64::saturating_add)
    }
}

impl GridLayout {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let rows = parts.next()?.parse().ok().filter(|rows| *rows > 0)?;
        let bits = parts.next()?.parse().ok().filter(|bits| (1..=20).contains(bits))?;
        let columns = parts.map(|column| {
            if column == "-" {
                return Some(None);
            }
            let (back, place) = column.split_once('+').unwrap_or((column, "0"));
            Some(Some((back.parse().ok()?, place.parse().ok()?)))
        });
        let columns = columns.collect::<Option<Vec<_>>>()?;
        (!columns.is_empty()).then_some(Self { rows, bits, columns })
    }
}

impl Display for Layout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}|", self.bloom_ms, self.slice_ms, self.open)?;
        let held: Vec<String> = self.held.iter().map(u64::to_string).collect();
        f.write_str(&held.join(","))?;
        self.grids.iter().try_for_each(|grid| write!(f, "|{grid}"))
    }
}

impl Display for GridLayout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.rows, self.bits)?;
        self.columns.iter().try_for_each(|column| match column {
            None => f.write_str(".-"),
            Some((back, 0)) => write!(f, ".{back}"),
            Some((back, place)) => write!(f, ".{back}+{place}"),
        })
    }
}
