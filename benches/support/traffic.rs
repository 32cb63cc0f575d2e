//! Typical records: events with a UUID as id, some of them repeated.

use std::fmt::Write as _;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::harness::{Kafka, wait_until};

const SEED: u64 = 20_261_121;
const ACKNOWLEDGED: Duration = Duration::from_secs(10);

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
    /// A repeat has one of this many last ids, each equally likely.
    pub repeats_among: u64,
    /// A repeat is in any partition, not only in that of its id.
    pub are_repeats_anywhere: bool,
    /// Size of a value. Shorter events are padded, longer ones are unchanged.
    pub value_bytes: usize,
}

/// An id in the text form of a UUID.
fn uuid(id: u128) -> String {
    let hex = format!("{id:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
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
    Filler::new(kafka, topic, traffic).send(traffic.records);
}

/// Ends the bench when a record is not delivered.
struct Deliveries;

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, delivered: &DeliveryResult<'_>, (): ()) {
        if let Err((error, record)) = delivered {
            eprintln!("a record for {}/{} is not delivered: {error}", record.topic(), record.partition());
            std::process::abort();
        }
    }
}

/// Writes traffic to a topic, in parts.
pub struct Filler<'k> {
    kafka: &'k Kafka,
    topic: &'k str,
    traffic: Traffic,
    producer: ThreadedProducer<Deliveries>,
    random: fastrand::Rng,
    records: u64,
    /// Number of different ids so far. An id is a hash of its number, so that earlier ones need not be kept.
    ids: u64,
}

impl<'k> Filler<'k> {
    pub fn new(kafka: &'k Kafka, topic: &'k str, traffic: Traffic) -> Self {
        let mut config = kafka.client_config();
        config
            .set("enable.idempotence", "true")
            .set("linger.ms", "20")
            .set("queue.buffering.max.messages", "400000")
            .set("delivery.report.only.error", "true");
        let producer = config.create_with_context(Deliveries).expect("a producer");
        let random = fastrand::Rng::with_seed(SEED);
        Self { kafka, topic, traffic, producer, random, records: 0, ids: 0 }
    }

    /// Number of different ids that were written.
    pub fn ids(&self) -> u64 {
        self.ids
    }

    /// Number of records that were written.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes so many more records and waits until they are acknowledged.
    pub fn send(&mut self, records: u64) {
        let mut value = String::new();
        for _ in 0..records {
            self.send_one(&mut value);
        }
        self.producer.flush(Duration::from_mins(2)).expect("all records are acknowledged");
        // The ends of a log can be visible some milliseconds after the acknowledgement.
        wait_until(&format!("{} records in {}", self.records, self.topic), ACKNOWLEDGED, || {
            let ends = (0..self.traffic.partitions).map(|it| self.kafka.watermarks(self.topic, it).1);
            (ends.sum::<i64>() == i64::try_from(self.records).unwrap()).then_some(())
        });
    }

    fn send_one(&mut self, value: &mut String) {
        let Traffic { shape, partitions, repeats_percent, repeats_among, .. } = self.traffic;
        let is_repeat = self.ids > 0 && self.random.u8(..100) < repeats_percent;
        let number = if is_repeat {
            self.ids - 1 - self.random.u64(..repeats_among.min(self.ids))
        } else {
            self.ids += 1;
            self.ids - 1
        };
        let id = xxh3_128_with_seed(&number.to_le_bytes(), SEED);
        let partition = if is_repeat && self.traffic.are_repeats_anywhere {
            self.random.i32(0..partitions)
        } else {
            i32::try_from(id % u128::try_from(partitions).unwrap()).unwrap()
        };
        shape.value(value, id, self.records, self.traffic.value_bytes);
        let text = uuid(id);
        let mut record: BaseRecord<'_, str, str> =
            BaseRecord::to(self.topic).partition(partition).payload(value);
        if shape.has_key() {
            record = record.key(&text);
        }
        if shape == Shape::Header {
            record = record.headers(headers(&text));
        }
        while let Err((error, returned)) = self.producer.send(record) {
            let full = error.rdkafka_error_code() == Some(rdkafka::types::RDKafkaErrorCode::QueueFull);
            assert!(full, "cannot send to {}: {error}", self.topic);
            std::thread::sleep(Duration::from_millis(1));
            record = returned;
        }
        self.records += 1;
    }
}

fn headers(id: &str) -> OwnedHeaders {
    [("trace", "4bf92f3577b34da6a3ce929d0e0e4736"), ("id", id), ("source", "shop")]
        .into_iter()
        .fold(OwnedHeaders::new_with_capacity(3), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        })
}
