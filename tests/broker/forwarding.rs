//! The content of the clean topic on a real Apache Kafka: every byte, in order, once, and by policy.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{Draft, Isolation, Pipe, Record, Running, now_ms, shared_kafka, wait_until};

const LIMIT: Duration = Duration::from_secs(40);
const HOUR_MS: i64 = 3_600_000;

type Content = (i32, Option<Vec<u8>>, Option<Vec<u8>>, Option<i64>, Vec<(String, Option<Vec<u8>>)>);

fn content(record: &Record) -> Content {
    let Record { partition, key, value, timestamp_ms, headers, .. } = record.clone();
    (partition, key, value, timestamp_ms, headers)
}

/// Waits until the group has committed `offset` or more of partition 0.
fn wait_committed(pipe: &Pipe<'_>, offset: i64) {
    wait_until("the committed offset", LIMIT, || {
        let committed = pipe.kafka.committed(&pipe.group(), &pipe.raw, 0);
        committed.filter(|(at, _)| *at >= offset).map(|_| ())
    });
}

#[test]
fn every_part_of_a_record_is_forwarded_unchanged() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "bytes", 3);
    kafka.alter_topic_config(&pipe.raw, &[("max.message.bytes", "9000000")]);
    let large = "x".repeat(8_000_000);
    let shapes = [
        Draft::new(0, "a null key"),
        Draft::new(1, "an empty key").key(b""),
        Draft::new(2, "a binary key").key(&[0, 0xff, 0xfe, b'"', 0]),
        Draft { partition: 0, ..Draft::default() },
        Draft::new(1, "").key(b"an empty value"),
        Draft { value: Some((0..=255).collect()), partition: 2, ..Draft::default() },
        Draft::new(0, "headers").header("a", Some(b"1")).header("b", None).header("a", Some(b"2")),
        Draft::new(0, "more headers").header("a", Some(b"")).header("", Some(&[0, 0xff])),
        Draft::new(1, "the past").at(1),
        Draft::new(2, "yesterday").at(now_ms() - 24 * HOUR_MS),
        Draft::new(0, &large).key(b"large"),
        Draft::new(1, &large).at(12_345),
    ];
    let drafts: Vec<Draft> = (0..3)
        .flat_map(|_| shapes.iter().cloned().enumerate())
        .map(|(number, draft)| draft.header("event-id", Some(format!("id-{number}").as_bytes())))
        .collect();
    kafka.send(&pipe.raw, &drafts);
    let from = ("DEDUPD_IDENTITY__FROM", "[\"header:event-id\"]");
    pipe.through(3, &pipe.sidecar("a").with(from.0, from.1));
    let raw = kafka.records(&pipe.raw, Isolation::Committed);
    assert_eq!(raw.len(), 3 * shapes.len());
    let mut seen = HashSet::new();
    let id = |record: &Record| record.headers.last().unwrap().1.clone();
    let expected: Vec<Content> = raw.iter().filter(|r| seen.insert(id(r))).map(content).collect();
    let clean: Vec<Content> = kafka.records(&pipe.clean, Isolation::Committed).iter().map(content).collect();
    assert_eq!(expected.len(), shapes.len());
    for (found, wanted) in clean.iter().zip(&expected) {
        assert!(found == wanted, "{:.2000}", format!("{found:?}\nis not\n{wanted:?}"));
    }
    assert_eq!(clean.len(), expected.len());
}

#[test]
fn compressed_input_is_forwarded_in_order_with_its_headers() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "codecs", 1);
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let draft = |n: usize| {
            let value = format!("{{\"id\":\"{codec}-{}\",\"n\":{n},\"{codec}\":true}}", n % 300);
            let headers = [("number", Some(n.to_string())), ("null", None)].into_iter().take(n % 3);
            headers.fold(Draft::new(0, &value), |draft, (name, value)| {
                draft.header(name, value.as_deref().map(str::as_bytes))
            })
        };
        let drafts: Vec<Draft> = (0..400).map(draft).collect();
        kafka.send_with(&pipe.raw, &drafts, &[("compression.type", codec), ("linger.ms", "200")]);
    }
    let mut whole = pipe.sidecar("a").with("DEDUPD_KAFKA__PROPERTIES__COMPRESSION_TYPE", "zstd");
    whole.workers = 1;
    pipe.through(1, &whole);
    assert_eq!(pipe.assert_exactly_once().repeats, 500);
    for record in kafka.records(&pipe.clean, Isolation::Committed) {
        let text = record.text();
        let n: usize = text.split(&[':', ',']).nth(3).unwrap().parse().unwrap();
        let headers = [("number", Some(n.to_string().into_bytes())), ("null", None)];
        let expected: Vec<_> =
            headers.into_iter().take(n % 3).map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(record.headers, expected, "{text}");
    }
}

#[test]
fn timestamps_that_clients_cannot_write_change_by_at_most_1_ms() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "stamps", 1);
    // A broker deletes old records 30 s after its start.
    kafka.alter_topic_config(&pipe.raw, &[("retention.ms", "-1")]);
    let stamps =
        [(0, "{\"id\":\"zero\"}"), (1_000, "{\"id\":\"one second\"}"), (0, "{\"id\":\"zero again\"}")];
    kafka.send_stamped(&pipe.raw, 0, &stamps);
    kafka.send_stamped(&pipe.raw, 0, &[(-1, "{\"id\":\"none\"}"), (-1, "{\"id\":\"none\"}")]);
    pipe.through(1, &pipe.sidecar("a"));
    let times = |topic: &str| -> Vec<Option<i64>> {
        kafka.records(topic, Isolation::Committed).iter().map(|record| record.timestamp_ms).collect()
    };
    assert_eq!(times(&pipe.raw), [Some(0), Some(1_000), Some(0), None, None]);
    // The client replaces 0 by the current time. The closest timestamp that it can write is 1.
    assert_eq!(times(&pipe.clean), [Some(1), Some(1_000), Some(1), None]);
}

/// Two records with an id, two without, and another one with an id.
fn with_missing_ids(name: &str) -> Pipe<'static> {
    let pipe = Pipe::new(shared_kafka(), name, 1);
    let drafts = [
        Draft::id(0, "a"),
        Draft::id(0, "a"),
        Draft::new(0, "no json").key(b"k").header("h", Some(b"v")).at(1_700_000_000_000),
        Draft { key: Some(b"tombstone".to_vec()), ..Draft::default() },
        Draft::id(0, "b"),
    ];
    pipe.kafka.send(&pipe.raw, &drafts);
    pipe
}

#[test]
fn records_without_an_id_are_forwarded_or_dropped_by_policy() {
    for (policy, outcome, expected) in [
        ("forward", "missing_id", vec![r#"{"id":"a"}"#, "no json", "", r#"{"id":"b"}"#]),
        ("drop", "missing_id_dropped", vec![r#"{"id":"a"}"#, r#"{"id":"b"}"#]),
    ] {
        let pipe = with_missing_ids(&format!("missing-{policy}"));
        let running = pipe.sidecar("a").with("DEDUPD_IDENTITY__ON_MISSING", policy).start();
        pipe.wait_caught_up(1, LIMIT);
        assert_eq!(pipe.kafka.texts(&pipe.clean), expected, "{policy}");
        running.wait_outcomes(&[(outcome, 2), ("forwarded", 2), ("duplicate", 1)]);
    }
}

#[test]
fn records_without_an_id_go_to_the_dead_letter_topic_with_the_reason() {
    let pipe = with_missing_ids("missing-dead");
    let sidecar = pipe
        .sidecar("a")
        .with("DEDUPD_IDENTITY__ON_MISSING", "dead_letter")
        .with("DEDUPD_TOPICS__DEAD_LETTER", "missing-dead.dead");
    pipe.through(1, &sidecar);
    assert_eq!(pipe.kafka.texts(&pipe.clean), [r#"{"id":"a"}"#, r#"{"id":"b"}"#]);
    let dead = pipe.kafka.ended_records("missing-dead.dead");
    assert_eq!(dead.len(), 2, "{dead:?}");
    let raw = pipe.kafka.records(&pipe.raw, Isolation::Committed);
    for (record, origin) in dead.iter().zip([&raw[2], &raw[3]]) {
        assert_eq!((&record.key, &record.value), (&origin.key, &origin.value));
        assert_eq!(record.timestamp_ms, origin.timestamp_ms);
        let kept = origin.headers.len();
        assert_eq!(record.headers[..kept], origin.headers[..]);
        let added: Vec<(&str, String)> = record.headers[kept..]
            .iter()
            .map(|(key, value)| (key.as_str(), String::from_utf8(value.clone().unwrap()).unwrap()))
            .collect();
        let names: Vec<&str> = added.iter().map(|(key, _)| *key).collect();
        let wanted = ["reason", "detail", "topic", "partition", "offset", "writer"];
        assert_eq!(names, wanted.map(|name| format!("dedupd.{name}")));
        assert_eq!(added[0].1, "missing_id");
        assert_eq!(added[2].1, pipe.raw);
        assert_eq!((added[3].1.as_str(), added[4].1.clone()), ("0", origin.offset.to_string()));
        assert_eq!(added[5].1, sidecar.transactional_id(0));
    }
}

#[test]
fn a_record_without_an_id_stops_the_process_if_configured() {
    let pipe = with_missing_ids("missing-stop");
    let running = pipe.sidecar("a").with("DEDUPD_IDENTITY__ON_MISSING", "stop").start();
    assert_eq!(running.wait(LIMIT).code(), Some(6), "{}", running.text());
    let text = running.text();
    assert!(text.contains("0@2") && text.contains(&pipe.raw) && text.contains("on_missing"), "{text}");
    assert_eq!(pipe.kafka.committed(&pipe.group(), &pipe.raw, 0), None, "an offset was committed");
    pipe.through(1, &pipe.sidecar("a"));
    assert_eq!(pipe.kafka.texts(&pipe.clean), [r#"{"id":"a"}"#, "no json", "", r#"{"id":"b"}"#]);
}

#[test]
fn aborted_records_of_a_transactional_raw_topic_are_ignored() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "aborted", 1);
    let ids = |ids: &[&str]| ids.iter().map(|id| Draft::id(0, id)).collect::<Vec<_>>();
    kafka.send_in_transaction(&pipe.raw, &ids(&["a", "b"]), true);
    kafka.send_in_transaction(&pipe.raw, &ids(&["c", "d", "a"]), false);
    let running = pipe.sidecar("a").start();
    wait_committed(&pipe, 2);
    // An aborted record must not own its id: the same ids are committed later, before and after a restart.
    kafka.send_in_transaction(&pipe.raw, &ids(&["e", "c"]), true);
    wait_committed(&pipe, 9);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    kafka.send_in_transaction(&pipe.raw, &ids(&["f"]), false);
    kafka.send_in_transaction(&pipe.raw, &ids(&["d", "e", "f", "b"]), true);
    let running = pipe.sidecar("a").start();
    wait_committed(&pipe, 16);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let expected = ["a", "b", "e", "c", "d", "f"].map(|id| format!("{{\"id\":\"{id}\"}}"));
    assert_eq!(kafka.ended_records(&pipe.clean).iter().map(Record::text).collect::<Vec<_>>(), expected);
}

/// A sidecar with a window of one hour.
fn hour(pipe: &Pipe<'_>) -> Running {
    pipe.sidecar("a").with("DEDUPD_WINDOW__EXACT", "1h").start()
}

/// Writes one record and waits until it is committed.
fn step(pipe: &Pipe<'_>, id: &str, timestamp_ms: i64) {
    pipe.kafka.send(&pipe.raw, &[Draft::id(0, id).at(timestamp_ms)]);
    pipe.wait_caught_up(1, LIMIT);
}

fn clean_ids(pipe: &Pipe<'_>) -> Vec<String> {
    let strip = |text: String| text.replace("{\"id\":\"", "").replace("\"}", "");
    pipe.kafka.texts(&pipe.clean).into_iter().map(strip).collect()
}

#[test]
fn an_id_expires_after_the_window_and_not_before() {
    let pipe = Pipe::new(shared_kafka(), "window", 1);
    let start = now_ms() - 5 * HOUR_MS;
    let first = hour(&pipe);
    step(&pipe, "a", start);
    step(&pipe, "a", start + HOUR_MS / 2); // does not extend its time in the window
    step(&pipe, "b", start + HOUR_MS * 98 / 100);
    step(&pipe, "a", start + HOUR_MS * 99 / 100);
    assert_eq!(clean_ids(&pipe), ["a", "b"]);
    assert_eq!(first.stop(), Some(0));
    // Stream time is part of the state.
    let _second = hour(&pipe);
    step(&pipe, "a", start);
    assert_eq!(clean_ids(&pipe), ["a", "b"]);
    step(&pipe, "c", start + HOUR_MS * 102 / 100);
    step(&pipe, "a", start + HOUR_MS * 102 / 100);
    step(&pipe, "a", start + HOUR_MS * 103 / 100);
    step(&pipe, "b", start + HOUR_MS * 104 / 100);
    assert_eq!(clean_ids(&pipe), ["a", "b", "c", "a"]);
}

#[test]
fn one_timestamp_in_the_far_future_does_not_flush_the_window() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "future", 1);
    kafka.alter_topic_config(&pipe.raw, &[("message.timestamp.after.max.ms", "9223372036854775807")]);
    let running = hour(&pipe);
    let far = now_ms() + 10 * 365 * 24 * HOUR_MS;
    step(&pipe, "a", now_ms());
    step(&pipe, "b", far);
    step(&pipe, "a", now_ms());
    step(&pipe, "b", far);
    assert_eq!(clean_ids(&pipe), ["a", "b"], "{}", running.text());
    let clean = kafka.records(&pipe.clean, Isolation::Committed);
    assert_eq!(clean[1].timestamp_ms, Some(far));
}
