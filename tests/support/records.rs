//! Producing and consuming records with plain clients that share no code with dedupd.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use dedupd::clock::monotonic;

use super::Kafka;

const LIMIT: Duration = Duration::from_mins(1);

/// The isolation level of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Committed,
    Uncommitted,
}

impl Isolation {
    /// The value of librdkafka's `isolation.level`.
    pub fn level(self) -> &'static str {
        match self {
            Isolation::Committed => "read_committed",
            Isolation::Uncommitted => "read_uncommitted",
        }
    }
}

/// Collects delivery errors: a flush that returns Ok means only that no record is queued.
#[derive(Default)]
struct Deliveries {
    failed: Mutex<Vec<String>>,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.failed.lock().unwrap().push(error.to_string());
        }
    }
}

/// One record in a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub timestamp_ms: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The value as text, empty for a null value.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or_default()).into_owned()
    }
}

impl Kafka {
    /// Writes records to one partition (idempotent, without a transaction) and waits until all are acknowledged.
    pub fn produce(&self, topic: &str, partition: i32, records: &[(&str, &str)]) {
        let mut config = self.client_config();
        config.set("enable.idempotence", "true").set("linger.ms", "0");
        produce_with(&config, topic, partition, records);
    }

    /// All records of a topic up to its current end, by partition and offset.
    pub fn records(&self, topic: &str, isolation: Isolation) -> Vec<Record> {
        read_with(&self.client_config(), topic, isolation)
    }

    /// The committed records of a topic after the markers of all its transactions: the broker may write them later than those of
    /// other topics, and later than it commits the offsets.
    pub fn ended_records(&self, topic: &str) -> Vec<Record> {
        self.wait_ended(topic, LIMIT);
        self.records(topic, Isolation::Committed)
    }

    /// The committed records of one partition. After a long run, all partitions together do not fit into memory.
    pub fn records_of(&self, topic: &str, partition: i32) -> Vec<Record> {
        self.records_in(topic, partition, Isolation::Committed)
    }

    /// The records of one partition.
    pub fn records_in(&self, topic: &str, partition: i32, isolation: Isolation) -> Vec<Record> {
        let consumer = reader(&self.client_config(), isolation);
        read_from(&consumer, topic, [partition].into())
    }
}

/// Writes records with any producer configuration, and waits until all are acknowledged.
pub fn produce_with(config: &ClientConfig, topic: &str, partition: i32, records: &[(&str, &str)]) {
    let producer: BaseProducer<Deliveries> =
        config.create_with_context(Deliveries::default()).expect("a producer");
    for (key, value) in records {
        let mut record = BaseRecord::to(topic).partition(partition).key(*key).payload(*value);
        while let Err((error, returned)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(rdkafka::types::RDKafkaErrorCode::QueueFull);
            assert!(full, "cannot send to {topic}: {error}");
            producer.poll(Duration::from_millis(1));
            record = returned;
        }
    }
    producer.flush(LIMIT).unwrap_or_else(|error| panic!("records to {topic} were not acknowledged: {error}"));
    let failed = producer.context().failed.lock().unwrap();
    assert!(failed.is_empty(), "{} records to {topic} were rejected, the first: {}", failed.len(), failed[0]);
}

/// All records of a topic up to its current end, with any client configuration.
pub fn read_with(config: &ClientConfig, topic: &str, isolation: Isolation) -> Vec<Record> {
    let consumer = reader(config, isolation);
    let all = partitions(&consumer, topic);
    read_from(&consumer, topic, all)
}

fn read_from(consumer: &BaseConsumer, topic: &str, mut open: BTreeSet<i32>) -> Vec<Record> {
    assign(consumer, topic, &open);
    let start = monotonic();
    let mut records = Vec::new();
    while !open.is_empty() {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => records.push(record(&message)),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => eprintln!("reading {topic}: {error}"), // a restarting broker is not a failure
            None => {}
        }
        assert!(
            start.elapsed() < LIMIT,
            "no end of {topic} {open:?} within {LIMIT:?}, {} records read",
            records.len()
        );
    }
    records.sort();
    records
}

fn reader(config: &ClientConfig, isolation: Isolation) -> BaseConsumer {
    let mut config = config.clone();
    config.set("group.id", "harness").set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    config
        .set("isolation.level", isolation.level())
        .set("auto.offset.reset", "error")
        .set("fetch.wait.max.ms", "50");
    config.create().expect("a consumer")
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> BTreeSet<i32> {
    let metadata = super::wait_until("metadata", LIMIT * 2, || {
        consumer.fetch_metadata(Some(topic), Duration::from_secs(5)).ok()
    });
    let partitions: BTreeSet<i32> =
        metadata.topics()[0].partitions().iter().map(MetadataPartition::id).collect();
    assert!(!partitions.is_empty(), "no topic {topic}");
    partitions
}

fn assign(consumer: &BaseConsumer, topic: &str, partitions: &BTreeSet<i32>) {
    let mut assignment = TopicPartitionList::new();
    for partition in partitions {
        assignment.add_partition_offset(topic, *partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).expect("an assignment");
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        partition: message.partition(),
        offset: message.offset(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        timestamp_ms: message.timestamp().to_millis(),
        headers: headers.unwrap_or_default(),
    }
}
