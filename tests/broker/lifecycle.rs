//! Start, stop and local state of the real binary on a real Apache Kafka.
#![allow(clippy::float_cmp, reason = "counts are whole numbers in f64")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::support::proxy::Direction;
use crate::support::{
    Draft, Isolation, Pipe, Proxy, Running, Scope, Sidecar, api, shared_kafka, shared_proxy, wait_until,
};
use dedupd::clock::{monotonic, wall_ms};

const PARTITIONS: usize = 4;
const LIMIT: Duration = Duration::from_secs(40);
const LOCAL: &str = "dedupd_restored_ids_total{source=\"local\"}";
const RUNNING: &str = "dedupd_partitions{state=\"running\"}";
const STATE_TOPIC: &str = "dedupd_restored_ids_total{source=\"state_topic\"}";

/// A pipe with about 6,000 processed records, and its sidecar, which SIGTERM has stopped.
fn stopped_after_load(name: &str) -> (Pipe<'static>, Sidecar) {
    let pipe = Pipe::new(shared_kafka(), name, PARTITIONS);
    let sidecar = pipe.sidecar("a").comparing_ids();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 4_000);
    load.more(6_000);
    // A transaction is open under load.
    assert_clean_stop(&running);
    load.finish();
    let running = sidecar.start();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_clean_stop(&running);
    (pipe, sidecar)
}

fn assert_clean_stop(running: &Running) {
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

#[test]
fn a_start_is_one_line_for_all_partitions_and_a_stop_has_a_last_line() {
    let pipe = Pipe::new(shared_kafka(), "lines", 6);
    let running = pipe.sidecar("a").comparing_ids().start();
    running.wait_running(6, LIMIT);
    let ready = " ready is_spare=false partitions=0-5 (6) ids=0 ids_from_disk=0 ids_from_topic=0 took_ms=";
    wait_until("the line", LIMIT, || running.text().contains(ready).then_some(()));
    assert_clean_stop(&running);
    let text = running.text();
    assert!(text.lines().last().is_some_and(|line| line.contains(" stopped took_ms=")), "{text}");
    assert_eq!(text.matches(" ready ").count(), 1, "{text}");
    assert!(!text.contains("partition=3"), "a line for one partition: {text}");
}

/// Lets the restore begin, with each response of the state topic held. Nothing is held before, because the reads before a restore
/// have a timeout of 10 s.
fn begin_restore(gate: &Path, proxy: &Proxy, hold: Duration) {
    wait_until("the restore to begin", LIMIT, || gate.exists().then_some(()));
    proxy.hold_responses(api::FETCH, usize::MAX, hold);
    std::fs::remove_file(gate).unwrap();
}

/// Produces every raw record again. All ids are in the window, so each record is dropped as a duplicate.
fn assert_all_known(pipe: &Pipe<'_>, running: &Running) {
    let before = pipe.audit();
    let (clean, dropped) = (pipe.kafka.texts(&pipe.clean).len(), running.outcome("duplicate"));
    pipe.kafka.send(&pipe.raw, &copies(pipe));
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let after = pipe.assert_exactly_once();
    assert_eq!((after.raw, after.repeats), (2 * before.raw, before.repeats + before.raw));
    assert_eq!(pipe.kafka.texts(&pipe.clean).len(), clean, "{}", running.text());
    let all = dropped + before.raw as u64;
    wait_until("the count of duplicates", LIMIT, || (running.outcome("duplicate") == all).then_some(()));
}

/// Copies of all records of the raw topic.
fn copies(pipe: &Pipe<'_>) -> Vec<Draft> {
    let records = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    assert!(records.len() > 1_000, "{} records", records.len());
    records.iter().map(|record| Draft::new(record.partition, &record.text())).collect()
}

/// Produces a new id to each partition. Nothing else has been processed since `running` started.
fn assert_only_new_records(pipe: &Pipe<'_>, running: &Running, id: &str) {
    let drafts: Vec<Draft> =
        (0..PARTITIONS).map(|p| Draft::id(i32::try_from(p).unwrap(), &format!("{id}-{p}"))).collect();
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    let others = ["retry", "duplicate", "stale", "missing_id"].map(|outcome| (outcome, 0));
    running.wait_outcomes(&[&[("forwarded", PARTITIONS as u64)], others.as_slice()].concat());
}

#[test]
fn a_restart_after_sigterm_reprocesses_nothing() {
    let (pipe, sidecar) = stopped_after_load("clean-stop");
    let before = pipe.assert_exactly_once();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    let ids = (before.raw - before.repeats) as f64;
    assert_eq!((running.metric(LOCAL), running.metric(STATE_TOPIC)), (Some(ids), Some(0.0)));
    assert_only_new_records(&pipe, &running, "new");
    assert_all_known(&pipe, &running);
    assert_clean_stop(&running);
}

#[test]
fn partitions_wait_while_lost_state_is_restored() {
    let (pipe, mut sidecar) = stopped_after_load("lost-state");
    let before = pipe.assert_exactly_once();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let (_guard, proxy) = shared_proxy();
    sidecar.bootstrap = proxy.bootstrap();
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "waits")]);
    let gate = pipe.dir.path().join("gate");
    let running = sidecar.held_at("before_state_open", &gate).start();
    begin_restore(&gate, &proxy, Duration::from_mins(1));
    let page = wait_until("the restore on /readyz", LIMIT, || {
        running.get("/readyz").filter(|page| page.contains("is restoring"))
    });
    assert!(page.starts_with("HTTP/1.1 503") && page.contains("% of the state topic read"), "{page}");
    assert_eq!(running.outcome("forwarded"), 0, "a record was forwarded before the restore ended");
    proxy.release();
    running.wait_running(PARTITIONS, LIMIT);
    let ids = (before.raw - before.repeats) as f64;
    assert_eq!((running.metric(LOCAL), running.metric(STATE_TOPIC)), (Some(0.0), Some(ids)));
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    running.wait_outcomes(&[("forwarded", 1)]);
    assert_all_known(&pipe, &running);
    assert_clean_stop(&running);
}

#[test]
fn a_restore_survives_lost_connections() {
    let (pipe, mut sidecar) = stopped_after_load("broken-restore");
    let before = pipe.assert_exactly_once();
    std::fs::remove_dir_all(&sidecar.state_dir).unwrap();
    let (_guard, proxy) = shared_proxy();
    sidecar.bootstrap = proxy.bootstrap();
    let requests = [api::METADATA, api::OFFSET_FETCH, api::LIST_OFFSETS];
    for kind in requests {
        proxy.drop_responses(kind, 3);
    }
    let gate = pipe.dir.path().join("gate");
    let running = sidecar.held_at("before_state_open", &gate).start();
    for kind in requests {
        proxy.wait_hits(Direction::Response, kind, 3, LIMIT);
    }
    // So slow that the restore is running each time when the connections are cut, and within the timeout of the reads before a
    // restore, which begins again if the producer is replaced.
    begin_restore(&gate, &proxy, Duration::from_secs(8));
    let mut fetches = 0;
    for _ in 0..4 {
        // The restore waits for the response to a held fetch.
        proxy.wait_hits(Direction::Response, api::FETCH, fetches + 1, LIMIT);
        wait_until("the restore on /readyz", LIMIT, || {
            running.get("/readyz").filter(|page| page.contains("is restoring"))
        });
        fetches = proxy.hits(Direction::Response, api::FETCH);
        proxy.cut_all();
    }
    assert_ne!(running.value(RUNNING), PARTITIONS as f64);
    proxy.release();
    running.wait_running(PARTITIONS, LIMIT);
    let ids = (before.raw - before.repeats) as f64;
    assert_eq!((running.metric(LOCAL), running.metric(STATE_TOPIC)), (Some(0.0), Some(ids)));
    assert_all_known(&pipe, &running);
    assert_clean_stop(&running);
}

/// The reasons of quarantined databases.
fn quarantined(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let directories =
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("quarantine-"));
    directories.map(|path| std::fs::read_to_string(path.join("REASON")).unwrap()).collect()
}

#[test]
fn corrupt_state_is_quarantined_and_rebuilt() {
    let (pipe, sidecar) = stopped_after_load("corrupt");
    let before = pipe.assert_exactly_once();
    let database = sidecar.state_dir.join("db-1").join("db");
    let size = usize::try_from(std::fs::metadata(&database).unwrap().len()).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let garbage: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
    std::fs::write(&database, garbage).unwrap();
    let running = sidecar.start();
    running.wait_running(PARTITIONS, LIMIT);
    assert_eq!(quarantined(&sidecar.state_dir).len(), 1, "{}", running.text());
    assert!(running.text().contains("quarantined"), "{}", running.text());
    let ids = (before.raw - before.repeats) as f64;
    assert_eq!(running.metric(STATE_TOPIC), Some(ids));
    assert_only_new_records(&pipe, &running, "new");
    assert_clean_stop(&running);
    let again = sidecar.start();
    again.wait_running(PARTITIONS, LIMIT);
    assert_eq!(again.metric(STATE_TOPIC), Some(0.0), "the rebuilt state was not kept");
    pipe.assert_exactly_once();
}

#[test]
fn the_state_of_another_topic_is_quarantined() {
    let (other, used) = stopped_after_load("first-topic");
    let pipe = Pipe::new(shared_kafka(), "second-topic", PARTITIONS);
    let mut sidecar = pipe.sidecar("a").comparing_ids();
    sidecar.state_dir = used.state_dir;
    let running = sidecar.start();
    // The ids of the first topic are new in this one.
    pipe.kafka.send(&pipe.raw, &copies(&other));
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
    let reasons = quarantined(&sidecar.state_dir);
    assert!(reasons.len() == 1 && reasons[0].contains(&other.raw), "{reasons:?}");
    assert_clean_stop(&running);
}

#[test]
fn a_second_process_on_the_same_state_directory_ends_immediately() {
    let pipe = Pipe::new(shared_kafka(), "one-dir", PARTITIONS);
    let sidecar = pipe.sidecar("a").comparing_ids();
    let first = sidecar.start();
    first.wait_running(PARTITIONS, LIMIT);
    let load = pipe.load(PARTITIONS, 2_000);
    load.more(1_000);
    let mut second = pipe.sidecar("b").comparing_ids();
    second.state_dir.clone_from(&sidecar.state_dir);
    let start = monotonic();
    let rejected = second.start();
    let ended = rejected.wait(LIMIT).code();
    let took = start.elapsed();
    assert_eq!(ended, Some(4), "{}", rejected.text());
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(rejected.text().contains(&format!("process {}", first.pid())), "{}", rejected.text());
    load.more(1_000);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(first.metric("dedupd_rebalances_total"), Some(1.0), "the first process had a rebalance");
    assert_clean_stop(&first);
    pipe.assert_exactly_once();
}

#[test]
fn a_worker_that_hangs_in_a_call_is_not_ready() {
    let pipe = Pipe::new(shared_kafka(), "hanging", 1);
    let gate = pipe.dir.path().join("gate");
    // Longer than the call hangs: the broker must not abort the transaction.
    let running = pipe
        .sidecar("a")
        .comparing_ids()
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "60s")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "90s")
        .held_at("before_commit", &gate)
        .start();
    running.wait_running(1, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a")]);
    wait_until("the reason on /readyz", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.contains("503") && page.contains("has been in one call for")).then_some(())
    });
    assert!(gate.exists());
    std::fs::remove_file(&gate).unwrap();
    running.wait_ready(LIMIT);
    pipe.wait_caught_up(1, LIMIT);
    running.wait_outcomes(&[("forwarded", 1)]);
    assert_clean_stop(&running);
}

/// The supervisor counts a worker as hung after a minute in one call. The load is longer than that, in short calls.
#[test]
fn local_state_that_takes_100_s_to_load_stops_nothing() {
    // One partition is read by one thread, so partition 0 takes 108 s on any number of cores. Partition 1 is read beside it or
    // before it.
    const BLOCKS: [i64; 2] = [31, 4];
    let (pipe, began) = (Pipe::new(shared_kafka(), "slow-load", 3), wall_ms() - BLOCKS[0] * 3_600_000);
    // In topic scope the other partitions would wait.
    let sidecar =
        pipe.sidecar("a").comparing_ids().scoped(Scope::Partition).with("DEDUPD_WINDOW__EXACT", "31h");
    let id = |partition: i32, hour: i64| Draft::id(partition, &format!("{partition}-{hour}"));
    // The blocks of one partition are an hour apart, more than 1/32 of the window, so they are not merged.
    let slow: Vec<Draft> = [(0, BLOCKS[0]), (1, BLOCKS[1])]
        .into_iter()
        .flat_map(|(partition, blocks)| (0..blocks).map(move |hour| (partition, hour)))
        .map(|(partition, hour)| Draft {
            timestamp_ms: Some(began + hour * 3_600_000),
            ..id(partition, hour)
        })
        .collect();
    pipe.kafka.send(&pipe.raw, &slow);
    let running = sidecar.start();
    pipe.wait_caught_up(3, LIMIT);
    assert_clean_stop(&running);

    let running = sidecar.with("DEDUPD_FAILPOINT_DELAY", "block_loaded:3500").start();
    let start = monotonic();
    wait_until("a partition that runs", LIMIT, || running.metric(RUNNING).filter(|count| *count == 1.0));
    // The others wait, and are processed at the end: all are duplicates.
    pipe.kafka.send(&pipe.raw, &slow);
    let mut sent = 0_u64;
    let mut pages = BTreeSet::new();
    while running.metric(RUNNING) != Some(3.0) {
        assert!(start.elapsed() < Duration::from_mins(4), "{}", running.text());
        pipe.kafka.send(&pipe.raw, &[id(2, sent.cast_signed())]);
        sent += 1;
        let forwarded = || running.outcome("forwarded");
        wait_until("a record of the other partition", LIMIT, || (forwarded() >= sent).then_some(()));
        pages.extend(running.get("/readyz").filter(|page| page.contains("is restoring")));
    }
    assert!(start.elapsed() > Duration::from_secs(100), "{:?} is too short for this test", start.elapsed());
    assert!(sent > 10 && pages.len() > 10, "{sent} records, {} pages: {pages:?}", pages.len());
    pipe.wait_caught_up(3, LIMIT);
    running.wait_outcomes(&[("forwarded", sent), ("duplicate", slow.len() as u64)]);
    assert_eq!(running.metric("dedupd_rebalances_total"), Some(1.0), "the process left the group");
    assert_clean_stop(&running);
    pipe.assert_exactly_once();
}
