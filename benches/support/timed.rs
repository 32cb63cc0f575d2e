//! Records that contain their time of creation, and a reader that measures when they arrive.
#![allow(dead_code, reason = "each bench uses its own part")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::harness::Kafka;
use super::quantile;

/// Sends each record at its scheduled time, to a random partition. A record contains its number and its time of creation
/// since `origin`.
pub fn send(kafka: &Kafka, (topic, partitions): (&str, i32), (records, rate): (u64, u64), origin: Instant) {
    // With `linger.ms` of 0 each record is a request, and the broker does not keep up with more than about 8,000 per second.
    let producer: BaseProducer = kafka.client_config().set("linger.ms", "1").create().unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let began = monotonic();
    for number in 0..records {
        let due = Duration::from_micros(number * 1_000_000 / rate);
        while let Some(early) = due.checked_sub(began.elapsed()).filter(|early| !early.is_zero()) {
            std::thread::sleep(early);
        }
        let id = format!("{:032x}", random.u128(..));
        let made_us = origin.elapsed().as_micros();
        let value = format!("{{\"id\":\"{id}\",\"n\":{number},\"made_us\":{made_us}}}");
        let partition = random.i32(0..partitions);
        producer
            .send(BaseRecord::<(), str>::to(topic).partition(partition).payload(&value))
            .map_err(|(e, _)| e)
            .unwrap();
        producer.poll(Duration::ZERO);
    }
    producer.flush(Duration::from_secs(10)).unwrap();
}

/// A `read_committed` reader of the records that are written to a topic after its creation.
pub struct Arrivals(BaseConsumer);

impl Arrivals {
    pub fn of(kafka: &Kafka, topic: &str, partitions: i32) -> Self {
        let mut config = kafka.client_config();
        config
            .set("group.id", "bench")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed");
        if partitions > 256 {
            // A fetch of each record of a thousand partitions would take most of the broker's time.
            config.set("fetch.min.bytes", "65536").set("fetch.wait.max.ms", "50");
        }
        let reader: BaseConsumer = config.create().unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            let (_, end) = kafka.watermarks(topic, partition);
            all.add_partition_offset(topic, partition, Offset::Offset(end)).unwrap();
        }
        reader.assign(&all).unwrap();
        Self(reader)
    }

    /// Reads until all records have arrived; returns the latency of every record in ms, indexed by its number.
    pub fn latencies_ms(&self, records: u64, origin: Instant, done: &AtomicBool) -> Vec<f64> {
        let mut latencies_ms = vec![f64::NAN; usize::try_from(records).unwrap()];
        let mut missing = records;
        while missing > 0 && !done.load(Ordering::Acquire) {
            let Some(message) = self.0.poll(Duration::from_millis(200)) else { continue };
            let message = message.unwrap();
            let arrived_us = origin.elapsed().as_micros() as f64;
            let value: serde_json::Value = serde_json::from_slice(message.payload().unwrap()).unwrap();
            let number = usize::try_from(value["n"].as_u64().unwrap()).unwrap();
            assert!(latencies_ms[number].is_nan(), "record {number} arrived twice");
            latencies_ms[number] = (arrived_us - value["made_us"].as_f64().unwrap()) / 1000.0;
            missing -= 1;
        }
        latencies_ms
    }
}

/// Prints the latencies as one line.
pub fn row(what: &str, latencies_ms: &[f64]) {
    let [half, most, worst] = [0.5, 0.99, 1.0].map(|q| quantile(latencies_ms, q));
    println!("{what:<26} p50 {half:>7.1} ms   p99 {most:>7.1} ms   max {worst:>7.1} ms");
}
