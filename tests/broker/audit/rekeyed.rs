//! Several raw topics behind `rekey`, one clean topic.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;

use super::*;

const RAW: [&str; 2] = ["merged.orders", "merged.payments"];

/// A record of an id in a raw topic, this many seconds after the start.
fn raw_record(partition: i32, id: &str, seconds: i64) -> Record {
    Record {
        partition,
        offset: 0,
        key: Some(b"k".to_vec()),
        value: Some(format!(r#"{{"id":"{id}","at":{seconds}}}"#).into_bytes()),
        headers: vec![("h".to_owned(), Some(b"1".to_vec()))],
        timestamp_ms: Some(1_700_000_000_000 + seconds * 1_000),
    }
}

/// Two raw topics with `count` ids, each of which is in both, 50 s apart. Returns their records by topic.
fn write_raw(kafka: &Kafka, topics: [&str; 2], count: i64) -> [Vec<Record>; 2] {
    for (topic, late) in topics.into_iter().zip([0, 50]) {
        kafka.create_topic(topic, 3, &[("retention.ms", "-1")]);
        let of = |n: i64| raw_record(i32::try_from(n % 3).unwrap(), &format!("id-{n}"), n * 10 + late);
        send(&kafka.client_config().create().unwrap(), topic, &(0..count).map(of).collect::<Vec<_>>());
    }
    topics.map(|topic| kafka.records(topic, Isolation::Committed))
}

/// The id of a topic of the shared broker, which is requested once.
fn topic_id(topic: &str) -> String {
    static IDS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut ids = IDS.lock().unwrap();
    ids.entry(topic.to_owned()).or_insert_with(|| shared_kafka().topic_id(topic)).clone()
}

/// A record as `rekey` and `run` write it, in this partition. The first leader of a topic has the epoch 0.
fn moved(record: &Record, topic: &str, partition: i32) -> Record {
    let source = format!("{topic}/{}@{}#{}.0", record.partition, record.offset, topic_id(topic));
    let mut headers = record.headers.clone();
    headers.push(("dedupd.source".to_owned(), Some(source.into_bytes())));
    Record { partition, headers, ..record.clone() }
}

/// The record of an id in a raw topic.
fn of(raw: &[Vec<Record>; 2], topic: usize, number: usize) -> Record {
    raw[topic].iter().find(|record| id(record) == format!("id-{number}")).unwrap().clone()
}

/// A right clean topic, in reverse order: of odd ids the record of the second topic, of the others that of the first.
fn right(raw: &[Vec<Record>; 2], topics: [&str; 2]) -> Vec<Record> {
    let clean = |n: usize| moved(&of(raw, n % 2, n), topics[n % 2], i32::from(n % 4 > 1));
    (0..raw[0].len()).rev().map(clean).collect()
}

fn options(kafka: &Kafka, topics: [&str; 2], clean: &str) -> audit::Options {
    audit::Options {
        raw: topics.map(str::to_owned).to_vec(),
        scope: Scope::Topics,
        ..audit_options(kafka, "", clean)
    }
}

#[test]
fn faults_are_found_in_the_topics_where_they_are() {
    let kafka = shared_kafka();
    let raw = write_raw(kafka, RAW, 60);
    let mut clean = right(&raw, RAW);
    kafka.create_topic("merged.right", 2, &[("retention.ms", "-1")]);
    send(&kafka.client_config().create().unwrap(), "merged.right", &clean);
    let report = audited(&options(kafka, RAW, "merged.right"));
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.total.raw.records, report.total.raw.ids, report.total.clean_records), (120, 60, 60));
    assert_eq!(report.logs.len(), 8);

    // Which copy of a lost id clean should hold is unknown. The earliest one is named.
    let (lost, copy, header) = (of(&raw, 0, 7), of(&raw, 0, 11), of(&raw, 0, 8));
    let (twice, value, wrong) = (of(&raw, 1, 11), of(&raw, 1, 15), of(&raw, 1, 19));
    clean.retain(|it| id(it) != id(&lost));
    for record in &mut clean {
        if id(record) == id(&value) {
            record.value.as_mut().unwrap().insert(1, b' ');
        } else if id(record) == id(&header) {
            record.headers[0].1 = None;
        } else if id(record) == id(&wrong) {
            // The source of another id.
            record.headers.last_mut().unwrap().1 = moved(&lost, RAW[0], 0).headers.pop().unwrap().1;
        }
    }
    clean.push(moved(&copy, RAW[0], 1));
    kafka.create_topic("merged.wrong", 2, &[("retention.ms", "-1")]);
    send(&kafka.client_config().create().unwrap(), "merged.wrong", &clean);
    let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
        .args(["audit", "--bootstrap-servers", kafka.bootstrap(), "--raw", &RAW.join(",")])
        .args(["--clean", "merged.wrong", "--id", "json:/id"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().last(), Some("lost 1, duplicated 1, out of order 0, altered 3, phantom 0"));
    let held = kafka.records("merged.wrong", Isolation::Committed);
    let at = |record: &Record, topic: usize| {
        format!("raw record {}/{}@{}", RAW[topic], record.partition, record.offset)
    };
    let of_id = |record: &Record| {
        let found = held.iter().rfind(|it| id(it) == id(record)).unwrap();
        format!("clean record merged.wrong/{}@{}", found.partition, found.offset)
    };
    for expected in [
        format!("lost: {}", at(&lost, 0)),
        format!("altered: {}, {}, different in value", at(&value, 1), of_id(&value)),
        format!("altered: {}, {}, different in headers", at(&header, 0), of_id(&header)),
        format!("altered: {}, {}, different in headers", at(&wrong, 1), of_id(&wrong)),
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected} in\n{text}");
    }
    let duplicated = format!("duplicated: {}, clean record merged.wrong/", at(&twice, 1));
    assert!(text.contains(&duplicated), "the later of two copies: {text}");

    let json = audited(&options(kafka, RAW, "merged.wrong")).to_json();
    let sample = json["samples"].as_array().unwrap().iter().find(|sample| sample["kind"] == "lost").unwrap();
    assert_eq!(
        (sample["raw_topic"].as_str(), sample["partition"].as_i64()),
        (Some(RAW[0]), Some(lost.partition.into()))
    );
    assert_eq!(
        (sample["raw_offset"].as_i64(), sample["clean_partition"].as_i64()),
        (Some(lost.offset), None)
    );
    assert_eq!(json["partitions"][3]["topic"], RAW[1]);
}

#[test]
fn a_range_covers_records_that_are_mixed_in_clean() {
    let topics = ["mixed.orders", "mixed.payments"];
    let kafka = shared_kafka();
    let raw = write_raw(kafka, topics, 300);
    let mut clean = right(&raw, topics);
    // Of these, the first is before the range, the last behind it.
    clean.retain(|it| !["id-40", "id-150", "id-290"].contains(&&*id(it)));
    kafka.create_topic("mixed.clean", 2, &[("retention.ms", "-1")]);
    send(&kafka.client_config().create().unwrap(), "mixed.clean", &clean);
    let moment = |seconds: i64| Some(1_700_000_000_000 + seconds * 1_000);
    let whole = options(kafka, topics, "mixed.clean");
    assert_eq!(audited(&whole).total.counts, Counts { lost: 3, ..Counts::default() });
    let report = audited(&audit::Options {
        range: Range { from_ms: moment(1_000), to_ms: moment(2_000) },
        window: Some(Duration::from_mins(2)),
        longest_window: Some(Duration::from_mins(2)),
        ..whole
    });
    println!("{report}");
    assert_eq!(report.total.counts, Counts { lost: 1, ..Counts::default() }, "{report}");
    assert!(report.to_string().contains("lost: raw record mixed.orders/0@50"), "{report}");
    assert!(report.total.raw.decided_outside > 0, "{report}");
}
