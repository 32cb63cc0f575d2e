//! How large slices are, and what sealed windows need in memory.

use super::filter::{FilterBits, pass_ids};
use crate::dedupe::window::growth::IndexBytes;
use crate::dedupe::window::table::SlotTable;

/// Parts into which windows are sealed, while they are large.
const SLICES: u64 = 24;
/// A slice without owners is made when the owners in it arrived over at least one part in this many of the window.
pub const FILTERS: u64 = 16;
/// Most identities of a new slice: the index has some slices, in five times as many bytes for each identity.
const LARGEST_SLICE: u64 = 1 << 23;
/// A merged slice has at most one part in this many of all sealed identities: its filter and those of the slices that it replaces are in
/// memory together.
pub const MERGED_PART: u64 = 5;
/// Fewest identities of a slice: windows that have few have all of them in memory.
pub const SMALLEST_SLICE: u64 = 1 << 16;
/// Twice the slices for which the index has room: it holds two when the next one begins to be written, and then what arrives meanwhile.
const UNSEALED_TWICE: u64 = 5;
/// Bytes for each identity that a builder holds.
const BUILDING_BYTES: u64 = 56;
/// Identities of a page of a slice file, for each of which eight bytes are in memory.
const PAGE_IDS: u64 = 165;

/// Identities that are sealed together, of windows that have `ids`.
pub fn slice_ids(smallest: u64, ids: u64) -> u64 {
    smallest.max((ids / SLICES).min(LARGEST_SLICE))
}

/// The part of windows that is in filters only, without owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterPart {
    /// The bits of these filters.
    pub bits: FilterBits,
    /// Their share of the identities, in percent.
    pub percent: u64,
}

impl FilterPart {
    /// Every identity has its owner.
    pub const NONE: Self = Self { bits: FilterBits::WITH_OWNERS, percent: 0 };

    /// The part of a window of which this much, 0 to 1, has owners.
    pub fn new(bits: FilterBits, exact: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100")]
        let percent = ((1.0 - exact.clamp(0.0, 1.0)) * 100.0) as u64;
        Self { bits, percent }
    }

    /// Identities without owners, of this many in windows.
    pub fn of(self, ids: u64) -> u64 {
        // Slices with owners are kept until there are enough for a filter.
        let waiting = if self.percent == 0 { 0 } else { ids / FILTERS / 2 };
        (u128::from(ids) * u128::from(self.percent) / 100)
            .try_into()
            .unwrap_or(u64::MAX)
            .saturating_sub(waiting)
    }
}

/// Bytes of a window of which old owners are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedBytes {
    /// Filters and fences of the slices with owners.
    pub slices: u64,
    /// The other slices, which are filters only.
    pub filters: u64,
    /// Identities in those.
    pub filtered: u64,
    /// The indexes of the newest identities.
    pub index: IndexBytes,
    /// What is needed while a slice is written, or while some are replaced by one.
    pub building: u64,
    /// Identities in the indexes at most.
    pub unsealed: u64,
}

impl SealedBytes {
    /// For a window that has `ids` identities; `smallest` is the smallest slice.
    pub fn of(ids: u64, filtered: FilterPart, smallest: u64) -> Self {
        let slice = slice_ids(smallest, ids);
        let unsealed = ids.min(slice.saturating_mul(UNSEALED_TWICE) / 2);
        let index = if unsealed == ids {
            IndexBytes::of(unsealed, u64::MAX)
        } else {
            // The slots of sealed owners are used again. When the window grows, a larger table follows.
            let (_, table) = SlotTable::shape(unsealed);
            IndexBytes { steady: table, peak: table.saturating_mul(2) }
        };
        let sealed = ids - unsealed;
        // On average the index is not full, and half a slice has expired.
        let held = if sealed == 0 { 0 } else { ids.saturating_sub(slice) };
        let in_filters = filtered.of(ids).min(sealed);
        let in_pages = held.saturating_sub(in_filters);
        let with_owners = FilterBits::WITH_OWNERS.bytes_for(in_pages).saturating_add(in_pages / PAGE_IDS * 8);
        let merged = match in_filters {
            0 => with_owners / MERGED_PART,
            _ => filtered.bits.bytes_for((ids / FILTERS).max(in_pages / MERGED_PART)),
        };
        // A slice is written, or some are replaced.
        let written = pass_ids(slice).saturating_mul(BUILDING_BYTES).max(merged);
        let building = if sealed == 0 { 0 } else { written };
        Self {
            slices: with_owners,
            filters: filtered.bits.bytes_for(in_filters),
            filtered: in_filters,
            index,
            building,
            unsealed,
        }
    }

    /// The eighths of a limit on disk space beyond which the windows become shorter. The directory keeps growing until the measurement
    /// after next: an eighth is reserved for that. Where slices are merged, the old ones are deleted after the new one is written.
    pub const fn disk_eighths(seals: bool) -> u64 {
        if seals { 5 } else { 7 }
    }

    /// Slices and indexes of full windows, in steady traffic.
    pub fn steady(&self) -> u64 {
        self.slices.saturating_add(self.filters).saturating_add(self.index.steady)
    }

    /// All of it, at most.
    pub fn peak(&self) -> u64 {
        self.slices.saturating_add(self.filters).saturating_add(self.index.peak).saturating_add(self.building)
    }
}
