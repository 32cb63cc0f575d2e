//! Backwards: the window that fits into so much memory.

use std::time::Duration;

use serde::Serialize;

use super::{Memory, Question, seconds};

/// Longest window looked for: ten years.
const LONGEST: Duration = Duration::from_hours(10 * 365 * 24);

/// What fits into a given memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fits {
    /// The memory that is there.
    pub memory_bytes: u64,
    /// The longest window that is exact as a whole.
    pub exact: Fit,
    /// The longest Bloom window beyond the exact part that was asked for; `None` when there is no
    /// room for one.
    pub bloom: Option<Fit>,
}

/// A window and what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fit {
    /// The window as a whole, in seconds.
    #[serde(serialize_with = "seconds", rename = "window_seconds")]
    pub window: Duration,
    /// Memory once it is full.
    pub bytes: u64,
}

impl Fits {
    /// The windows that fit `memory_bytes`, for the traffic of `asked` and its exact part.
    #[must_use]
    pub fn of(asked: &Question, memory_bytes: u64) -> Self {
        let exact = |window| Question { exact: window, bloom: window, ..*asked };
        let bloom = |window| Question { bloom: window, ..*asked };
        Self {
            memory_bytes,
            exact: longest(Duration::ZERO, memory_bytes, exact)
                .unwrap_or(Fit { window: Duration::ZERO, bytes: 0 }),
            bloom: longest(asked.exact, memory_bytes, bloom).filter(|fit| fit.window > asked.exact),
        }
    }
}

/// The longest window from `least` on that fits, to the minute; `None` when `least` does not.
/// Memory grows in steps and may fall at some, so a longer one may fit by chance.
fn longest(least: Duration, memory_bytes: u64, asked: impl Fn(Duration) -> Question) -> Option<Fit> {
    let bytes = |window| Memory::of(&asked(window)).total_bytes;
    (bytes(least) <= memory_bytes).then_some(())?;
    let (mut fits, mut exceeds) = (least, LONGEST.max(least));
    while exceeds.saturating_sub(fits) > Duration::from_mins(1) {
        let middle = fits.saturating_add(exceeds.saturating_sub(fits) / 2);
        if bytes(middle) <= memory_bytes { fits = middle } else { exceeds = middle }
    }
    Some(Fit { window: fits, bytes: bytes(fits) })
}
