//! The baseline: a plain transactional copy, as it is written in an afternoon with rdkafka, and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use dedupd::config::{self, AsTyped, Config};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Message};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Most records of a transaction, and its longest duration.
const MAX_RECORDS: usize = 50_000;
const INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which a wait looks whether the producer's own thread has taken delivery reports.
const SERVED_WAIT: Duration = Duration::from_millis(1);
/// The clock is read once per this number of records.
const CHUNK: usize = 256;

#[derive(Default)]
struct Deliveries {
    failed: AtomicU64,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Copy {
    config: Config,
    consumer: BaseConsumer,
    producer: ThreadedProducer<Deliveries>,
    /// The next offset of each partition in the open transaction; -1 for a partition without records in it.
    next: Vec<i64>,
}

/// Copies until the process is killed, with the configuration from the environment.
pub fn run() -> ! {
    let config = config::load(None, AsTyped::default()).expect("the environment of the bench");
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &config.kafka.bootstrap_servers);
    let consumer: BaseConsumer = client
        .clone()
        .set("group.id", &config.group.id)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        // With the default of one second, a full queue stops the fetcher: 160,000 records/s instead of several hundred thousand.
        .set("fetch.queue.backoff.ms", "20")
        .create()
        .expect("a consumer");
    let producer: ThreadedProducer<Deliveries> = client
        .set("transactional.id", &config.group.id)
        .set("linger.ms", "5")
        .create_with_context(Deliveries::default())
        .expect("a producer");
    producer.init_transactions(CALL_LIMIT).expect("init_transactions");
    consumer.subscribe(&[config.topics.raw.as_str()]).expect("a subscription");
    let mut copy = Copy { config, consumer, producer, next: Vec::new() };
    loop {
        copy.transaction();
    }
}

impl Copy {
    fn transaction(&mut self) {
        let Some(first) = self.consumer.poll(Duration::from_millis(100)) else { return };
        self.producer.begin_transaction().expect("begin_transaction");
        let (began, mut records) = (monotonic(), 0);
        let mut waiting = Some(first);
        while let Some(message) = waiting.take() {
            let message = message.expect("a record");
            send(&self.producer, self.config.topics.clean.as_str(), &message);
            let partition = usize::try_from(message.partition()).expect("a partition");
            if self.next.len() <= partition {
                self.next.resize(partition + 1, -1);
            }
            self.next[partition] = message.offset() + 1;
            records += 1;
            if records >= MAX_RECORDS || (records % CHUNK == 0 && began.elapsed() >= INTERVAL) {
                break;
            }
            waiting = self.consumer.poll(left(began));
        }
        self.commit();
    }

    fn commit(&mut self) {
        let Self { config, consumer, producer, next } = self;
        drain(producer);
        let mut offsets = TopicPartitionList::new();
        for (partition, next) in next.iter_mut().enumerate().filter(|(_, next)| **next >= 0) {
            let partition = i32::try_from(partition).expect("a partition");
            let topic = config.topics.raw.as_str();
            offsets.add_partition_offset(topic, partition, Offset::Offset(*next)).expect("an offset");
            *next = -1;
        }
        let member = consumer.group_metadata().expect("a member");
        producer.send_offsets_to_transaction(&offsets, &member, CALL_LIMIT).expect("send_offsets");
        producer.commit_transaction(CALL_LIMIT).expect("commit");
    }
}

fn send(producer: &ThreadedProducer<Deliveries>, topic: &str, message: &BorrowedMessage<'_>) {
    let mut record = BaseRecord {
        topic,
        partition: Some(message.partition()),
        payload: message.payload(),
        key: message.key(),
        timestamp: message.timestamp().to_millis(),
        headers: message.headers().map(BorrowedHeaders::detach),
        delivery_opaque: (),
    };
    while let Err((error, returned)) = producer.send(record) {
        let full = matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
        assert!(full, "cannot send: {error}");
        // Not `poll`: it would compete with the producer's own thread, and spin.
        std::thread::sleep(SERVED_WAIT);
        record = returned;
    }
}

fn left(began: Instant) -> Duration {
    INTERVAL.saturating_sub(began.elapsed())
}

fn drain(producer: &ThreadedProducer<Deliveries>) {
    while producer.in_flight_count() > 0 {
        std::thread::sleep(SERVED_WAIT);
    }
    assert_eq!(producer.context().failed.load(Ordering::Relaxed), 0, "the broker rejected records");
}
