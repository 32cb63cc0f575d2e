//! `dedupd rekey`: a source partition without a leader or without a fetcher, a record that the target topic rejects, records without an
//! id, and a regular expression without topics.

use std::path::Path;
use std::time::Duration;

use dedupd::kafka::{SourceLog, SourceReader};
use dedupd::ports::Record as _;
use rdkafka::ClientConfig;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaErrorCode as Code};
use testkit::mock::Broker;

use crate::member::LIMIT;
use crate::membership::placed;
use crate::support::mock::{CLEAN, Mock, RAW};
use crate::support::ports::free_port;
use crate::support::records::{Isolation, produce_with, read_with};
use crate::support::{Running, child, wait_until};
use crate::transactions::{SLICE, fill, watched};

/// Starts a process that writes the raw topic to the clean topic, by key.
fn start(bootstrap: &str, flags: &[&str], dir: &Path) -> Running {
    start_from((bootstrap, RAW), "key", flags, dir)
}

/// Starts a process that writes these topics to the clean topic, by this source of the id.
fn start_from((bootstrap, from): (&str, &str), id: &str, flags: &[&str], dir: &Path) -> Running {
    let port = free_port();
    let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
    command
        .args(["rekey", "--bootstrap-servers", bootstrap, "--from", from, "--to", CLEAN, "--id", id])
        .args(["--instance", "a", "--listen", &format!("127.0.0.1:{port}")])
        .args(flags)
        .env("DEDUPD_GROUP__SESSION_TIMEOUT", "6s")
        .env("DEDUPD_WITHOUT", "topic_ids")
        .env_remove("RUST_LOG");
    Running::start(command, port, dir.join("rekey.log"))
}

#[test]
fn a_source_partition_without_a_leader_does_not_delay_the_others() {
    let broker = Broker::start(1, &[RAW, CLEAN], 2).expect("an embedded broker");
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker.bootstrap_servers());
    for partition in 0..2 {
        produce_with(&config, RAW, partition, &[("a", "1"), ("b", "2"), ("c", "3")]);
    }
    let set_leader = |leader: Option<i32>| {
        broker.cluster().expect("the brokers").partition_leader(RAW, 1, leader).expect("a partition");
    };
    set_leader(None);
    let dir = tempfile::tempdir().unwrap();
    let running = start(broker.bootstrap_servers(), &[], dir.path());
    let wait_for = |count: f64| {
        wait_until("records of the raw topic to be written", LIMIT, || {
            (running.metric("dedupd_rekey_written_total") == Some(count)).then_some(())
        });
    };
    wait_for(3.0);
    let reason = "cannot read the assigned partitions raw/1 (1)";
    wait_until("the reason", LIMIT, || running.get("/readyz")?.contains(reason).then_some(()));
    assert_eq!(running.metric("dedupd_rekey_partitions"), Some(2.0));
    set_leader(Some(1));
    wait_for(6.0);
    wait_until("readiness", LIMIT, || running.is_ready().then_some(()));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(read_with(&config, CLEAN, Isolation::Committed).len(), 6);
}

/// Reads until these are the next offsets of the two partitions. Asserts that no record is skipped or repeated.
fn read_to(reader: &SourceReader, next: &mut [u64; 2], ends: [u64; 2]) {
    wait_until("records of the raw topic", LIMIT, || {
        let mut records = Vec::new();
        reader.poll(&mut records, 100, Duration::from_millis(100)).expect("no error");
        for record in &records {
            let at = record.coordinates();
            let expected = &mut next[usize::try_from(at.partition).unwrap()];
            assert_eq!(at.offset, *expected, "partition {}", at.partition);
            *expected += 1;
        }
        (*next == ends).then_some(())
    });
}

/// Simulates a lost fetcher: the partition is assigned, and polls return neither records nor errors.
#[test]
fn a_source_partition_without_a_fetcher_is_read_again_at_its_next_record() {
    watched(|_| {
        let mock = Mock::start(2);
        (0..2).for_each(|partition| fill(&mock, partition, 10));
        let reader = placed(&mock, "lost");
        let [lost, other, unknown] =
            [0, 1, 99].map(|partition| SourceLog { topic: RAW.to_owned(), partition });
        let mut next = [0, 0];
        read_to(&reader, &mut next, [10, 10]);
        reader.pause(&lost).expect("assigned");
        fill(&mock, 0, 10);
        fill(&mock, 1, 5);
        read_to(&reader, &mut next, [10, 15]);
        let ends = reader.log_ends(&[lost.clone(), unknown, other], SLICE).expect("a response");
        assert_eq!(ends, [Some(20), None, Some(15)]);
        reader.read_again((lost, next[0], None)).expect("assigned");
        read_to(&reader, &mut next, [20, 15]);
    });
}

#[test]
fn no_record_is_written_after_a_rejected_one() {
    let mock = Mock::start(1);
    produce_with(&mock.client_config(), RAW, 0, &[("id", "value"); 50]);
    mock.inject(Api::Produce, &[Code::MessageSizeTooLarge]);
    let dir = tempfile::tempdir().unwrap();
    // A request for each record. Five of them at most are sent before the response to the first one, and the embedded broker accepts
    // the others of these.
    let running = start(&mock.bootstrap(), &["-X", "batch.num.messages=1"], dir.path());
    let code = running.wait(LIMIT).code();
    let text = running.text();
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("topic clean does not accept the record"), "{text}");
    let written = read_with(&mock.client_config(), CLEAN, Isolation::Committed).len();
    assert!(written < 5, "{written} records were written after the rejected one");
}

#[test]
fn records_without_an_id_are_noted_with_the_reason() {
    let mock = Mock::start(1);
    produce_with(&mock.client_config(), RAW, 0, &[("key", r#"{"eventId":1}"#); 150]);
    let dir = tempfile::tempdir().unwrap();
    let running = start_from((&mock.bootstrap(), RAW), "json:/nope", &[], dir.path());
    let note = "have no id and are partitioned by their source topic and partition instead of an id; for example, the record has no \
                id: its value has no field \"nope\"; its fields are: eventId; correct identity.from (--id)\n";
    wait_until("the note of a process that is ready", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.contains("ready\nnote: ") && page.contains(note) && running.is_ready()).then_some(())
    });
    let status = running.get("/status.json").expect("a response");
    assert!(status.contains("\"notes\":[\"") && status.contains("have no id"), "{status}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let text = running.text();
    assert_eq!(text.matches("instead of an id").count(), 1, "{text}");
}

#[test]
fn a_regular_expression_without_topics_is_named_until_there_is_one() {
    let mock = Mock::start(1);
    let dir = tempfile::tempdir().unwrap();
    let running = start_from((&mock.bootstrap(), "^nothing\\."), "key", &[], dir.path());
    let what = r#"no topic matches rekey.from = "^nothing\."; waiting for one"#;
    wait_until("the reason", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.starts_with("HTTP/1.1 503") && page.contains(what)).then_some(())
    });
    mock.create_topic("nothing.a", 1);
    produce_with(&mock.client_config(), "nothing.a", 0, &[("id", "value")]);
    wait_until("the record of the new topic", LIMIT, || {
        (running.metric("dedupd_rekey_written_total") == Some(1.0)).then_some(())
    });
    wait_until("readiness without a note", LIMIT, || {
        let page = running.get("/readyz")?;
        (page.starts_with("HTTP/1.1 200") && !page.contains("note: ")).then_some(())
    });
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let text = running.text();
    assert_eq!(text.matches("no topic matches").count(), 1, "{text}");
    assert!(!text.contains("UnknownTopicOrPartition"), "{text}");
}

#[test]
fn an_invalid_regular_expression_is_a_problem_of_the_configuration() {
    let mock = Mock::start(1);
    let dir = tempfile::tempdir().unwrap();
    let running = start_from((&mock.bootstrap(), "^("), "key", &[], dir.path());
    let code = running.wait(LIMIT).code();
    let text = running.text();
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("on topic ^(; ") && text.contains("an extended regular expression of POSIX"),
        "{text}"
    );
}
