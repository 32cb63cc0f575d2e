//! The inverse calculation: the longest window that fits into a given memory.

use std::time::Duration;

use serde::Serialize;

use super::{Memory, Workload, seconds};

/// Upper limit of the search: ten years.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// The windows that fit into a given memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fits {
    /// Value of `--memory`.
    pub memory_bytes: u64,
    /// Value of `--exact`, in seconds.
    #[serde(serialize_with = "seconds", rename = "asked_seconds")]
    pub asked: Duration,
    /// The longest window that is entirely exact.
    pub exact: Fit,
    /// The longest window with filters beyond the requested exact part; `None` if none fits.
    pub bloom: Option<Fit>,
}

/// A window and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    /// The whole window, in seconds.
    #[serde(serialize_with = "seconds", rename = "window_seconds")]
    pub window: Duration,
    /// Memory once it is full.
    pub bytes: u64,
}

impl Fits {
    /// The windows that fit `memory_bytes`, for the traffic of `asked` and its exact part, if they grow: a table of fixed size fits whatever
    /// the length of the window.
    #[must_use]
    pub fn of(asked: &Workload, memory_bytes: u64) -> Self {
        let exact = |window| Workload { exact: window, bloom: window, slots: None, ..*asked };
        let bloom = |window| Workload { bloom: window, slots: None, ..*asked };
        Self {
            memory_bytes,
            asked: asked.exact,
            exact: longest(Duration::ZERO, memory_bytes, exact)
                .unwrap_or(Fit { window: Duration::ZERO, bytes: 0 }),
            bloom: longest(asked.exact, memory_bytes, bloom).filter(|fit| fit.window > asked.exact),
        }
    }
}

/// The longest window of at least `least` that fits, to the minute; `None` if `least` does not fit.
/// Memory grows in steps and may decrease at some, so an even longer window may fit.
fn longest(least: Duration, memory_bytes: u64, asked: impl Fn(Duration) -> Workload) -> Option<Fit> {
    let bytes = |window| Memory::of(&asked(window)).total_bytes;
    (bytes(least) <= memory_bytes).then_some(())?;
    let (mut fits, mut exceeds) = (least, LONGEST.max(least));
    while exceeds.saturating_sub(fits) > Duration::from_mins(1) {
        let middle = fits.saturating_add(exceeds.saturating_sub(fits) / 2);
        if bytes(middle) <= memory_bytes { fits = middle } else { exceeds = middle }
    }
    Some(Fit { window: fits, bytes: bytes(fits) })
}
