//! Owners that are restored from a journal, and those that are loaded from the store.

use super::{Owner, OwnerRun, StampedOwner, Window};
use crate::dedupe::coordinates::Sequence;
use crate::dedupe::identity::Identity;

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
            self.marks.close(number);
            self.next_number = number;
        }
    }

    /// Restores the owners of an entry, in its order. Returns them with their stamps, for the store. Expiry applies, so an owner may be dropped at
    /// once.
    pub fn restore(&mut self, owners: &[Owner]) -> Vec<StampedOwner> {
        let mut stamp_ms = self.latest_ms;
        let stamped = owners.iter().map(|owner| {
            stamp_ms = stamp_ms.max(owner.time_ms);
            StampedOwner { owner: *owner, stamp_ms }
        });
        let stamped: Vec<StampedOwner> = stamped.collect();
        let taken: Vec<_> =
            stamped.iter().map(|it| (Some(it.owner.identity), (it.stamp_ms, it.stamp_ms))).collect();
        self.take(&taken);
        stamped
    }

    /// Takes over the owners with numbers below `below` from the store that has the window's sealed slices, and returns how many. A sealed owner is
    /// left out, and so is one that was forgotten. They must come in the order of their numbers.
    pub fn load(&mut self, run: &OwnerRun<'_>, below: Sequence) -> u64 {
        self.number_from(run.number);
        // The store may have sealed owners outside of slices too.
        let held = (run.number..below).zip(run.owners).filter(|(number, _)| *number >= self.next_number);
        let owners: Vec<_> = held.map(|(_, owner)| (owner.identity, run.times_ms)).collect();
        self.take(&owners);
        owners.iter().filter(|(identity, _)| identity.is_some()).count() as u64
    }

    /// Adds owners, each with the times between which it arrived.
    fn take(&mut self, owners: &[(Option<Identity>, (i64, i64))]) {
        debug_assert!(self.pending.is_empty(), "owners are restored inside a transaction");
        let most = self.max_owners_per_mark();
        // The memory accesses of all of them overlap.
        let keys: Vec<_> = owners.iter().map(|(identity, _)| identity.map(|it| self.key(it))).collect();
        for ((_, (first_ms, last_ms)), key) in owners.iter().zip(keys) {
            if let Some(key) = key {
                self.index.insert(&key, self.next_number);
                self.marks.add(self.next_number, *first_ms, *last_ms, most);
            }
            self.latest_ms = self.latest_ms.max(*last_ms);
            self.next_number += 1;
        }
        self.commit_evicted();
        self.expire();
    }
}
