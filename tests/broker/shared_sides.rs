//! A side topic with fewer partitions than raw, to which several workers write, on a real Apache Kafka.
//!
//! The last stable offset of such a partition also waits for the open transactions of the other workers. These are no missing
//! markers of the own transaction, so they must not replace the producer.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Isolation, Pipe, Record, Running, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(1);
const PARTITIONS: usize = 4;
/// Number of commits of each worker while the others have transactions open.
const COMMITS: f64 = 4.0;
/// Number of producers of a process that a stall of the machine, or a busy broker, may replace before its first commit: it can
/// delay the markers of both workers.
const REPLACED_AT_FIRST: f64 = 4.0;

fn committed(running: &Running) -> f64 {
    running.transactions("committed")
}

fn replaced(running: &Running) -> usize {
    running.text().matches("the markers of the last transaction are missing").count()
}

/// Workers that do not distinguish the transactions of others from their own replace their producer at every commit, and
/// commit nothing.
fn assert_rarely_replaced(process: &Running) {
    let (replaced, commits) = (replaced(process), committed(process));
    let most = REPLACED_AT_FIRST + commits / 4.0;
    assert!(replaced as f64 <= most, "{replaced} producers replaced at {commits} commits");
}

/// The raw coordinates of a side record.
fn origin(record: &Record) -> (Vec<u8>, Vec<u8>) {
    let header = |name: &str| {
        let (_, value) =
            record.headers.iter().rev().find(|(header, _)| header == name).expect("a header of dedupd");
        value.clone().unwrap()
    };
    (header("dedupd.partition"), header("dedupd.offset"))
}

#[test]
fn long_transactions_in_a_shared_side_partition_do_not_replace_the_producers_of_other_workers() {
    let pipe = Pipe::new(shared_kafka(), "sides", PARTITIONS);
    let again = "sides.again";
    pipe.kafka.create_topic(again, 1, &[]);
    let sidecar = |instance: &str, interval: &str| {
        pipe.sidecar(instance)
            .sharing(2)
            .with("DEDUPD_GROUP__SESSION_TIMEOUT", "30s")
            .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "20s")
            .with("DEDUPD_BATCH__INTERVAL", interval)
            .with("DEDUPD_TOPICS__DUPLICATES", again)
            .start()
    };
    // With equal intervals, workers that wait for each other begin their transactions together.
    let both = [sidecar("a", "4s"), sidecar("b", "7s")];
    for process in &both {
        process.wait_running(PARTITIONS / 2, LIMIT);
    }
    let load = pipe.load(PARTITIONS, 400);
    wait_until("commits", LIMIT * 3, || {
        for process in &both {
            assert_rarely_replaced(process);
        }
        both.iter().all(|process| committed(process) >= COMMITS * 2.0).then_some(())
    });
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let replaced: usize = both.iter().map(replaced).sum();
    let unknown: f64 = both.iter().map(|process| process.transactions("unknown")).sum();
    let commits: f64 = both.iter().map(committed).sum();
    println!("{replaced} producers replaced, {unknown} unknown of {commits} transactions");
    for process in &both {
        assert_eq!(process.stop(), Some(0), "{}", process.text());
    }
    let findings = pipe.assert_exactly_once();
    let records = pipe.kafka.records(again, Isolation::Committed);
    let origins: BTreeSet<_> = records.iter().map(origin).collect();
    assert_eq!(
        (records.len(), origins.len()),
        (findings.repeats, findings.repeats),
        "duplicates in the side topic"
    );
    assert!(unknown <= replaced as f64, "{unknown} transactions with an unknown outcome");
}
