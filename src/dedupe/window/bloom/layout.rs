//! The layout of the filters: their sizes and places, without their bits. With it, filters rebuilt from stored owners
//! are identical bit for bit, although their sizes depended on slices that have expired since.

use std::fmt::{self, Display, Formatter};

use super::filter::Age;
use super::grid::Grid;
use super::limits::ms;
use super::{Bloom, BloomLimits};

/// Most bytes of filters that are allocated from a layout text. The text is untrusted input.
const MAX_BYTES: u64 = 1 << 36;

/// The sizes and places of a partition's filters at one moment, and the counts that determine the size of the next ones.
///
/// Text form: `<window ms>,<slice ms>,<open slice>|<held>,…|<rows>.<bits>.<column>.…|…`: the open slice by its number,
/// the number of identities of each of the last slices, then the grids. A column is `-` when it is free. Otherwise it is
/// the distance of its filter's slice from the open one, in slices, followed by `+` and the number of the filter within
/// the slice if that is not 0.
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
    /// For each column: the distance in slices from the open one, and the number of the filter within its slice.
    columns: Vec<Option<(u64, u32)>>,
}

impl Bloom {
    /// The current layout; `None` while there are no filters or stream time is unknown.
    #[must_use]
    pub fn layout(&self) -> Option<Layout> {
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
        Some(Layout {
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
    pub fn follow(&mut self, layout: &Layout) {
        let fits = layout.is_for(&self.limits) && layout.bytes() <= self.limits.max_bytes.min(MAX_BYTES);
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

impl Layout {
    /// Parses the text form; `None` when it is invalid.
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

    /// Whether it is the layout of a window with these lengths.
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
