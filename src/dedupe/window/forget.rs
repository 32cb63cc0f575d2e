//! Forgetting an identity: the next record with it is new.

use std::ops::ControlFlow;

use super::positions::IndexKey;
use super::{Owners, Window};
use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::Identity;

impl Window {
    /// The committed owners of an identity in the index, without expired ones, each with the latest stream time at
    /// which it can have arrived.
    pub fn owners<O: Owners>(&self, key: &IndexKey, owners: &O) -> Result<Vec<(Offset, i64)>, O::Error> {
        let oldest = self.needed_from_ms();
        let mut found = Vec::new();
        let visited = self.index.candidates(key, |owner| {
            let arrived = self.marks.time_of(owner);
            if self.pending_index(owner).is_some() || (arrived > 0 && arrived < oldest) {
                return ControlFlow::Continue(());
            }
            match owners.owns(owner, key.identity) {
                Ok(true) => found.push((owner, arrived)),
                Ok(false) => {}
                Err(error) => return ControlFlow::Break(error),
            }
            ControlFlow::Continue(())
        });
        visited.break_value().map_or(Ok(found), Err)
    }

    /// Latest stream time at which an owner can have arrived, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn arrived_ms(&self, owner: Offset) -> i64 {
        let pending = self.pending_index(owner).and_then(|place| self.arrived_ms.get(place).copied());
        pending.unwrap_or_else(|| self.marks.time_of(owner))
    }

    /// As [`Window::owners`], for an owner that the store found in its slices: the latest stream time at which it can have arrived, if it
    /// still counts for a record of any partition.
    #[must_use]
    pub fn sealed_owner_ms(&self, owner: Offset) -> Option<i64> {
        self.sealed_within(owner, (self.needed_from_ms(), i64::MAX))
    }

    /// Forgets a committed owner of an identity.
    pub fn forget(&mut self, owner: Offset, identity: Identity) {
        let is_sealed = (self.first_live..self.index.first_live()).contains(&owner);
        if is_sealed
            || owner >= self.index.first_live() && self.index.remove(&self.positions.key(identity), owner)
        {
            self.marks.forget(owner);
        }
    }
}
