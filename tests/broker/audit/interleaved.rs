//! Many partitions, whose records arrive interleaved, and errors of one of them.

use super::*;
use crate::support::proxy::Direction;
use crate::support::shared_proxy;

/// Records of a generated topic by partition. Partition 20 has more than an audit with the least memory reads at once.
fn uneven(kafka: &Kafka, name: &str, partitions: usize) -> Vec<Record> {
    kafka.create_topic(name, partitions, &[]);
    generate::run(&load(kafka, name, 40_000), &AtomicBool::new(false), |_| ()).unwrap();
    let raw = kafka.records(name, Isolation::Committed);
    let more: Vec<Record> = (0..60_000)
        .map(|number| Record {
            partition: 20,
            offset: 0,
            key: None,
            value: Some(format!(r#"{{"id":"more-{number}"}}"#).into_bytes()),
            headers: Vec::new(),
            timestamp_ms: raw[0].timestamp_ms,
        })
        .collect();
    send(&kafka.client_config().create().unwrap(), name, &more);
    [raw, more].concat()
}

#[test]
fn faults_in_many_partitions_are_found_in_each_and_reported_in_their_order() {
    let kafka = shared_kafka();
    let mut clean = firsts(&uneven(kafka, "many-raw", 50));
    // Every partition lost as many of its first records as its number modulo 3, as far as it has them.
    let mut planted = [0; 50];
    clean.retain(|record| {
        let number = usize::try_from(record.partition).unwrap();
        let is_kept = planted[number] == number as u64 % 3;
        planted[number] += u64::from(!is_kept);
        is_kept
    });
    kafka.create_topic("many-clean", 50, &[]);
    let producer = transactional(kafka, "many");
    for batch in clean.chunks(20_000) {
        // Aborted records and markers stand between the records and at the ends.
        for commits in [false, true] {
            producer.begin_transaction().unwrap();
            send(&producer, "many-clean", batch);
            if commits {
                producer.commit_transaction(LIMIT).unwrap();
            } else {
                producer.abort_transaction(LIMIT).unwrap();
            }
        }
    }
    for memory in [audit::LEAST_MEMORY, audit::DEFAULT_MEMORY] {
        let options =
            audit::Options { memory, samples: 100, ..audit_options(kafka, "many-raw", "many-clean") };
        let bar = ProgressBar::hidden();
        let report = audit::run(&options, &bar).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Some(bar.position()), bar.length(), "all offsets are counted");
        let lost: Vec<_> = report.partitions.iter().map(|part| part.outcome.counts.lost).collect();
        assert_eq!(lost, planted, "{report}");
        let lost = planted.iter().sum();
        assert_eq!(report.total.counts, Counts { lost, ..Counts::default() }, "{report}");
        let sampled = report.total.samples.iter().map(|sample| sample.partition);
        assert!(sampled.is_sorted() && report.partitions.iter().map(|part| part.partition).eq(0..50));
        assert_eq!((report.total.raw.records, report.total.clean_records), (100_000, clean.len() as u64));
    }
}

#[test]
fn records_that_are_deleted_while_they_are_read_end_the_audit_with_their_partition() {
    let kafka = shared_kafka();
    raw_topic(kafka, "vanishing-raw");
    kafka.create_topic("vanishing-clean", 3, &[]);
    generate::run(&load(kafka, "vanishing-clean", 300_000), &AtomicBool::new(false), |_| ()).unwrap();
    let (_guard, proxy) = shared_proxy();
    let options = audit::Options {
        memory: audit::DEFAULT_MEMORY,
        bootstrap_servers: proxy.bootstrap(),
        ..audit_options(kafka, "vanishing-raw", "vanishing-clean")
    };
    // Clean arrives in about twenty responses, one after the other.
    proxy.delay(Direction::Response, Duration::from_millis(300));
    let bar = ProgressBar::hidden();
    let error = std::thread::scope(|scope| {
        let auditing = scope.spawn(|| audit::run(&options, &bar));
        // Clean is being read, raw is read after that, and its log start is known already.
        crate::support::wait_until("the first records", LIMIT, || (bar.position() > 0).then_some(()));
        kafka.delete_records("vanishing-raw", 1, 100);
        proxy.heal();
        auditing.join().unwrap().unwrap_err()
    });
    let is_named = matches!(&error, AuditError::Deleted { topic, partition: 1 } if topic == "vanishing-raw");
    assert!(is_named, "{error}");
}

#[test]
fn a_damaged_batch_ends_the_audit_with_its_partition() {
    let kafka = Kafka::start();
    raw_topic(&kafka, "damaged");
    kafka.stop();
    let segment = kafka.dir().join("logs/damaged-1/00000000000000000000.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    kafka.restart();
    let error = audit::run(&audit_options(&kafka, "damaged", "damaged"), &ProgressBar::hidden()).unwrap_err();
    assert!(matches!(&error, AuditError::Damaged { partition: 1, .. }), "{error}");
}
