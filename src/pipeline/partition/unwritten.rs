//! Blocks that a restore has read and not yet written to the local store.
//!
//! At a low rate a transaction adds a few identities to each partition. Appending each such block alone takes many times as
//! long as reading it, so the blocks of a window are appended together.

use std::collections::BTreeMap;

use crate::dedupe::{Block, Sequence, WindowId};
use crate::ports::{Head, Store, StoreError};

/// Most identities that wait, and have to be read again after a crash.
const IDS: usize = 1_350;
/// Most bytes of the encoded blocks. Blocks with a single identity reach it together with [`IDS`].
const BYTES: usize = 96 * 1024;

/// The blocks of one partition, by window. Blocks of one window neither overlap nor go back, so that they can be appended
/// together.
#[derive(Debug, Default)]
pub struct Unwritten {
    /// The blocks of each window, the number of their first owner, and the head of the last one.
    windows: BTreeMap<WindowId, (Vec<Block>, Sequence, Head)>,
    ids: usize,
    bytes: usize,
}

impl Unwritten {
    /// Whether the blocks of an entry can be added before the others are written. All of an entry is written together: its heads claim all of
    /// it.
    pub(crate) fn takes(&self, blocks: &[Block]) -> bool {
        self.ids == 0 || self.ids + blocks.iter().map(|block| block.entries.len()).sum::<usize>() <= IDS
    }

    /// Adds a block of `bytes` encoded bytes whose first owner has this number, and the head that the store has once it is written.
    pub(crate) fn add(&mut self, block: Block, number: Sequence, head: Head, bytes: usize) {
        self.ids += block.entries.len();
        self.bytes += bytes;
        let (blocks, _, last_head) =
            self.windows.entry(block.window).or_insert_with(|| (Vec::new(), number, head));
        blocks.push(block);
        *last_head = head;
    }

    /// Number of identities.
    pub(crate) fn ids(&self) -> usize {
        self.ids
    }

    /// Whether the blocks have to be written, when a block has at most `block_ids` identities.
    pub(crate) fn is_full(&self, block_ids: usize) -> bool {
        self.ids >= IDS.min(block_ids) || self.bytes >= BYTES
    }

    /// Writes all blocks. The unnamed kind, which has the lowest window id, comes last: its head stands for all kinds, so it
    /// must not claim them complete before they are.
    pub(crate) fn write(&mut self, store: &mut impl Store) -> Result<(), StoreError> {
        let Self { windows, .. } = std::mem::take(self);
        windows.values().rev().try_for_each(|(blocks, number, head)| store.append_all(blocks, *number, *head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{HashKind, Identity, KindId, Offset};

    fn block(window: WindowId, first: Offset, next: Offset) -> Block {
        let entries = (first..next).map(|owner| (owner, Identity([7; 16]))).collect();
        Block { entries, ..Block::empty(HashKind::Xxh3, window, first..next, 1) }
    }

    #[test]
    fn blocks_of_an_entry_are_joined_with_earlier_ones_unless_they_are_too_many() {
        let payments = KindId::named("payments").window(3);
        let mut unwritten = Unwritten::default();
        let many = [block(3.into(), 0, 2 * IDS as u64)];
        assert!(unwritten.takes(&many), "there are no earlier ones");
        unwritten.add(block(3.into(), 5, 9), 0, Head::default(), 100);
        assert!(!unwritten.takes(&many));
        // The identities of all windows count together.
        let of_payments = |ids: Offset| [block(3.into(), 9, 10), block(payments, 9, 9 + ids)];
        let left = IDS as u64 - 5;
        assert!(unwritten.takes(&of_payments(left)) && !unwritten.takes(&of_payments(left + 1)));
    }

    #[test]
    fn the_number_of_ids_and_of_bytes_is_limited() {
        let mut unwritten = Unwritten::default();
        unwritten.add(block(3.into(), 5, 9), 0, Head::default(), 100);
        assert!(!unwritten.is_full(5) && unwritten.is_full(4));
        unwritten.add(block(3.into(), 9, 10), 4, Head::default(), BYTES - 100);
        assert!(unwritten.is_full(30_000));
        let mut unwritten = Unwritten::default();
        unwritten.add(block(3.into(), 0, IDS as u64 - 1), 0, Head::default(), 100);
        assert!(!unwritten.is_full(30_000));
        unwritten.add(block(3.into(), 9_000, 9_001), 4, Head::default(), 100);
        assert!(unwritten.is_full(30_000));
    }
}
