//! A broker that is unavailable at the wrong moment causes transactions without a marker (KAFKA-20734).
//!
//! Kafka 4.3.0 treats a partition without a leader as deleted: it completes the transaction and never writes the
//! marker to that partition. Here the coordinators and the raw topic are on node 1. The partitions that lose their
//! markers are on node 2, which is killed while a transaction is open or about to be committed. dedupd resolves
//! the leftovers by evidence. The two simple strategies, never purging and always purging, must fail here,
//! otherwise the test proves nothing.
#![cfg(feature = "failpoints")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::time::Duration;

use support::{Draft, Findings, Isolation, Kafka, Pipe, Running, Sidecar, wait_until};

const PARTITIONS: usize = 4;
const CYCLES: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// The topics on node 2.
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
        // The internal topics are created while node 1 is the only one.
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

    /// Kills node 2, and waits until its partitions have no leader.
    fn lose_second(&self, pipe: &Pipe<'_>, away: Away) {
        let topic = if away == Away::State { format!("{}.dedupd", pipe.clean) } else { pipe.clean.clone() };
        self.lose(&topic);
    }

    /// Kills node 2, which has this topic.
    fn lose(&self, topic: &str) {
        self.second.kill9();
        wait_until("the partitions to have no leader", LIMIT, || {
            (self.first.partitions(topic) == 0).then_some(())
        });
    }
}

/// The transaction timeout is longer than the detection of a failed node.
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

/// Number of torn transactions with these resolutions, from the metric of an instance.
fn resolved(running: &Running, resolutions: &[&str]) -> f64 {
    let metric = |resolution| {
        let name = format!("dedupd_torn_transactions_total{{resolution=\"{resolution}\"}}");
        running.metric(&name).unwrap_or_else(|| panic!("no {name}"))
    };
    resolutions.iter().map(metric).sum()
}

/// Kills sidecars with an open transaction, which is then aborted while node 2 is down. Returns the number of leftovers
/// that the last one resolved.
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
        // Its records and blocks are acknowledged, but the transaction is not decided.
        let armed = sidecar.clone().with("DEDUPD_FAILPOINT", "before_commit:3").start();
        armed.wait(LIMIT);
        assert!(armed.text().contains("failpoint before_commit reached"), "{}", armed.text());
        cluster.lose_second(&pipe, away);
        // The coordinator aborts the transaction, and writes no marker to partitions without a leader.
        cluster.first.fence(&format!("{}.a.0", pipe.group()));
        cluster.second.restart();
    }
    load.finish();
    finish(&pipe, &sidecar, &["aborted"])
}

/// Kills sidecars right after a commit while node 2 is down.
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
    let resolved = resolved(&last, resolutions);
    (pipe.audit_after(&last), resolved)
}

#[test]
fn torn_transactions_are_resolved_by_evidence() {
    let cluster = Cluster::start();
    for away in [Away::Clean, Away::State, Away::Both] {
        let (findings, resolved) = inside_open_transactions(&cluster, None, &format!("open-{away:?}"), away);
        assert!(findings.is_clean() && findings.repeats > 0, "{away:?}: {findings:#?}");
        assert!(resolved > 0.0, "{away:?}: no transaction was torn: the test proves nothing");
        println!("inside open transactions, {away:?}: {resolved} resolved, {findings:?}");
        let (findings, resolved) = commits(&cluster, None, &format!("commits-{away:?}"), away);
        assert!(findings.is_clean() && findings.repeats > 0, "{away:?}: {findings:#?}");
        assert!(resolved > 0.0, "{away:?}: no transaction was torn: the test proves nothing");
        println!("commits, {away:?}: {resolved} resolved, {findings:?}");
    }
}

#[test]
fn never_purging_duplicates_and_always_purging_loses_records() {
    let cluster = Cluster::start();
    let (findings, _) = inside_open_transactions(&cluster, Some("markers"), "never", Away::Clean);
    assert!(findings.duplicated > 0, "never purging duplicated nothing: {findings:?}");
    let (findings, _) = commits(&cluster, Some("agreement"), "always", Away::Clean);
    assert!(findings.lost > 0, "always purging lost nothing: {findings:?}");
}

/// A pipe on node 1. Its dead-letter topic has one partition on node 2.
struct Letters<'c> {
    cluster: &'c Cluster,
    pipe: Pipe<'c>,
    dead: String,
    partitions: usize,
}

impl<'c> Letters<'c> {
    fn new(cluster: &'c Cluster, name: &str, partitions: usize) -> Self {
        let pipe = Pipe::on_first_node(&cluster.first, name, partitions);
        let dead = format!("{name}.dead");
        for topic in [&pipe.clean, &format!("{}.dedupd", pipe.clean)] {
            cluster.first.create_topic_on(topic, &vec![1; partitions]);
        }
        cluster.first.create_topic_on(&dead, &[2]);
        Self { cluster, pipe, dead, partitions }
    }

    fn sidecar(&self, torn: Option<&str>) -> Sidecar {
        sidecar(&self.pipe, torn)
            .with("DEDUPD_TOPICS__DEAD_LETTER", &self.dead)
            .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
    }

    /// Produces a record with an id and one without to each partition.
    fn send(&self, number: usize) {
        for partition in 0..i32::try_from(self.partitions).unwrap() {
            let letter = Draft::new(partition, &format!("letter-{number}"));
            let letter = letter.key(b"key").header("name", Some(b"value")).header("null", None);
            let drafts = [Draft::id(partition, &format!("id-{number}")), letter];
            self.pipe.kafka.send(&self.pipe.raw, &drafts);
        }
    }

    /// Processes everything and stops. Returns the committed dead letters.
    fn finish(&self) -> Vec<String> {
        let last = self.sidecar(None).start();
        self.pipe.wait_caught_up(self.partitions, LIMIT);
        assert_eq!(last.stop(), Some(0), "{}", last.text());
        let letters = self.cluster.first.records(&self.dead, Isolation::Committed);
        letters.iter().map(support::Record::text).collect()
    }

    /// Runs an instance until it crashes at a failpoint. At `before_commit`, its transaction is open.
    fn crash_at(&self, point: &str) {
        let armed = self.sidecar(None).with("DEDUPD_FAILPOINT", &format!("{point}:1")).start();
        armed.wait(LIMIT);
        assert!(armed.text().contains(&format!("failpoint {point} reached")), "{}", armed.text());
    }

    /// Runs an instance that commits while node 2 is down, and crashes right after the commit.
    fn tear_commit(&self) {
        let gate = self.pipe.dir.path().join("gate");
        let armed = self
            .sidecar(None)
            .with("DEDUPD_FAILPOINT_HOLD", &format!("before_commit:1:{}", gate.display()))
            .with("DEDUPD_FAILPOINT", "after_commit:1")
            .start();
        wait_until("the commit", LIMIT, || gate.exists().then_some(()));
        self.cluster.lose(&self.dead);
        std::fs::remove_file(&gate).unwrap();
        armed.wait(LIMIT);
        assert!(armed.text().contains("failpoint after_commit reached"), "{}", armed.text());
        self.cluster.second.restart();
    }

    /// Aborts the transactions of a crashed instance while node 2 is down.
    fn tear_abort(&self, workers: usize) {
        self.cluster.lose(&self.dead);
        for worker in 0..workers {
            self.cluster.first.fence(&format!("{}.a.{worker}", self.pipe.group()));
        }
        self.cluster.second.restart();
    }
}

#[test]
fn a_committed_dead_letter_without_its_marker_is_not_lost() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "kept", 1);
    letters.send(1);
    letters.tear_commit();
    letters.send(2);
    // The next transaction with a dead letter is aborted, which also aborts the first letter.
    letters.crash_at("before_commit");
    letters.send(3);
    assert_eq!(letters.finish(), ["letter-1", "letter-2", "letter-3"]);
    let all = cluster.first.records(&letters.dead, Isolation::Uncommitted);
    let mut copies = all.into_iter().filter(|record| record.text() == "letter-1");
    let (original, copy) = (copies.next().unwrap(), copies.next().unwrap());
    assert!(copy.offset > original.offset && copy.headers.len() > 5, "{copy:?}");
    assert_eq!(support::Record { offset: original.offset, ..copy }, original, "the copy differs");
}

#[test]
fn a_crash_after_the_copy_of_a_dead_letter_repeats_it_and_loses_nothing() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "repeated", 1);
    letters.send(1);
    letters.tear_commit();
    letters.crash_at("side_copied");
    letters.crash_at("side_copied");
    letters.send(2);
    // One copy for each instance that reached this point.
    assert_eq!(letters.finish(), ["letter-1", "letter-1", "letter-1", "letter-2"]);
}

#[test]
fn an_aborted_dead_letter_without_its_marker_does_not_appear() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "once", 1);
    letters.send(1);
    letters.crash_at("before_commit");
    letters.tear_abort(1);
    // Without a committed offset, and then with one.
    assert_eq!(letters.finish(), ["letter-1"]);
    letters.send(2);
    letters.crash_at("before_commit");
    letters.tear_abort(1);
    letters.send(3);
    assert_eq!(letters.finish(), ["letter-1", "letter-2", "letter-3"]);
}

#[test]
fn two_workers_resolve_their_own_leftovers_in_one_partition() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "two", 2);
    let gate = letters.pipe.dir.path().join("gate");
    let mut sidecar = letters.sidecar(None);
    sidecar.workers = 2;
    let armed = sidecar
        .clone()
        .with("DEDUPD_FAILPOINT_HOLD", &format!("before_commit:1:{}", gate.display()))
        .with("DEDUPD_FAILPOINT", "before_commit:1")
        .start();
    wait_until("both workers to have a partition", LIMIT, || {
        let assigned = armed.text().matches("partitions assigned partitions=").count();
        (assigned - armed.text().matches("partitions assigned partitions=none").count() >= 2).then_some(())
    });
    armed.wait_running(2, LIMIT);
    letters.send(1);
    // One worker is held with an open transaction, and the other one, which also has one, ends the process.
    armed.wait(LIMIT);
    letters.tear_abort(2);
    let last = sidecar.start();
    letters.pipe.wait_caught_up(2, LIMIT);
    assert_eq!(last.stop(), Some(0), "{}", last.text());
    let seen = cluster.first.records(&letters.dead, Isolation::Committed);
    assert_eq!(seen.iter().map(support::Record::text).collect::<Vec<_>>(), ["letter-1", "letter-1"]);
    let resolved = last.text().matches("in a side topic").count();
    assert_eq!(resolved, 2, "{}", last.text());
}

#[test]
fn a_crashed_writer_of_a_shared_side_topic_delays_others_and_loses_nothing() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "shared", 4);
    let again = "shared.again";
    kafka.create_topic(again, 1, &[]);
    let sidecar = |instance: &str| pipe.sidecar(instance).with("DEDUPD_TOPICS__DUPLICATES", again);
    let survivor = sidecar("b").start();
    survivor.wait_running(4, LIMIT);
    let load = pipe.load(4, 1_000);
    let dying = sidecar("a").with("DEDUPD_FAILPOINT", "before_commit:20").start();
    dying.wait(LIMIT);
    assert!(dying.text().contains("failpoint before_commit reached"), "{}", dying.text());
    let start = dedupd::clock::monotonic();
    load.finish();
    pipe.wait_caught_up(4, LIMIT);
    println!("caught up {:?} after the crash", start.elapsed());
    let findings = pipe.audit_after(&survivor);
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(kafka.records(again, Isolation::Committed).len(), findings.repeats);
}
