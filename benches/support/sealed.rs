//! Sealed slices of the store as the ledger of a window, which holds the newest identities only.

use std::collections::VecDeque;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use dedupd::dedupe::{
    Identity, Offset, Owners, Positions, SealedRange, Sequence, SliceMark, StampedOwner, StoredOwner,
};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, StoreError};

use super::contest::TRANSACTION;
use super::ledger::Ledger;
use super::ours::{Ours, Stored};

/// The store has the owners that are not sealed yet in runs.
pub struct Sealed {
    stored: Stored,
    /// One past the record of the last owner.
    next: Offset,
    end_of_slices: Offset,
    /// The ends of the slices that count, as numbers of owners.
    ends: VecDeque<Sequence>,
    /// Sealed slices in a full window.
    count: usize,
    /// Records of a slice.
    records: u64,
    /// Owners of the slices that are not sealed yet.
    owners: VecDeque<u64>,
}

impl Sealed {
    /// A full window of `ids` has `count` sealed slices, and one more is open. `records` is the number of records, including
    /// duplicates, in a window.
    pub fn window(dir: &Path, name: &'static str, ids: u64, records: u64, count: u64) -> Ours<Self> {
        let records = records / count;
        let stored = Stored::below(dir);
        let (ends, owners) = (VecDeque::new(), VecDeque::new());
        let slices = count as usize;
        let ledger = Self { stored, next: 0, end_of_slices: 0, ends, count: slices, records, owners };
        Ours::sealed(name, ids, count, records + 2 * TRANSACTION, ledger)
    }

    /// Seals the oldest records that are not sealed.
    fn seal(&mut self) {
        let store = &mut self.stored.store;
        // The store refuses a slice that has fewer owners than it is to have.
        let count = self.owners.pop_front().unwrap_or_default();
        let first = self.ends.back().copied().unwrap_or(0);
        let next = first + count;
        let marks = vec![SliceMark { next, count, time_ms: (0, 0) }];
        let range = SealedRange { first, next, marks };
        store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
        while store.poll_seal().unwrap() != Sealing::Idle {
            // Waiting takes no CPU time.
            sleep(Duration::from_millis(1));
        }
        self.end_of_slices += self.records;
        self.ends.push_back(next);
        if self.ends.len() > self.count {
            let expired = self.ends.pop_front().unwrap_or(0);
            self.stored.expire(expired);
        }
    }
}

impl Owners for Sealed {
    type Error = StoreError;
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        self.stored.owner(number, expected)
    }
}

impl Ledger for Sealed {
    fn positions(&self) -> Positions {
        self.stored.positions()
    }

    fn append(&mut self, number: Sequence, owners: &[StampedOwner]) {
        self.stored.append(number, owners);
        self.next = owners.last().map_or(self.next, |last| last.owner.at.offset + 1);
        for StampedOwner { owner, .. } in owners {
            let slice = ((owner.at.offset - self.end_of_slices) / self.records) as usize;
            self.owners.resize(self.owners.len().max(slice + 1), 0);
            self.owners[slice] += 1;
        }
    }

    /// Seals the slices of which the window has dropped all owners from its index: they leave the runs then.
    fn expire(&mut self, first: Sequence) {
        let end = |it: &Self| it.ends.back().unwrap_or(&0) + it.owners.front().unwrap_or(&0);
        while self.end_of_slices + self.records <= self.next && end(self) <= first {
            self.seal();
        }
    }

    fn find(&self, lookups: &mut [SealedLookup]) {
        self.stored.store.find_sealed(&mut lookups.iter_mut().collect::<Vec<_>>());
    }

    fn is_sealed(&self, lookup: &SealedLookup) -> bool {
        let places = self.stored.store.sealed_places(lookup).unwrap();
        !places.owners.is_empty() || !places.filters.is_empty()
    }

    fn disk_bytes(&self) -> Option<u64> {
        self.stored.disk_bytes()
    }
}
