//! Whether the window still counts an id that is stored, and as what.

use std::ops::Range;

use serde::Serialize;

use super::find::Owned;
use crate::dedupe::{Bloom, BloomLimits, Identity, Offset, PartitionId, Verdict, Window, WindowLimits};
use crate::pipeline::{Stored, load_window};
use crate::ports::{Head, Store, StoreError};

/// What a stored id would mean for the next record with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// A duplicate: it is in the exact part of the window.
    Exact,
    /// Probably seen: it is in the filter of this slice of stream time, ms since the epoch.
    Bloom {
        /// The slice.
        slice_ms: Range<i64>,
    },
    /// New: it is older than the window, and only not deleted yet.
    Expired,
    /// Not known: it is at or beyond the confirmed offset, and the next start decides with the group's
    /// committed offset.
    Unconfirmed,
}

/// How long the ids of each kind are remembered.
#[derive(Debug, Clone)]
pub struct Lengths {
    unnamed: WindowLimits,
    named: Vec<(String, WindowLimits)>,
}

impl Lengths {
    /// For the records of no named kind, and for each kind with a window of its own.
    #[must_use]
    pub fn new(unnamed: WindowLimits, named: Vec<(String, WindowLimits)>) -> Self {
        Self { unnamed, named }
    }

    /// Those of a kind; of one that is not known as those of no kind.
    #[must_use]
    pub fn of(&self, kind: Option<&str>) -> WindowLimits {
        let named = self.named.iter().find(|(name, _)| Some(name.as_str()) == kind);
        named.map_or(self.unnamed, |(_, limits)| *limits)
    }
}

/// The window of a stopped instance's partition, as a start would make it if the group stood at the
/// confirmed offset.
pub fn load(
    store: &impl Store,
    partition: PartitionId,
    head: Head,
    limits: WindowLimits,
) -> Result<Window, StoreError> {
    let mut window = Window::new(limits);
    load_window(store, partition, (head.confirmed, head.stream_time_ms), &mut window)?;
    Ok(window)
}

/// What `window`, made of the store's blocks, makes of an id whose confirmed owner is `owned`. `None`
/// for one that has no owner, unless one of the filters passes it by chance.
pub fn standing_of(
    (store, partition): (&impl Store, PartitionId),
    (window, bloom): (&Window, Option<BloomLimits>),
    identity: Identity,
    owned: Option<Owned>,
) -> Result<Option<Standing>, StoreError> {
    let verdict = window.verdict(Offset::MAX, &window.look(identity), &Stored { store, partition })?;
    let slice_at = |ms: i64| bloom.map_or(ms..ms.saturating_add(1), |limits| limits.slice_at(ms));
    let held = |start_ms: i64| {
        let slices = window.bloom().map(Bloom::slices).unwrap_or_default();
        slices.iter().any(|slice| slice.start_ms == start_ms)
    };
    Ok(match (verdict, owned.map(|owned| slice_at(owned.time_first_ms))) {
        (Verdict::Probable { since_ms }, None) => Some(Standing::Bloom { slice_ms: slice_at(since_ms) }),
        (Verdict::Duplicate { .. } | Verdict::Retry, Some(_)) => Some(Standing::Exact),
        (Verdict::Probable { .. }, Some(slice_ms)) if held(slice_ms.start) => {
            Some(Standing::Bloom { slice_ms })
        }
        // When another slice's filter passes it, that is chance.
        (Verdict::New | Verdict::Probable { .. }, Some(_)) => Some(Standing::Expired),
        (_, None) => None,
    })
}
