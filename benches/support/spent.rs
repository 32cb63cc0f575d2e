//! The clock of benches that measure one thread's work.

use std::time::Duration;

/// Processor time of this thread in seconds, or else the time that has passed.
pub fn spent() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(dedupd::clock::monotonic);
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split(' ').next().and_then(|word| word.parse().ok()));
    nanos.map_or_else(|| START.elapsed(), Duration::from_nanos).as_secs_f64()
}
