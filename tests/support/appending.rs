//! Short forms of the calls of a store.
#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]

use dedupd::dedupe::{Coordinates, Identity, OwnerRun, StoredOwner, WindowId};
use dedupd::ports::{Head, Store, StoreError};

pub trait Appending: Store {
    /// Appends owners with the next numbers. The window's clock is the time of the first and of the last one.
    fn put(&mut self, window: WindowId, owners: &[StoredOwner], head: &Head) -> Result<(), StoreError> {
        let time_ms = |owner: Option<&StoredOwner>| owner.map_or(0, |owner| owner.time_ms);
        let times_ms = (time_ms(owners.first()), time_ms(owners.last()));
        self.append(window, &OwnerRun { number: self.next_number(window)?, times_ms, owners }, head)
    }

    /// The identity of an owner outside of slices. Reads all owners.
    fn identity_at(&self, window: WindowId, at: Coordinates) -> Result<Option<Identity>, StoreError> {
        let mut found = None;
        self.scan(window, &mut |run| {
            found = found.or(run.owners.iter().find(|owner| owner.at == at).and_then(|it| it.identity));
            Ok(())
        })?;
        Ok(found)
    }
}

impl<S: Store + ?Sized> Appending for S {}
