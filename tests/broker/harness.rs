//! Tests of the test harness: a broker that can be killed and stopped, and a proxy that injects faults.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::proxy::Direction;
use crate::support::records::{produce_with, read_with};
use crate::support::{Isolation, Kafka, Proxy, api, child, shared_kafka, shared_proxy, wait_until};
use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

const LIMIT: Duration = Duration::from_secs(30);

/// A producer that retries without sequence numbers.
fn plain_producer(proxy: &Proxy) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", proxy.bootstrap()).set("enable.idempotence", "false").set("acks", "all");
    config.set("linger.ms", "0").set("reconnect.backoff.ms", "20").set("retry.backoff.ms", "20");
    config
}

fn texts(kafka: &Kafka, topic: &str) -> Vec<String> {
    kafka.records(topic, Isolation::Uncommitted).iter().map(crate::support::Record::text).collect()
}

#[test]
fn records_on_both_listeners_survive_kill_9() {
    let kafka = Kafka::start();
    let proxy = kafka.proxy();
    kafka.create_topic("round", 2, &[]);
    kafka.produce("round", 0, &[("k", "direct")]);
    produce_with(&plain_producer(&proxy), "round", 1, &[("k", "proxied")]);

    let through_proxy = read_with(&plain_producer(&proxy), "round", Isolation::Committed);
    assert_eq!(texts(&kafka, "round"), ["direct", "proxied"]);
    assert_eq!(through_proxy, kafka.records("round", Isolation::Committed));
    assert!(proxy.seen(Direction::Response, api::FETCH) > 0, "the proxied reader bypassed the proxy");

    kafka.kill9();
    assert_eq!(kafka.pid(), None);
    let restarted_in = kafka.restart();
    assert_eq!(texts(&kafka, "round"), ["direct", "proxied"]);
    println!("first start {:?}, after kill -9 {restarted_in:?}", kafka.started_in());

    kafka.stop();
    assert!(kafka.log().contains("shut down"), "SIGTERM did not cause an orderly stop");
    let restarted_in = kafka.restart();
    assert_eq!(texts(&kafka, "round"), ["direct", "proxied"]);
    println!("after an orderly stop {restarted_in:?}");
}

#[test]
fn a_lost_answer_to_produce_causes_a_real_duplicate() {
    let (kafka, (_guard, proxy)) = (shared_kafka(), shared_proxy());
    kafka.create_topic("lost-answer", 1, &[]);
    proxy.drop_responses(api::PRODUCE, 1);
    produce_with(&plain_producer(&proxy), "lost-answer", 0, &[("k", "once")]);
    assert_eq!(
        texts(kafka, "lost-answer"),
        ["once", "once"],
        "the retry of an unknown result is not a duplicate"
    );
    assert_eq!(proxy.hits(Direction::Response, api::PRODUCE), 1);

    // The same fault with sequence numbers: the broker recognizes the batch.
    proxy.drop_responses(api::PRODUCE, 1);
    let mut idempotent = plain_producer(&proxy);
    produce_with(idempotent.set("enable.idempotence", "true"), "lost-answer", 0, &[("k", "known")]);
    assert_eq!(texts(kafka, "lost-answer"), ["once", "once", "known"]);
    assert_eq!(proxy.hits(Direction::Response, api::PRODUCE), 2);
}

#[test]
fn a_lost_request_is_retried_without_a_duplicate() {
    let (kafka, (_guard, proxy)) = (shared_kafka(), shared_proxy());
    kafka.create_topic("lost-request", 1, &[]);
    proxy.drop_requests(api::PRODUCE, 2);
    produce_with(&plain_producer(&proxy), "lost-request", 0, &[("k", "once")]);
    assert_eq!(texts(kafka, "lost-request"), ["once"]);
    assert_eq!(proxy.seen(Direction::Request, api::PRODUCE), 3);
}

#[test]
fn a_held_request_arrives_after_its_client_has_ended() {
    let (kafka, (_guard, proxy)) = (shared_kafka(), shared_proxy());
    kafka.create_topic("held", 1, &[]);
    proxy.hold_requests(api::PRODUCE, 1, Duration::from_secs(10));
    let producer: BaseProducer = plain_producer(&proxy).create().unwrap();
    producer.send(BaseRecord::<str, str>::to("held").partition(0).payload("late")).unwrap();
    proxy.wait_hits(Direction::Request, api::PRODUCE, 1, LIMIT);
    drop(producer);
    assert_eq!(kafka.watermarks("held", 0), (0, 0), "the held record arrived early");
    wait_until("the held record", LIMIT, || (kafka.watermarks("held", 0).1 == 1).then_some(()));
}

#[test]
fn held_and_delayed_answers_are_late_until_the_proxy_is_healed() {
    let (kafka, (_guard, proxy)) = (shared_kafka(), shared_proxy());
    kafka.create_topic("late-answer", 1, &[]);
    let producer: BaseProducer = plain_producer(&proxy).create().unwrap();
    let acknowledged_in = |text: &str| {
        let start = monotonic();
        producer.send(BaseRecord::<str, str>::to("late-answer").partition(0).payload(text)).unwrap();
        producer.flush(LIMIT).unwrap();
        start.elapsed()
    };
    let late = Duration::from_millis(700);
    proxy.hold_responses(api::PRODUCE, 1, late);
    assert!(acknowledged_in("held") >= late);
    proxy.delay(Direction::Response, late);
    assert!(acknowledged_in("delayed") >= late);
    proxy.heal();
    wait_until("an answer without a delay", LIMIT, || (acknowledged_in("healed") < late).then_some(()));
    assert_eq!(texts(kafka, "late-answer")[..3], ["held", "delayed", "healed"]);
}

/// Uses raw sockets, because a client library opens and closes connections itself.
#[test]
fn cut_and_refused_connections_fail_until_healed() {
    let (_guard, proxy) = shared_proxy();
    let connect = || TcpStream::connect(proxy.bootstrap()).unwrap();
    let mut open = connect();
    assert_eq!(request_versions(&mut open, 7).unwrap(), 7);
    proxy.refuse(true);
    assert_eq!(request_versions(&mut open, 8).unwrap(), 8, "an open connection was closed");
    assert!(request_versions(&mut connect(), 9).is_err(), "a new connection was accepted");
    proxy.cut_all();
    assert!(request_versions(&mut open, 10).is_err(), "the open connection was not cut");
    proxy.heal();
    assert_eq!(request_versions(&mut connect(), 11).unwrap(), 11);
}

/// Requests the API versions, and returns the correlation id of the response.
fn request_versions(stream: &mut TcpStream, correlation_id: i32) -> io::Result<i32> {
    let mut request = Vec::from(10_i32.to_be_bytes());
    request.extend([0, 18, 0, 0]); // ApiVersions, version 0
    request.extend(correlation_id.to_be_bytes());
    request.extend((-1_i16).to_be_bytes()); // no client id
    stream.write_all(&request)?;
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let length = i32::from_be_bytes(head[..4].try_into().unwrap());
    stream.read_exact(&mut vec![0; usize::try_from(length).unwrap() - 4])?;
    Ok(i32::from_be_bytes(head[4..].try_into().unwrap()))
}

#[test]
fn open_and_aborted_transactions_are_visible_in_offsets_and_reads() {
    let kafka = shared_kafka();
    kafka.create_topic("txn", 1, &[]);
    kafka.produce("txn", 0, &[("k", "plain")]);
    let producer: BaseProducer =
        kafka.client_config().set("transactional.id", "harness.txn").create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer.begin_transaction().unwrap();
    producer.send(BaseRecord::<str, str>::to("txn").partition(0).payload("open")).unwrap();
    producer.flush(LIMIT).unwrap();
    assert_eq!((kafka.watermarks("txn", 0), kafka.last_stable_offset("txn", 0)), ((0, 2), 1));

    kafka.fence("harness.txn");
    assert_eq!((kafka.watermarks("txn", 0), kafka.last_stable_offset("txn", 0)), ((0, 3), 3));
    let committed = kafka.records("txn", Isolation::Committed);
    assert_eq!(committed.iter().map(crate::support::Record::text).collect::<Vec<_>>(), ["plain"]);
    assert_eq!(texts(kafka, "txn"), ["plain", "open"]);
    assert!(producer.commit_transaction(LIMIT).is_err(), "the fenced producer committed");
}

#[test]
fn topics_and_groups_can_be_set_up() {
    let kafka = shared_kafka();
    kafka.create_topic("shaped", 2, &[("retention.ms", "1234567")]);
    kafka.alter_topic_config("shaped", &[("max.message.bytes", "2000")]);
    let settings = kafka.topic_config("shaped");
    assert_eq!(
        (settings["retention.ms"].as_str(), settings["max.message.bytes"].as_str()),
        ("1234567", "2000")
    );
    kafka.grow_topic("shaped", 3);
    assert_eq!(kafka.partitions("shaped"), 3);

    kafka.produce("shaped", 2, &[("a", "0"), ("b", "1"), ("c", "2")]);
    kafka.delete_records("shaped", 2, 2);
    assert_eq!(texts(kafka, "shaped"), ["2"]);

    assert_eq!(kafka.committed("arranged", "shaped", 2), None);
    kafka.commit_offset("arranged", "shaped", 2, 3);
    assert_eq!(kafka.committed("arranged", "shaped", 2), Some((3, String::new())));
    kafka.delete_group("arranged");
    assert_eq!(kafka.committed("arranged", "shaped", 2), None);

    kafka.delete_topic("shaped");
    assert_eq!(kafka.partitions("shaped"), 0);
}

#[test]
fn a_stopped_broker_is_silent_until_it_is_continued() {
    let kafka = Kafka::start();
    let responds = || kafka.admin().inner().fetch_metadata(None, Duration::from_millis(500)).is_ok();
    wait_until("an answer of the broker", LIMIT, || responds().then_some(()));
    kafka.sigstop();
    // A thread that is running when the signal arrives may still answer once.
    wait_until("the broker to be silent", LIMIT, || (!responds()).then_some(()));
    kafka.sigcont();
    wait_until("an answer of the continued broker", LIMIT, || responds().then_some(()));
}

#[test]
fn without_jars_a_test_fails_with_the_setup_command() {
    let output =
        rerun("harness::a_stopped_broker_is_silent_until_it_is_continued", "DEDUPD_KAFKA_HOME", "/nowhere")
            .output()
            .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the test passed without a broker");
    assert!(text.contains("no Kafka jars in /nowhere/libs: run scripts/setup"), "{text}");
}

/// The child of this test aborts: no destructor runs, so only the kernel can end the grandchild. The grandchild keeps
/// the pipe of its output open, so the end of the stream is the end of the grandchild.
#[test]
fn children_end_with_the_test_process() {
    const SELF: &str = "harness::children_end_with_the_test_process";
    if std::env::var_os("HARNESS_ORPHAN").is_some() {
        let mut sleep = child::tied("sleep");
        sleep.arg("60").stderr(Stdio::inherit());
        let sleeping = std::thread::spawn(|| child::spawn(sleep)).join().unwrap();
        eprintln!("started {}", sleeping.id());
        std::process::abort();
    }
    let start = monotonic();
    let mut parent = rerun(SELF, "HARNESS_ORPHAN", "1").stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    parent.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!parent.wait().unwrap().success());
    assert!(text.contains("started "), "{text}");
    assert!(start.elapsed() < LIMIT, "the grandchild lived on for {:?}", start.elapsed());
}

/// A command that runs one test of this binary with a further environment variable.
fn rerun(test: &str, variable: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(variable, value).stdout(Stdio::piped());
    command
}
