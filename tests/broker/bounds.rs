//! Tests on a real Apache Kafka: reached limits on memory and disk, and a full disk.
//!
//! Requires `--features failpoints`: a file sets the clock.
#![cfg(feature = "failpoints")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Draft, Pipe, Running, Scope, Sidecar, now_ms, set_clock, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(3);
const HOUR_MS: i64 = 3_600_000;
const MIB: u64 = 1 << 20;

/// A window of one hour, and 500 ids per second of record time: 1.8 M in an hour.
struct Stream<'p> {
    pipe: &'p Pipe<'p>,
    start_ms: i64,
    sent: u64,
    /// Number of records for the running process.
    for_process: u64,
}

impl Stream<'_> {
    fn at(&self, number: u64) -> i64 {
        self.start_ms + i64::try_from(number * 2).unwrap()
    }

    fn send(&mut self, count: u64) {
        let draft = |number: u64| Draft::id(0, &number.to_string()).at(self.at(number));
        for from in (self.sent..self.sent + count).step_by(50_000) {
            let some: Vec<Draft> = (from..(from + 50_000).min(self.sent + count)).map(draft).collect();
            self.pipe.kafka.send(&self.pipe.raw, &some);
        }
        self.sent += count;
        self.for_process += count;
        self.pipe.wait_caught_up(1, LIMIT);
    }

    /// Number of forwarded records, after all are counted.
    fn forwarded(&self, running: &Running) -> u64 {
        wait_until("all records to be counted", LIMIT, || {
            let [forwarded, duplicates] = ["forwarded", "duplicate"].map(|outcome| running.outcome(outcome));
            (forwarded + duplicates == self.for_process).then_some(forwarded)
        })
    }

    /// Produces an id again with the newest timestamp, and returns whether it is forwarded.
    fn is_forwarded(&mut self, running: &Running, number: u64) -> bool {
        let before = self.forwarded(running);
        let draft = Draft::id(0, &number.to_string()).at(self.at(self.sent));
        self.pipe.kafka.send(&self.pipe.raw, &[draft]);
        self.for_process += 1;
        self.pipe.wait_caught_up(1, LIMIT);
        self.forwarded(running) > before
    }

    /// The reported length of the window. Asserts that it is shorter than configured, and that ids within it are known.
    fn shortened_to(&mut self, running: &Running) -> f64 {
        let reported = |most: f64| {
            wait_until(&format!("a window of less than {most} s in the metrics"), LIMIT, || {
                running.metric("dedupd_window_seconds{partition=\"0\"}").filter(|s| *s > 0.0 && *s < most)
            })
        };
        let mut seconds = reported(3_500.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few million at most")]
        let nth = |of: f64, seconds: f64| (seconds * 500.0 * of) as u64 + 1;
        // The window may have become shorter since its length was published. Then an id outside of it is forwarded, and the next
        // length shows that.
        while let Some(back) = [0.01, 0.5, 0.95]
            .map(|of| nth(of, seconds))
            .into_iter()
            .find(|back| self.is_forwarded(running, self.sent - back))
        {
            seconds = reported(back as f64 / 500.0);
        }
        seconds
    }

    /// Asserts the warning with the limit and the command, and that a restart does not report a longer window.
    fn assert_reported(mut self, mut running: Running, sidecar: &Sidecar, limit: &str) {
        wait_until("the warning", LIMIT, || {
            // Limits are enforced at commits.
            self.is_forwarded(&running, self.sent - 1);
            let text = running.text();
            (text.contains(limit) && text.contains("dedupd plan")).then_some(())
        });
        let advice = running.complaints().into_iter().find(|line| line.contains("dedupd plan")).unwrap();
        assert_eq!(advice.contains("--memory"), limit.contains("max_memory"), "only what limits: {advice}");
        let before = self.shortened_to(&running);
        running.kill9();
        self.for_process = 0;
        running = sidecar.start();
        running.wait_running(1, LIMIT);
        let after = self.shortened_to(&running);
        assert!(after <= before + 60.0, "{after} s reported after a restart, {before} before");
        assert!(running.get("/readyz").unwrap().contains(limit), "{}", running.get("/readyz").unwrap());
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    }
}

fn stream<'p>(pipe: &'p Pipe<'p>) -> Stream<'p> {
    Stream { pipe, start_ms: now_ms() - 48 * HOUR_MS, sent: 0, for_process: 0 }
}

/// Nothing is sealed: 16 MiB would suffice for three million sealed ids. The ids of an open transaction are added to those that the window may
/// contain. A window has a reserve of 1/64, here 10,000 ids.
fn in_16_mib(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a")
        .with("DEDUPD_WINDOW__EXACT", "1h")
        .with("DEDUPD_WINDOW__MAX_MEMORY", "16MiB")
        .with("DEDUPD_SMALLEST_SLICE", "100000000")
        .with("DEDUPD_BATCH__MAX_RECORDS", "5000")
}

#[test]
fn memory_stays_within_its_limit_and_the_oldest_ids_expire_first() {
    let pipe = Pipe::new(shared_kafka(), "memory", 1);
    let sidecar = in_16_mib(&pipe);
    let mut stream = stream(&pipe);
    let running = sidecar.start();
    for _ in 0..6 {
        stream.send(250_000);
        let held = held(&running);
        println!("{} ids, {held} bytes", stream.sent);
        assert!(held > 0.0 && held <= (16 * MIB) as f64, "{held} bytes");
    }
    assert!(stream.is_forwarded(&running, 0), "the oldest id is still known");
    stream.assert_reported(running, &sidecar, "window.max_memory = \"16MiB\"");
}

fn held(running: &Running) -> f64 {
    let part = |part| running.metric(&format!("dedupd_memory_bytes{{part=\"{part}\"}}")).unwrap();
    ["index", "slices"].map(part).iter().sum()
}

#[test]
fn a_partition_with_nearly_all_ids_uses_the_memory_that_the_others_leave() {
    let pipe = Pipe::new(shared_kafka(), "uneven", 8);
    // An eighth of the memory has room for less than 100,000 ids.
    let sidecar = in_16_mib(&pipe).scoped(Scope::Partition);
    let mut stream = stream(&pipe);
    let running = sidecar.start();
    stream.send(300_000);
    assert!(!stream.is_forwarded(&running, 0), "the oldest id was dropped although memory is free");
    let page = running.get("/readyz").unwrap();
    assert!(!page.contains("window.max_memory"), "{page}");
    assert!(held(&running) <= (16 * MIB) as f64, "{} bytes", held(&running));
    let limits = "limits max_memory=\"16MiB\" memory_from=\"window.max_memory\" max_ids=\"none\"";
    assert!(running.text().contains(limits), "{}", running.text());
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Bytes of the files below a directory.
pub fn bytes_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).map_or(Vec::new(), |entries| entries.flatten().collect());
    let size = |entry: &fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        // The file was deleted meanwhile.
        Err(_) => 0,
    };
    entries.iter().map(size).sum()
}

#[test]
fn the_directory_stays_within_its_limit_and_the_oldest_ids_expire_first() {
    let pipe = Pipe::new(shared_kafka(), "disk", 1);
    let clock = pipe.dir.path().join("clock");
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_WINDOW__EXACT", "1h")
        .with("DEDUPD_STATE__MAX_DISK", "32MiB")
        .with("DEDUPD_CLOCK", clock.to_str().unwrap());
    let mut stream = stream(&pipe);
    let running = sidecar.start();
    // As after an outage: the limit is reached in less than the longest interval between two measurements.
    stream.send(700_000);
    for step in 1..=15 {
        stream.send(40_000);
        let bytes = bytes_of(&sidecar.state_dir);
        println!("{} ids, {bytes} bytes", stream.sent);
        assert!(bytes <= 32 * MIB, "{bytes} bytes with {} ids", stream.sent);
        // The interval between two measurements passes.
        set_clock(&clock, 0, step * 11_000);
    }
    assert!(stream.is_forwarded(&running, 0), "the oldest id is still known");
    stream.assert_reported(running, &sidecar, "state.max_disk = \"32MiB\"");
}

#[test]
fn state_of_a_partition_that_moved_away_is_deleted_before_windows_become_shorter() {
    let pipe = Pipe::new(shared_kafka(), "moved", 2);
    let clock = pipe.dir.path().join("clock");
    let sidecar = |name: &str| {
        pipe.sidecar(name)
            .with("DEDUPD_DEDUPE__SCOPE", "partition")
            .with("DEDUPD_WINDOW__EXACT", "1h")
            .with("DEDUPD_STATE__MAX_DISK", "19MiB")
    };
    let one = sidecar("a").with("DEDUPD_CLOCK", clock.to_str().unwrap());
    let (first, start_ms) = (one.start(), now_ms() - 48 * HOUR_MS);
    let send = |partition, from: u64, count: u64| {
        let draft = |number: u64| {
            Draft::id(partition, &format!("{partition}-{number}"))
                .at(start_ms + i64::try_from(number * 2).unwrap())
        };
        for begin in (from..from + count).step_by(40_000) {
            let some: Vec<Draft> = (begin..begin + 40_000).map(draft).collect();
            pipe.kafka.send(&pipe.raw, &some);
        }
        pipe.wait_caught_up(2, LIMIT);
    };
    for partition in [0, 1] {
        send(partition, 0, 120_000);
    }
    let second = sidecar("b").start();
    second.wait_running(1, LIMIT);
    let stays = wait_until("a partition at each instance", LIMIT, || {
        let has = |id| {
            first.metric(&format!("dedupd_window_ids{{partition=\"{id}\"}}")).is_some_and(|ids| ids > 0.0)
        };
        (has(0) != has(1)).then_some(i32::from(has(1)))
    });
    // Windows become shorter at 11.8 MiB, with what moved after some steps. State that nothing has held for 30 s is deleted.
    let deleted = "local state of a partition that moved";
    for step in 0..12 {
        send(stays, 120_000 + step * 40_000, 40_000);
        println!("{} bytes", bytes_of(&one.state_dir));
        set_clock(&clock, 0, (i64::try_from(step).unwrap() + 1) * 31_000);
        std::thread::sleep(Duration::from_secs(1));
        if first.text().contains(deleted) {
            break;
        }
    }
    let text = first.text();
    let (before, _) = text.split_once(deleted).unwrap_or_else(|| panic!("{text}"));
    assert!(!before.contains("dedupd plan"), "{text}");
    // The oldest ids are still known.
    send(stays, 0, 40_000);
    let bytes = bytes_of(&one.state_dir);
    assert!(bytes <= 19 * MIB, "{bytes} bytes");
    assert_eq!((first.stop(), second.stop()), (Some(0), Some(0)));
    pipe.assert_exactly_once();
}

/// One worker is in a call that does not return, as on a disk that does not answer. The other one fails.
#[test]
fn a_thread_that_never_returns_does_not_keep_a_failed_process_alive() {
    let pipe = Pipe::new(shared_kafka(), "never-returns", 2);
    let gate = pipe.dir.path().join("gate");
    let sidecar = pipe.sidecar("a").sharing(2).with("DEDUPD_WINDOW__EXACT", "1h");
    let running = sidecar.clone().with_file_limit(700 << 10).held_at("before_commit", &gate).start();
    // One worker is held, and the other one meets the limit.
    running.wait_even(2, 1, LIMIT);
    let load = pipe.load(2, 40_000);
    let status = running.wait(LIMIT);
    assert!(status.code() == Some(4) && gate.exists(), "{status}\n{}", running.text());
    load.finish();
    let running = sidecar.start();
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

#[test]
fn a_full_disk_ends_the_process_with_its_name_and_loses_nothing() {
    let pipe = Pipe::new(shared_kafka(), "full", 1);
    let sidecar = pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1h");
    // Writes beyond this file size fail as on a full disk, only in this process.
    let running = sidecar.clone().with_file_limit(700 << 10).start();
    let load = pipe.load(1, 20_000);
    let status = running.wait(LIMIT);
    let text = running.text();
    assert_eq!(status.code(), Some(4), "{text}");
    let state_dir = sidecar.state_dir.to_str().unwrap();
    let line = text.lines().rfind(|line| line.contains(state_dir)).unwrap_or_default();
    assert!(line.contains("ulimit"), "{text}");
    load.finish();
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}
