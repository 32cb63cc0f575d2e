//! Copies of filters with their bits, for other programs. docs/state-format.md describes how to query them.

use super::Bloom;

/// A copy of one filter of a slice.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterCopy {
    /// Number of the filter within its slice, from 0. An identity of the slice is in one of its filters.
    pub place: u32,
    /// Number of blocks of 512 bits.
    pub blocks: u64,
    /// Bits drawn per identity in each of its two blocks, 1 to 20.
    pub bits: u32,
    /// Identities inserted.
    pub ids: u64,
    /// The probability that an absent identity passes, computed from the bits that are set.
    pub false_positive_rate: f64,
    /// The blocks in row order, 64 bytes each: eight words, each little endian.
    pub bytes: Vec<u8>,
}

impl Bloom {
    /// Copies of the filters of the slice that starts at `start_ms`, stream time; empty when there is no such slice.
    #[must_use]
    pub fn copies(&self, start_ms: i64) -> Vec<FilterCopy> {
        let mut copies = Vec::new();
        for grid in &self.grids {
            let wanted = grid.columns().filter(|(_, filter)| filter.design.slice_ms == start_ms);
            copies.extend(wanted.map(|(column, filter)| FilterCopy {
                place: filter.design.place,
                blocks: grid.rows(),
                bits: grid.bits(),
                ids: filter.ids,
                false_positive_rate: filter.rate(),
                bytes: grid.bytes_of(column),
            }));
        }
        copies.sort_unstable_by_key(|copy| copy.place);
        copies
    }
}
