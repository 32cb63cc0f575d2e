//! Typical records: events in JSON with a UUID as id, some of them repeated.

use std::fmt::Write as _;
use std::time::Duration;

use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use super::harness::Kafka;

/// The records that a topic is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub records: u64,
    pub partitions: i32,
    /// Percentage of records with the id of an earlier record, uniformly distributed over its partition.
    pub repeats_percent: u8,
    /// Size of a value. Shorter events are padded, longer ones are unchanged.
    pub value_bytes: usize,
}

/// An event with this id. The id is neither the first nor the last field; the other fields are strings, numbers, an
/// object and an array.
pub fn event(out: &mut String, id: u128, number: u64, bytes: usize) {
    out.clear();
    let hex = format!("{id:032x}");
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    write!(
        out,
        r#"{{"type":"order.placed","id":"{a}-{b}-{c}-{d}-{e}","n":{number},"total":{}.{:02},"#,
        number % 977,
        number % 100
    )
    .unwrap();
    write!(out, r#""paid":true,"shop":{{"city":"Ulm","lines":[1,2,{}]}},"note":""#, number % 9).unwrap();
    while out.len() + 2 < bytes {
        out.push(char::from(b'a' + u8::try_from(out.len() % 26).unwrap()));
    }
    out.push_str("\"}");
}

/// Fills a topic and waits until all records are acknowledged.
pub fn fill(kafka: &Kafka, topic: &str, traffic: Traffic) {
    let mut config = kafka.client_config();
    config
        .set("enable.idempotence", "true")
        .set("linger.ms", "20")
        .set("queue.buffering.max.messages", "400000")
        .set("delivery.report.only.error", "true");
    let producer: ThreadedProducer<_> = config.create().expect("a producer");
    let mut random = fastrand::Rng::with_seed(20_261_121);
    let mut known: Vec<Vec<u128>> = vec![Vec::new(); usize::try_from(traffic.partitions).unwrap()];
    let mut value = String::new();
    for number in 0..traffic.records {
        let partition = random.usize(..known.len());
        let ids = &mut known[partition];
        let id = if !ids.is_empty() && random.u8(..100) < traffic.repeats_percent {
            ids[random.usize(..ids.len())]
        } else {
            let id = random.u128(..);
            ids.push(id);
            id
        };
        event(&mut value, id, number, traffic.value_bytes);
        let mut record: BaseRecord<'_, (), str> =
            BaseRecord::to(topic).partition(i32::try_from(partition).unwrap()).payload(&value);
        while let Err((error, returned)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(rdkafka::types::RDKafkaErrorCode::QueueFull);
            assert!(full, "cannot send to {topic}: {error}");
            std::thread::sleep(Duration::from_millis(1));
            record = returned;
        }
    }
    producer.flush(Duration::from_mins(2)).expect("all records are acknowledged");
    let written: i64 = (0..traffic.partitions).map(|partition| kafka.watermarks(topic, partition).1).sum();
    assert_eq!(u64::try_from(written).unwrap(), traffic.records, "records of {topic}");
}
