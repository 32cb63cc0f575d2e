//! The local state.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::as_typed::TypedState;
use crate::config::choices::OnPoison;
use crate::config::reading::Reading;

/// The local state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The directory; one process at a time.
    pub dir: PathBuf,
    /// Memory for reading it, in bytes, at least 1 MiB.
    pub cache: u64,
    /// Most bytes of the directory, at least 64 MiB.
    pub max_disk: Option<u64>,
    /// What to do with a record that the broker refuses.
    pub on_poison: OnPoison,
    /// How long it is tried again before that.
    pub poison_retry: Duration,
}

/// Below, the engine's own files and dead space would leave nothing for the state.
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
