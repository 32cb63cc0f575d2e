//! Tests on a real Apache Kafka: `dedupd rekey`, alone and before `dedupd run`.

mod faults;
mod incarnations;
mod verifiable;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::support::chain::SOURCE;
use crate::support::{
    Draft, Isolation, Kafka, Record, Rekey, Running, Sidecar, incompressible, now_ms, shared_kafka,
    source_of, wait_until,
};

const LIMIT: Duration = Duration::from_mins(1);

/// Asserts that the target contains each source record unchanged at least once, and nothing else. Returns the number of copies.
fn assert_complete(kafka: &Kafka, sources: &[&str], target: &[Record]) -> usize {
    let mut expected: BTreeMap<String, Record> = BTreeMap::new();
    for topic in sources {
        for record in kafka.records(topic, Isolation::Committed) {
            expected.insert(format!("{topic}/{}@{}", record.partition, record.offset), record);
        }
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for record in target {
        let source = source_of(record).expect("a source");
        let place = source.split_once('#').map(|(place, _)| place);
        let original =
            place.and_then(|place| expected.get(place)).unwrap_or_else(|| panic!("{source} does not exist"));
        let (_, headers) = record.headers.split_last().unwrap();
        assert_eq!((&record.key, &record.value), (&original.key, &original.value), "{source}");
        assert_eq!(
            (record.timestamp_ms, headers),
            (original.timestamp_ms, &original.headers[..]),
            "{source}"
        );
        *found.entry(place.unwrap().to_owned()).or_default() += 1;
    }
    let lost: Vec<&String> = expected.keys().filter(|source| !found.contains_key(*source)).take(5).collect();
    assert!(
        lost.is_empty(),
        "{} of {} records are missing, the first: {lost:?}",
        expected.len() - found.len(),
        expected.len()
    );
    target.len() - expected.len()
}

/// Runs `dedupd audit` on the source topics and the clean topic of `run`. Asserts that it has no findings, and returns its report.
fn audited(kafka: &Kafka, sources: &[&str], clean: &str, id: &str) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_dedupd"))
        .args(["audit", "--bootstrap-servers", kafka.bootstrap(), "--clean", clean, "--id", id, "--json"])
        .args(["--scope", "topics"])
        .args(sources.iter().flat_map(|source| ["--raw", source]))
        .env("DEDUPD_IDENTITY__ON_MISSING", "source")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

/// The partition that librdkafka's own partitioner, which is that of the Java client or its own, gives each key.
fn partitions_by_client(
    kafka: &Kafka,
    topic: &str,
    partitioner: &str,
    keys: &[String],
) -> BTreeMap<String, i32> {
    let mut config = kafka.client_config();
    config.set("partitioner", partitioner).set("enable.idempotence", "true");
    let producer: BaseProducer = config.create().unwrap();
    for key in keys {
        producer.send(BaseRecord::<str, str>::to(topic).key(key)).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(LIMIT).unwrap();
    let records = kafka.records(topic, Isolation::Committed);
    records.into_iter().map(|it| (String::from_utf8(it.key.unwrap()).unwrap(), it.partition)).collect()
}

#[test]
fn every_record_is_unchanged_and_in_the_partition_of_its_id() {
    let kafka = shared_kafka();
    let topics = ["rekey.a", "rekey.b"];
    for topic in topics {
        kafka.create_topic(topic, 3, &[]);
    }
    let keys: Vec<String> = (0..60).map(|number| format!("order-{number}")).collect();
    let stamp = now_ms() - 3_600_000;
    for (place, topic) in topics.iter().enumerate() {
        let mut drafts: Vec<Draft> = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let partition = i32::try_from((number + place) % 3).unwrap();
            let mut draft = Draft::new(partition, &format!("v-{number}")).key(key.as_bytes()).at(stamp + 7);
            if number % 3 == 0 {
                draft = draft.header("h", Some(b"1")).header("h", None).header(SOURCE, Some(b"older"));
            }
            if number % 5 == 0 {
                draft.value = None;
            }
            drafts.push(draft);
        }
        // Without an id: no key, and an empty one.
        drafts.push(Draft::new(1, "no id").at(stamp));
        drafts.push(Draft::new(2, "empty").key(b"").at(stamp));
        kafka.send(topic, &drafts);
        kafka.send_in_transaction(topic, &[Draft::new(0, "aborted").key(b"aborted").at(stamp)], false);
    }
    for (partitioner, of_client) in [("murmur2", "murmur2"), ("consistent", "consistent")] {
        let (to, reference) = (format!("rekey.to.{partitioner}"), format!("rekey.reference.{partitioner}"));
        kafka.create_topic(&to, 7, &[]);
        kafka.create_topic(&reference, 7, &[]);
        let rekey = Rekey::new(
            kafka,
            &to,
            &format!("--from {} --from {} --id key --partitioner {partitioner}", topics[0], topics[1]),
        );
        let running = rekey.start();
        let written = || running.metric("dedupd_rekey_written_total").unwrap_or(0.0);
        wait_until("all records", LIMIT, || (written() >= 124.0).then_some(()));
        wait_until("readiness", LIMIT, || running.is_ready().then_some(()));
        assert_eq!(running.metric("dedupd_rekey_missing_id_total"), Some(4.0));
        wait_until("no lag but the markers", LIMIT, || {
            let lag = |topic| running.metric(&format!("dedupd_rekey_lag_records{{topic=\"{topic}\"}}"));
            (lag(topics[0])? <= 2.0 && lag(topics[1])? <= 2.0).then_some(())
        });
        assert!(running.get("/status.json").unwrap().contains("\"not_ready\":null"));
        assert_eq!(running.stop(), Some(0), "{}", running.text());

        let records = kafka.records(&to, Isolation::Committed);
        assert_eq!(assert_complete(kafka, &topics, &records), 0);
        let by_client = partitions_by_client(kafka, &reference, of_client, &keys);
        assert!(by_client.values().collect::<std::collections::BTreeSet<_>>().len() > 4, "{by_client:?}");
        for record in &records {
            match record.key.as_deref().map(String::from_utf8_lossy).filter(|key| !key.is_empty()) {
                Some(key) => assert_eq!(Some(&record.partition), by_client.get(&*key), "{key}"),
                None => assert!(["no id", "empty"].contains(&record.text().as_str()), "{record:?}"),
            }
        }
    }
}

#[test]
fn a_pattern_finds_topics_that_are_created_later_and_never_the_target_or_what_run_writes() {
    let kafka = shared_kafka();
    kafka.create_topic("pattern.a", 1, &[]);
    kafka.create_topic("pattern.to", 4, &[]);
    let written = ["pattern.clean", "pattern.clean.dedupd", "pattern.dead"];
    for topic in written {
        kafka.create_topic(topic, 1, &[]);
        kafka.produce(topic, 0, &[("k1", topic)]);
    }
    kafka.produce("pattern.a", 0, &[("k1", "1"), ("k2", "2")]);
    let mut rekey = Rekey::new(kafka, "pattern.to", "--from ^pattern\\..* --from ^__.* --id key");
    let topics = [("DEDUPD_TOPICS__CLEAN", written[0]), ("DEDUPD_TOPICS__DEAD_LETTER", written[2])];
    rekey.environment.extend(topics.map(|(key, topic)| (key.to_owned(), topic.to_owned())));
    let running = rekey.start();
    rekey.wait_done(kafka, &["pattern.a"]);
    kafka.create_topic("pattern.later", 2, &[]);
    kafka.produce("pattern.later", 1, &[("k1", "3"), ("k3", "4")]);
    rekey.wait_done(kafka, &["pattern.later"]);
    // Time for a subscription to the target topic, if there were one.
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let records = kafka.records("pattern.to", Isolation::Committed);
    assert_eq!(assert_complete(kafka, &["pattern.a", "pattern.later"], &records), 0);
    let of_k1 = |record: &&Record| record.key.as_deref() == Some(b"k1");
    let partitions: Vec<i32> = records.iter().filter(of_k1).map(|record| record.partition).collect();
    assert!(partitions.len() == 2 && partitions[0] == partitions[1], "{partitions:?}");
}

#[test]
fn an_orderly_restart_repeats_nothing_and_a_grown_target_is_used() {
    let kafka = shared_kafka();
    kafka.create_topic("resumed.a", 2, &[]);
    kafka.create_topic("resumed.to", 1, &[]);
    kafka.produce("resumed.a", 0, &[("a", "1"), ("b", "2")]);
    kafka.produce("resumed.a", 1, &[("c", "3")]);
    let rekey = Rekey::new(kafka, "resumed.to", "--from resumed.a --id key");
    let running = rekey.start();
    wait_until("the records", LIMIT, || {
        (running.metric("dedupd_rekey_written_total") == Some(3.0)).then_some(())
    });
    // The stop itself commits.
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    kafka.produce("resumed.a", 1, &[("d", "4")]);
    let running = rekey.start();
    rekey.wait_done(kafka, &["resumed.a"]);
    kafka.grow_topic("resumed.to", 6);
    wait_until("the growth", LIMIT, || {
        running.text().contains("has grown from 1 to 6 partitions").then_some(())
    });
    let many: Vec<String> = (0..30).map(|number| format!("key-{number}")).collect();
    let records: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "v")).collect();
    kafka.produce("resumed.a", 0, &records);
    rekey.wait_done(kafka, &["resumed.a"]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let records = kafka.records("resumed.to", Isolation::Committed);
    assert_eq!(assert_complete(kafka, &["resumed.a"], &records), 0, "records were repeated");
    assert!(records.iter().any(|record| record.partition > 0));
}

/// Its page, and a target that it creates like the source with the most partitions; records with one key are kept.
#[test]
fn a_missing_target_is_created_when_that_is_configured() {
    let kafka = shared_kafka();
    kafka.create_topic("created.a", 2, &[("cleanup.policy", "compact")]);
    kafka.create_topic("created.b", 5, &[("cleanup.policy", "compact"), ("max.message.bytes", "2000000")]);
    kafka.produce("created.a", 1, &[("x", "1")]);
    kafka.produce("created.b", 4, &[("x", "2")]);
    let create = || ("DEDUPD_TOPICS__CREATE".to_owned(), "true".to_owned());
    let mut unnamed = Rekey::new(kafka, "created.to", "--from ^created[.][ab]$ --id key");
    unnamed.environment.push(create());
    let running = unnamed.start();
    assert_eq!(running.wait(LIMIT).code(), Some(3));
    assert!(
        running.text().contains("rekey.from names no existing topic whose settings it can have"),
        "{}",
        running.text()
    );

    let mut rekey = Rekey::new(kafka, "created.to", "--from created.a --from created.b --id key");
    rekey.environment.push(create());
    let running = rekey.start();
    rekey.wait_done(kafka, &["created.a", "created.b"]);
    assert_eq!(kafka.partitions("created.to"), 5);
    let config = kafka.topic_config("created.to");
    assert_eq!(config["cleanup.policy"], "delete");
    assert!(config["max.message.bytes"].parse::<u64>().unwrap() >= 2_000_000);
    let page = running.get("/").unwrap();
    assert!(page.contains("dedupd: created.a,created.b to created.to"), "{page}");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(kafka.records("created.to", Isolation::Committed).len(), 2);
}

#[test]
fn missing_topics_and_gaps_end_it_with_what_to_do() {
    let kafka = shared_kafka();
    kafka.create_topic("ended.to", 1, &[]);
    let rekey = Rekey::new(kafka, "ended.to", "--from ended.none --id key");
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(3));
    assert!(
        running.text().contains("topic ended.none (rekey.from) does not exist; create it"),
        "{}",
        running.text()
    );
    kafka.create_topic("ended.a", 1, &[]);
    let rekey = Rekey::new(kafka, "ended.missing", "--from ended.a --id key");
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(3));
    assert!(
        running.text().contains("topic ended.missing (rekey.to) does not exist; create it"),
        "{}",
        running.text()
    );
    let rekey = Rekey::new(kafka, "ended.a", "--from ended.a --id key");
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(2));

    kafka.produce("ended.a", 0, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let mut rekey = Rekey::new(kafka, "ended.to", "--from ended.a --id key");
    kafka.commit_offset(&rekey.group(), "ended.a", 0, 1);
    kafka.delete_records("ended.a", 0, 2);
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6));
    let text = running.text();
    assert!(
        text.contains("continues at offset 1 of ended.a/0, but that log contains the offsets 2 to 3"),
        "{text}"
    );
    rekey.environment.push(("DEDUPD_GROUP__ON_GAP".to_owned(), "accept".to_owned()));
    let running = rekey.start();
    rekey.wait_done(kafka, &["ended.a"]);
    assert_eq!(running.metric("dedupd_rekey_gap_offsets_total"), Some(1.0));
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    assert_eq!(kafka.texts("ended.to"), ["3"]);

    // A record that the target does not accept.
    kafka.alter_topic_config("ended.to", &[("max.message.bytes", "500")]);
    kafka.produce("ended.a", 0, &[("large", &incompressible(2_000))]);
    let running = rekey.start();
    assert_eq!(running.wait(LIMIT).code(), Some(6));
    let text = running.text();
    assert!(text.contains("does not accept the record") && text.contains("max.message.bytes"), "{text}");
}
