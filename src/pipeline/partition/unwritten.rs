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
    /// Whether a block can be added before the others are written.
    pub(crate) fn takes(&self, block: &Block) -> bool {
        let last = self.windows.get(&block.window).and_then(|(blocks, ..)| blocks.last());
        // An empty range voids what was read before it.
        let continues = last.is_none_or(|last| last.next <= block.first) && block.first < block.next;
        continues && (self.ids == 0 || self.ids + block.entries.len() <= IDS)
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
    ///
    /// What a named kind has read beyond the last block of the unnamed kind is written too. That head does not claim it: the
    /// head's `state_next` is at or before the first such block (`Restoring::resume_after`), and its owners are at or beyond
    /// `confirmed`, so a restart removes them from the store and reads them again.
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
    fn only_a_block_that_continues_its_window_is_joined() {
        let (unnamed, named) = (WindowId::from(3), KindId::named("payments").window(3));
        let mut unwritten = Unwritten::default();
        unwritten.add(block(unnamed, 5, 9), 0, Head::default(), 100);
        assert!(unwritten.takes(&block(unnamed, 9, 12)) && unwritten.takes(&block(unnamed, 20, 21)));
        assert!(!unwritten.takes(&block(unnamed, 8, 12)), "it replaces an owner");
        assert!(!unwritten.takes(&block(unnamed, 2, 4)), "it goes back");
        assert!(!unwritten.takes(&block(unnamed, 9, 9)), "it voids the owners beyond it");
        assert!(unwritten.takes(&block(named, 2, 9)), "another window");
    }

    #[test]
    fn the_number_of_ids_and_of_bytes_is_limited() {
        let mut unwritten = Unwritten::default();
        unwritten.add(block(3.into(), 5, 9), 0, Head::default(), 100);
        assert!(!unwritten.is_full(5) && unwritten.is_full(4));
        let ids = IDS as u64 - 4;
        assert!(
            unwritten.takes(&block(3.into(), 9, 9 + ids)) && !unwritten.takes(&block(3.into(), 9, 10 + ids))
        );
        unwritten.add(block(3.into(), 9, 10), 4, Head::default(), BYTES - 100);
        assert!(unwritten.is_full(30_000));
    }
}
