//! Named points where a test can hold the process, delay it, let it panic, or end it like `kill -9`.
//!
//! `DEDUPD_FAILPOINT=name:n` ends the process when it passes the point for the n-th time, without any clean-up, and
//! `DEDUPD_FAILPOINT_PANIC=name:n` panics there.
//! `DEDUPD_FAILPOINT_HOLD=name:n:file` creates the file there, and waits until the file is removed.
//! `DEDUPD_FAILPOINT_DELAY=name:ms` waits so many milliseconds each time. Compiled only with the `failpoints` feature;
//! otherwise `pass` is an empty function.

/// Passes the failpoint `name`: delays, holds or ends the process if the environment configures that.
///
/// # Panics
///
/// If the environment configures that.
#[cfg(feature = "failpoints")]
pub fn pass(name: &str) {
    use armed::{DELAY, END, HOLD, PANIC};

    if let Some(delay) = DELAY.number_at(name) {
        std::thread::sleep(std::time::Duration::from_millis(delay));
    }
    if let Some(file) = HOLD.reached(name) {
        armed::hold(&file);
    }
    assert!(PANIC.reached(name).is_none(), "failpoint {name} reached");
    if END.reached(name).is_some() {
        eprintln!("failpoint {name} reached");
        // SIGABRT runs no destructor, flushes nothing and closes sockets as SIGKILL does.
        std::process::abort();
    }
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// A failpoint configured in the environment, as `name:number` or `name:number:argument`.
    pub struct Point {
        variable: &'static str,
        setting: OnceLock<Option<(String, u64, String)>>,
        passed: AtomicU64,
    }

    pub static END: Point = Point::in_variable("DEDUPD_FAILPOINT");
    pub static HOLD: Point = Point::in_variable("DEDUPD_FAILPOINT_HOLD");
    pub static PANIC: Point = Point::in_variable("DEDUPD_FAILPOINT_PANIC");
    pub static DELAY: Point = Point::in_variable("DEDUPD_FAILPOINT_DELAY");

    impl Point {
        const fn in_variable(variable: &'static str) -> Self {
            Self { variable, setting: OnceLock::new(), passed: AtomicU64::new(0) }
        }

        /// Counts a passing of `name`. Returns the argument at the configured count.
        pub fn reached(&self, name: &str) -> Option<String> {
            let (_, count, argument) = self.setting().filter(|(at, ..)| at == name)?;
            (self.passed.fetch_add(1, Ordering::Relaxed) + 1 == *count).then(|| argument.clone())
        }

        /// The configured number, if the failpoint is `name`.
        pub fn number_at(&self, name: &str) -> Option<u64> {
            self.setting().filter(|(at, ..)| at == name).map(|(_, number, _)| *number)
        }

        fn setting(&self) -> Option<&(String, u64, String)> {
            let setting = self.setting.get_or_init(|| {
                let setting = std::env::var(self.variable).ok()?;
                let (name, rest) = setting.split_once(':')?;
                let (number, argument) = rest.split_once(':').unwrap_or((rest, ""));
                Some((name.to_owned(), number.parse().ok()?, argument.to_owned()))
            });
            setting.as_ref()
        }
    }

    pub fn hold(file: &str) {
        if let Err(error) = std::fs::write(file, "held") {
            eprintln!("cannot create {file}: {error}");
            return;
        }
        while std::path::Path::new(file).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Does nothing, without the `failpoints` feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn pass(_name: &str) {}
