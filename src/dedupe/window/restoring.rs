//! Owners that are restored from blocks, and owners that are undone.

use std::ops::Range;

use super::marks::IndexedOwner;
use super::{Owners, StoredOwner, Window};
use crate::dedupe::coordinates::{Offset, Sequence};
use crate::dedupe::format::{BlockError, BlockView};
use crate::dedupe::identity::Identity;

/// Consecutive owners in the store.
#[derive(Debug, Clone)]
pub struct OwnerRun<'a> {
    /// The raw offsets that they cover.
    pub covered: Range<Offset>,
    /// The stream times between which they arrived, epoch milliseconds; 0 while unknown.
    pub times_ms: (i64, i64),
    /// The number of the first one.
    pub number: Sequence,
    /// In ascending order of their offsets.
    pub owners: &'a [StoredOwner],
}

impl OwnerRun<'_> {
    /// The offsets of the owners of an identity, in ascending order.
    pub fn offsets_of(&self, identity: Identity) -> impl Iterator<Item = Offset> {
        let owners = self.owners.iter().filter(move |owner| owner.identity == Some(identity));
        owners.map(|owner| owner.offset)
    }
}

impl Window {
    /// Reserves capacity for `ids` owners before they are restored.
    pub fn reserve(&mut self, ids: u64) {
        let wanted = ids.min(self.bounds.max_ids.saturating_add(self.max_owners_per_mark()));
        self.index.reserve(wanted);
    }

    /// Numbers the next owners from this one on.
    pub fn number_from(&mut self, number: Sequence) {
        if number > self.next_number {
            // No mark has a number between those that the store does not have.
            self.marks.close(self.next);
            self.next_number = number;
        }
    }

    /// Restores the owners below `below` from a block and returns their number. Blocks must come in the order in
    /// which they were written, and none begins before the owners that are held. Stream time is
    /// set from the block. Expiry applies, so a restored owner may be dropped at once.
    pub fn restore(&mut self, view: &BlockView<'_>, below: Offset) -> Result<u64, BlockError> {
        let header = &view.header;
        if header.first >= below {
            return Ok(0);
        }
        let mut owners = Vec::with_capacity(view.count());
        view.for_each(|owner, identity| {
            if owner < below {
                owners.push((owner, Some(identity)));
            }
        })?;
        let restored = owners.len() as u64;
        let times_ms = (header.time_first_ms, header.time_last_ms);
        let covered = (header.next.min(below), header.next <= below);
        self.take(&owners, times_ms, covered);
        Ok(restored)
    }

    /// Takes over owners below `below` from the store that has the window's sealed slices, and returns their number. A sealed owner is left out, and so is one
    /// that was forgotten. They must come in the order of their numbers.
    pub fn load(&mut self, run: &OwnerRun<'_>, below: Offset) -> u64 {
        self.number_from(run.number);
        let held = run.owners.iter().take_while(|owner| owner.offset < below);
        let owners: Vec<_> = held
            .map(|owner| (owner.offset, owner.identity.filter(|_| owner.offset >= self.sealed_next)))
            .collect();
        if run.covered.start < below {
            self.take(&owners, run.times_ms, (run.covered.end.min(below), run.covered.end <= below));
        }
        owners.iter().filter(|(_, identity)| identity.is_some()).count() as u64
    }

    /// Adds owners that arrived between two stream times, up to this offset. `is_whole`: the later time was reached there.
    fn take(
        &mut self,
        owners: &[(Offset, Option<Identity>)],
        times_ms: (i64, i64),
        (next, is_whole): (Offset, bool),
    ) {
        debug_assert!(self.pending.is_empty(), "owners are restored inside a transaction");
        let most = self.max_owners_per_mark();
        // The memory accesses of all of them overlap.
        let keys: Vec<_> = owners.iter().map(|(_, identity)| identity.map(|it| self.key(it))).collect();
        for ((owner, _), key) in owners.iter().zip(keys) {
            if let Some(key) = key {
                self.index.insert(&key, self.next_number);
                let owner = IndexedOwner { offset: *owner, number: self.next_number };
                self.marks.add(owner, times_ms, most);
            }
            self.next_number += 1;
        }
        self.commit_evicted();
        self.time.set(if is_whole { times_ms.1 } else { times_ms.0 });
        self.next = next;
        self.expire();
    }

    /// Removes every owner at or beyond `from`, including pending and sealed ones, and returns the number of committed ones that were
    /// in the index. The store removes them afterwards. Scans the whole index: for recovery, not for every batch.
    pub fn truncate<O: Owners>(&mut self, from: Offset, owners: &O) -> Result<u64, O::Error> {
        self.abort();
        let first = self.number_at(from, owners)?;
        let removed = self.index.remove_from(first);
        self.marks.truncate(IndexedOwner { offset: from, number: first }, removed);
        self.next_number = self.next_number.min(first);
        self.first_live = self.first_live.min(from);
        self.first_needed = self.first_needed.min(from);
        self.sealed_next = self.sealed_next.min(from);
        self.next = self.next.min(from);
        // The store may have removed more numbers, of owners that were forgotten.
        self.marks.close(self.next);
        Ok(removed)
    }

    /// The number of the first unsealed owner at or beyond an offset; that of the next owner when there is none.
    fn number_at<O: Owners>(&self, from: Offset, owners: &O) -> Result<Sequence, O::Error> {
        let (first, next) = (self.index.first_live(), self.next_number);
        if from <= self.first_live {
            return Ok(first);
        }
        let (mut low, mut high) = self.marks.numbers_around(from, first..next);
        while low < high {
            let middle = low + (high - low) / 2;
            if owners.owner(middle, None)?.offset < from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
