//! How large slices are, and what sealed windows need in memory.

use super::filter::{bytes_for, pass_ids};
use crate::dedupe::window::growth::IndexBytes;
use crate::dedupe::window::table::SlotTable;

/// Parts into which windows are sealed, while they are large.
const SLICES: u64 = 24;
/// Fewest identities of a slice: windows that have few have all of them in memory.
pub const SMALLEST_SLICE: u64 = 1 << 16;
/// Twice the slices for which the index has room: it holds two when the next one begins to be written, and then what arrives meanwhile.
const UNSEALED_TWICE: u64 = 5;
/// Bytes for each identity that a builder holds.
const BUILDING_BYTES: u64 = 48;
/// Identities of a page of a slice file, for each of which eight bytes are in memory.
const PAGE_IDS: u64 = 200;

/// Identities that are sealed together, of windows that have `ids`.
#[must_use]
pub fn slice_ids(smallest: u64, ids: u64) -> u64 {
    smallest.max(ids / SLICES)
}

/// Bytes of windows that are sealed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedBytes {
    /// Filters and fences of the slices.
    pub slices: u64,
    /// The indexes of the newest identities.
    pub index: IndexBytes,
    /// What is needed while a slice is written.
    pub building: u64,
    /// Identities in the indexes at most.
    pub unsealed: u64,
}

impl SealedBytes {
    /// For `windows` windows that have `ids` identities together; `smallest` is the smallest slice.
    #[must_use]
    pub fn of(ids: u64, windows: u64, smallest: u64) -> Self {
        let slice = slice_ids(smallest, ids);
        let unsealed = ids.min(slice.saturating_mul(UNSEALED_TWICE) / 2);
        let windows = windows.max(1);
        let in_one = unsealed.div_ceil(windows);
        let one = if unsealed == ids {
            IndexBytes::of(in_one, u64::MAX)
        } else {
            // The slots of sealed owners are used again. When the windows grow, a larger table follows.
            let (_, table) = SlotTable::shape(in_one);
            IndexBytes { steady: table, peak: table.saturating_mul(2) }
        };
        let all = |bytes: u64| bytes.saturating_mul(windows);
        let sealed = ids - unsealed;
        let building = if sealed == 0 { 0 } else { pass_ids(slice).saturating_mul(BUILDING_BYTES) };
        // On average the index is not full, and half a slice has expired.
        let held = if sealed == 0 { 0 } else { ids.saturating_sub(slice) };
        Self {
            slices: bytes_for(held).saturating_add(held / PAGE_IDS * 8),
            index: IndexBytes { steady: all(one.steady), peak: all(one.peak) },
            building,
            unsealed,
        }
    }

    /// Slices and indexes of full windows, in steady traffic.
    #[must_use]
    pub fn steady(&self) -> u64 {
        self.slices.saturating_add(self.index.steady)
    }

    /// All of it, at most.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.slices.saturating_add(self.index.peak).saturating_add(self.building)
    }
}
