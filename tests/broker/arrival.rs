//! Tests on a real Apache Kafka: `window.time = "arrival"` with clock steps forward and back, by minutes and by years.
//!
//! Requires `--features failpoints`: a file sets the clock.
#![cfg(feature = "failpoints")]

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Running, Sidecar, set_clock, shared_kafka};

const LIMIT: Duration = Duration::from_mins(1);
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const YEAR: i64 = 365 * 24 * HOUR;

/// A pipe with a window of one hour by arrival time, and the clock of its sidecar.
struct Clocked {
    pipe: Pipe<'static>,
    file: PathBuf,
    sidecar: Sidecar,
    /// Simulated time so far, and since the start of the process, in milliseconds.
    passed: (i64, i64),
    /// The error of the wall clock, in milliseconds.
    error: i64,
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
        Self { pipe, file, sidecar, passed: (0, 0), error: 0 }
    }

    fn start(&mut self) -> Running {
        self.passed.1 = 0;
        self.write();
        let running = self.sidecar.start();
        running.wait_running(1, LIMIT);
        running
    }

    fn write(&self) {
        set_clock(&self.file, self.passed.0 + self.error, self.passed.1);
    }

    fn pass(&mut self, ms: i64) {
        self.passed = (self.passed.0 + ms, self.passed.1 + ms);
        self.write();
    }

    fn set_error(&mut self, error: i64) {
        self.error = error;
        self.write();
    }

    /// Produces these ids now, and returns whether each one is forwarded.
    fn forwards(&self, ids: &[&str]) -> Vec<bool> {
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

/// Runs a check for each clock step at the same time, each with its own pipe: most of the time it waits for commits.
fn with_each<const N: usize>(steps: [i64; N], check: fn(i64)) {
    std::thread::scope(|all| {
        for step in steps {
            all.spawn(move || check(step));
        }
    });
}

#[test]
fn a_clock_step_neither_flushes_nor_freezes_the_window() {
    with_each([-YEAR, -90 * MINUTE, -10 * MINUTE, 90 * MINUTE, YEAR], |step| {
        let mut it = Clocked::new(&format!("arrival{step}"));
        let running = it.start();
        assert_eq!(it.forwards(&["a", "a"]), [true, false]);
        it.set_error(step);
        assert_eq!(
            it.forwards(&["a", "b"]),
            [false, true],
            "step of {step} ms: known ids stay in the window"
        );
        it.pass(30 * MINUTE);
        assert_eq!(it.forwards(&["a", "b"]), [false, false], "step of {step} ms, half an hour later");
        it.pass(40 * MINUTE);
        assert_eq!(it.forwards(&["a", "c"]), [true, true], "step of {step} ms: ids expire after an hour");
        it.set_error(0);
        assert_eq!(it.forwards(&["c"]), [false], "corrected after {step} ms");
        it.pass(70 * MINUTE);
        assert_eq!(it.forwards(&["c"]), [true], "corrected after {step} ms: the window is not frozen");
        if step.abs() > 60 * MINUTE {
            assert!(running.text().contains("the clock of this machine stepped"), "{}", running.text());
        }
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    });
}

#[test]
fn a_wrong_clock_at_a_restart_does_not_freeze_the_window() {
    with_each([-YEAR, -90 * MINUTE, YEAR], |step| {
        let mut it = Clocked::new(&format!("arrivals{step}"));
        let running = it.start();
        assert_eq!(it.forwards(&["a"]), [true]);
        running.kill9();
        // The clock is wrong from this start on.
        it.set_error(step);
        let running = it.start();
        assert_eq!(it.forwards(&["a", "b"]), [false, true], "{step} ms wrong at the restart");
        it.pass(40 * MINUTE);
        assert_eq!(it.forwards(&["b", "c"]), [false, true], "{step} ms wrong");
        running.kill9();
        // The clock is still wrong, but the downtime of half an hour is real.
        it.passed.0 += 30 * MINUTE;
        let running = it.start();
        assert_eq!(it.forwards(&["b", "c"]), [true, false], "{step} ms wrong, the downtime counts");
        running.kill9();
        it.set_error(0);
        let running = it.start();
        assert_eq!(it.forwards(&["b", "c"]), [false, false], "{step} ms wrong, then corrected");
        it.pass(70 * MINUTE);
        assert_eq!(it.forwards(&["c"]), [true], "{step} ms wrong, then corrected: the window is not frozen");
        running.kill9();
    });
}
