//! On a real Apache Kafka: `window.time = "arrival"` and a clock that is put forward and back, by minutes and by years.
//!
//! Needs `--features failpoints`: the clock is put by a file.
#![cfg(feature = "failpoints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use support::{Draft, Isolation, Pipe, Running, Sidecar, shared_kafka};

const LIMIT: Duration = Duration::from_mins(1);
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const YEAR: i64 = 365 * 24 * HOUR;

/// A pipe with a window of an hour by arrival, and the clock of its sidecar.
struct Clocked {
    pipe: Pipe<'static>,
    file: PathBuf,
    sidecar: Sidecar,
    /// Real time that has passed so far, and since the process began, ms.
    passed: (i64, i64),
    /// What the wall clock is wrong by, ms.
    wrong: i64,
}

impl Clocked {
    fn new(name: &str) -> Self {
        let pipe = Pipe::new(shared_kafka(), name, 1);
        let file = pipe.dir.path().join("clock");
        let sidecar = pipe
            .sidecar("a")
            .with("DEDUPD_WINDOW__EXACT", "1h")
            .with("DEDUPD_WINDOW__TIME", "arrival")
            .with("DEDUPD_CLOCK", file.to_str().unwrap());
        Self { pipe, file, sidecar, passed: (0, 0), wrong: 0 }
    }

    fn start(&mut self) -> Running {
        self.passed.1 = 0;
        self.write();
        let running = self.sidecar.start();
        running.wait_running(1, LIMIT);
        running
    }

    fn write(&self) {
        let part = self.file.with_extension("part");
        std::fs::write(&part, format!("{} {}", self.passed.0 + self.wrong, self.passed.1)).unwrap();
        std::fs::rename(part, &self.file).unwrap();
    }

    fn pass(&mut self, ms: i64) {
        self.passed = (self.passed.0 + ms, self.passed.1 + ms);
        self.write();
    }

    fn put(&mut self, wrong: i64) {
        self.wrong = wrong;
        self.write();
    }

    /// Whether each of these ids is forwarded when it comes now.
    fn news(&self, ids: &[&str]) -> Vec<bool> {
        let count = || self.pipe.kafka.records(&self.pipe.clean, Isolation::Committed).len();
        let one = |id: &&str| {
            let before = count();
            self.pipe.kafka.send(&self.pipe.raw, &[Draft::id(0, id)]);
            self.pipe.wait_caught_up(1, LIMIT);
            count() > before
        };
        ids.iter().map(one).collect()
    }
}

#[test]
fn a_clock_put_forward_and_back_neither_flushes_the_window_nor_freezes_it() {
    for step in [-YEAR, -90 * MINUTE, -10 * MINUTE, 90 * MINUTE, YEAR] {
        let mut it = Clocked::new(&format!("arrival{step}"));
        let running = it.start();
        assert_eq!(it.news(&["a", "a"]), [true, false]);
        it.put(step);
        assert_eq!(it.news(&["a", "b"]), [false, true], "put by {step} ms: known ids stay known");
        it.pass(30 * MINUTE);
        assert_eq!(it.news(&["a", "b"]), [false, false], "put by {step} ms, half an hour later");
        it.pass(40 * MINUTE);
        assert_eq!(it.news(&["a", "c"]), [true, true], "put by {step} ms: an hour is an hour");
        it.put(0);
        assert_eq!(it.news(&["c"]), [false], "put right again after {step} ms");
        it.pass(70 * MINUTE);
        assert_eq!(it.news(&["c"]), [true], "put right again after {step} ms: nothing is frozen");
        if step.abs() > 60 * MINUTE {
            assert!(running.text().contains("the clock of this machine stepped"), "{}", running.text());
        }
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    }
}

#[test]
fn a_clock_that_is_wrong_at_a_restart_or_was_before_is_no_standstill() {
    for step in [-YEAR, -90 * MINUTE, YEAR] {
        let mut it = Clocked::new(&format!("arrivals{step}"));
        let running = it.start();
        assert_eq!(it.news(&["a"]), [true]);
        running.kill9();
        // Wrong from this start on.
        it.put(step);
        let running = it.start();
        assert_eq!(it.news(&["a", "b"]), [false, true], "{step} ms wrong at the restart");
        it.pass(40 * MINUTE);
        assert_eq!(it.news(&["b", "c"]), [false, true], "{step} ms wrong");
        running.kill9();
        // Still wrong; half an hour is no mistake, though.
        it.passed.0 += 30 * MINUTE;
        let running = it.start();
        assert_eq!(it.news(&["b", "c"]), [true, false], "{step} ms wrong, the standstill counts");
        running.kill9();
        it.put(0);
        let running = it.start();
        assert_eq!(it.news(&["b", "c"]), [false, false], "{step} ms wrong, then put right");
        it.pass(70 * MINUTE);
        assert_eq!(it.news(&["c"]), [true], "{step} ms wrong, then put right: nothing is frozen");
        running.kill9();
    }
}
