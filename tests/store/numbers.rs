//! The owners of a window by their numbers, as a plain map.

use std::collections::BTreeMap;

use dedupd::dedupe::{Coordinates, Sequence, StoredOwner};

/// What a window should have.
#[derive(Default)]
pub struct Numbers {
    pub next: Sequence,
    /// Each owner that was appended and not removed, forgotten or not.
    pub owners: BTreeMap<Sequence, StoredOwner>,
}

impl Numbers {
    pub fn truncate(&mut self, from: Sequence) {
        self.next = self.next.min(from);
        self.owners.split_off(&self.next);
    }

    pub fn append(&mut self, number: Sequence, owners: &[StoredOwner]) {
        self.owners.extend((number..).zip(owners.iter().copied()));
        self.next = if owners.is_empty() { self.next } else { number + owners.len() as Sequence };
    }

    pub fn undo(&mut self, from: Coordinates) {
        let owners = self.owners.values_mut();
        let undone = owners.filter(|it| it.at.partition == from.partition && it.at.offset >= from.offset);
        undone.for_each(|it| it.identity = None);
    }

    pub fn forget(&mut self, numbers: &[Sequence]) {
        for number in numbers {
            self.owners.entry(*number).and_modify(|it| it.identity = None);
        }
    }
}
