//! Look-ups of sealed owners: the store finds them, their window decides whether they count.

use crate::dedupe::{Coordinates, IndexKey, KnownOwner, RecordTime, SealedRange, Window, WindowId};
use crate::ports::{SealedLookup, SealedPlaces, Store, StoreError};

/// What the slices have of the identity of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealedCopy {
    /// An owner.
    Owner(KnownOwner),
    /// The filter of a slice without owners contains it.
    Filter {
        /// Stream time at which the first owner of the slice arrived, epoch milliseconds.
        since_ms: i64,
    },
}

/// A sealed owner of the identity that counts for the record `at` of this time, or else a filter with the identity.
pub fn sealed_copy<T: Store>(
    store: &T,
    lookup: &SealedLookup,
    window: &Window,
    at: Coordinates,
    time: RecordTime,
) -> Result<Option<SealedCopy>, StoreError> {
    let SealedPlaces { owners, filters } = store.sealed_places(lookup)?;
    let counts = |owner: &KnownOwner| owner.at != at && window.counts(owner.time_ms, time);
    let owner = owners.into_iter().find(counts).map(SealedCopy::Owner);
    let filter =
        || window.counting_filter(&filters, time).map(|(since_ms, _)| SealedCopy::Filter { since_ms });
    Ok(owner.or_else(filter))
}

/// What the slices have of an identity that is needed for some record.
pub fn sealed_in<T: Store>(
    store: &T,
    id: WindowId,
    window: &Window,
    key: &IndexKey,
) -> Result<SealedPlaces, StoreError> {
    if !window.has_sealed() {
        return Ok(SealedPlaces::default());
    }
    let mut places = store.sealed_places(&SealedLookup::new(id, *key))?;
    places.owners.retain(|owner| window.needs(owner.time_ms));
    places.filters.retain(|(_, last_ms)| window.needs(*last_ms));
    Ok(places)
}

/// Adds the sealed owners of a window that is about to be loaded from the store. Returns how many they are.
pub fn load_sealed<T: Store>(store: &T, id: WindowId, window: &mut Window) -> u64 {
    let ranges = store.sealed(id);
    let load = |range: &SealedRange| {
        window.load_sealed(range);
        range.owners()
    };
    ranges.iter().map(load).sum()
}
