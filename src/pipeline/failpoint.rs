//! Named points where a test can kill the process as `kill -9` would.
//!
//! `DEDUPD_FAILPOINT=name:n` ends the process at the n-th passing of the point, without running any
//! clean-up. Exists only with the `failpoints` feature; otherwise it compiles to nothing.

/// Ends the process here when the environment says so.
#[cfg(feature = "failpoints")]
pub fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let armed = ARMED.get_or_init(|| {
        let setting = std::env::var("DEDUPD_FAILPOINT").ok()?;
        let (name, count) = setting.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    if let Some((at, count)) = armed
        && at == name
        && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count
    {
        eprintln!("failpoint {name} reached");
        // SIGABRT runs no destructor, flushes nothing and closes sockets as SIGKILL does.
        std::process::abort();
    }
}

/// Nothing, without the `failpoints` feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "an empty function on the data path")]
pub fn pass(_name: &str) {}
