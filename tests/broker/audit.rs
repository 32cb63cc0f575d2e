//! `audit` and `generate` on a real broker: planted faults are found, a right copy has none, and lost answers
//! make real repeats.

mod dropped;
mod early;
mod explained;
mod interleaved;
mod range;
mod rekeyed;
mod topic;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::records::Record;
use crate::support::{Isolation, Kafka, shared_kafka};
use dedupd_audit::{self as audit, AuditError, Counts, MissingId, Range, Report, Scope};
use indicatif::ProgressBar;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use testkit::generate::{self, EventShape, GenerateError};

const LIMIT: Duration = Duration::from_secs(30);

fn shape(seed: u64) -> EventShape {
    EventShape { seed, size: 200, duplicates: 0.2, keys: 100, repeatable: generate::REPEATABLE }
}

fn load(kafka: &Kafka, topic: &str, records: u64) -> generate::Options {
    generate::Options {
        bootstrap_servers: kafka.bootstrap().to_owned(),
        properties: Vec::new(),
        topic: topic.to_owned(),
        partitions: None,
        shape: shape(1),
        records: Some(records),
        rate: None,
        cut_acks: false,
    }
}

fn audit_options(kafka: &Kafka, raw: &str, clean: &str) -> audit::Options {
    audit::Options {
        bootstrap_servers: kafka.bootstrap().to_owned(),
        properties: Vec::new(),
        raw: vec![raw.to_owned()],
        clean: clean.to_owned(),
        id: vec!["json:/id".to_owned()],
        schemas: audit::SchemaSources::default(),
        kinds: Vec::new(),
        compare: vec!["value".to_owned()],
        require_equal: false,
        forgotten: Vec::new(),
        missing_id: MissingId::Forwarded,
        force_header: None,
        scope: Scope::Partition,
        window: None,
        longest_window: None,
        range: Range::default(),
        allow_gone: false,
        samples: 10,
        memory: audit::LEAST_MEMORY,
        temp_dir: None,
        notes: Vec::new(),
        on_client: |_, _| Ok(Box::new(())),
    }
}

fn audited(options: &audit::Options) -> Report {
    audit::run(options, &ProgressBar::hidden()).unwrap_or_else(|error| panic!("{error}"))
}

fn id(record: &Record) -> String {
    let json: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
    json["id"].as_str().unwrap().to_owned()
}

/// The right answer, by partition and offset.
fn firsts(raw: &[Record]) -> Vec<Record> {
    let mut known = HashSet::new();
    raw.iter().filter(|record| known.insert(id(record))).cloned().collect()
}

fn transactional(kafka: &Kafka, id: &str) -> BaseProducer {
    let producer: BaseProducer = kafka.client_config().set("transactional.id", id).create().unwrap();
    producer.init_transactions(LIMIT).unwrap();
    producer
}

fn send(producer: &BaseProducer, topic: &str, records: &[Record]) {
    for record in records {
        let mut message: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(topic).partition(record.partition).timestamp(record.timestamp_ms.unwrap());
        message.key = record.key.as_deref();
        message.payload = record.value.as_deref();
        if !record.headers.is_empty() {
            let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: value.as_ref() })
            });
            message = message.headers(headers);
        }
        producer.send(message).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
}

/// A generated raw topic, and its records.
fn raw_topic(kafka: &Kafka, name: &str) -> Vec<Record> {
    kafka.create_topic(name, 3, &[]);
    let summary = generate::run(&load(kafka, name, 3_000), &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!((summary.records, summary.real_repeats, summary.cuts), (3_000, 0, 0));
    let raw = kafka.records(name, Isolation::Committed);
    assert_eq!(raw.len(), 3_000);
    assert_eq!(summary.planned_repeats, 3_000 - firsts(&raw).len() as u64);
    assert!(raw.iter().any(|record| record.headers.iter().any(|(_, value)| value.is_none())), "null headers");
    raw
}

#[test]
fn a_right_copy_in_transactions_has_no_findings() {
    let kafka = shared_kafka();
    let raw = raw_topic(kafka, "right-raw");
    let right = firsts(&raw);
    kafka.create_topic("right-clean", 3, &[]);
    let producer = transactional(kafka, "right");
    for (number, batch) in right.chunks(400).enumerate() {
        producer.begin_transaction().unwrap();
        send(&producer, "right-clean", batch);
        if number % 2 == 0 {
            // The same records of an attempt that failed: in the log, but nobody may see them.
            producer.abort_transaction(LIMIT).unwrap();
            producer.begin_transaction().unwrap();
            send(&producer, "right-clean", batch);
        }
        producer.commit_transaction(LIMIT).unwrap();
    }
    // What is not committed does not count either.
    producer.begin_transaction().unwrap();
    send(&producer, "right-clean", &right[..3]);
    assert!(kafka.records("right-clean", Isolation::Uncommitted).len() > right.len() + 3);

    let report = audited(&audit_options(kafka, "right-raw", "right-clean"));
    producer.abort_transaction(LIMIT).unwrap();
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.total.raw.records, report.total.clean_records), (3_000, right.len() as u64));
    assert_eq!(
        (report.total.raw.ids, report.total.raw.duplicates),
        (right.len() as u64, (3_000 - right.len()) as u64)
    );
    assert_eq!(report.partitions.len(), 3);
    assert_eq!(
        report.to_string().lines().last(),
        Some("lost 0, duplicated 0, out of order 0, altered 0, phantom 0")
    );
}

#[test]
fn every_planted_fault_is_found_where_it_is() {
    let kafka = shared_kafka();
    let raw = raw_topic(kafka, "wrong-raw");
    let mut clean = firsts(&raw);
    let of = |clean: &[Record], partition, number: usize| {
        let all = clean.iter().enumerate().filter(|(_, record)| record.partition == partition);
        all.map(|(at, _)| at).nth(number).unwrap()
    };
    // Partition 0: two lost. Partition 1: one twice, two swapped. Partition 2: four altered, one invented.
    let lost = [clean.remove(of(&clean, 0, 50)).offset, clean.remove(of(&clean, 0, 10)).offset];
    let twice = of(&clean, 1, 20);
    clean.insert(twice + 7, clean[twice].clone());
    let swapped = of(&clean, 1, 40);
    clean.swap(swapped, swapped + 1);
    let altered = [5, 6, 7, 8].map(|number| of(&clean, 2, number));
    clean[altered[0]].key = None;
    clean[altered[1]].value.as_mut().unwrap().insert(1, b' ');
    clean[altered[2]].headers.push(("new".to_owned(), Some(Vec::new())));
    clean[altered[3]].timestamp_ms = Some(1);
    let altered = altered.map(|at| clean[at].offset);
    let mut phantom = clean[of(&clean, 2, 30)].clone();
    phantom.value = Some(br#"{"id":"invented"}"#.to_vec());
    clean.push(phantom);
    kafka.create_topic("wrong-clean", 3, &[]);
    let producer = transactional(kafka, "wrong");
    producer.begin_transaction().unwrap();
    send(&producer, "wrong-clean", &clean);
    producer.commit_transaction(LIMIT).unwrap();

    let report = audited(&audit_options(kafka, "wrong-raw", "wrong-clean"));
    println!("{report}");
    let counts = Counts { lost: 2, duplicated: 1, out_of_order: 1, altered: 4, phantom: 1 };
    assert_eq!(report.total.counts, counts, "{report}");
    assert_eq!(report.moved, 0);
    let json = report.to_json();
    let told = |kind: &str, partition: u32| {
        let samples = json["samples"].as_array().unwrap().iter();
        let found = samples.filter(|sample| sample["kind"] == kind && sample["partition"] == partition);
        found.cloned().collect::<Vec<_>>()
    };
    let offsets: HashSet<_> = told("lost", 0).iter().filter_map(|s| s["raw_offset"].as_i64()).collect();
    assert_eq!(offsets, HashSet::from(lost));
    assert_eq!((told("duplicated", 1).len(), told("out_of_order", 1).len()), (1, 1));
    let fields = ["key", "value", "headers", "timestamp"];
    assert_eq!(told("altered", 2).len(), fields.len());
    for ((found, field), offset) in told("altered", 2).iter().zip(fields).zip(altered) {
        assert_eq!((found["fields"][0].as_str(), found["raw_offset"].as_i64()), (Some(field), Some(offset)));
    }
    assert_eq!(told("phantom", 2).len(), 1);
}

#[test]
fn a_record_in_the_wrong_partition_is_lost_and_phantom_and_told_to_have_moved() {
    let kafka = shared_kafka();
    let raw = raw_topic(kafka, "moved-raw");
    let mut clean = firsts(&raw);
    let moved = clean.iter().position(|record| record.partition == 0).unwrap() + 9;
    clean[moved].partition = 2;
    kafka.create_topic("moved-clean", 3, &[]);
    send(&kafka.client_config().create().unwrap(), "moved-clean", &clean);
    let report = audited(&audit_options(kafka, "moved-raw", "moved-clean"));
    assert_eq!(report.total.counts, Counts { lost: 1, phantom: 1, ..Counts::default() }, "{report}");
    assert_eq!(report.moved, 1);
}

#[test]
fn what_retention_took_is_told_apart_if_asked_for() {
    let kafka = shared_kafka();
    let raw = raw_topic(kafka, "gone-raw");
    kafka.create_topic("gone-clean", 3, &[]);
    send(&kafka.client_config().create().unwrap(), "gone-clean", &firsts(&raw));
    kafka.delete_records("gone-raw", 0, 100);
    kafka.delete_records("gone-clean", 1, 100);
    let mut options = audit_options(kafka, "gone-raw", "gone-clean");
    let report = audited(&options);
    assert!(report.total.counts.phantom > 0 && report.total.counts.lost >= 100, "{report}");
    assert_eq!(report.notes.len(), 2, "{report}");
    options.allow_gone = true;
    let report = audited(&options);
    assert!(report.is_clean() && report.total.gone > 100, "{report}");
}

#[test]
fn what_the_brokers_do_not_have_or_accept_is_named() {
    let kafka = shared_kafka();
    kafka.create_topic("lonely", 1, &[]);
    let error = audit::run(&audit_options(kafka, "lonely", "nowhere"), &ProgressBar::hidden()).unwrap_err();
    assert!(matches!(&error, AuditError::MissingTopic { topic, .. } if topic == "nowhere"), "{error}");
    let error = generate::run(&load(kafka, "nowhere", 1), &AtomicBool::new(false), |_| ()).unwrap_err();
    assert!(matches!(&error, GenerateError::MissingTopic { .. }), "{error}");
    let large = EventShape { size: 2 << 20, ..shape(1) };
    let large = generate::Options { shape: large, ..load(kafka, "lonely", 5) };
    let error = generate::run(&large, &AtomicBool::new(false), |_| ()).unwrap_err().to_string();
    let start = "5 of 5 records were not written to topic lonely, the first because of: ";
    assert!(error.starts_with(start) && error.contains("give a smaller --size"), "{error}");

    let mut options = audit_options(kafka, "a", "b");
    options.bootstrap_servers = format!("127.0.0.1:{}", crate::support::ports::free_port());
    let error = audit::run(&options, &ProgressBar::hidden()).unwrap_err();
    assert!(error.to_string().contains("refused"), "the reason is told: {error}");
    assert!(matches!(error, AuditError::Unreachable { .. }), "{error}");
}

#[test]
fn an_audit_whose_files_cannot_fit_is_refused_before_it_reads() {
    let kafka = shared_kafka();
    kafka.create_topic("roomy", 1, &[]);
    generate::run(&load(kafka, "roomy", 150_000), &AtomicBool::new(false), |_| ()).unwrap();
    // A file system that never has anything free.
    let options = audit::Options { temp_dir: Some("/proc".into()), ..audit_options(kafka, "roomy", "roomy") };
    let error = audit::run(&options, &ProgressBar::hidden()).unwrap_err();
    assert!(matches!(&error, AuditError::NoRoom { records: 150_000, .. }), "{error}");
    let told = error.to_string();
    assert!(told.starts_with("/proc has 0 B free") && told.contains("34.3 MiB"), "{told}");
}

#[test]
fn lost_answers_leave_real_repeats_in_the_log() {
    let kafka = shared_kafka();
    let mut options = load(kafka, "cut", 40_000);
    options.partitions = Some(4);
    options.cut_acks = true;
    options.shape.duplicates = 0.0;
    let mut told = 0;
    let summary =
        generate::run(&options, &AtomicBool::new(false), |progress| told = progress.delivered).unwrap();
    println!("{summary}");
    assert!(summary.cuts > 0 && summary.real_repeats > 0, "{summary:?}");
    assert_eq!((summary.records, told, summary.planned_repeats), (40_000, 40_000, 0));
    let log = kafka.records("cut", Isolation::Uncommitted);
    assert_eq!(log.len() as u64, 40_000 + summary.real_repeats);
    let ids: HashSet<String> = log.iter().map(id).collect();
    assert_eq!(ids.len(), 40_000, "every event is there, some of them again");

    // The log against itself: exactly the real repeats are too many.
    let report = audited(&audit_options(kafka, "cut", "cut"));
    assert_eq!(
        report.total.counts,
        Counts { duplicated: summary.real_repeats, ..Counts::default() },
        "{report}"
    );
    assert_eq!(report.total.raw.duplicates, summary.real_repeats);

    options.properties = vec![("security.protocol".to_owned(), "ssl".to_owned())];
    let error = generate::run(&options, &AtomicBool::new(false), |_| ()).unwrap_err();
    assert!(matches!(error, GenerateError::Encrypted { .. }), "{error}");
}

#[test]
fn the_embedded_broker_of_the_client_will_do_for_a_demo() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("demo", 4, 1).unwrap();
    let options = generate::Options {
        bootstrap_servers: cluster.bootstrap_servers(),
        rate: Some(4_000),
        cut_acks: true,
        shape: EventShape { duplicates: 0.0, ..shape(3) },
        ..load(shared_kafka(), "demo", 4_000)
    };
    let summary = generate::run(&options, &AtomicBool::new(false), |_| ()).unwrap();
    println!("{summary}");
    assert!(summary.real_repeats > 0, "{summary:?}");
    let of_demo = audit::Options {
        bootstrap_servers: cluster.bootstrap_servers(),
        ..audit_options(shared_kafka(), "demo", "demo")
    };
    let report = audited(&of_demo);
    assert_eq!(
        report.total.counts,
        Counts { duplicated: summary.real_repeats, ..Counts::default() },
        "{report}"
    );
    assert_eq!(report.total.raw.records, 4_000 + summary.real_repeats);
}

#[test]
fn the_load_keeps_its_rate_and_stops_when_told() {
    let kafka = shared_kafka();
    kafka.create_topic("paced", 1, &[]);
    let stop = AtomicBool::new(false);
    let options = generate::Options { records: None, rate: Some(500), ..load(kafka, "paced", 0) };
    // The rate when it is stopped: what follows also waits for the last acknowledgements.
    let mut rate = 0.0;
    let summary = generate::run(&options, &stop, |progress| {
        if !stop.load(Ordering::Relaxed) {
            rate = progress.delivered as f64 / progress.elapsed.as_secs_f64();
            // The load catches up after a stall.
            let is_kept = rate >= 300.0 || progress.elapsed > LIMIT;
            stop.store(progress.delivered >= 600 && is_kept, Ordering::Relaxed);
        }
    })
    .unwrap();
    let most = summary.records as f64 / summary.elapsed.as_secs_f64();
    assert!(rate >= 300.0 && most <= 501.0, "{rate} records a second, {most} at the end: {summary}");
    assert_eq!(kafka.records("paced", Isolation::Committed).len() as u64, summary.records);
}

/// A limit on the size of files stands for a disk that fills while the audit writes to it.
#[test]
fn a_disk_that_fills_in_the_middle_ends_the_audit_and_names_the_folder() {
    let kafka = shared_kafka();
    let (raw, clean) = ("filling.raw", "filling.clean");
    kafka.create_topic(raw, 1, &[]);
    kafka.create_topic(clean, 1, &[]);
    generate::run(&load(kafka, raw, 100_000), &AtomicBool::new(false), |_| ()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 1024; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_dedupd"),
            "audit",
        ])
        .args(["--bootstrap-servers", kafka.bootstrap(), "--raw", raw, "--clean", clean, "--id", "json:/id"])
        .args(["--memory", "32MiB", "--temp-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains(dir.path().to_str().unwrap()) && said.contains("--temp-dir"), "{said}");
}
