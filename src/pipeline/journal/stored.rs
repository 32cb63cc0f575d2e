//! The stored owners of a window.

use crate::dedupe::{Coordinates, Digest, Identity, Owners, Sequence, StoredOwner, WindowId};
use crate::ports::{Store, StoreError};

/// The stored owners of one window.
pub struct Stored<'a, T> {
    /// Where identities of owners are read when the index has several candidates.
    pub store: &'a T,
    /// The window whose owners are read.
    pub window: WindowId,
    /// The store may lack owners that the window has: those that a restore has not written yet.
    pub is_partial: bool,
}

impl<T: Store> Owners for Stored<'_, T> {
    type Error = StoreError;

    /// The window looks up only owners that it holds, and the store must hold them too, unless it is partial.
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        match self.store.owner(self.window, number, expected)? {
            Some(owner) => Ok(owner),
            None if self.is_partial => {
                let at = Coordinates { partition: 0, offset: 0 };
                Ok(StoredOwner { at, time_ms: 0, identity: None, digest: Digest::NONE })
            }
            None => {
                let at = self.window;
                let what =
                    format!("owner {number} of journal {at} is in the window, but not in the local store");
                Err(StoreError::Corrupt(what))
            }
        }
    }
}
