//! Producers of the raw topic with hanging transactions, on a real Apache Kafka.
//!
//! Requires `--features failpoints`: a file sets the clock.
#![cfg(feature = "failpoints")]

use std::time::Duration;

use crate::support::{Draft, Pipe, set_clock, shared_kafka, tool, wait_until};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

/// The topic monitor requests the ends of logs every ten seconds, and needs two of them to see a transaction hang.
const LIMIT: Duration = Duration::from_secs(90);
const HANGING: &str = "dedupd_raw_hanging_seconds{partition=\"1\"}";

/// Opens a transaction with one record in partition 1.
fn open_transaction(pipe: &Pipe<'_>) -> BaseProducer {
    let mut config = pipe.kafka.client_config();
    config.set("transactional.id", "upstream").set("transaction.timeout.ms", "600000");
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer.begin_transaction().unwrap();
    let record = BaseRecord::<(), str>::to(&pipe.raw).partition(1).payload("{\"id\":\"never\"}");
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LIMIT).unwrap();
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
