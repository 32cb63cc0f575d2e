//! The layout of a partition's filters: their sizes and places, without their bits.

use std::fmt::{self, Display, Formatter};

/// The sizes and places of a partition's filters at one moment, and the counts that determine the size of the next ones.
///
/// Text form: `<window ms>,<slice ms>,<open slice>|<held>,…|<rows>.<bits>.<column>.…|…`: the open slice by its number,
/// the number of identities of each of the last slices, then the grids. A column is `-` when it is free. Otherwise it is
/// the distance of its filter's slice from the open one, in slices, followed by `+` and the number of the filter within
/// the slice if that is not 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterLayout {
    /// Length of the window, ms.
    pub bloom_ms: i64,
    /// Length of a slice, ms.
    pub slice_ms: i64,
    /// Number of the open slice: its start divided by the length of a slice.
    pub open: i64,
    /// Number of identities of each of the last slices.
    pub held: Vec<u64>,
    /// The grids, in their order.
    pub grids: Vec<GridLayout>,
}

/// The layout of one grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridLayout {
    /// Number of rows, at least 1.
    pub rows: u64,
    /// Bits that an identity sets in each of its two blocks, 1 to 20.
    pub bits: u32,
    /// For each column: the distance in slices from the open one, and the number of the filter within its slice.
    pub columns: Vec<Option<(u64, u32)>>,
}

impl FilterLayout {
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

impl Display for FilterLayout {
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
