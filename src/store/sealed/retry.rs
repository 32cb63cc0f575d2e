//! When a slice is written again after one was discarded.

use std::time::{Duration, Instant};

use crate::clock::monotonic;

/// The pause after files were discarded while they were written.
#[derive(Default)]
pub(in crate::store) struct RetryPause {
    discarded: u32,
    pub until: Option<Instant>,
}

impl RetryPause {
    const FIRST: Duration = Duration::from_mins(1);
    const DOUBLINGS_MAX: u32 = 5;

    /// Begins the next pause, and returns its length.
    pub fn begin(&mut self) -> Duration {
        let pause = Self::FIRST * (1 << self.discarded.min(Self::DOUBLINGS_MAX));
        *self = Self { discarded: self.discarded + 1, until: Some(monotonic() + pause) };
        pause
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.until.is_none_or(|until| monotonic() >= until)
    }
}
