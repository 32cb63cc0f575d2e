//! A broker that is unavailable at the wrong moment causes transactions without a marker (KAFKA-20734).
//!
//! Kafka 4.3.0 to 4.4.0 treat a partition without a leader as deleted: they complete the transaction and never write the
//! marker to that partition. Here the coordinators and the raw topic are on node 1. The partitions that lose their
//! markers are on node 2, which is killed while a transaction is open or about to be committed. dedupd resolves
//! the leftovers by evidence. The two simple strategies, never purging and always purging, must fail here,
//! otherwise the test proves nothing.
#![cfg(feature = "failpoints")]

mod cluster;
mod first;

use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Draft, Findings, Isolation, Kafka, Load, Pipe, Running, Scope, Sidecar, wait_until};
use cluster::{Away, Cluster, assert_crashed, sidecar};

const PARTITIONS: usize = 4;
const CYCLES: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// Number of torn transactions with these resolutions, from the metric of an instance.
fn resolved(running: &Running, resolutions: &[&str]) -> f64 {
    let count =
        |resolution| running.value(&format!("dedupd_torn_transactions_total{{resolution=\"{resolution}\"}}"));
    resolutions.iter().map(count).sum()
}

/// What the coordinator does with the transaction while node 2 is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Abort,
    Commit,
}

/// A pipe under load whose transactions are torn.
struct Case<'c> {
    pipe: Pipe<'c>,
    away: Away,
    ending: Ending,
    sidecar: Sidecar,
    load: Load,
}

impl<'c> Case<'c> {
    fn new(cluster: &'c Cluster, torn: Option<&str>, away: Away, ending: Ending) -> Self {
        let name = format!("{ending:?}-{away:?}-{}", torn.unwrap_or("all"));
        let pipe = cluster.pipe(&name, PARTITIONS, away);
        let sidecar = sidecar(&pipe, torn);
        let load = pipe.load(PARTITIONS, 500);
        Self { pipe, away, ending, sidecar, load }
    }

    /// Starts an instance that crashes with an open transaction, or is held before its commit and crashes after it.
    fn arm(&self) -> Running {
        match self.ending {
            Ending::Abort => self.sidecar.clone().with("DEDUPD_FAILPOINT", "before_commit:3"),
            Ending::Commit => {
                let hold = format!("before_commit:3:{}", self.gate().display());
                let sidecar = self.sidecar.clone().with("DEDUPD_FAILPOINT_HOLD", &hold);
                sidecar.with("DEDUPD_FAILPOINT", "after_commit:3")
            }
        }
        .start()
    }

    /// A topic on node 2.
    fn topic_away(&self) -> String {
        if self.away == Away::State { format!("{}.dedupd", self.pipe.clean) } else { self.pipe.clean.clone() }
    }

    fn gate(&self) -> PathBuf {
        self.pipe.dir.path().join("gate")
    }

    /// Waits for an open transaction: its records and blocks are acknowledged, but it is not decided.
    fn wait_open(&self, armed: &Running) {
        match self.ending {
            Ending::Abort => assert_crashed(armed, "before_commit"),
            Ending::Commit => wait_until("the commit", LIMIT, || self.gate().exists().then_some(())),
        }
    }

    /// Ends the transaction. The coordinator writes no marker to partitions without a leader.
    fn end(&self, armed: &Running) {
        match self.ending {
            Ending::Abort => self.pipe.kafka.fence(&self.sidecar.transactional_id(0)),
            Ending::Commit => {
                std::fs::remove_file(self.gate()).unwrap();
                assert_crashed(armed, "after_commit");
            }
        }
    }
}

/// Tears transactions of all cases: node 2 is down while they end. Returns the findings of each case and the number
/// of leftovers that its last instance resolved.
fn tear(cluster: &Cluster, cases: Vec<Case<'_>>) -> Vec<(Findings, f64)> {
    for _ in 0..CYCLES {
        for case in &cases {
            case.load.more(500);
        }
        let armed: Vec<Running> = cases.iter().map(Case::arm).collect();
        for (case, armed) in cases.iter().zip(&armed) {
            case.wait_open(armed);
        }
        cluster.second.kill9();
        for case in &cases {
            cluster.wait_lost(&case.topic_away());
        }
        for (case, armed) in cases.iter().zip(&armed) {
            case.end(armed);
        }
        cluster.second.restart();
    }
    let last = cases.into_iter().map(|case| {
        case.load.finish();
        let last = case.sidecar.start();
        (case.pipe, case.ending, last)
    });
    let last: Vec<_> = last.collect();
    let results = last.iter().map(|(pipe, ending, last)| {
        pipe.wait_caught_up(PARTITIONS, Duration::from_secs(90));
        let resolutions: &[&str] =
            if *ending == Ending::Abort { &["aborted"] } else { &["redone", "rewound"] };
        let resolved = resolved(last, resolutions);
        (pipe.audit_after(last), resolved)
    });
    results.collect()
}

#[test]
fn torn_transactions_are_resolved_by_evidence_but_not_by_never_or_always_purging() {
    let cluster = Cluster::start();
    let all: Vec<_> = [Away::Clean, Away::State, Away::Both]
        .into_iter()
        .flat_map(|away| [(away, Ending::Abort), (away, Ending::Commit)])
        .collect();
    let mut cases: Vec<_> =
        all.iter().map(|(away, ending)| Case::new(&cluster, None, *away, *ending)).collect();
    cases.push(Case::new(&cluster, Some("markers"), Away::Clean, Ending::Abort));
    cases.push(Case::new(&cluster, Some("agreement"), Away::Clean, Ending::Commit));
    let mut results = tear(&cluster, cases);
    let (always, _) = results.pop().unwrap();
    let (never, _) = results.pop().unwrap();
    for ((away, ending), (findings, resolved)) in all.iter().zip(results) {
        assert!(findings.is_clean() && findings.repeats > 0, "{ending:?}, {away:?}: {findings:#?}");
        assert!(resolved > 0.0, "{ending:?}, {away:?}: no transaction was torn: the test proves nothing");
        println!("{ending:?}, {away:?}: {resolved} resolved, {findings:?}");
    }
    assert!(never.duplicated > 0, "never purging duplicated nothing: {never:?}");
    assert!(always.lost > 0, "always purging lost nothing: {always:?}");
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
        letters.iter().map(crate::support::Record::text).collect()
    }

    /// Runs an instance until it crashes at a failpoint. At `before_commit`, its transaction is open.
    fn crash_at(&self, point: &str) {
        let armed = self.sidecar(None).with("DEDUPD_FAILPOINT", &format!("{point}:1")).start();
        assert_crashed(&armed, point);
    }

    /// Runs an instance that commits while node 2 is down, and crashes right after the commit.
    fn tear_commit(&self) {
        let gate = self.pipe.dir.path().join("gate");
        let armed = self
            .sidecar(None)
            .held_at("before_commit", &gate)
            .with("DEDUPD_FAILPOINT", "after_commit:1")
            .start();
        wait_until("the commit", LIMIT, || gate.exists().then_some(()));
        self.cluster.lose(&self.dead);
        std::fs::remove_file(&gate).unwrap();
        assert_crashed(&armed, "after_commit");
        self.cluster.second.restart();
    }

    /// Aborts the transactions of a crashed instance while node 2 is down.
    fn tear_abort(&self, crashed: &Sidecar) {
        self.cluster.lose(&self.dead);
        for worker in 0..crashed.workers {
            self.cluster.first.fence(&crashed.transactional_id(worker));
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
    let mut marked = original.clone();
    marked.headers.push(("dedupd.outside".to_owned(), Some(b"true".to_vec())));
    assert_eq!(crate::support::Record { offset: original.offset, ..copy }, marked, "the copy differs");
}

#[test]
fn a_crash_after_the_copy_of_a_dead_letter_neither_repeats_nor_loses_it() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "repeated", 1);
    letters.send(1);
    letters.tear_commit();
    letters.crash_at("side_copied");
    letters.crash_at("side_copied");
    letters.send(2);
    // The second instance found the copy of the first one.
    assert_eq!(letters.finish(), ["letter-1", "letter-2"]);
}

#[test]
fn an_aborted_dead_letter_without_its_marker_does_not_appear() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "once", 1);
    letters.send(1);
    letters.crash_at("before_commit");
    letters.tear_abort(&letters.sidecar(None));
    // Without a committed offset, and then with one.
    assert_eq!(letters.finish(), ["letter-1"]);
    letters.send(2);
    letters.crash_at("before_commit");
    letters.tear_abort(&letters.sidecar(None));
    letters.send(3);
    assert_eq!(letters.finish(), ["letter-1", "letter-2", "letter-3"]);
}

#[test]
fn two_workers_resolve_their_own_leftovers_in_one_partition() {
    let cluster = Cluster::start();
    let letters = Letters::new(&cluster, "two", 2);
    let gate = letters.pipe.dir.path().join("gate");
    let sidecar = letters.sidecar(None).sharing(2);
    let armed =
        sidecar.clone().held_at("before_commit", &gate).with("DEDUPD_FAILPOINT", "before_commit:1").start();
    wait_until("both workers to have a partition", LIMIT, || {
        let assigned = armed.text().matches("partitions assigned partitions=").count();
        (assigned - armed.text().matches("partitions assigned partitions=none").count() >= 2).then_some(())
    });
    armed.wait_running(2, LIMIT);
    letters.send(1);
    // One worker is held with an open transaction, and the other one, which also has one, ends the process.
    armed.wait(LIMIT);
    letters.tear_abort(&sidecar);
    let last = sidecar.start();
    letters.pipe.wait_caught_up(2, LIMIT);
    assert_eq!(last.stop(), Some(0), "{}", last.text());
    let seen = cluster.first.records(&letters.dead, Isolation::Committed);
    assert_eq!(seen.iter().map(crate::support::Record::text).collect::<Vec<_>>(), ["letter-1", "letter-1"]);
    let resolved = last.text().matches("in a side topic").count();
    assert_eq!(resolved, 2, "{}", last.text());
}

#[test]
fn a_crashed_writer_of_a_shared_side_topic_delays_others_and_loses_nothing() {
    let kafka = Kafka::start();
    let pipe = Pipe::new(&kafka, "shared", 4);
    let again = "shared.again";
    kafka.create_topic(again, 1, &[]);
    let sidecar = |instance: &str| {
        pipe.sidecar(instance).scoped(Scope::Partition).with("DEDUPD_TOPICS__DUPLICATES", again)
    };
    let survivor = sidecar("b").start();
    survivor.wait_running(4, LIMIT);
    let load = pipe.load(4, 1_000);
    let dying = sidecar("a").with("DEDUPD_FAILPOINT", "before_commit:20").start();
    assert_crashed(&dying, "before_commit");
    let start = dedupd::clock::monotonic();
    load.finish();
    pipe.wait_caught_up(4, LIMIT);
    println!("caught up {:?} after the crash", start.elapsed());
    let findings = pipe.audit_after(&survivor);
    assert!(findings.is_clean(), "{findings:?}");
    assert_eq!(kafka.records(again, Isolation::Committed).len(), findings.repeats);
}
