//! Look-ups of sealed owners: the store finds them, their windows decide whether they count.

use crate::dedupe::{Coordinates, IndexKey, KindId, Offset, PartitionId, SlicePartition, Window, WindowId};
use crate::ports::{Store, StoreError};

/// A sealed owner of the identity that counts for a record of partition `own` at the current stream time of its window, with the latest
/// stream time at which it can have arrived. `window_of` returns the window of the kind in another partition.
pub fn sealed_owner<'a, T: Store>(
    store: &T,
    (kind, own, window): (KindId, PartitionId, &Window),
    key: &IndexKey,
    window_of: impl Fn(PartitionId) -> Option<&'a Window>,
) -> Result<Option<(Coordinates, i64)>, StoreError> {
    let counts = |owner: &Coordinates| {
        if owner.partition == own {
            return window.sealed_owner(owner.offset);
        }
        window_of(owner.partition)?.sealed_copy(window.stream_time_ms(), owner.offset)
    };
    let owners = store.sealed_owners(kind.window(own), key)?;
    Ok(owners.into_iter().find_map(|owner| Some((owner, counts(&owner)?))))
}

/// The sealed owners of an identity in one window that still count for some record, each with the latest stream time at which it can have
/// arrived.
pub fn sealed_owners_in<T: Store>(
    store: &T,
    id: WindowId,
    window: &Window,
    key: &IndexKey,
) -> Result<Vec<(Offset, i64)>, StoreError> {
    if !window.has_sealed() {
        return Ok(Vec::new());
    }
    let here = store.sealed_owners(id, key)?.into_iter().filter(|owner| owner.partition == id.partition());
    Ok(here.filter_map(|owner| Some((owner.offset, window.sealed_owner_ms(owner.offset)?))).collect())
}

/// Adds the sealed owners of a window that is about to be loaded from the store.
pub fn load_sealed<T: Store>(store: &T, id: WindowId, window: &mut Window) {
    store.sealed(id).iter().for_each(|range| window.load_sealed(range));
}

/// Number of sealed owners of a window in the store.
pub fn count_sealed<T: Store>(store: &T, id: WindowId) -> u64 {
    store.sealed(id).iter().map(SlicePartition::owners).sum()
}
