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
/// Attempts of a negative control.
const ATTEMPTS: usize = 4;
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
fn right_after_commits(torn: Option<&str>, name: &str) -> (Findings, f64) {
    let kafka = broker();
    let pipe = Pipe::new(&kafka, name, PARTITIONS);
    let sidecar = sidecar(&pipe, torn);
    let load = pipe.load(PARTITIONS, 1_500);
    for cycle in 0..2 * CYCLES {
        // The broker writes the markers within milliseconds of its answer, so the sidecar itself kills it,
        // at another moment each time.
        let pid = kafka.pid().expect("the broker runs");
        let broker = format!("{pid}:{}", cycle * 400);
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
    }
    load.finish();
    let last = sidecar.start();
    pipe.wait_caught_up(PARTITIONS, Duration::from_secs(90));
    let settled = settled(&last);
    (pipe.audit_after(&last), settled)
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
    let (findings, settled) = right_after_commits(None, "commits");
    assert!(findings.is_clean() && findings.repeats > 0, "{findings:#?}");
    println!("right after commits: {settled} settled by the last instance, {findings:?}");
}

/// A wrong way has to be found out. Whether a kill tears a transaction is a matter of milliseconds, so
/// it gets a few attempts.
fn control(attempt: impl Fn(&str) -> Findings, name: &str, wrong: impl Fn(&Findings) -> usize) {
    let mut seen = Vec::new();
    for number in 0..ATTEMPTS {
        let findings = attempt(&format!("{name}-{number}"));
        if wrong(&findings) > 0 {
            return;
        }
        seen.push(findings);
    }
    panic!("the negative control found nothing: {seen:?}");
}

#[test]
fn never_purging_shows_records_twice() {
    control(|name| inside_open_transactions(Some("never"), name).0, "never", |found| found.duplicated);
}

#[test]
fn always_purging_takes_committed_records_away() {
    control(|name| right_after_commits(Some("always"), name).0, "always", |found| found.lost);
}
