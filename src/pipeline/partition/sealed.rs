//! Look-ups of sealed owners: the store finds them, their windows decide whether they count.

use crate::dedupe::{Coordinates, IndexKey, Offset, PartitionId, SlicePartition, Window, WindowId};
use crate::ports::{SealedLookup, SealedPlaces, Store, StoreError};

/// What the slices have of the identity of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealedCopy {
    /// An owner, with the latest stream time at which it can have arrived, epoch milliseconds; 0 while unknown.
    Owner(Coordinates, i64),
    /// The filter of a slice without owners contains it.
    Filter {
        /// Stream time at which the first owner of the slice arrived, epoch milliseconds.
        since_ms: i64,
    },
}

/// A sealed owner of the identity that counts for the record `at`, which its window has observed last, or else a filter with the
/// identity. `window_of` returns the window of the kind in another partition.
pub fn sealed_copy<'a, T: Store>(
    store: &T,
    lookup: &SealedLookup,
    (at, window): (Coordinates, &Window),
    window_of: impl Fn(PartitionId) -> Option<&'a Window>,
) -> Result<Option<SealedCopy>, StoreError> {
    let counts = |owner: &Coordinates| {
        if owner.partition == at.partition {
            return window.sealed_owner(owner.offset);
        }
        window_of(owner.partition)?.sealed_copy(window.record_time(), owner.offset)
    };
    let SealedPlaces { owners, filters } = store.sealed_places(lookup)?;
    let mut others = owners.into_iter().filter(|owner| *owner != at);
    let owner = others.find_map(|owner| Some(SealedCopy::Owner(owner, counts(&owner)?)));
    let filter = || window.counting_filter(&filters).map(|(since_ms, _)| SealedCopy::Filter { since_ms });
    Ok(owner.or_else(filter))
}

/// The places of an identity in the slices that still count for some record of one window.
#[derive(Debug, Default)]
pub struct PlacesInWindow {
    /// The owners, each with the latest stream time at which it can have arrived, epoch milliseconds.
    pub owners: Vec<(Offset, i64)>,
    /// Stream time at which the first owner of a slice arrived whose filter contains the identity, epoch milliseconds.
    pub since_ms: Option<i64>,
}

/// What the slices have of an identity, for one window.
pub fn sealed_in<T: Store>(
    store: &T,
    id: WindowId,
    window: &Window,
    key: &IndexKey,
) -> Result<PlacesInWindow, StoreError> {
    if !window.has_sealed() {
        return Ok(PlacesInWindow::default());
    }
    let SealedPlaces { owners, filters } = store.sealed_places(&SealedLookup::new(id, *key))?;
    let here = owners.into_iter().filter(|owner| owner.partition == id.partition());
    let owners = here.filter_map(|owner| Some((owner.offset, window.sealed_owner_ms(owner.offset)?)));
    Ok(PlacesInWindow {
        owners: owners.collect(),
        since_ms: window.counting_filter(&filters).map(|(since_ms, _)| since_ms),
    })
}

/// Adds the sealed owners of a window that is about to be loaded from the store.
pub fn load_sealed<T: Store>(store: &T, id: WindowId, window: &mut Window) {
    store.sealed(id).iter().for_each(|range| window.load_sealed(range));
}

/// Number of sealed owners of a window in the store.
pub fn count_sealed<T: Store>(store: &T, id: WindowId) -> u64 {
    store.sealed(id).iter().map(SlicePartition::owners).sum()
}
