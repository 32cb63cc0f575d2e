//! A broker that dies at the wrong moment leaves transactions without their marker (KAFKA-20734).
//!
//! Kafka 4.3.0 with the short abort interval tears them reliably. The product settles them by
//! evidence; the two naive ways, never purging and always purging, must fail here, or the test proves
//! nothing.
#![cfg(feature = "failpoints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Findings, Kafka, Pipe, Sidecar};

const PARTITIONS: usize = 4;
const CYCLES: usize = 4;
/// Attempts to tear a commit in the middle, which takes a kill within a fraction of a millisecond.
const ATTEMPTS: usize = 2;
/// Longer than the transaction timeout, so that the coordinator decides while partitions have no leader.
const DOWN: Duration = Duration::from_millis(2_500);

fn broker() -> Kafka {
    Kafka::start_with(&[("transaction.abort.timed.out.transaction.cleanup.interval.ms", "50")])
}

fn sidecar(pipe: &Pipe<'_>, torn: Option<&str>) -> Sidecar {
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "6s")
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "2s")
        .with("DEDUPD_BATCH__INTERVAL", "400ms");
    match torn {
        Some(way) => sidecar.with("DEDUPD_TORN", way),
        None => sidecar,
    }
}

/// Kills the broker again and again while a transaction is open.
fn inside_open_transactions(torn: Option<&str>, name: &str) -> (Findings, f64) {
    let kafka = broker();
    let pipe = Pipe::new(&kafka, name, PARTITIONS);
    let running = sidecar(&pipe, torn).start();
    running.wait_ready(Duration::from_secs(30));
    let load = pipe.load(PARTITIONS, 1_500);
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..CYCLES {
        load.more(1_500);
        std::thread::sleep(Duration::from_millis(random.u64(0..400)));
        kafka.kill9();
        std::thread::sleep(DOWN);
        kafka.restart();
        assert!(running.ended().is_none(), "ended by itself:\n{}", running.text());
    }
    load.finish();
    pipe.wait_caught_up(PARTITIONS, Duration::from_secs(90));
    let settled = settled(&running);
    (pipe.audit_after(&running), settled)
}

/// Kills the broker at the moment a commit has returned, and the sidecar with it.
fn right_after_commits(torn: Option<&str>, name: &str) -> (Findings, f64, String) {
    let kafka = broker();
    let pipe = Pipe::new(&kafka, name, PARTITIONS);
    let sidecar = sidecar(&pipe, torn);
    let load = pipe.load(PARTITIONS, 1_500);
    let mut moment = Moment::default();
    for _ in 0..2 * CYCLES {
        // The broker writes the markers within milliseconds of its answer, so the sidecar itself kills it.
        let pid = kafka.pid().expect("the broker runs");
        let broker = format!("{pid}:{}", moment.micros);
        let armed = sidecar
            .clone()
            .with("DEDUPD_FAILPOINT", "after_commit:2")
            .with("DEDUPD_FAILPOINT_KILL", &broker)
            .start();
        armed.wait(Duration::from_mins(1));
        kafka.kill9();
        assert!(armed.text().contains("failpoint after_commit reached"), "{}", armed.text());
        std::thread::sleep(DOWN);
        kafka.restart();
        moment.learn(torn_parts(&kafka, &pipe));
    }
    load.finish();
    let last = sidecar.start();
    pipe.wait_caught_up(PARTITIONS, Duration::from_secs(90));
    let settled = settled(&last);
    (pipe.audit_after(&last), settled, last.text())
}

/// Whether the log line is about a purge of clean records whose offsets are committed.
fn takes_committed_records(line: &str) -> bool {
    let number = |name: &str| line.split_once(name)?.1.split_once(')').map(|(number, _)| number);
    line.contains("settling it")
        && line.contains("clean_hangs_at: Some(")
        && number("block_hangs: Some(").is_some_and(|next| number(" committed: Some(") == Some(next))
}

/// Partitions of clean and state topic in which a transaction hangs.
fn torn_parts(kafka: &Kafka, pipe: &Pipe<'_>) -> usize {
    let topics = [pipe.clean.clone(), format!("{}.dedupd", pipe.clean)];
    let hangs = |topic: &String, partition: usize| {
        let partition = i32::try_from(partition).unwrap();
        kafka.last_stable_offset(topic, partition) < kafka.watermarks(topic, partition).1
    };
    topics.iter().map(|topic| (0..PARTITIONS).filter(|p| hangs(topic, *p)).count()).sum()
}

/// When to kill the broker after its answer to a commit, so that it has written some of the markers and
/// not the others: found by halving, since it differs from machine to machine.
struct Moment {
    micros: u64,
    early: u64,
    late: u64,
}

impl Default for Moment {
    fn default() -> Self {
        Self { micros: 800, early: 0, late: 4_000 }
    }
}

impl Moment {
    fn learn(&mut self, torn: usize) {
        println!("killed after {} µs: {torn} of {} parts torn", self.micros, 2 * PARTITIONS);
        match torn {
            0 => self.late = self.micros,
            all if all == 2 * PARTITIONS => self.early = self.micros,
            few if few < PARTITIONS => self.late = self.micros,
            _ => return,
        }
        if self.late <= self.early + 50 {
            // No two cycles are the same: look around here.
            (self.early, self.late) = (self.micros.saturating_sub(300), self.micros + 300);
        }
        self.micros = self.early.midpoint(self.late);
    }
}

fn settled(running: &support::Running) -> f64 {
    ["aborted", "committed"]
        .iter()
        .filter_map(|r| running.metric(&format!("dedupd_torn_transactions_total{{resolution=\"{r}\"}}")))
        .sum()
}

#[test]
fn torn_transactions_are_settled_by_evidence() {
    let (findings, settled) = inside_open_transactions(None, "open");
    assert!(findings.is_clean() && findings.repeats > 0, "{findings:#?}");
    assert!(settled > 0.0, "nothing was torn: the test proves nothing");
    println!("inside open transactions: {settled} settled, {findings:?}");
    let (findings, settled, _) = right_after_commits(None, "commits");
    assert!(findings.is_clean() && findings.repeats > 0, "{findings:#?}");
    println!("right after commits: {settled} settled by the last instance, {findings:?}");
}

#[test]
fn never_purging_shows_records_twice() {
    let (findings, _) = inside_open_transactions(Some("never"), "never");
    assert!(findings.duplicated > 0, "the negative control found nothing: {findings:?}");
}

#[test]
fn always_purging_takes_committed_records_away() {
    for attempt in 0..ATTEMPTS {
        let (findings, _, log) = right_after_commits(Some("always"), &format!("always-{attempt}"));
        if findings.lost > 0 {
            return;
        }
        let unharmed: Vec<_> = log.lines().filter(|line| takes_committed_records(line)).collect();
        assert!(unharmed.is_empty(), "committed records were purged and none is missing: {unharmed:#?}");
    }
    println!("not shown here: no kill of the broker left committed records without their marker");
}
