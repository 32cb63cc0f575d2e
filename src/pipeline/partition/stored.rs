//! The stored owners of a window.

use crate::dedupe::{Identity, Offset, Owners, WindowId};
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

    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.look_up(owner, Store::identity_of)
    }

    fn owns(&self, owner: Offset, identity: Identity) -> Result<bool, StoreError> {
        let owns = self.look_up(owner, |store, window, owner| store.owns(window, owner, identity));
        Ok(owns?.unwrap_or(false))
    }
}

impl<T: Store> Stored<'_, T> {
    /// Looks up an owner. The window looks up only owners that it holds, and the store must hold them too, unless this is a copy.
    fn look_up<A>(
        &self,
        owner: Offset,
        read: impl FnOnce(&T, WindowId, Offset) -> Result<Option<A>, StoreError>,
    ) -> Result<Option<A>, StoreError> {
        let found = read(self.store, self.window, owner)?;
        if found.is_none() && !self.is_copy {
            let at = self.window;
            return Err(StoreError::Corrupt(format!(
                "the owner {at}@{owner} is in the window, but not in the local store"
            )));
        }
        Ok(found)
    }
}
