//! Forgetting an identity: the next record with it is new.

use std::ops::ControlFlow;

use super::positions::IndexKey;
use super::sealing::is_within;
use super::{Owners, Window};
use crate::dedupe::coordinates::{Offset, Sequence};
use crate::dedupe::identity::Identity;

impl Window {
    /// The committed owners of an identity in the index, without expired ones, each with the latest stream time at
    /// which it can have arrived.
    pub fn owners<O: Owners>(&self, key: &IndexKey, owners: &O) -> Result<Vec<(Offset, i64)>, O::Error> {
        let oldest = self.needed_from_ms();
        let mut found = Vec::new();
        self.visit_owners(key, owners, |_, owner, arrived| {
            if arrived <= 0 || arrived >= oldest {
                found.push((owner, arrived));
            }
        })?;
        Ok(found)
    }

    /// Visits the committed owners of an identity in the index: number, offset, and latest stream time of the arrival.
    fn visit_owners<O: Owners>(
        &self,
        key: &IndexKey,
        owners: &O,
        mut visit: impl FnMut(Sequence, Offset, i64),
    ) -> Result<(), O::Error> {
        let visited = self.index.candidates(key, |number| {
            if number < self.next_number {
                match owners.owner(number, Some(key.identity)) {
                    Ok(owner) if owner.identity == Some(key.identity) => {
                        visit(number, owner.offset, self.marks.times_of(number).1);
                    }
                    Ok(_) => {}
                    Err(error) => return ControlFlow::Break(error),
                }
            }
            ControlFlow::Continue(())
        });
        visited.break_value().map_or(Ok(()), Err)
    }

    /// Latest stream time at which an owner can have arrived, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn arrived_ms(&self, owner: Offset) -> i64 {
        let pending = self.pending.binary_search_by_key(&owner, |(offset, _)| *offset).ok();
        let pending = pending.and_then(|place| self.arrived_ms.get(place).copied());
        pending.unwrap_or_else(|| self.marks.times_at(owner).1)
    }

    /// Whether a committed owner is held, and counts for a record of the partition that is as late as the last one.
    #[must_use]
    pub fn holds(&self, owner: Offset) -> bool {
        owner >= self.first_live && is_within(self.marks.times_at(owner), (self.oldest_ms(), i64::MAX))
    }

    /// As [`Window::owners`], for an owner that the store found in its slices: the latest stream time at which it can have arrived, if it
    /// still counts for a record of any partition.
    #[must_use]
    pub fn sealed_owner_ms(&self, owner: Offset) -> Option<i64> {
        self.sealed_within(owner, (self.needed_from_ms(), i64::MAX))
    }

    /// Forgets a committed owner of an identity. The store still has it.
    pub fn forget<O: Owners>(
        &mut self,
        owner: Offset,
        identity: Identity,
        owners: &O,
    ) -> Result<(), O::Error> {
        if (self.first_live..self.sealed_next).contains(&owner) {
            self.marks.forget(owner);
            return Ok(());
        }
        let (key, mut found) = (self.positions.key(identity), None);
        self.visit_owners(&key, owners, |number, offset, _| {
            found = found.or(Some(number).filter(|_| offset == owner));
        })?;
        if found.is_some_and(|number| self.index.remove(&key, number)) {
            self.marks.forget(owner);
        }
        Ok(())
    }
}
