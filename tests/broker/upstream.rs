//! Producers of the raw topic with transactions, also hanging ones, on a real Apache Kafka.
//!
//! Requires `--features failpoints`: a file sets the clock.
#![cfg(feature = "failpoints")]

use std::time::Duration;

use crate::support::{Draft, Pipe, Running, Scope, set_clock, shared_kafka, tool, wait_until};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

/// The topic monitor requests the ends of logs every ten seconds, and needs two of them to see a transaction hang.
const LIMIT: Duration = Duration::from_secs(90);
const HANGING: &str = "dedupd_raw_hanging_seconds{partition=\"1\"}";

fn transactional(pipe: &Pipe<'_>, name: &str) -> BaseProducer {
    let mut config = pipe.kafka.client_config();
    config.set("transactional.id", name).set("transaction.timeout.ms", "600000");
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer
}

/// Begins a transaction with one record for each of these partitions and ids.
fn begin(pipe: &Pipe<'_>, producer: &BaseProducer, records: &[(i32, &str)]) {
    producer.begin_transaction().unwrap();
    for (partition, id) in records {
        let text = format!("{{\"id\":\"{id}\"}}");
        let record = BaseRecord::<(), str>::to(&pipe.raw).partition(*partition).payload(&text);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
}

/// Opens a transaction with one record in partition 1.
fn open_transaction(pipe: &Pipe<'_>) -> BaseProducer {
    let producer = transactional(pipe, "upstream");
    begin(pipe, &producer, &[(1, "never")]);
    producer
}

#[test]
fn a_hanging_upstream_transaction_is_reported_with_a_command_that_ends_it() {
    let pipe = Pipe::new(shared_kafka(), "hangs", 2);
    let clock = pipe.dir.path().join("clock");
    let running = pipe.sidecar("a").with("DEDUPD_CLOCK", clock.to_str().unwrap()).start();
    running.wait_running(2, LIMIT);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "a"), Draft::id(1, "b"), Draft::id(1, "c")]);
    pipe.wait_caught_up(2, LIMIT);
    wait_until("the metric at 0", LIMIT, || running.metric(HANGING).filter(|seconds| *seconds == 0.0));

    let abandoned = open_transaction(&pipe);
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, "d"), Draft::id(1, "e"), Draft::id(1, "e")]);
    pipe.wait_caught_up(1, LIMIT);
    wait_until("the metric to rise", LIMIT, || running.metric(HANGING).filter(|seconds| *seconds > 0.0));
    let text = running.text();
    let is_early = text.contains("transaction hangs") && running.value(HANGING) < 60.0;
    assert!(!is_early, "reported too early: {text}");
    set_clock(&clock, 0, 60_000);
    let abort = " abort --topic hangs.raw --partition 1 --start-offset 2";
    wait_until("the command in the log", LIMIT, || running.text().contains(abort).then_some(()));
    // The metrics are published after the log message.
    wait_until("a minute in the metric", LIMIT, || {
        running.metric(HANGING).filter(|seconds| *seconds >= 60.0)
    });
    assert_eq!(running.metric("dedupd_raw_hanging_seconds{partition=\"0\"}"), Some(0.0));
    let note = "a transaction hangs in partition 1 of topic hangs.raw from offset 2 on";
    let page = running.get("/readyz").unwrap();
    assert!(page.starts_with("HTTP/1.1 200") && page.contains(note), "{page}");
    assert!(running.get("/").unwrap().contains(note));
    assert_eq!(pipe.kafka.texts(&pipe.clean).len(), 4, "a record after the open transaction was read");

    let arguments: Vec<&str> = abort.split_whitespace().collect();
    let arguments = [&["--bootstrap-server", pipe.kafka.bootstrap()], arguments.as_slice()].concat();
    tool("org.apache.kafka.tools.TransactionsCommand", &arguments);
    wait_until("the blocked record", LIMIT, || (pipe.kafka.texts(&pipe.clean).len() == 5).then_some(()));
    wait_until("the metric to fall", LIMIT, || running.metric(HANGING).filter(|seconds| *seconds == 0.0));
    wait_until("the note to disappear", LIMIT, || {
        running.get("/readyz").filter(|page| !page.contains("hangs in"))
    });
    assert!(running.text().contains("hanging transaction ended topic=\"hangs.raw\""));
    assert_eq!(running.stop(), Some(0));
    let findings = pipe.audit();
    assert!(findings.is_clean() && findings.repeats == 1, "{findings:?}");
    drop(abandoned);
}

/// The committed offset of a partition, its last stable offset, and the lag by both metrics.
fn positions(pipe: &Pipe<'_>, running: &Running, partition: i32) -> (i64, i64, [Option<f64>; 2]) {
    let committed = pipe.kafka.committed(&pipe.group(), &pipe.raw, partition).map_or(0, |(offset, _)| offset);
    let lag = ["dedupd_lag_records", "dedupd_group_lag_records"]
        .map(|name| running.metric(&format!("{name}{{partition=\"{partition}\"}}")));
    (committed, pipe.kafka.last_stable_offset(&pipe.raw, partition), lag)
}

/// Waits until both partitions are committed up to their last stable offsets, and the lag is 0.
fn wait_without_lag(pipe: &Pipe<'_>, running: &Running) {
    for partition in [0, 1] {
        wait_until(&format!("no lag in partition {partition}"), LIMIT, || {
            let (committed, stable, lag) = positions(pipe, running, partition);
            (committed == stable && lag == [Some(0.0); 2]).then_some(())
        });
    }
}

#[test]
fn behind_a_transactional_producer_the_lag_is_0_and_no_later_record_is_skipped() {
    for scope in [Scope::Topic, Scope::Partition] {
        let name = if scope == Scope::Topic { "markers-t" } else { "markers-p" };
        let pipe = Pipe::new(shared_kafka(), name, 2);
        let sidecar = pipe.sidecar("a").scoped(scope);
        let mut running = sidecar.start();
        running.wait_running(2, LIMIT);
        let producer = transactional(&pipe, name);
        let texts = || pipe.kafka.texts(&pipe.clean).len();
        begin(&pipe, &producer, &[(0, "a"), (1, "b"), (0, "c"), (1, "a-1")]);
        producer.commit_transaction(LIMIT).unwrap();
        wait_until("the records of the first transaction", LIMIT, || (texts() == 4).then_some(()));
        wait_without_lag(&pipe, &running);
        let (committed, ..) = positions(&pipe, &running, 0);
        assert_eq!((committed, pipe.kafka.watermarks(&pipe.raw, 0).1), (3, 3), "two records and a marker");

        // An aborted transaction is skipped, and an open one is not.
        begin(&pipe, &producer, &[(0, "aborted"), (1, "aborted-1")]);
        producer.abort_transaction(LIMIT).unwrap();
        wait_without_lag(&pipe, &running);
        begin(&pipe, &producer, &[(0, "d"), (1, "e")]);
        std::thread::sleep(Duration::from_secs(20));
        let (committed, stable, lag) = positions(&pipe, &running, 0);
        assert_eq!((committed, lag), (stable, [Some(0.0); 2]), "what cannot be read does not count");
        assert!(stable < pipe.kafka.watermarks(&pipe.raw, 0).1);
        // A crash between the commit of the position and the records behind it.
        running.kill9();
        producer.commit_transaction(LIMIT).unwrap();
        running = sidecar.start();
        wait_until("the records behind the markers", LIMIT, || (texts() == 6).then_some(()));
        wait_without_lag(&pipe, &running);
        pipe.kafka.send(&pipe.raw, &[Draft::id(0, "f"), Draft::id(1, "b"), Draft::id(1, "g")]);
        wait_until("later records", LIMIT, || (texts() == 8).then_some(()));
        wait_without_lag(&pipe, &running);
        assert!(running.value("dedupd_stalled_fetches_total{reason=\"not_fetched\"}") < 0.5);
        assert_eq!(running.stop(), Some(0), "{}", running.text());
        let findings = pipe.audit();
        assert!(findings.is_clean(), "{findings:?}");
    }
}
