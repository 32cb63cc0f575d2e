//! The local state.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::as_typed::TypedState;
use crate::config::choices::OnRejected;
use crate::config::reading::Reading;

/// The local state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The directory, used by one process at a time.
    pub dir: PathBuf,
    /// Memory of the read cache, in bytes, at least 1 MiB.
    pub cache: u64,
    /// Maximum size of the directory in bytes, at least 16 MiB.
    pub max_disk: Option<u64>,
    /// The policy for a record that the broker rejects.
    pub on_poison: OnRejected,
    /// How long such a record is retried first.
    pub poison_retry: Duration,
}

/// With less, the engine's own files and dead space would leave no space for the state.
const LEAST_DISK: u64 = 16 << 20;

pub(super) fn validate(typed: &TypedState, reading: &mut Reading<'_>) -> Option<State> {
    let dir = reading.required("state.dir", typed.dir.as_deref(), "name a directory for the local state");
    let cache = reading.bytes("state.cache", typed.cache.as_deref(), 1 << 20);
    let max_disk =
        typed.max_disk.as_deref().and_then(|text| reading.bytes("state.max_disk", Some(text), LEAST_DISK));
    let poison_retry = reading.duration("state.poison_retry", typed.poison_retry.as_deref(), Duration::ZERO);
    let on_poison = reading.choice("state.on_poison", typed.on_poison.as_deref());
    Some(State {
        dir: PathBuf::from(dir?),
        cache: cache?,
        max_disk,
        on_poison: on_poison?,
        poison_retry: poison_retry?,
    })
}
