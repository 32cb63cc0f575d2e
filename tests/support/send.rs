//! Produces records with a plain client, in a transaction, or with a request encoded by the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;

use super::{Isolation, Kafka, Record};

const LIMIT: Duration = Duration::from_secs(30);

/// One record to write.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub partition: i32,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp_ms: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Draft {
    /// A record with a null key and this value.
    pub fn new(partition: i32, value: &str) -> Self {
        Self { partition, value: Some(value.into()), ..Self::default() }
    }

    /// A record whose value is a JSON object with this id.
    pub fn id(partition: i32, id: &str) -> Self {
        Self::new(partition, &format!("{{\"id\":\"{id}\"}}"))
    }

    /// Bytes of its value and headers.
    pub fn bytes(&self) -> usize {
        let of_header =
            |(name, value): &(String, Option<Vec<u8>>)| name.len() + value.as_ref().map_or(0, Vec::len);
        self.value.as_ref().map_or(0, Vec::len) + self.headers.iter().map(of_header).sum::<usize>()
    }

    #[must_use]
    pub fn key(mut self, key: &[u8]) -> Self {
        self.key = Some(key.to_vec());
        self
    }

    /// Sets the timestamp, in epoch milliseconds.
    #[must_use]
    pub fn at(mut self, timestamp_ms: i64) -> Self {
        self.timestamp_ms = Some(timestamp_ms);
        self
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: Option<&[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.map(<[u8]>::to_vec)));
        self
    }
}

impl Kafka {
    /// Writes the drafts in order, without a transaction.
    pub fn send(&self, topic: &str, drafts: &[Draft]) {
        self.send_with(topic, drafts, &[]);
    }

    /// Writes the drafts with these producer properties.
    pub fn send_with(&self, topic: &str, drafts: &[Draft], properties: &[(&str, &str)]) {
        let mut config = self.client_config();
        config.set("enable.idempotence", "true").set("message.max.bytes", "100000000");
        for (key, value) in properties {
            config.set(*key, *value);
        }
        let producer = producer(&config);
        queue(&producer, topic, drafts).unwrap();
        producer.flush(LIMIT).expect("the records are acknowledged");
    }

    /// Writes the drafts in one transaction, and commits or aborts it.
    pub fn send_in_transaction(&self, topic: &str, drafts: &[Draft], commit: bool) {
        let id = format!("writer.of.{topic}");
        let producer = producer(self.client_config().set("transactional.id", id));
        producer.init_transactions(LIMIT).unwrap();
        producer.begin_transaction().unwrap();
        queue(&producer, topic, drafts).unwrap();
        producer.flush(LIMIT).expect("the records are acknowledged");
        if commit {
            producer.commit_transaction(LIMIT).unwrap();
        } else {
            producer.abort_transaction(LIMIT).unwrap();
        }
    }

    /// The committed records of a topic, as text, in the order of partition and offset.
    pub fn texts(&self, topic: &str) -> Vec<String> {
        self.records(topic, Isolation::Committed).iter().map(Record::text).collect()
    }
}

fn producer(config: &ClientConfig) -> BaseProducer {
    config.create().expect("a producer")
}

/// Queues the drafts in order. An error: the producer has to be replaced, or its transaction ended.
pub fn queue(producer: &BaseProducer, topic: &str, drafts: &[Draft]) -> Result<(), KafkaError> {
    for draft in drafts {
        let headers = draft
            .headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: value.as_ref() }));
        let mut record = BaseRecord::<[u8], [u8]>::to(topic).partition(draft.partition);
        record.key = draft.key.as_deref();
        record.payload = draft.value.as_deref();
        record.timestamp = draft.timestamp_ms;
        record.headers = (!draft.headers.is_empty()).then_some(headers);
        while let Err((error, returned)) = producer.send(record) {
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(error);
            }
            producer.poll(Duration::from_millis(1));
            record = returned;
        }
    }
    Ok(())
}

/// A value and its timestamp in the log. Clients reject or replace some timestamps, so the test encodes these
/// records.
pub type Stamp<'a> = (i64, &'a str);

impl Kafka {
    /// Writes one batch with exactly these timestamps, in a Produce request of version 3
    /// (kafka.apache.org/protocol, "Record Batch").
    pub fn send_stamped(&self, topic: &str, partition: i32, stamps: &[Stamp<'_>]) {
        let batch = batch(stamps);
        let mut request = Vec::new();
        request.extend([0, 0, 0, 3, 0, 0, 0, 1]); // Produce, version 3, correlation id 1
        request.extend((-1i16).to_be_bytes()); // no client id
        request.extend((-1i16).to_be_bytes()); // no transaction
        request.extend((-1i16).to_be_bytes()); // acks = all
        request.extend(30_000i32.to_be_bytes());
        request.extend(1i32.to_be_bytes());
        request.extend(i16::try_from(topic.len()).unwrap().to_be_bytes());
        request.extend(topic.as_bytes());
        request.extend(1i32.to_be_bytes());
        request.extend(partition.to_be_bytes());
        request.extend(i32::try_from(batch.len()).unwrap().to_be_bytes());
        request.extend(batch);
        let mut socket = TcpStream::connect(self.bootstrap()).unwrap();
        socket.write_all(&i32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
        socket.write_all(&request).unwrap();
        let mut length = [0; 4];
        socket.read_exact(&mut length).unwrap();
        let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
        socket.read_exact(&mut answer).unwrap();
        // Correlation id, one topic, its name, one partition, its index, then the error code.
        let at = 4 + 4 + 2 + topic.len() + 4 + 4;
        assert_eq!(answer[at..at + 2], [0, 0], "the broker rejected the batch: {answer:?}");
    }
}

fn batch(stamps: &[Stamp<'_>]) -> Vec<u8> {
    let first = stamps[0].0;
    let count = i32::try_from(stamps.len()).unwrap();
    let mut tail = Vec::new(); // covered by the checksum
    tail.extend(0i16.to_be_bytes()); // no compression, CreateTime
    tail.extend((count - 1).to_be_bytes());
    tail.extend(first.to_be_bytes());
    tail.extend(stamps.iter().map(|stamp| stamp.0).max().unwrap().to_be_bytes());
    tail.extend((-1i64).to_be_bytes()); // no producer id,
    tail.extend((-1i16).to_be_bytes()); // epoch,
    tail.extend((-1i32).to_be_bytes()); // sequence number
    tail.extend(count.to_be_bytes());
    for (at, (timestamp_ms, value)) in stamps.iter().enumerate() {
        let mut body = vec![0];
        zigzag(&mut body, timestamp_ms - first);
        zigzag(&mut body, i64::try_from(at).unwrap());
        zigzag(&mut body, -1); // null key
        zigzag(&mut body, i64::try_from(value.len()).unwrap());
        body.extend(value.as_bytes());
        zigzag(&mut body, 0); // no headers
        zigzag(&mut tail, i64::try_from(body.len()).unwrap());
        tail.extend(body);
    }
    let mut batch = Vec::new();
    batch.extend(0i64.to_be_bytes()); // base offset
    batch.extend(i32::try_from(4 + 1 + 4 + tail.len()).unwrap().to_be_bytes());
    batch.extend((-1i32).to_be_bytes()); // leader epoch
    batch.push(2); // magic
    batch.extend(crc32c::crc32c(&tail).to_be_bytes());
    batch.extend(tail);
    batch
}

fn zigzag(to: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        to.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    to.push(u8::try_from(rest).unwrap());
}
