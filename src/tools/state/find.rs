//! Searches the owners of an identity in a window.

use super::whole::sealed_end;
use crate::dedupe::{Coordinates, EntryName, Identity, KnownOwner, WindowId};
use crate::ports::{SealedLookup, SealedPlaces, Store, StoreError};

/// A stored owner of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Its record.
    pub at: Coordinates,
    /// The stream time of its partition at its arrival, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
    /// The latest time of the window's clock at which it can have arrived, epoch milliseconds. `None` in a slice.
    pub arrived_ms: Option<i64>,
    /// Whether its entry is known to be committed.
    pub is_confirmed: bool,
}

/// All stored owners of an identity, and the filters that contain it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The owners, those in slices first.
    pub owners: Vec<Found>,
    /// [`SealedPlaces::filters`].
    pub filters: Vec<(i64, i64)>,
}

/// Searches an identity in a window. What is stored up to the `trusted` entry is confirmed. Reads all owners outside of slices, about ten
/// million per second, and one page of each slice.
pub fn find(
    store: &impl Store,
    window: WindowId,
    identity: Identity,
    trusted: Option<EntryName>,
) -> Result<Places, StoreError> {
    let lookup = SealedLookup::new(window, store.positions().key(identity));
    let SealedPlaces { owners, filters } = store.sealed_places(&lookup)?;
    let sealed = |KnownOwner { at, time_ms, .. }| Found { at, time_ms, arrived_ms: None, is_confirmed: true };
    let mut owners: Vec<_> = owners.into_iter().rev().map(sealed).collect();
    let head = store.head(window)?.unwrap_or_default();
    let (sealed, confirmed) = (sealed_end(store, window), head.counted(trusted));
    store.scan(window, &mut |run| {
        for (number, owner) in (run.number..).zip(run.owners) {
            if owner.identity == Some(identity) && number >= sealed {
                let arrived_ms = Some(run.times_ms.1);
                let is_confirmed = confirmed.is_none_or(|confirmed| number < confirmed);
                owners.push(Found { at: owner.at, time_ms: owner.time_ms, arrived_ms, is_confirmed });
            }
        }
        Ok(())
    })?;
    Ok(Places { owners, filters })
}
