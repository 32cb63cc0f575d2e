//! The memory of filters of equal size: the blocks of all filters in one row are adjacent.

use std::ops::Range;

use super::filter::{Age, Filter};
use crate::dedupe::window::prefetch::prefetch;
use crate::dedupe::window::table::TablePosition;

/// A block: 512 bits, one cache line.
type CacheLine = [u64; WORDS];

const WORDS: usize = 8;
/// Bytes of a block.
pub(super) const BLOCK_BYTES: u64 = 64;

/// Rows of blocks, one column per filter. An identity has two rows, the same in all columns. So a
/// look-up reads one contiguous range of memory, and a second one only if a filter passes the identity at the first.
#[derive(Debug)]
pub(super) struct Grid {
    /// Zeroed by the allocator, so that a large grid causes no pause. Aligned manually.
    words: Vec<u64>,
    aligned: usize,
    rows: u64,
    /// Bits that an identity sets in each of its two blocks.
    bits: u32,
    columns: Vec<Column>,
}

#[derive(Debug, Default)]
struct Column {
    filter: Option<Filter>,
    /// The filter for which this column is reserved: the one that was here before a restart.
    reserved_for: Option<Age>,
    /// Bits of a dropped filter may still be set here.
    stale: bool,
}

impl Column {
    fn age(&self) -> Option<Age> {
        self.filter.as_ref().map(|filter| filter.design.age()).or(self.reserved_for)
    }
}

impl Grid {
    /// An empty grid. `rows` and `width` are at least 1.
    pub fn new(rows: u64, width: usize, bits: u32) -> Self {
        let blocks = usize::try_from(rows).unwrap_or(usize::MAX).saturating_mul(width);
        let words = vec![0u64; blocks.saturating_add(1).saturating_mul(WORDS)];
        let aligned = words.as_ptr().align_offset(64).min(WORDS);
        let columns = std::iter::repeat_with(Column::default).take(width).collect();
        Self { words, aligned, rows, bits, columns }
    }

    /// Bytes that a grid of this shape allocates.
    pub fn bytes_for(rows: u64, width: usize) -> u64 {
        rows.saturating_mul(width as u64).saturating_add(1).saturating_mul(BLOCK_BYTES)
    }

    pub fn memory_bytes(&self) -> u64 {
        (self.words.len() * size_of::<u64>()) as u64
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// A column without a filter that is not reserved.
    pub fn free(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.age().is_none())
    }

    pub fn is_empty(&self) -> bool {
        self.columns.iter().all(|column| column.age().is_none())
    }

    /// For each column, the filter that occupies it or for which it is reserved.
    pub fn ages(&self) -> impl Iterator<Item = Option<Age>> {
        self.columns.iter().map(Column::age)
    }

    /// Reserves a column for a filter that will be opened later.
    pub fn reserve(&mut self, column: usize, age: Age) {
        if let Some(column) = self.columns.get_mut(column) {
            column.reserved_for = Some(age);
        }
    }

    /// The first filter of the slice of `age`, from `age` on, for which a column is reserved; and that column.
    pub fn reserved(&self, age: Age) -> Option<(Age, usize)> {
        let all = self.columns.iter().enumerate();
        let reserved = all.filter_map(|(at, column)| Some((column.reserved_for?, at)));
        reserved.filter(|(found, _)| found.0 == age.0 && found.1 >= age.1).min()
    }

    pub fn filters(&self) -> impl Iterator<Item = &Filter> {
        self.columns.iter().filter_map(|column| column.filter.as_ref())
    }

    pub fn filters_mut(&mut self) -> impl Iterator<Item = &mut Filter> {
        self.columns.iter_mut().filter_map(|column| column.filter.as_mut())
    }

    /// The column of the first filter for which `matches` returns true.
    pub fn column_of(&self, matches: impl Fn(&Filter) -> bool) -> Option<usize> {
        self.columns.iter().position(|column| column.filter.as_ref().is_some_and(&matches))
    }

    /// The filters with their columns.
    pub fn columns(&self) -> impl Iterator<Item = (usize, &Filter)> {
        self.columns.iter().enumerate().filter_map(|(at, column)| Some((at, column.filter.as_ref()?)))
    }

    /// The bits of a column: its blocks in row order, each word little endian.
    pub fn bytes_of(&self, column: usize) -> Vec<u8> {
        let blocks: &[CacheLine] = self.words.get(self.aligned..).unwrap_or_default().as_chunks().0;
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        let blocks = blocks.iter().skip(column).step_by(self.columns.len().max(1)).take(rows);
        blocks.flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn filter(&self, column: usize) -> Option<&Filter> {
        self.columns.get(column)?.filter.as_ref()
    }

    /// Puts an empty filter into a free column.
    pub fn open(&mut self, column: usize, filter: Filter) {
        let width = self.columns.len();
        let Some(place) = self.columns.get_mut(column) else { return };
        debug_assert!(place.filter.is_none(), "a column is opened twice");
        place.reserved_for = None;
        place.filter = Some(filter);
        if std::mem::replace(&mut place.stale, true) {
            let blocks = self.words.get_mut(self.aligned..).unwrap_or_default().as_chunks_mut().0;
            blocks
                .iter_mut()
                .skip(column)
                .step_by(width)
                .for_each(|block: &mut CacheLine| *block = [0; WORDS]);
        }
    }

    /// Frees the columns of the filters, opened or reserved, for which `dropped` returns true.
    pub fn free_all(&mut self, dropped: impl Fn(Age) -> bool) {
        for column in &mut self.columns {
            column.filter.take_if(|filter| dropped(filter.design.age()));
            column.reserved_for.take_if(|age| dropped(*age));
        }
    }

    /// Releases the memory of the free columns.
    pub fn narrow(&mut self) {
        let (width, aligned) = (self.columns.len(), self.aligned);
        let used: Vec<usize> = self.ages().enumerate().filter_map(|(at, age)| age.map(|_| at)).collect();
        if used.len() == width || used.is_empty() {
            return;
        }
        let rows = usize::try_from(self.rows).unwrap_or(usize::MAX);
        // Blocks move to lower positions in ascending order, so no block is overwritten before it has moved.
        for (to, (row, column)) in (0..rows).flat_map(|row| used.iter().map(move |at| (row, at))).enumerate()
        {
            let from = aligned + (row * width + column) * WORDS;
            self.words.copy_within(from..from + WORDS, aligned + to * WORDS);
        }
        self.words.truncate((rows * used.len() + 1) * WORDS);
        self.words.shrink_to_fit();
        self.columns.retain(|column| column.age().is_some());
    }

    /// Sets the bits of an identity in one column.
    #[inline]
    pub fn insert(&mut self, column: usize, position: TablePosition, arrived_ms: i64) {
        for hash in [position.first, position.second] {
            let (row, mask) = (self.row(hash), Mask::of(hash, self.bits).block);
            let at = row * self.columns.len() + column;
            let blocks = self.words.get_mut(self.aligned..).unwrap_or_default().as_chunks_mut().0;
            let filter = self.columns.get_mut(column).and_then(|column| column.filter.as_mut());
            let (Some(block), Some(filter)) = (blocks.get_mut(at), filter) else { return };
            let sampled = Filter::is_sampled(row).then(|| ones(block));
            block.iter_mut().zip(&mask).for_each(|(word, bits)| *word |= bits);
            if let Some(before) = sampled {
                filter.update_fill(before, ones(block));
            }
        }
        if let Some(filter) = self.columns.get_mut(column).and_then(|column| column.filter.as_mut()) {
            filter.count(arrived_ms);
        }
    }

    /// The slice of a filter that passes the identity, of those that overlap `queried`. `first` is
    /// the mask of the first half of the position, with the grid's number of bits.
    #[inline]
    pub fn find(
        &self,
        first: &Mask,
        position: TablePosition,
        queried: &Range<i64>,
        slice: i64,
    ) -> Option<i64> {
        let row = self.blocks_of(position.first).iter().zip(&self.columns);
        for (at, (block, column)) in row.enumerate() {
            let filter = column.filter.as_ref().filter(|filter| filter.overlaps(queried, slice));
            if let Some(filter) = filter.filter(|_| covers(block, &first.block))
                && let Some(second) = self.blocks_of(position.second).get(at)
                && covers(second, &Mask::of(position.second, self.bits).block)
            {
                return Some(filter.design.slice_ms);
            }
        }
        None
    }

    /// Prefetches the first row that [`Grid::find`] reads. It rarely reads the second one.
    #[inline]
    pub fn prefetch(&self, position: TablePosition) {
        let row = self.blocks_of(position.first).iter().zip(&self.columns);
        row.filter(|(_, column)| column.filter.is_some()).for_each(|(block, _)| prefetch(block));
    }

    /// Prefetches the blocks that [`Grid::insert`] writes.
    #[inline]
    pub fn prefetch_column(&self, column: usize, position: TablePosition) {
        for hash in [position.first, position.second] {
            if let Some(block) = self.blocks_of(hash).get(column) {
                prefetch(block);
            }
        }
    }

    /// The row of one half of a position, from the high half of a product, which works for any number of rows.
    #[inline]
    fn row(&self, hash: u64) -> usize {
        let (_, high) = hash.carrying_mul(self.rows, 0);
        usize::try_from(high).unwrap_or(usize::MAX)
    }

    #[inline]
    fn blocks_of(&self, hash: u64) -> &[CacheLine] {
        let width = self.columns.len();
        let first = self.row(hash).saturating_mul(width);
        let blocks = self.words.get(self.aligned..).unwrap_or_default().as_chunks().0;
        blocks.get(first..first.saturating_add(width)).unwrap_or_default()
    }
}

/// The bits that an identity sets in one of its blocks.
#[derive(Debug)]
pub(super) struct Mask {
    /// Number of bits drawn, with replacement.
    pub bits: u32,
    block: CacheLine,
}

impl Mask {
    /// The row is taken from the high bits of the hash, so the bits are drawn from a further mix of the whole hash:
    /// 9 bits per draw, seven draws per word.
    #[inline]
    pub fn of(hash: u64, bits: u32) -> Self {
        const DRAWS: u32 = 7;
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut block = [0; WORDS];
        let (mut state, mut word) = (hash, 0);
        for draw in 0..bits {
            if draw % DRAWS == 0 {
                state = state.wrapping_add(STEP);
                word = mixed(state);
            }
            if let Some(part) = block.get_mut((word & 7) as usize) {
                *part |= 1 << ((word >> 3) & 63);
            }
            word >>= 9;
        }
        Self { bits, block }
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood, 2014): each bit of the result depends on all bits of `state`.
#[inline]
fn mixed(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[inline]
fn covers(block: &CacheLine, wanted: &CacheLine) -> bool {
    block.iter().zip(wanted).fold(0, |missing, (word, bits)| missing | (bits & !word)) == 0
}

fn ones(block: &CacheLine) -> u32 {
    block.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_draw_all_bits_equally_often() {
        let mut drawn = [0u32; 512];
        for number in 0..20_000u64 {
            // Hashes of one row share their high bits.
            let mask = Mask::of(0xabcd_0000_0000_0000 | number.wrapping_mul(0x9e37_79b9), 14).block;
            let set = ones(&mask);
            assert!((8..=14).contains(&set), "{set}");
            for (bit, drawn) in drawn.iter_mut().enumerate() {
                *drawn += u32::try_from((mask[bit / 64] >> (bit % 64)) & 1).unwrap();
            }
        }
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        // 540 expected, standard deviation 23.
        assert!(*least > 430 && *most < 650, "{least} to {most}");
    }

    #[test]
    fn blocks_are_cache_lines() {
        let grid = Grid::new(64, 4, 14);
        let block = &grid.blocks_of(u64::MAX)[3];
        assert!(std::ptr::from_ref(block).cast::<u8>().align_offset(64) == 0);
        assert_eq!(grid.memory_bytes(), Grid::bytes_for(64, 4));
    }
}
