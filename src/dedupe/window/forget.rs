//! Forgetting an identity, and undoing owners: the next record with it is new.

use std::ops::ControlFlow;

use super::{Owner, Owners, StoredOwner, Window};
use crate::dedupe::coordinates::Sequence;
use crate::dedupe::identity::Identity;
use crate::dedupe::window::positions::IndexKey;

impl Window {
    /// The committed owners of an identity in the index, with their numbers.
    pub fn owners<O: Owners>(&self, key: &IndexKey, owners: &O) -> Result<Vec<(Sequence, Owner)>, O::Error> {
        let mut found = Vec::new();
        let visited = self.index.candidates(key, |number| {
            if number < self.next_number {
                match owners.owner(number, Some(key.identity)) {
                    Ok(owner) if owner.identity == Some(key.identity) => {
                        let StoredOwner { at, time_ms, digest, .. } = owner;
                        let owner = Owner { at, time_ms, identity: key.identity, digest };
                        found.push((number, owner));
                    }
                    Ok(_) => {}
                    Err(error) => return ControlFlow::Break(error),
                }
            }
            ControlFlow::Continue(())
        });
        visited.break_value().map_or(Ok(found), Err)
    }

    /// Whether an owner of this stream time is needed: no record from before the window's clock is read.
    pub fn needs(&self, time_ms: i64) -> bool {
        time_ms <= 0 || time_ms >= self.needed_from_ms()
    }

    /// Removes a committed owner, unless it has expired or is sealed. The store still has it.
    pub fn forget(&mut self, number: Sequence, identity: Identity) {
        if self.index.remove(&self.positions.key(identity), number) {
            self.marks.forget(number);
        }
    }

    /// Notes that an owner of this stream time was removed from the slices.
    pub fn forget_sealed(&mut self, time_ms: i64) {
        self.marks.forget_sealed(time_ms);
    }

    /// Removes all owners and claims. Numbers continue.
    pub fn clear(&mut self) {
        self.abort();
        self.claims.clear();
        self.index.clear(self.next_number);
        self.marks.clear(self.next_number);
        (self.first_live, self.sealed_next, self.first_needed) =
            (self.next_number, self.next_number, self.next_number);
    }
}
