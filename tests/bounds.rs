//! On a real Apache Kafka: limits on memory and disk that a service reaches, and a disk that is full.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;
use support::{Draft, Pipe, Running, Sidecar, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(3);
const HOUR_MS: i64 = 3_600_000;
const MIB: u64 = 1 << 20;

/// A window of an hour, and ids at 500 a second of the records' time: 1.8 M in an hour.
struct Stream<'p> {
    pipe: &'p Pipe<'p>,
    start_ms: i64,
    sent: u64,
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
        self.pipe.wait_caught_up(1, LIMIT);
    }

    /// Sends an id again, at the newest time; whether it goes through.
    fn goes_through(&self, running: &Running, number: u64) -> bool {
        let before = running.outcome("forwarded");
        let draft = Draft::id(0, &number.to_string()).at(self.at(self.sent));
        self.pipe.kafka.send(&self.pipe.raw, &[draft]);
        self.pipe.wait_caught_up(1, LIMIT);
        running.outcome("forwarded") > before
    }

    /// The window's claim, that it is shorter than asked, and that it is true.
    fn shortened_to(&self, running: &Running) -> f64 {
        let claimed = wait_until("a shorter window in the metrics", LIMIT, || {
            running.metric("dedupd_window_seconds{partition=\"0\"}").filter(|s| *s > 0.0 && *s < 3_500.0)
        });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few million at most")]
        let ids_within = (claimed * 500.0) as u64;
        for part in [1, 50, 95] {
            let number = self.sent - ids_within * part / 100 - 1;
            assert!(!self.goes_through(running, number), "{number} of {} in {claimed} s", self.sent);
        }
        claimed
    }

    /// The warning with the limit and the command, and a restart that does not claim more.
    fn is_told(&self, mut running: Running, sidecar: &Sidecar, limit: &str) {
        wait_until("the warning", LIMIT, || {
            // Limits are enforced by commits.
            self.goes_through(&running, self.sent - 1);
            let text = running.text();
            (text.contains(limit) && text.contains("dedupd plan")).then_some(())
        });
        let before = self.shortened_to(&running);
        running.kill9();
        running = sidecar.start();
        running.wait_running(1, LIMIT);
        let after = self.shortened_to(&running);
        assert!(after <= before + 60.0, "{after} s claimed after a restart, {before} before");
        assert!(running.get("/readyz").unwrap().contains(limit), "{}", running.get("/readyz").unwrap());
        assert_eq!(running.stop(), Some(0), "{}", running.text());
    }
}

fn stream<'p>(pipe: &'p Pipe<'p>) -> Stream<'p> {
    Stream { pipe, start_ms: now_ms() - 48 * HOUR_MS, sent: 0 }
}

#[test]
fn memory_stays_within_its_limit_and_the_oldest_go_first() {
    let pipe = Pipe::new(shared_kafka(), "memory", 1);
    // The ids of an open transaction come on top of those that the window may hold. A window has a 64th to
    // spare: here 10,000.
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_WINDOW__EXACT", "1h")
        .with("DEDUPD_WINDOW__MAX_MEMORY", "16MiB")
        .with("DEDUPD_BATCH__MAX_RECORDS", "5000");
    let mut stream = stream(&pipe);
    let running = sidecar.start();
    for _ in 0..6 {
        stream.send(250_000);
        let held = ["index", "bloom"]
            .map(|part| running.metric(&format!("dedupd_memory_bytes{{part=\"{part}\"}}")).unwrap());
        let held = held.iter().sum::<f64>();
        println!("{} ids, {held} bytes", stream.sent);
        assert!(held > 0.0 && held <= (16 * MIB) as f64, "{held} bytes");
    }
    assert!(stream.goes_through(&running, 0), "the oldest is forgotten, within the hour");
    stream.is_told(running, &sidecar, "window.max_memory = \"16MiB\"");
}

fn bytes_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).map_or(Vec::new(), |entries| entries.flatten().collect());
    let size = |entry: &fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        // Files come and go.
        Err(_) => 0,
    };
    entries.iter().map(size).sum()
}

#[test]
fn the_directory_stays_within_its_limit_and_the_oldest_go_first() {
    let pipe = Pipe::new(shared_kafka(), "disk", 1);
    let sidecar =
        pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1h").with("DEDUPD_STATE__MAX_DISK", "16MiB");
    let mut stream = stream(&pipe);
    let running = sidecar.start();
    // An eighth is for what comes between two looks: here it is much less.
    stream.send(700_000);
    for _ in 0..15 {
        let begun = monotonic();
        stream.send(40_000);
        let bytes = bytes_of(&sidecar.state_dir);
        println!("{} ids, {bytes} bytes", stream.sent);
        assert!(bytes <= 16 * MIB, "{bytes} bytes with {} ids", stream.sent);
        std::thread::sleep(Duration::from_secs(11).saturating_sub(begun.elapsed()));
    }
    assert!(stream.goes_through(&running, 0), "the oldest is forgotten, within the hour");
    stream.is_told(running, &sidecar, "state.max_disk = \"16MiB\"");
}

#[test]
fn a_full_disk_ends_the_process_by_name_and_loses_nothing() {
    let pipe = Pipe::new(shared_kafka(), "full", 1);
    let sidecar = pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1h");
    // No file may be longer: the kernel refuses the write as that of a full disk, to this process alone.
    let running = sidecar.clone().with_file_limit(700 << 10).start();
    let load = pipe.load(1, 20_000);
    let status = running.wait(LIMIT);
    let text = running.text();
    assert_eq!(status.code(), Some(4), "{text}");
    let state_dir = sidecar.state_dir.to_str().unwrap();
    let said = text.lines().rfind(|line| line.contains(state_dir)).unwrap_or_default();
    assert!(said.contains("ulimit"), "{text}");
    load.finish();
    let running = sidecar.start();
    pipe.wait_caught_up(1, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}
