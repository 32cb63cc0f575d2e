//! Filters with their bits, for programs outside. docs/state-format.md says how to ask them.

use super::Bloom;

/// One filter of a slice, as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterCopy {
    /// Which filter of the slice it is, from 0; an identity of the slice is in one of them.
    pub place: u32,
    /// Blocks of 512 bits.
    pub blocks: u64,
    /// Draws for an identity in each of its two blocks, 1 to 20.
    pub bits: u32,
    /// Identities inserted.
    pub ids: u64,
    /// The chance that an absent identity passes, from the bits that are set.
    pub false_positive_rate: f64,
    /// The blocks by row, 64 bytes each: eight words, each little endian.
    pub bytes: Vec<u8>,
}

impl Bloom {
    /// Copies of the filters of the slice that begins at `start_ms`, stream time; none when no such
    /// slice is held.
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
