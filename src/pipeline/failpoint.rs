//! Named points where a test can kill the process as `kill -9` would.
//!
//! `DEDUPD_FAILPOINT=name:n` ends the process at the n-th passing of the point, without running any
//! clean-up. `DEDUPD_FAILPOINT_KILL=pid:micros` ends another process before it, after so long: a broker, in
//! the few milliseconds in which it writes the markers of a transaction. Exists only with the
//! `failpoints` feature; otherwise it compiles to nothing.

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
        kill_other();
        eprintln!("failpoint {name} reached");
        // SIGABRT runs no destructor, flushes nothing and closes sockets as SIGKILL does.
        std::process::abort();
    }
}

#[cfg(feature = "failpoints")]
#[expect(unsafe_code, reason = "the one system call that ends another process")]
fn kill_other() {
    unsafe extern "C" {
        fn kill(pid: i32, signal: i32) -> i32;
    }
    const SIGKILL: i32 = 9;
    let other = std::env::var("DEDUPD_FAILPOINT_KILL").ok().and_then(|setting| {
        let (pid, micros) = setting.split_once(':')?;
        Some((pid.parse().ok()?, micros.parse().ok()?))
    });
    if let Some((pid, micros)) = other.filter(|(pid, _): &(i32, u64)| *pid > 1) {
        std::thread::sleep(std::time::Duration::from_micros(micros));
        // SAFETY: a system call on numbers; the test names a process of its own.
        unsafe { kill(pid, SIGKILL) };
    }
}

/// Nothing, without the `failpoints` feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "an empty function on the data path")]
pub fn pass(_name: &str) {}
