//! An id counts once in the topic: copies in several partitions.

use super::*;

/// A generated raw topic in which some ids also have a copy in the next partition, and its records.
fn spread(kafka: &Kafka, name: &str) -> Vec<Record> {
    let raw = raw_topic(kafka, name);
    let copies: Vec<Record> = raw
        .iter()
        .step_by(7)
        .map(|record| Record { partition: (record.partition + 1) % 3, ..record.clone() })
        .collect();
    send(&kafka.client_config().create().unwrap(), name, &copies);
    kafka.records(name, Isolation::Committed)
}

fn topic_options(kafka: &Kafka, raw: &str, clean: &str) -> audit::Options {
    audit::Options { scope: Scope::Topic, ..audit_options(kafka, raw, clean) }
}

#[test]
fn each_id_is_once_in_the_clean_topic_wherever_its_copies_are() {
    let kafka = shared_kafka();
    let raw = spread(kafka, "spread-raw");
    let right = firsts(&raw);
    kafka.create_topic("spread-clean", 3, &[]);
    send(&kafka.client_config().create().unwrap(), "spread-clean", &right);
    let options = topic_options(kafka, "spread-raw", "spread-clean");
    let report = audited(&options);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.total.raw.ids, right.len() as u64);
    assert_eq!(report.total.raw.duplicates, (raw.len() - right.len()) as u64);
    assert_eq!(report.partitions.len(), 3);
    let of_partitions = audited(&audit::Options { scope: Scope::Partition, ..options });
    assert!(of_partitions.total.counts.lost > 100, "copies are due in each partition: {of_partitions}");
}

#[test]
fn faults_are_found_where_they_are_in_any_partition() {
    let kafka = shared_kafka();
    let raw = spread(kafka, "spread-wrong-raw");
    let right = firsts(&raw);
    let is_single = |record: &&Record| raw.iter().filter(|other| id(other) == id(record)).count() == 1;
    let of = |partition, number: usize| {
        right.iter().filter(|record| record.partition == partition).filter(is_single).nth(number).unwrap()
    };
    let (lost, moved, altered) = (of(0, 10), of(0, 30), of(2, 5));
    let mut clean = right.clone();
    clean.retain(|record| id(record) != id(lost));
    for record in &mut clean {
        if id(record) == id(moved) {
            record.partition = 1;
        } else if id(record) == id(altered) {
            record.key = None;
        }
    }
    // The last record of partition 1 is a copy of one in partition 0.
    let again = raw.iter().rfind(|record| record.partition == 1).unwrap();
    assert!(right.iter().all(|record| (record.partition, record.offset) != (1, again.offset)));
    clean.push(again.clone());
    kafka.create_topic("spread-wrong-clean", 3, &[]);
    send(&kafka.client_config().create().unwrap(), "spread-wrong-clean", &clean);
    let report = audited(&topic_options(kafka, "spread-wrong-raw", "spread-wrong-clean"));
    println!("{report}");
    let counts = Counts { lost: 2, duplicated: 1, altered: 1, phantom: 1, ..Counts::default() };
    assert_eq!((report.total.counts, report.moved), (counts, 1), "{report}");
    let text = report.to_string();
    for record in [lost, moved] {
        assert!(text.contains(&format!("lost: partition 0, raw offset {}", record.offset)), "{text}");
    }
    assert!(text.contains("duplicated: partition"), "{text}");
    assert!(text.contains(&format!("altered: partition 2, raw offset {}", altered.offset)), "{text}");
    assert!(text.contains("phantom: partition 1, clean offset"), "{text}");
}

/// A record of an id, this many seconds after the start.
fn at(partition: i32, id: &str, seconds: i64) -> Record {
    Record {
        partition,
        offset: 0,
        key: None,
        value: Some(format!(r#"{{"id":"{id}","at":{seconds}}}"#).into_bytes()),
        headers: Vec::new(),
        timestamp_ms: Some(1_700_000_000_000 + seconds * 1_000),
    }
}

#[test]
fn a_range_is_read_far_enough_to_find_the_copies_around_it() {
    let kafka = shared_kafka();
    for topic in ["around-raw", "around-clean"] {
        kafka.create_topic(topic, 2, &[("retention.ms", "-1")]);
    }
    let mut raw = Vec::new();
    for n in 0..300 {
        raw.push(at(0, &format!("id-{n}"), n * 10));
        // A copy in the other partition, 55 s later.
        raw.push(at(1, &format!("id-{n}"), n * 10 + 55));
    }
    // Of the ids 90 to 110 and 190 to 210, the later copy was read first. 150 and 250 are lost.
    let is_late = |n: i64| (90..110).contains(&n) || (190..210).contains(&n);
    let clean: Vec<Record> = (0..300)
        .filter(|n| ![150, 250].contains(n))
        .map(|n| {
            if is_late(n) {
                at(1, &format!("id-{n}"), n * 10 + 55)
            } else {
                at(0, &format!("id-{n}"), n * 10)
            }
        })
        .collect();
    let producer = kafka.client_config().create().unwrap();
    send(&producer, "around-raw", &raw);
    send(&producer, "around-clean", &clean);
    let moment = |seconds: i64| Some(1_700_000_000_000 + seconds * 1_000);
    let report = audited(&audit::Options {
        range: Range { from_ms: moment(1_000), to_ms: moment(2_000) },
        window: Some(Duration::from_mins(2)),
        longest_window: Some(Duration::from_mins(2)),
        ..topic_options(kafka, "around-raw", "around-clean")
    });
    println!("{report}");
    assert_eq!(report.total.counts, Counts { lost: 1, ..Counts::default() }, "{report}");
    assert!(report.to_string().contains("lost: partition 0, raw offset 150"), "{report}");
    assert!(report.total.raw.decided_outside > 0 && report.total.raw.records < 300, "{report}");
}
