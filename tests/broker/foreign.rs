//! Another program has a transaction open in a clean partition, on a real Apache Kafka.
//!
//! dedupd cannot see whether its records in that partition are committed until the transaction ends, so that partition waits.
//! In partition scope no other partition may be affected, whichever worker owns it. In topic scope all partitions wait, because
//! their records are compared with those of that partition.
//!
//! The same in a side topic delays the worker once. After that it writes the records for that partition outside of transactions.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Isolation, Pipe, Record, Running, Scope, Sidecar, shared_kafka, wait_until};
use dedupd::clock::monotonic;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

const LIMIT: Duration = Duration::from_mins(1);
/// How long the transaction stays open at least: eight transaction timeouts.
const OPEN: Duration = Duration::from_secs(40);
/// The other partition must forward records in each interval of this length. When the broker stalls for more than 2 s, the worker
/// replaces its producer, and may then wait for the transaction timeout.
const FORWARDS_WITHIN: Duration = Duration::from_secs(20);
/// How many times its committed offset must advance at least while the transaction is open.
const FORWARDS_LEAST: u32 = 4;
/// How long the note about the transaction may take: it requires an age of a minute, measured every ten seconds.
const NOTED_WITHIN: Duration = Duration::from_mins(2);
/// How many times a worker may wait for missing markers because the broker stalls. One that waits behind the transaction again and
/// again does so more often, or forwards too little.
const STALLS_MOST: usize = 3;
/// A producer is replaced once when its markers are missing, and leftovers are aborted in exponential intervals. Doing one of
/// them again and again exceeds this.
const DISTURBED_MOST: f64 = 10.0;
const HANGING: &str = "dedupd_output_hanging_seconds{topic=\"clean\"}";

/// Opens a transaction with one record in partition 0 of a topic. It does not time out during the test. Returns the
/// producer and the offset of the record.
fn open_transaction(pipe: &Pipe<'_>, topic: &str) -> (BaseProducer, i64) {
    let mut config = pipe.kafka.client_config();
    config.set("transactional.id", format!("foreign.{topic}")).set("transaction.timeout.ms", "600000");
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer.begin_transaction().unwrap();
    let record = BaseRecord::<(), str>::to(topic).partition(0).payload("{\"id\":\"never\"}");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
    let records = pipe.kafka.records_in(topic, 0, Isolation::Uncommitted);
    let offset = records.iter().find(|record| record.text().contains("never")).unwrap().offset;
    (producer, offset)
}

fn committed(pipe: &Pipe<'_>, partition: i32) -> i64 {
    pipe.kafka.committed(&pipe.group(), &pipe.raw, partition).map_or(0, |(offset, _)| offset)
}

/// An instance has replaced its producer, and aborted transactions of other producers, only a few times.
fn assert_undisturbed(running: &Running) {
    let names = [
        "dedupd_transactions_total{result=\"unknown\"}",
        "dedupd_transactions_total{result=\"aborted\"}",
        "dedupd_torn_transactions_total{resolution=\"aborted\"}",
    ];
    let count = |name: &&str| running.metric(name).unwrap_or_else(|| panic!("no {name}"));
    let sum: f64 = names.iter().map(count).sum();
    assert!(
        sum <= DISTURBED_MOST,
        "{sum} transactions were not committed, or aborted for others:\n{}",
        running.text()
    );
}

/// Waits while the transaction is open. Partition 1 must be processed all the time.
fn watch(pipe: &Pipe<'_>, running: &[&Running]) {
    let start = monotonic();
    let (mut last, mut moved, mut advances) = (committed(pipe, 1), monotonic(), 0);
    while start.elapsed() < OPEN {
        for process in running {
            assert!(
                process.ended().is_none(),
                "{:?} after {:?}:\n{}",
                process.ended(),
                start.elapsed(),
                process.text()
            );
        }
        let now = committed(pipe, 1);
        if now > last {
            (last, moved, advances) = (now, monotonic(), advances + 1);
        }
        assert!(
            moved.elapsed() < FORWARDS_WITHIN,
            "partition 1 is not processed for {:?}, {:?} after the start",
            moved.elapsed(),
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(advances >= FORWARDS_LEAST, "partition 1 advanced only {advances} times in {OPEN:?}");
}

fn command(pipe: &Pipe<'_>) -> String {
    format!("describe-producers --topic {} --partition 0", pipe.clean)
}

/// The page and the metric of the instance whose partition waits.
fn assert_reported(pipe: &Pipe<'_>, owner: &Running, offset: i64) {
    let page = wait_until("the reason in /readyz", NOTED_WITHIN, || {
        owner.get("/readyz").filter(|page| page.contains(&command(pipe)))
    });
    let named = page.contains("kafka-transactions.sh") && page.contains(&format!("offset {offset}"));
    assert!(named, "no command or no offset {offset}: {page}");
    wait_until(HANGING, LIMIT, || owner.metric(HANGING).filter(|seconds| *seconds > 0.0));
}

/// Ends the foreign transaction, and checks that everything is exact.
fn assert_resumes(pipe: &Pipe<'_>, foreign: &BaseProducer, owner: &Running) {
    foreign.abort_transaction(LIMIT).unwrap();
    pipe.wait_caught_up(2, LIMIT);
    wait_until("the metric to fall", LIMIT, || owner.metric(HANGING).filter(|seconds| *seconds == 0.0));
    wait_until("the reason to disappear", LIMIT, || {
        owner
            .get("/readyz")
            .filter(|page| page.starts_with("HTTP/1.1 200") && !page.contains("describe-producers"))
    });
}

#[test]
fn a_restart_behind_a_foreign_transaction_in_clean_leaves_other_instances_alone() {
    let pipe = Pipe::new(shared_kafka(), "restarted", 2);
    let sidecars: [Sidecar; 2] = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let mut running = sidecars.each_ref().map(Sidecar::start);
    for process in &running {
        process.wait_running(1, LIMIT);
    }
    let load = pipe.load(2, 200);
    wait_until("both partitions to be processed", LIMIT, || {
        (committed(&pipe, 0) > 0 && committed(&pipe, 1) > 0).then_some(())
    });
    let owns_first = |process: &Running| {
        let text = process.text();
        let last = text.lines().rfind(|line| line.contains("partitions assigned")).unwrap_or_default();
        last.contains("partitions=0 (1)")
    };
    let restarted = running.iter().position(owns_first).expect("an owner of partition 0");
    assert_eq!(running[restarted].stop(), Some(0), "{}", running[restarted].text());
    let (foreign, offset) = open_transaction(&pipe, &pipe.clean);
    running[restarted] = sidecars[restarted].start();
    watch(&pipe, &[&running[0], &running[1]]);
    // Meanwhile partition 0 may have moved to the other instance.
    let reports =
        |process: &Running| process.get("/readyz").is_some_and(|page| page.contains(&command(&pipe)));
    let owner = wait_until("a report", NOTED_WITHIN, || running.iter().position(reports));
    let (owner, other) = (&running[owner], &running[1 - owner]);
    assert_undisturbed(other);
    assert_reported(&pipe, owner, offset);
    load.finish();
    assert_resumes(&pipe, &foreign, owner);
    assert_eq!(other.stop(), Some(0), "{}", other.text());
    let findings = pipe.audit_after(owner);
    assert!(findings.is_clean() && findings.repeats > 0, "{findings:?}");
}

#[test]
fn a_foreign_transaction_in_clean_stops_only_its_own_partition() {
    beside("beside", Scope::Partition);
}

#[test]
fn a_foreign_transaction_in_clean_stops_all_partitions_in_topic_scope_until_it_ends() {
    beside("together", Scope::Topic);
}

/// A transaction is opened in clean while the only instance runs.
fn beside(name: &str, scope: Scope) {
    let pipe = Pipe::new(shared_kafka(), name, 2);
    let running = pipe.sidecar("a").scoped(scope).start();
    running.wait_running(2, LIMIT);
    let load = pipe.load(2, 200);
    wait_until("both partitions to be processed", LIMIT, || {
        (committed(&pipe, 0) > 0 && committed(&pipe, 1) > 0).then_some(())
    });
    let (foreign, offset) = open_transaction(&pipe, &pipe.clean);
    wait_until("what partition 0 waits for", LIMIT, || {
        let page = running.get("/readyz")?;
        page.contains("partition 0 is starting (waits for the end of an open transaction in clean 0 (1))")
            .then_some(())
    });
    match scope {
        Scope::Partition => watch(&pipe, &[&running]),
        Scope::Topic => {
            std::thread::sleep(OPEN / 2);
            let before = [0, 1].map(|partition| committed(&pipe, partition));
            std::thread::sleep(OPEN / 2);
            assert_eq!([0, 1].map(|partition| committed(&pipe, partition)), before, "a record was processed");
        }
    }
    assert_undisturbed(&running);
    assert_reported(&pipe, &running, offset);
    let claims = running.complaints();
    let of_open =
        |line: &&String| line.contains("left open") || line.contains("the markers of the last transaction");
    assert!(claims.iter().filter(of_open).all(|line| line.contains("of another program")), "{claims:?}");
    load.finish();
    assert_resumes(&pipe, &foreign, &running);
    let findings = pipe.audit_after(&running);
    assert!(findings.is_clean() && findings.repeats > 0, "{findings:?}");
}

/// How often the worker waited for a marker that it could not see.
fn waited_for_markers(running: &Running) -> usize {
    running.text().matches("the markers of the last transaction are missing").count()
}

#[test]
fn a_foreign_transaction_in_a_side_topic_delays_the_worker_once() {
    let pipe = Pipe::new(shared_kafka(), "aside", 2);
    let again = "aside.again";
    pipe.kafka.create_topic(again, 1, &[]);
    let running = pipe.sidecar("a").with("DEDUPD_TOPICS__DUPLICATES", again).start();
    running.wait_running(2, LIMIT);
    let load = pipe.load(2, 200);
    wait_until("duplicates", LIMIT, || {
        (!pipe.kafka.records_in(again, 0, Isolation::Committed).is_empty()).then_some(())
    });
    let (foreign, _) = open_transaction(&pipe, again);
    wait_until("records outside of transactions", LIMIT * 3, || {
        running.text().contains("are written outside of transactions").then_some(())
    });
    let before = waited_for_markers(&running);
    let start = committed(&pipe, 1);
    wait_until("partition 1 to be processed again", LIMIT, || (committed(&pipe, 1) > start).then_some(()));
    watch(&pipe, &[&running]);
    assert!(waited_for_markers(&running) <= before + STALLS_MOST, "{}", running.text());
    load.finish();
    foreign.abort_transaction(LIMIT).unwrap();
    pipe.wait_caught_up(2, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let findings = pipe.assert_exactly_once();
    let records = pipe.kafka.ended_records(again);
    let origin = |record: &Record| {
        let value = |name: &str| {
            let found = record.headers.iter().rev().find(|(header, _)| header == name);
            found.unwrap_or_else(|| panic!("no header {name}")).1.clone()
        };
        (value("dedupd.partition"), value("dedupd.offset"))
    };
    let origins: BTreeSet<_> = records.iter().map(origin).collect();
    let copies = records.len() - origins.len();
    println!("{} duplicates, {copies} of them twice", origins.len());
    assert_eq!(origins.len(), findings.repeats);
    // The records of one transaction were copied.
    assert!(copies < findings.repeats / 4, "{copies} of {} records twice", findings.repeats);
}
