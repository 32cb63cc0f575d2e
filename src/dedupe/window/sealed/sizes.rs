//! How large slices are, and what sealed windows need in memory.

use super::filter::SliceFilter;
use crate::dedupe::window::growth::IndexBytes;

/// Parts into which windows are sealed, while they are large.
const SLICES: u64 = 32;
/// Fewest identities of a slice: windows that have few have all of them in memory.
pub const SMALLEST_SLICE: u64 = 1 << 16;
/// Slices that the index holds at most, in steady traffic: two, and what arrives while one is written.
const UNSEALED: u64 = 3;
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
        let unsealed = ids.min(slice.saturating_mul(UNSEALED));
        let windows = windows.max(1);
        let one = IndexBytes::of(unsealed.div_ceil(windows), u64::MAX);
        let all = |bytes: u64| bytes.saturating_mul(windows);
        let sealed = ids - unsealed;
        let building =
            if sealed == 0 { 0 } else { SliceFilter::pass_ids(slice).saturating_mul(BUILDING_BYTES) };
        Self {
            slices: SliceFilter::bytes_for(sealed).saturating_add(sealed / PAGE_IDS * 8),
            index: IndexBytes { steady: all(one.steady), peak: all(one.peak) },
            building,
            unsealed,
        }
    }

    /// All of it, at most.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.slices.saturating_add(self.index.peak).saturating_add(self.building)
    }
}
