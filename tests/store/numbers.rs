//! The numbers of owners.

use std::collections::BTreeMap;

use dedupd::dedupe::{Block, Offset, Sequence, StoredOwner};

/// The numbers of owners, as a window has them.
#[derive(Default)]
pub struct Numbers {
    pub next: Sequence,
    /// Each owner that was appended and not removed, forgotten or not.
    pub owners: BTreeMap<Sequence, StoredOwner>,
}

impl Numbers {
    pub fn truncate(&mut self, from: Offset) {
        let first = self.owners.iter().find(|(_, owner)| owner.offset >= from).map(|(number, _)| *number);
        self.next = first.unwrap_or(self.next);
        self.owners.split_off(&self.next);
    }

    /// Replaces what is at or beyond the first block, and returns the number of its first owner.
    pub fn append(&mut self, blocks: &[Block], gap: u64) -> Sequence {
        self.truncate(blocks[0].first);
        let first = self.next + gap;
        let owners = blocks.iter().flat_map(|block| &block.entries);
        let owner = |(offset, identity): &(_, _)| StoredOwner { offset: *offset, identity: Some(*identity) };
        self.owners.extend((first..).zip(owners.map(owner)));
        self.next = self.owners.last_key_value().map_or(0, |(last, _)| last + 1).max(first);
        first
    }

    pub fn forget(&mut self, owners: &[Offset]) {
        self.owners.values_mut().filter(|it| owners.contains(&it.offset)).for_each(|it| it.identity = None);
    }
}
