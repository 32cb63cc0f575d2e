//! The only reader of time. Everything else gets `now` as an argument.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, by the wall clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file is where time is read")]
pub fn wall_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
        .saturating_add(put_forward().0)
}

/// The monotonic clock, for measuring and for deadlines.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file is where time is read")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Where a worker gets the time from. The simulation has its own.
pub trait Clock {
    /// Milliseconds since the Unix epoch.
    fn wall_ms(&self) -> i64;
    /// Time since some fixed moment; never goes back.
    fn elapsed(&self) -> std::time::Duration;
    /// Lets time pass before the next attempt of something that failed.
    fn rest(&self, pause: std::time::Duration);
}

/// The clocks of the machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that counts from now.
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
        self.origin.elapsed() + put_forward().1
    }

    fn rest(&self, pause: std::time::Duration) {
        std::thread::sleep(pause);
    }
}

/// Test builds: what the file named by `DEDUPD_CLOCK` puts the wall clock and the monotonic clock forward, in ms. Both are
/// zero without it.
#[cfg(feature = "failpoints")]
fn put_forward() -> (i64, std::time::Duration) {
    static FILE: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("DEDUPD_CLOCK"));
    let text = file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|number| number.parse::<i64>().unwrap_or(0));
    let (wall, monotonic) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (wall, std::time::Duration::from_millis(monotonic.unsigned_abs()))
}

#[cfg(not(feature = "failpoints"))]
const fn put_forward() -> (i64, std::time::Duration) {
    (0, std::time::Duration::ZERO)
}
