//! Copies in other partitions (`dedupe.scope = "topic"`) on a real Apache Kafka: each id once in the whole topic.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::jvm::tool;
use crate::support::{Draft, Isolation, Kafka, Pipe, Record, Running, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_mins(2);

fn stop(running: &Running) {
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Kafka's own producer without keys: the sequence of values, to whatever partition it chooses.
fn verifiable(kafka: &Kafka, topic: &str, count: u32) {
    let (count, servers) = (count.to_string(), kafka.bootstrap().to_owned());
    let arguments =
        ["--topic", topic, "--bootstrap-server", &servers, "--max-messages", &count, "--acks", "-1"];
    tool("org.apache.kafka.tools.VerifiableProducer", &arguments);
}

/// Asserts that clean has each value of raw once, in a partition where raw has it, and in the order of raw.
fn assert_once(pipe: &Pipe<'_>) {
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    let clean = pipe.kafka.records(&pipe.clean, Isolation::Committed);
    let ids: BTreeSet<String> = raw.iter().map(Record::text).collect();
    let mut offsets: BTreeMap<(i32, String), i64> = BTreeMap::new();
    for record in &raw {
        offsets.entry((record.partition, record.text())).or_insert(record.offset);
    }
    let mut seen = BTreeMap::new();
    let mut last: BTreeMap<i32, i64> = BTreeMap::new();
    for record in &clean {
        *seen.entry(record.text()).or_insert(0) += 1;
        let at = *offsets
            .get(&(record.partition, record.text()))
            .unwrap_or_else(|| panic!("{record:?} is not in this partition of raw"));
        assert!(last.insert(record.partition, at).is_none_or(|last| last < at), "{record:?} is out of order");
    }
    let more = seen.iter().filter(|(_, times)| **times > 1).count();
    let missing = ids.iter().filter(|id| !seen.contains_key(id.as_str())).count();
    assert_eq!((more, missing, seen.len()), (0, 0, ids.len()), "of {} raw records", raw.len());
}

#[test]
fn no_copy_of_a_producer_without_keys_survives() {
    const COUNT: u32 = 100_000;
    let pipe = Pipe::new(shared_kafka(), "without-keys", 12);
    (0..2).for_each(|_| verifiable(pipe.kafka, &pipe.raw, COUNT));
    let instance = pipe.sidecar("a").with("DEDUPD_IDENTITY__FROM", "[\"value\"]");
    let running = instance.start();
    pipe.wait_caught_up(12, LIMIT);
    // A transaction is counted after its markers.
    wait_until("all copies to be counted", LIMIT, || {
        (running.outcome("duplicate") >= u64::from(COUNT)).then_some(())
    });
    let elsewhere = running.value("dedupd_duplicates_elsewhere_total");
    assert!(elsewhere > 50_000.0, "only {elsewhere} copies were in other partitions");
    stop(&running);
    assert_once(&pipe);
    instance.audit().unwrap();
}

#[test]
fn ids_count_once_through_kills_and_growth() {
    const BEFORE: i32 = 3;
    const AFTER: i32 = 5;
    let pipe = Pipe::new(shared_kafka(), "everywhere", 3);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut produce = |partitions: i32, ids: std::ops::Range<u32>| {
        // Three copies of each id, the later ones mostly in other partitions.
        let mut copies: Vec<(i32, u32)> =
            ids.flat_map(|id| [id; 3]).map(|id| (rng.i32(0..partitions), id)).collect();
        rng.shuffle(&mut copies);
        let drafts: Vec<_> = copies.iter().map(|(at, id)| Draft::id(*at, &id.to_string())).collect();
        pipe.kafka.send(&pipe.raw, &drafts);
    };
    let instance = pipe.sidecar("a");
    let mut running = instance.start();
    for round in 0..4 {
        if round == 2 {
            // A start adds partitions only for a group that has committed, and each kill may have been before a commit.
            let committed =
                || (0..BEFORE).any(|at| pipe.kafka.committed(&pipe.group(), &pipe.raw, at).is_some());
            wait_until("a commit", LIMIT, || committed().then_some(()));
            pipe.kafka.grow_topic(&pipe.raw, usize::try_from(AFTER).unwrap());
        }
        let partitions = if round < 2 { BEFORE } else { AFTER };
        produce(partitions, round * 5_000..(round + 1) * 5_000);
        // Ids of the round before, again.
        produce(partitions, round.saturating_sub(1) * 5_000..(round + 1) * 5_000);
        running.kill9();
        if round == 3 {
            std::fs::remove_dir_all(&instance.state_dir).unwrap();
        }
        running = instance.start();
    }
    pipe.wait_caught_up(usize::try_from(AFTER).unwrap(), LIMIT);
    stop(&running);
    assert_once(&pipe);
    instance.audit().unwrap();
}

/// The client does not return the marker at the end of a log. Until another reader has found out that nothing else is there, the partition
/// may have unread records that need the ids of the others.
#[test]
fn a_partition_that_ends_with_a_marker_does_not_keep_the_ids_of_others() {
    const FIRST: i64 = 20;
    let pipe = Pipe::new(shared_kafka(), "marker-last", 2);
    let running = pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1m").start();
    running.wait_running(2, LIMIT);
    let began_ms = now_ms() - 10 * 3_600_000;
    pipe.kafka.send_in_transaction(&pipe.raw, &[Draft::id(0, "first").at(began_ms)], true);
    // One record a minute of stream time.
    let draft = |number: i64| Draft::id(1, &number.to_string()).at(began_ms + 60_000 * number);
    let ids = || running.metric("dedupd_window_ids{partition=\"0\"}").unwrap_or_default();
    // At once: some seconds later the end of the other log is known, and they leave.
    pipe.kafka.send(&pipe.raw, &(1..=FIRST).map(draft).collect::<Vec<_>>());
    let mut sent = FIRST;
    let mut produce = || {
        sent += 1;
        pipe.kafka.send(&pipe.raw, &[draft(sent)]);
    };
    wait_until("all ids to be in the window", LIMIT, || (ids() >= FIRST as f64).then_some(()));
    wait_until("the old ids to leave the window", LIMIT, || {
        produce();
        std::thread::sleep(Duration::from_millis(500));
        // The end of the other log is known up to ten seconds later, and the partition may count as one window behind.
        (ids() < 10.0).then_some(())
    });
    stop(&running);
    let findings = pipe.audit();
    assert!(findings.is_clean(), "{findings:?}");
}
