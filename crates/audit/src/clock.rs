//! The clocks of the operating system. No other code of the audit calls `SystemTime::now` or `Instant::now` (`clippy.toml`).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall clock, epoch milliseconds.
#[expect(clippy::disallowed_methods, reason = "this file reads the clocks")]
pub(super) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Monotonic clock, for durations and deadlines.
#[expect(clippy::disallowed_methods, reason = "this file reads the clocks")]
pub(super) fn monotonic() -> Instant {
    Instant::now()
}
