//! Named points where a test can hold the process, or end it as `kill -9` would.
//!
//! `DEDUPD_FAILPOINT=name:n` ends the process at the n-th passing of the point, without running any
//! clean-up. `DEDUPD_FAILPOINT_HOLD=name:n:file` makes the file there, and waits until it is gone. Exists
//! only with the `failpoints` feature; otherwise it compiles to nothing.

/// Does here what the environment says.
#[cfg(feature = "failpoints")]
pub fn pass(name: &str) {
    use armed::{END, HOLD};

    if let Some(file) = HOLD.reached(name) {
        armed::hold(&file);
    }
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

    /// A point named in the environment, as `name:count` or `name:count:more`.
    pub struct Point {
        variable: &'static str,
        setting: OnceLock<Option<(String, u64, String)>>,
        passed: AtomicU64,
    }

    pub static END: Point = Point::in_variable("DEDUPD_FAILPOINT");
    pub static HOLD: Point = Point::in_variable("DEDUPD_FAILPOINT_HOLD");

    impl Point {
        const fn in_variable(variable: &'static str) -> Self {
            Self { variable, setting: OnceLock::new(), passed: AtomicU64::new(0) }
        }

        /// What follows the count, at the passing that counts.
        pub fn reached(&self, name: &str) -> Option<String> {
            let setting = self.setting.get_or_init(|| {
                let setting = std::env::var(self.variable).ok()?;
                let (name, rest) = setting.split_once(':')?;
                let (count, more) = rest.split_once(':').unwrap_or((rest, ""));
                Some((name.to_owned(), count.parse().ok()?, more.to_owned()))
            });
            let (at, count, more) = setting.as_ref()?;
            (at == name && self.passed.fetch_add(1, Ordering::Relaxed) + 1 == *count).then(|| more.clone())
        }
    }

    pub fn hold(file: &str) {
        if let Err(error) = std::fs::write(file, "held") {
            eprintln!("cannot make {file}: {error}");
            return;
        }
        while std::path::Path::new(file).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Nothing, without the `failpoints` feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[expect(clippy::inline_always, reason = "an empty function on the data path")]
pub fn pass(_name: &str) {}
