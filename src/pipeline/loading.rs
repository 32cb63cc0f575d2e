//! From stored blocks to a window, and from a window back to the owners stored.

use crate::dedupe::{Coordinates, Identity, Offset, Owners, PartitionId, Window};
use crate::ports::{Store, StoreError};

/// The owners of one partition, as the store knows them.
pub struct Stored<'a, T> {
    /// The store.
    pub store: &'a T,
    /// Partition of the raw topic.
    pub partition: PartitionId,
}

impl<T: Store> Owners for Stored<'_, T> {
    type Error = StoreError;

    fn identity_of(&self, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.there(owner, Store::identity_of).map(Some)
    }

    fn owns(&self, owner: Offset, identity: Identity) -> Result<bool, StoreError> {
        self.there(owner, |store, at| store.owns(at, identity))
    }
}

impl<T: Store> Stored<'_, T> {
    /// The window asks only for owners that it holds, and the store must hold them too.
    fn there<A>(
        &self,
        owner: Offset,
        ask: impl FnOnce(&T, Coordinates) -> Result<Option<A>, StoreError>,
    ) -> Result<A, StoreError> {
        let at = Coordinates { partition: self.partition, offset: owner };
        let missing = || StoreError::Corrupt(format!("the owner {at} is remembered, but not stored"));
        ask(self.store, at)?.ok_or_else(missing)
    }
}

/// Forgets the owners at or beyond `from` in the blocks filed under these numbers.
pub(super) fn cut_back(
    store: &mut impl Store,
    filed: &[PartitionId],
    from: Offset,
) -> Result<(), StoreError> {
    filed.iter().try_for_each(|number| store.truncate(*number, from).map(drop))
}

/// Reads the blocks of a partition below `trusted` into an empty window and sets its stream time, in
/// ms since the epoch. Gives how many identities the blocks hold.
pub fn load_window(
    store: &impl Store,
    partition: PartitionId,
    (trusted, stream_time_ms): (Offset, i64),
    window: &mut Window,
) -> Result<u64, StoreError> {
    let mut ids = 0u64;
    store.scan(partition, &mut |view| {
        ids += view.count() as u64;
        Ok(())
    })?;
    window.reserve(ids);
    store.scan(partition, &mut |view| {
        let restored = window.restore(view, trusted).map(drop);
        restored.map_err(|error| StoreError::Corrupt(format!("partition {partition}: {error}")))
    })?;
    window.set_stream_time(stream_time_ms);
    Ok(ids)
}
