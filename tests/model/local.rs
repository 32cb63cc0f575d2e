//! A local store: the owners of a window, by number.

use std::collections::BTreeMap;

use dedupd::dedupe::{Identity, Offset, OwnerRun, Owners, Sequence, StampedOwner, StoredOwner, Window};

/// A local store. It survives its process but not a wipe, and may be old.
#[derive(Debug, Default)]
pub struct Local {
    /// By number, each with its stamp.
    owners: BTreeMap<Sequence, (StoredOwner, i64)>,
    /// One past the highest number so far.
    next: Sequence,
    /// Owners with lower numbers were committed.
    pub confirmed: Sequence,
    /// How much of the state topic it has, and the raw offset up to which that is.
    pub state_next: usize,
    pub covered: Offset,
    /// Owners were undone that no entry undoes so far: it is the state of none.
    pub is_undone: bool,
}

impl Owners for Local {
    type Error = String;
    fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, String> {
        let found = self.owners.get(&number).map(|(owner, _)| *owner);
        found.ok_or_else(|| format!("owner {number} is live but not stored"))
    }
}

impl Local {
    pub fn append(&mut self, number: Sequence, owners: &[StampedOwner]) {
        assert!(number >= self.next, "number {number} is not free");
        let stored = owners.iter().map(|it| (it.owner.into(), it.stamp_ms));
        self.owners.extend((number..).zip(stored));
        self.next = number + owners.len() as Sequence;
    }

    pub fn truncate(&mut self, from: Sequence) -> Vec<StoredOwner> {
        self.next = self.next.min(from);
        self.owners.split_off(&from).into_values().map(|(owner, _)| owner).collect()
    }

    /// Removes the owners at or beyond an offset from it and from the window. Returns how many they were.
    pub fn undo(&mut self, window: &mut Window, from: Offset) -> u64 {
        let mut undone = 0;
        for (number, (owner, _)) in &mut self.owners {
            if let Some(identity) = owner.identity.take_if(|_| owner.at.offset >= from) {
                window.forget(*number, identity);
                undone += 1;
            }
        }
        undone
    }

    pub fn expire(&mut self, first: Sequence) {
        self.owners = self.owners.split_off(&first);
    }

    pub fn load(&self, window: &mut Window) -> u64 {
        let loaded = self.owners.iter().map(|(number, (owner, stamp_ms))| {
            let run = OwnerRun { number: *number, times_ms: (*stamp_ms, *stamp_ms), owners: &[*owner] };
            window.load(&run, Sequence::MAX)
        });
        let loaded = loaded.sum();
        window.number_from(self.next);
        loaded
    }
}
