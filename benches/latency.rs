//! Latency that dedupd adds to a record at low load: `cargo bench --bench latency`.
//!
//! Every record contains its time of creation. One reader reads raw directly, another reads clean, both with
//! `read_committed`. The difference for the same record is the latency that dedupd adds. `DEDUPD_BENCH_RATE` (default
//! 1,000 records/s) and `DEDUPD_BENCH_SECONDS` (default 30) set rate and duration.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use support::harness::{Kafka, Sidecar};
use support::{broker, machine, quantile, setting};

const RAW: &str = "latency.raw";
const CLEAN: &str = "latency.clean";
const PARTITIONS: i32 = 12;
/// Records sent in this time are not counted.
const WARM_UP: Duration = Duration::from_secs(5);

fn main() {
    println!("{}", machine());
    let rate: u64 = setting("DEDUPD_BENCH_RATE", 1_000);
    let span = Duration::from_secs(setting("DEDUPD_BENCH_SECONDS", 30));
    let kafka = broker();
    for topic in [RAW, CLEAN] {
        kafka.create_topic(topic, usize::try_from(PARTITIONS).unwrap(), &[]);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::new(kafka.bootstrap(), RAW, CLEAN, "a", dir.path());
    sidecar.environment.retain(|(key, _)| !key.contains("TIMEOUT"));
    let running = sidecar.start();
    running.wait_ready(Duration::from_secs(30));

    let (origin, done) = (monotonic(), AtomicBool::new(false));
    let records = rate * (WARM_UP + span).as_secs();
    let (direct, through) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| arrivals(&kafka, RAW, records, origin, &done));
        let through = scope.spawn(|| arrivals(&kafka, CLEAN, records, origin, &done));
        send(&kafka.client_config(), records, rate, origin);
        support::harness::wait_until("the last records", Duration::from_secs(30), || {
            (direct.is_finished() && through.is_finished()).then_some(())
        });
        done.store(true, Ordering::Release);
        (direct.join().unwrap(), through.join().unwrap())
    });
    let counted = usize::try_from(rate * WARM_UP.as_secs()).unwrap()..;
    let added: Vec<f64> = through.iter().zip(&direct).map(|(through, direct)| through - direct).collect();
    println!("{rate} records/s for {span:?}, interval 100 ms, {PARTITIONS} partitions");
    row("raw, read directly", &direct[counted.clone()]);
    row("clean, through dedupd", &through[counted.clone()]);
    row("added, record by record", &added[counted]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

fn row(what: &str, latencies_ms: &[f64]) {
    let [half, most, worst] = [0.5, 0.99, 1.0].map(|q| quantile(latencies_ms, q));
    println!("{what:<26} p50 {half:>7.1} ms   p99 {most:>7.1} ms   max {worst:>7.1} ms");
}

/// Sends each record at its scheduled time. A record contains its number and its time of creation.
fn send(config: &ClientConfig, records: u64, rate: u64, origin: Instant) {
    let producer: BaseProducer = config.clone().set("linger.ms", "0").create().unwrap();
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
        let partition = random.i32(0..PARTITIONS);
        producer
            .send(BaseRecord::<(), str>::to(RAW).partition(partition).payload(&value))
            .map_err(|(e, _)| e)
            .unwrap();
        producer.poll(Duration::ZERO);
    }
    producer.flush(Duration::from_secs(10)).unwrap();
}

/// Reads until all records have arrived; returns the latency of every record in ms, indexed by its number.
fn arrivals(kafka: &Kafka, topic: &str, records: u64, origin: Instant, done: &AtomicBool) -> Vec<f64> {
    let mut config = kafka.client_config();
    config
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed");
    let reader: BaseConsumer = config.create().unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    reader.assign(&all).unwrap();
    let mut latencies_ms = vec![f64::NAN; usize::try_from(records).unwrap()];
    let mut missing = records;
    while missing > 0 && !done.load(Ordering::Acquire) {
        let Some(message) = reader.poll(Duration::from_millis(200)) else { continue };
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
