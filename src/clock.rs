//! The clocks. Every time comes from here: no other code calls `SystemTime::now` or `Instant::now` (`clippy.toml`).
//!
//! `dedupe` receives times as arguments. `pipeline` uses a [`Clock`], which the simulation replaces. Code with I/O of its own
//! calls [`wall_ms`] and [`monotonic`], and measures from an instant with `Instant::elapsed`.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall clock, epoch milliseconds.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file reads the clocks")]
pub fn wall_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
        .saturating_add(test_offset().0)
}

/// Monotonic clock, for durations and deadlines.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file reads the clocks")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The clocks of a worker. The simulation has its own implementation.
pub trait Clock {
    /// Wall clock, epoch milliseconds.
    fn wall_ms(&self) -> i64;
    /// Monotonic time since some fixed moment.
    fn elapsed(&self) -> std::time::Duration;
    /// Waits before the next attempt of a failed operation.
    fn rest(&self, pause: std::time::Duration);
}

/// The clocks of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: monotonic() }
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    fn elapsed(&self) -> std::time::Duration {
        self.origin.elapsed() + test_offset().1
    }

    fn rest(&self, pause: std::time::Duration) {
        std::thread::sleep(pause);
    }
}

/// Test builds: how far the wall clock and the monotonic clock are set forward, ms, read from the file named by
/// `DEDUPD_CLOCK`. Both are zero without that variable.
#[cfg(feature = "failpoints")]
fn test_offset() -> (i64, std::time::Duration) {
    static FILE: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("DEDUPD_CLOCK"));
    let text = file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|number| number.parse::<i64>().unwrap_or(0));
    let (wall, monotonic) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (wall, std::time::Duration::from_millis(monotonic.unsigned_abs()))
}

#[cfg(not(feature = "failpoints"))]
const fn test_offset() -> (i64, std::time::Duration) {
    (0, std::time::Duration::ZERO)
}
