//! The stored owners of a window.

use crate::dedupe::{Identity, Owners, Sequence, StoredOwner, WindowId};
use crate::ports::{Store, StoreError};

/// The stored owners of one window.
pub struct Stored<'a, T> {
    /// Where identities of owners are read when the index has several candidates.
    pub store: &'a T,
    /// The window whose owners are read.
    pub window: WindowId,
    /// The store may lack owners that the window has: a standby copy deletes what has expired by the time of the group, and is loaded again
    /// before it decides.
    pub is_copy: bool,
}

impl<T: Store> Owners for Stored<'_, T> {
    type Error = StoreError;

    /// The window looks up only owners that it holds, and the store must hold them too, unless this is a copy.
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        match self.store.owner(self.window, number, expected)? {
            Some(owner) => Ok(owner),
            // What a copy lacks is older than what it has.
            None if self.is_copy => Ok(StoredOwner { offset: 0, identity: None }),
            None => {
                let at = self.window;
                let what =
                    format!("owner {number} of partition {at} is in the window, but not in the local store");
                Err(StoreError::Corrupt(what))
            }
        }
    }
}
