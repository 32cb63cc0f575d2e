//! Determines whether the window still counts a stored id, and how.

use serde::Serialize;

use super::find::{Owned, bad_block};
use super::whole::scan_whole;
use crate::dedupe::{HashKind, Identity, SlicePartition, Window, WindowId, WindowLimits};
use crate::ports::{Head, SealedLookup, Store, StoreError};

/// How the window treats a stored id: the verdict on the next record with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Duplicate: the id is in the exact part of the window.
    Exact,
    /// Probably seen: a filter without owners contains the id.
    Bloom {
        /// The stream times between which the owners in it arrived, epoch milliseconds.
        time_ms: (i64, i64),
    },
    /// New: the id is older than the window, but not deleted yet.
    Expired,
    /// Unknown: the id is at or beyond the confirmed offset, and the next start decides by the group's committed
    /// offset.
    Unconfirmed,
}

/// The window limits of each kind.
#[derive(Debug, Clone)]
pub struct Lengths {
    unnamed: WindowLimits,
    named: Vec<(String, WindowLimits)>,
}

impl Lengths {
    /// Limits of the records of no named kind, and of each kind with a window of its own.
    #[must_use]
    pub fn new(unnamed: WindowLimits, named: Vec<(String, WindowLimits)>) -> Self {
        Self { unnamed, named }
    }

    /// The limits of a kind. An unknown kind has the limits of records of no named kind.
    #[must_use]
    pub fn of(&self, kind: Option<&str>) -> WindowLimits {
        let named = self.named.iter().find(|(name, _)| Some(name.as_str()) == kind);
        named.map_or(self.unnamed, |(_, limits)| *limits)
    }
}

/// Loads a window of a stopped instance, like a start would if the group's committed offset were the
/// confirmed offset, but with the sealed owners in the index, too. `hash` made the identities.
pub fn load(
    store: &impl Store,
    hash: HashKind,
    id: WindowId,
    head: Head,
    limits: WindowLimits,
) -> Result<Window, StoreError> {
    let mut window = Window::new(limits, store.positions());
    let sealed: u64 = store.sealed(id).iter().map(SlicePartition::owners).sum();
    window.reserve(store.ids(id)?.saturating_add(sealed));
    scan_whole(store, hash, &[id], &mut |view| {
        let restored = window.restore(view, head.confirmed).map(drop);
        restored.map_err(|cause| bad_block(id, view.header.first, &cause))
    })?;
    window.set_stream_time(head.stream_time_ms);
    Ok(window)
}

/// Returns how `window`, which [`load`] returned, treats an id whose confirmed owner is `owned`. `None` for an id without an owner that no
/// filter contains.
pub fn standing_of(
    (store, id): (&impl Store, WindowId),
    window: &Window,
    identity: Identity,
    owned: Option<Owned>,
) -> Result<Option<Standing>, StoreError> {
    if owned.is_some_and(|owned| window.holds(owned.offset)) {
        return Ok(Some(Standing::Exact));
    }
    let filters = store.sealed_places(&SealedLookup::new(id, window.key(identity)))?.filters;
    let expired = owned.map(|_| Standing::Expired);
    Ok(window.counting_filter(&filters).map(|time_ms| Standing::Bloom { time_ms }).or(expired))
}
