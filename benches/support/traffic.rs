//! Typical records: events with a UUID as id, some of them repeated.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};

use super::harness::Kafka;

/// Where an id is, and what surrounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A flat JSON value with the id in it, no key. Repeats are uniformly distributed over the partition.
    Json,
    /// A UUID of 36 bytes as key, and a flat JSON value with the same id in it.
    KeyedJson,
    /// A nested JSON value with the id as its last field, no key.
    NestedJson,
    /// The id in a header, beside two other headers, and a flat JSON value.
    Header,
    /// The id as key, and an opaque value.
    Opaque,
}

impl Shape {
    /// All shapes, each with its letter in the tables.
    pub const ALL: [(char, Self); 5] = [
        ('a', Self::Json),
        ('b', Self::KeyedJson),
        ('c', Self::NestedJson),
        ('d', Self::Header),
        ('e', Self::Opaque),
    ];

    /// A description for the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "no key, 200 B of JSON, id in it",
            Self::KeyedJson => "36-byte UUID key, 200 B of JSON, id in it",
            Self::NestedJson => "1 KiB of nested JSON, id last",
            Self::Header => "id in one of three headers, 200 B of JSON",
            Self::Opaque => "36-byte UUID key as id, 100 B opaque",
        }
    }

    /// The value of `identity.from`.
    pub fn id_source(self) -> &'static str {
        match self {
            Self::Json | Self::KeyedJson => "[\"json:/id\"]",
            Self::NestedJson => "[\"json:/meta/id\"]",
            Self::Header => "[\"header:id\"]",
            Self::Opaque => "[\"key\"]",
        }
    }

    /// Size of a value, bytes.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::Json | Self::KeyedJson | Self::Header => 200,
            Self::NestedJson => 1_024,
            Self::Opaque => 100,
        }
    }

    fn has_key(self) -> bool {
        matches!(self, Self::KeyedJson | Self::Opaque)
    }

    fn value(self, out: &mut String, id: u128, number: u64, bytes: usize) {
        match self {
            Self::Json | Self::KeyedJson | Self::Header => event(out, id, number, bytes),
            Self::NestedJson => nested(out, id, number, bytes),
            Self::Opaque => {
                out.clear();
                write!(out, "{number:016x}").unwrap();
                out.extend((out.len()..bytes).map(|at| char::from(b'0' + u8::try_from(at % 75).unwrap())));
            }
        }
    }
}

/// The records that a topic is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub shape: Shape,
    pub records: u64,
    pub partitions: i32,
    /// Percentage of records with the id of an earlier record.
    pub repeats_percent: u8,
    /// A repeat has one of this many last ids of all partitions.
    pub repeats_among: usize,
    /// A repeat has an id of any partition, not only of its own.
    pub are_repeats_anywhere: bool,
    /// Size of a value. Shorter events are padded, longer ones are unchanged.
    pub value_bytes: usize,
}

/// An id in the text form of a UUID.
fn uuid(id: u128) -> String {
    let hex = format!("{id:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// An event with this id. The id is neither the first nor the last field; the other fields are strings, numbers, an
/// object and an array.
pub fn event(out: &mut String, id: u128, number: u64, bytes: usize) {
    out.clear();
    write!(
        out,
        r#"{{"type":"order.placed","id":"{}","n":{number},"total":{}.{:02},"#,
        uuid(id),
        number % 977,
        number % 100
    )
    .unwrap();
    write!(out, r#""paid":true,"shop":{{"city":"Ulm","lines":[1,2,{}]}},"note":""#, number % 9).unwrap();
    pad(out, 2, bytes);
    out.push_str("\"}");
}

/// An event with a list of objects of three levels, and the id as the last field.
fn nested(out: &mut String, id: u128, number: u64, bytes: usize) {
    out.clear();
    write!(out, r#"{{"type":"order.placed","n":{number},"lines":["#).unwrap();
    for line in 0..8 {
        let comma = if line == 0 { "" } else { "," };
        write!(
            out,
            r#"{comma}{{"sku":"A-{:06}","count":{},"price":{{"net":{}.{:02},"tax":19}},"tags":["new","b\"q"]}}"#,
            number % 1_000_000 + line,
            number % 7 + 1,
            number % 977,
            number % 100
        )
        .unwrap();
    }
    out.push_str(r#"],"note":""#);
    pad(out, 60, bytes);
    write!(out, r#"","meta":{{"version":3,"id":"{}"}}}}"#, uuid(id)).unwrap();
}

fn pad(out: &mut String, rest: usize, bytes: usize) {
    out.extend((out.len() + rest..bytes).map(|at| char::from(b'a' + u8::try_from(at % 26).unwrap())));
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
    let partitions = usize::try_from(traffic.partitions).unwrap();
    let mut known: Vec<VecDeque<u128>> =
        vec![VecDeque::new(); if traffic.are_repeats_anywhere { 1 } else { partitions }];
    let kept = (traffic.repeats_among / known.len()).max(1);
    let mut value = String::new();
    for number in 0..traffic.records {
        let partition = random.usize(..partitions);
        let place = partition % known.len();
        let ids = &mut known[place];
        let id = if !ids.is_empty() && random.u8(..100) < traffic.repeats_percent {
            ids[random.usize(..ids.len())]
        } else {
            let id = random.u128(..);
            ids.push_back(id);
            if ids.len() > kept {
                ids.pop_front();
            }
            id
        };
        traffic.shape.value(&mut value, id, number, traffic.value_bytes);
        let text = uuid(id);
        let mut record: BaseRecord<'_, str, str> =
            BaseRecord::to(topic).partition(i32::try_from(partition).unwrap()).payload(&value);
        if traffic.shape.has_key() {
            record = record.key(&text);
        }
        if traffic.shape == Shape::Header {
            record = record.headers(headers(&text));
        }
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

fn headers(id: &str) -> OwnedHeaders {
    [("trace", "4bf92f3577b34da6a3ce929d0e0e4736"), ("id", id), ("source", "shop")]
        .into_iter()
        .fold(OwnedHeaders::new_with_capacity(3), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        })
}
