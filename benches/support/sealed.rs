//! Sealed slices of the store as the ledger of a window, which holds the newest identities only.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use dedupd::dedupe::{
    Identity, KindId, Offset, Owners, Positions, Sequence, SliceMark, SlicePartition, StoredOwner,
};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, StoreError};

use super::contest::TRANSACTION;
use super::ledger::Ledger;
use super::ours::{Ours, Stored};

/// The store has the owners that are not sealed yet in runs. A slice is sealed at the first commit after its last record.
pub struct Sealed {
    stored: Stored,
    /// One past the last owner.
    next: Offset,
    end_of_slices: Offset,
    /// Sealed slices in a full window.
    count: u64,
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
        let ledger = Self { stored, next: 0, end_of_slices: 0, count, records, owners: VecDeque::new() };
        // A slice is sealed after the transaction in which it ends. Until then its identities are in the index.
        Ours::sealed(name, ids, count, records + 2 * TRANSACTION, ledger)
    }

    fn seal(&mut self, Range { start: first, end: next }: Range<Offset>) {
        let store = &mut self.stored.store;
        // The store refuses a slice that has fewer owners than it is to have.
        let count = self.owners.pop_front().unwrap_or_default();
        let marks = vec![SliceMark { next, count, time_ms: (0, 0) }];
        let partitions = vec![SlicePartition { partition: 0, first, next, marks }];
        store.begin_seal(SealJob { kind: KindId::UNNAMED, partitions, is_urgent: false }).unwrap();
        while store.poll_seal().unwrap() != Sealing::Idle {
            // Waiting takes no CPU time.
            sleep(Duration::from_millis(1));
        }
        self.end_of_slices = next;
        self.stored.expire(next.saturating_sub(self.count * self.records));
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

    fn append(&mut self, owners: &[(Offset, Identity)]) {
        self.stored.append(owners);
        self.next = owners.last().map_or(self.next, |(last, _)| last + 1);
        for (owner, _) in owners {
            let slice = ((owner - self.end_of_slices) / self.records) as usize;
            self.owners.resize(self.owners.len().max(slice + 1), 0);
            self.owners[slice] += 1;
        }
    }

    /// Seals the slices that have ended. Their owners leave the runs then, not when the window drops them.
    fn expire(&mut self, _first: Offset) {
        while self.end_of_slices + self.records <= self.next {
            self.seal(self.end_of_slices..self.end_of_slices + self.records);
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
