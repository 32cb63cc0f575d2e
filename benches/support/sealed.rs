//! Sealed slices of the store as the ledger of a window, which holds the newest identities only.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use dedupd::dedupe::{Identity, Owners, Positions, Sequence, StampedOwner, StoredOwner, Window};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, StoreError};

use super::ledger::Ledger;
use super::ours::{Ours, Stored};

/// The store has the owners that are not sealed yet in runs.
pub struct Sealed {
    stored: Stored,
    /// Owners of a slice, about.
    owners: u64,
}

impl Sealed {
    /// A full window of `ids` has about `count` sealed slices. `records` is the number of records, including duplicates, in a window.
    pub fn window(dir: &Path, name: &'static str, ids: u64, records: u64, count: u64) -> Ours<Self> {
        let ledger = Self { stored: Stored::below(dir), owners: ids / count };
        Ours::sealed(name, ids, count, records, ledger)
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
    }

    fn expire(&mut self, first: Sequence) {
        self.stored.expire(first);
    }

    /// Seals the older half, when the index has the owners of two slices.
    fn seal(&mut self, window: &mut Window) {
        if window.unsealed() < 2 * self.owners {
            return;
        }
        let mut left = self.owners;
        let last = window.unsealed_marks().find(|mark| {
            left = left.saturating_sub(mark.count);
            left == 0
        });
        let time_ms = last.map_or(0, |mark| mark.time_ms.1);
        let Some(range) = window.to_seal(time_ms, window.next_number()) else { return };
        let (store, next) = (&mut self.stored.store, range.next);
        store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
        while store.poll_seal().unwrap() != Sealing::Idle {
            // Waiting takes no CPU time.
            sleep(Duration::from_millis(1));
        }
        window.seal(next);
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
