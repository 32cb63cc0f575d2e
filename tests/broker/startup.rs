//! Failed starts of the real binary on a real Apache Kafka: the exit code, the reason, the remedy.

use std::net::TcpListener;
use std::time::Duration;

use crate::support::{Pipe, Sidecar, ports::free_port, shared_kafka, wait_until};
use dedupd::clock::monotonic;

const LIMIT: Duration = Duration::from_secs(30);

/// A sidecar that may not create topics.
fn strict(pipe: &Pipe<'_>) -> Sidecar {
    pipe.sidecar("a").with("DEDUPD_TOPICS__CREATE", "false")
}

/// Asserts that it ends with this exit code and that its log contains all words.
fn assert_start_fails(sidecar: &Sidecar, code: i32, words: &[&str]) {
    let running = sidecar.start();
    let ended = running.wait(LIMIT).code();
    let text = running.text();
    assert_eq!(ended, Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

#[test]
fn all_missing_topics_are_reported_together() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "absent", 2);
    let state = format!("{}.dedupd", pipe.clean);
    let create = "set topics.create = true";
    assert_start_fails(&strict(&pipe), 3, &[&pipe.clean, &state, "(topics.clean)", "(topics.state)", create]);
    kafka.create_topic(&pipe.clean, 2, &[]);
    assert_start_fails(&strict(&pipe), 3, &[&state, "(topics.state)"]);
    // The raw topic is never created, because only its producers can determine its settings.
    let mut nowhere = pipe.sidecar("b");
    nowhere.raw = "absent.nowhere".to_owned();
    assert_start_fails(&nowhere, 3, &["absent.nowhere", "(topics.raw)", "does not exist"]);
    assert_eq!(kafka.partitions("absent.nowhere"), 0);
    assert_eq!(kafka.partitions(&state), 0, "a failed start has created a topic");
}

#[test]
fn topics_with_different_partition_counts_are_rejected() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "counts", 3);
    let state = format!("{}.dedupd", pipe.clean);
    kafka.create_topic(&pipe.clean, 2, &[]);
    kafka.create_topic(&state, 4, &[("retention.ms", "-1")]);
    let words = ["has 2 partitions", "has 4 partitions", "kafka-topics.sh", &pipe.clean, &state];
    assert_start_fails(&strict(&pipe), 3, &words);
    // topics.create does not change existing topics.
    assert_start_fails(&pipe.sidecar("a"), 3, &words);
}

#[test]
fn a_state_topic_with_short_retention_is_rejected_with_the_command_that_fixes_it() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "forgetful", 1);
    let state = format!("{}.dedupd", pipe.clean);
    kafka.create_topic(&pipe.clean, 1, &[]);
    kafka.create_topic(&state, 1, &[("retention.ms", "86400000"), ("cleanup.policy", "compact")]);
    let command = format!("kafka-configs.sh --bootstrap-server {} --alter", kafka.bootstrap());
    let words = [&command, "--add-config cleanup.policy=delete", "--add-config retention.ms=172800000"];
    assert_start_fails(&strict(&pipe), 3, &words);
    kafka.alter_topic_config(&state, &[("cleanup.policy", "delete")]);
    assert_start_fails(&strict(&pipe), 3, &["retention.ms=172800000", "needs at least 26h 24m"]);
    kafka.alter_topic_config(&state, &[("retention.ms", "172800000")]);
    let running = strict(&pipe).start();
    running.wait_ready(LIMIT);
    assert_eq!(running.stop(), Some(0));
}

#[test]
fn timeouts_beyond_the_limits_of_the_broker_are_a_configuration_error() {
    let pipe = Pipe::new(shared_kafka(), "limits", 1);
    let long = pipe
        .sidecar("a")
        .with("DEDUPD_BATCH__TRANSACTION_TIMEOUT", "16m")
        .with("DEDUPD_GROUP__SESSION_TIMEOUT", "17m");
    assert_start_fails(&long, 2, &["transaction.max.timeout.ms", "batch.transaction_timeout"]);
    let longer = pipe.sidecar("a").with("DEDUPD_GROUP__SESSION_TIMEOUT", "31m");
    assert_start_fails(&longer, 2, &["group.max.session.timeout.ms", "group.session_timeout"]);
    assert_eq!(pipe.kafka.partitions(&pipe.clean), 0, "a failed start has created a topic");
}

#[test]
fn a_start_waits_for_an_unreachable_broker() {
    let pipe = Pipe::new(shared_kafka(), "unreachable", 1);
    let mut sidecar = pipe.sidecar("a");
    sidecar.bootstrap = format!("127.0.0.1:{}", free_port());
    let running = sidecar.start();
    let page = wait_until("the reason on /readyz", LIMIT, || {
        running.get("/readyz").filter(|page| page.contains("waits for a broker"))
    });
    assert!(page.starts_with("HTTP/1.1 503") && page.contains(&sidecar.bootstrap), "{page}");
    assert!(running.get("/livez").unwrap().starts_with("HTTP/1.1 200"));
    assert!(running.text().contains("no broker answers"), "{}", running.text());
    assert_eq!(running.ended(), None);
    assert!(
        running.has_role("joining") && !running.has_role("active"),
        "no alert would show that nobody is active"
    );
    let start = monotonic();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_start_that_waits_for_a_silent_broker_can_be_stopped() {
    let pipe = Pipe::new(shared_kafka(), "silent", 1);
    let silent = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let mut sidecar = pipe.sidecar("a");
    sidecar.bootstrap = silent.local_addr().unwrap().to_string();
    let running = sidecar.start();
    let _connection = silent.accept().unwrap();
    // Its first request is pending.
    let start = monotonic();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_bad_configuration_lists_every_problem() {
    let pipe = Pipe::new(shared_kafka(), "bad", 1);
    let mut sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_WINDOW__EXACT", "soon")
        .with("DEDUPD_BATCH__INTERVAL", "10s")
        .with("DEDUPD_GROUP__ON_REWIND", "guess")
        .with("DEDUPD_KAFKA__PROPERTIES__ENABLE_AUTO_COMMIT", "true")
        .with("DEDUPD_STATE__ON_POISON", "dead_letter")
        .with("DEDUPD_WINDOWS__EXACT", "1h");
    let words = [
        "window.exact",
        "batch.interval",
        "group.on_rewind",
        "enable.auto.commit",
        "state.on_poison",
        "windows",
    ];
    // A start that needs a broker does not end.
    sidecar.bootstrap = format!("127.0.0.1:{}", free_port());
    assert_start_fails(&sidecar, 2, &words);
}

#[test]
fn created_topics_have_the_settings_of_the_raw_topic() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "created", 5);
    let kept = [("retention.ms", "123456789"), ("retention.bytes", "99999999")];
    let changed = [
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.before.max.ms", "9000000000"),
        ("max.message.bytes", "3000000"),
    ];
    kafka.alter_topic_config(&pipe.raw, &[&kept[..], &changed].concat());
    let running = pipe
        .sidecar("a")
        .with("DEDUPD_WINDOW__EXACT", "10h")
        .with("DEDUPD_TOPICS__DUPLICATES", "created.again")
        .start();
    running.wait_ready(LIMIT);
    let state = format!("{}.dedupd", pipe.clean);
    assert_eq!((kafka.partitions(&pipe.clean), kafka.partitions(&state)), (5, 5));
    // Half as much again, and 4 KiB for headers; no limits on timestamps.
    let accepting = [
        ("max.message.bytes", "4504096"),
        ("message.timestamp.before.max.ms", "9223372036854775807"),
        ("message.timestamp.after.max.ms", "9223372036854775807"),
        ("message.timestamp.type", "CreateTime"),
        ("compression.type", "producer"),
    ];
    for (topic, policy) in [(pipe.clean.as_str(), "compact"), ("created.again", "delete")] {
        let config = kafka.topic_config(topic);
        for (key, value) in kept.into_iter().chain(accepting).chain([("cleanup.policy", policy)]) {
            assert_eq!(config[key], value, "{key} of {topic}");
        }
    }
    let state = kafka.topic_config(&state);
    assert_eq!(state["cleanup.policy"], "delete");
    assert_eq!(state["retention.bytes"], "-1");
    let ten_hours_and_a_day_ms = 34 * 3_600_000;
    assert_eq!(state["retention.ms"], ten_hours_and_a_day_ms.to_string());
    assert_eq!(running.stop(), Some(0));
    // The next start accepts the created topics.
    let again = strict(&pipe).with("DEDUPD_WINDOW__EXACT", "10h").start();
    again.wait_ready(LIMIT);
}

#[test]
fn a_topic_that_the_brokers_reject_ends_the_start_with_their_reason() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "collides", 1);
    // In names of metrics a dot becomes an underscore, so Kafka rejects a second such topic.
    kafka.create_topic("collides_clean", 1, &[]);
    let words = ["creating topic collides.clean", "collides with existing topic"];
    assert_start_fails(&pipe.sidecar("a"), 3, &words);
    // The control: with another name it starts.
    let running = Sidecar { clean: "collides.other".to_owned(), ..pipe.sidecar("a") }.start();
    running.wait_running(1, LIMIT);
}
