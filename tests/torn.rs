//! A broker that is away at the wrong moment leaves transactions without their marker (KAFKA-20734).
//!
//! Kafka 4.3.0 takes a partition without a leader for a deleted one: it declares the transaction complete and
//! never writes the marker there. Here the coordinators and the raw topic are on node 1; what is to be torn is
//! on node 2, which is killed while a transaction is open or about to be committed. The product settles the
//! leftovers by evidence; the two naive ways, never purging and always purging, must fail here, or the
//! test proves nothing.
#![cfg(feature = "failpoints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Findings, Kafka, Pipe, Running, Sidecar, wait_until};

const PARTITIONS: usize = 4;
const CYCLES: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// What is on node 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Away {
    Clean,
    State,
    Both,
}

struct Cluster {
    first: Kafka,
    second: Kafka,
}

impl Cluster {
    fn start() -> Self {
        let first =
            Kafka::start_with(&[("transaction.abort.timed.out.transaction.cleanup.interval.ms", "50")]);
        // The internal topics come to be while there is one node to put them on.
        first.create_topic("first", 1, &[]);
        first.fence("first");
        first.commit_offset("first", "first", 0, 0);
        let second = first.second();
        Self { first, second }
    }

    fn pipe(&self, name: &str, away: Away) -> Pipe<'_> {
        let pipe = Pipe::on_first_node(&self.first, name, PARTITIONS);
        let node = |is_away: bool| vec![if is_away { 2 } else { 1 }; PARTITIONS];
        self.first.create_topic_on(&pipe.clean, &node(away != Away::State));
        self.first.create_topic_on(&format!("{}.dedupd", pipe.clean), &node(away != Away::Clean));
        pipe
    }

    /// Kills node 2, and waits until the cluster knows that its partitions have no leader.
    fn lose_second(&self, pipe: &Pipe<'_>, away: Away) {
        self.second.kill9();
        let topic = if away == Away::State { format!("{}.dedupd", pipe.clean) } else { pipe.clean.clone() };
        wait_until("the partitions to have no leader", LIMIT, || {
            (self.first.partitions(&topic) == 0).then_some(())
        });
    }
}

/// The transaction timeout is longer than it takes to notice that a node is away.
fn sidecar(pipe: &Pipe<'_>, torn: Option<&str>) -> Sidecar {
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "10s")
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "8s")
        .with("DEDUPD_BATCH__INTERVAL", "400ms");
    match torn {
        Some(rule) => sidecar.with("DEDUPD_WITHOUT", rule),
        None => sidecar,
    }
}

/// How many were settled in these ways, by an instance that shows the metric.
fn settled(running: &Running, resolutions: &[&str]) -> f64 {
    let metric = |resolution| {
        let name = format!("dedupd_torn_transactions_total{{resolution=\"{resolution}\"}}");
        running.metric(&name).unwrap_or_else(|| panic!("no {name}"))
    };
    resolutions.iter().map(metric).sum()
}

/// Each sidecar dies with a transaction open that is then aborted while node 2 is away. How many leftovers
/// the last one settled.
fn inside_open_transactions(
    cluster: &Cluster,
    torn: Option<&str>,
    name: &str,
    away: Away,
) -> (Findings, f64) {
    let pipe = cluster.pipe(name, away);
    let sidecar = sidecar(&pipe, torn);
    let load = pipe.load(PARTITIONS, 1_500);
    for _ in 0..CYCLES {
        load.more(1_500);
        // With its records and its blocks acknowledged, but nothing of it decided.
        let armed = sidecar.clone().with("DEDUPD_FAILPOINT", "before_commit:3").start();
        armed.wait(LIMIT);
        assert!(armed.text().contains("failpoint before_commit reached"), "{}", armed.text());
        cluster.lose_second(&pipe, away);
        // The coordinator gives the transaction up, and writes no marker where there is no leader.
        cluster.first.fence(&format!("{}.a.0", pipe.group()));
        cluster.second.restart();
    }
    load.finish();
    finish(&pipe, &sidecar, &["aborted"])
}

/// Each sidecar commits while node 2 is away, and dies right after it.
fn commits(cluster: &Cluster, torn: Option<&str>, name: &str, away: Away) -> (Findings, f64) {
    let pipe = cluster.pipe(name, away);
    let sidecar = sidecar(&pipe, torn);
    let load = pipe.load(PARTITIONS, 1_500);
    for _ in 0..CYCLES {
        load.more(1_500);
        let gate = pipe.dir.path().join("gate");
        let armed = sidecar
            .clone()
            .with("DEDUPD_FAILPOINT_HOLD", &format!("before_commit:3:{}", gate.display()))
            .with("DEDUPD_FAILPOINT", "after_commit:3")
            .start();
        wait_until("the commit", LIMIT, || gate.exists().then_some(()));
        cluster.lose_second(&pipe, away);
        std::fs::remove_file(&gate).unwrap();
        armed.wait(LIMIT);
        assert!(armed.text().contains("failpoint after_commit reached"), "{}", armed.text());
        cluster.second.restart();
    }
    load.finish();
    finish(&pipe, &sidecar, &["redone", "rewound"])
}

fn finish(pipe: &Pipe<'_>, sidecar: &Sidecar, resolutions: &[&str]) -> (Findings, f64) {
    let last = sidecar.start();
    pipe.wait_caught_up(PARTITIONS, Duration::from_secs(90));
    let settled = settled(&last, resolutions);
    (pipe.audit_after(&last), settled)
}

#[test]
fn torn_transactions_are_settled_by_evidence() {
    let cluster = Cluster::start();
    for away in [Away::Clean, Away::State, Away::Both] {
        let (findings, settled) = inside_open_transactions(&cluster, None, &format!("open-{away:?}"), away);
        assert!(findings.is_clean() && findings.repeats > 0, "{away:?}: {findings:#?}");
        assert!(settled > 0.0, "{away:?}: nothing was torn: the test proves nothing");
        println!("inside open transactions, {away:?}: {settled} settled, {findings:?}");
        let (findings, settled) = commits(&cluster, None, &format!("commits-{away:?}"), away);
        assert!(findings.is_clean() && findings.repeats > 0, "{away:?}: {findings:#?}");
        assert!(settled > 0.0, "{away:?}: nothing was torn: the test proves nothing");
        println!("commits, {away:?}: {settled} settled, {findings:?}");
    }
}

#[test]
fn the_naive_ways_fail() {
    let cluster = Cluster::start();
    let (findings, _) = inside_open_transactions(&cluster, Some("markers"), "never", Away::Clean);
    assert!(findings.duplicated > 0, "never purging found nothing: {findings:?}");
    let (findings, _) = commits(&cluster, Some("agreement"), "always", Away::Clean);
    assert!(findings.lost > 0, "always purging found nothing: {findings:?}");
}
