//! `dedupd rekey` compared with two plain copies, and the latency that it adds: `cargo bench --bench rekey`.
//!
//! A copy is a consumer and a threaded producer of the Rust client without transactions. The first copy changes nothing. The second
//! one writes what rekey writes: another partition, and a header that names the source; the difference between the two is what
//! these cost in the client library. The three run in turns on one broker and one source topic, each with a new group and target.
//! A rate is that of the end offsets of the target, because all commit offsets only once per second. The first round is not
//! counted.
//! `DEDUPD_BENCH_RECORDS` (default 2 million), `DEDUPD_BENCH_ROUNDS` (default 5), `DEDUPD_BENCH_SHAPES` (default `be`, as in
//! `end_to_end`), `DEDUPD_BENCH_RATE` (default 1,000 records/s) and `DEDUPD_BENCH_SECONDS` (default 30) set the size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedHeaders, Header, Message};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;

use support::harness::{Kafka, Running, child, ports::free_port};
use support::spent::cpu_time;
use support::timed::{Arrivals, row, send};
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, quantile, setting};

const PARTITIONS: i32 = 12;
const LIMIT: Duration = Duration::from_mins(5);
/// Environment variable of the child process that copies: servers, source, target and a [`Copies`].
const COPY: &str = "DEDUPD_BENCH_COPY";
/// Records sent in this time are not counted for the latency.
const WARM_UP: Duration = Duration::from_secs(5);

fn main() {
    if let Ok(copy) = std::env::var(COPY) {
        let names: Vec<&str> = copy.split(' ').collect();
        let copies = if names[3] == Copies::Unchanged.name() { Copies::Unchanged } else { Copies::Moved };
        run_copy(names[0], names[1], names[2], copies);
    }
    println!("{}", machine());
    let kafka = broker();
    let shapes = setting("DEDUPD_BENCH_SHAPES", "be".to_owned());
    for (letter, shape) in Shape::ALL.into_iter().filter(|(letter, _)| shapes.contains(*letter)) {
        compare(&kafka, letter, shape);
    }
    latency(&kafka);
}

/// What a copy does with a record.
#[derive(Clone, Copy, PartialEq)]
enum Copies {
    /// The same bytes in the same partition.
    Unchanged,
    /// With a header that names the source, in a partition that follows from the value.
    Moved,
}

impl Copies {
    fn name(self) -> &'static str {
        match self {
            Self::Unchanged => "copy",
            Self::Moved => "moving-copy",
        }
    }
}

/// Copies until the process is killed.
fn run_copy(servers: &str, from: &str, to: &str, copies: Copies) -> ! {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", servers);
    let consumer: BaseConsumer = client
        .clone()
        .set("group.id", to)
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", "read_committed")
        // With the default of one second, a full queue stops the fetcher.
        .set("fetch.queue.backoff.ms", "20")
        .create()
        .expect("a consumer");
    let producer: ThreadedProducer<DefaultProducerContext> =
        client.set("linger.ms", "5").create().expect("a producer");
    consumer.subscribe(&[from]).expect("a subscription");
    loop {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message.expect("a record");
        let mut record = BaseRecord {
            topic: to,
            partition: Some(message.partition()),
            payload: message.payload(),
            key: message.key(),
            timestamp: message.timestamp().to_millis(),
            headers: message.headers().map(BorrowedHeaders::detach),
            delivery_opaque: (),
        };
        if copies == Copies::Moved {
            let source =
                format!("{from}/{}@{}#4Zl1kTzRQ8-_b0ujGYv1Lw.0", message.partition(), message.offset());
            let header = Header { key: "dedupd.source", value: Some(&source) };
            record.headers = Some(record.headers.unwrap_or_default().insert(header));
            let hash = crc32fast::hash(message.payload().unwrap_or_default());
            record.partition = i32::try_from(hash % PARTITIONS.unsigned_abs()).ok();
        }
        while let Err((error, returned)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            assert!(full, "cannot send: {error}");
            std::thread::sleep(Duration::from_millis(1));
            record = returned;
        }
    }
}

/// Measures both copies and rekey with records of one shape.
fn compare(kafka: &Kafka, letter: char, shape: Shape) {
    let from = format!("bench.{letter}");
    let traffic = Traffic {
        shape,
        records: setting("DEDUPD_BENCH_RECORDS", 2_000_000),
        partitions: PARTITIONS,
        repeats_percent: 10,
        repeats_among: 500_000,
        are_repeats_anywhere: false,
        value_bytes: shape.value_bytes(),
    };
    kafka.create_topic(&from, usize::try_from(PARTITIONS).unwrap(), &[]);
    fill(kafka, &from, traffic);
    println!("\n({letter}) {}: {} records, {PARTITIONS} partitions", shape.name(), traffic.records);
    let contestants = [Some(Copies::Unchanged), Some(Copies::Moved), None];
    let names = contestants.map(|copies| copies.map_or("rekey", Copies::name));
    let mut rates = contestants.map(|_| Vec::new());
    let mut spent = contestants.map(|_| Vec::new());
    for round in 0..=setting("DEDUPD_BENCH_ROUNDS", 5) {
        for (place, copies) in contestants.into_iter().enumerate() {
            let to = format!("{from}.{}.{round}", names[place]);
            let (rate, cpu) = measure(kafka, &from, &to, traffic.records, |to| {
                child::spawn(copies.map_or_else(
                    || rekey(kafka, &from, to, shape.id_source()).0,
                    |copies| copy(kafka, &from, to, copies),
                ))
            });
            let counted = if round == 0 { ", warm-up, not counted" } else { "" };
            println!("round {round}: {:<11} {rate:>10.0} records/s{counted}", names[place]);
            if round > 0 {
                rates[place].push(rate);
                spent[place].push(cpu);
            }
        }
    }
    for (what, figures) in [("records/s", rates), ("client CPU, µs per record", spent)] {
        let [.., rekey] = &figures;
        println!("{what}: rekey {:.2}", median(rekey));
        for (name, of) in names.iter().zip(&figures[..2]) {
            let ratios: Vec<f64> = rekey.iter().zip(of).map(|(rekey, other)| rekey / other).collect();
            let [least, most] = [0.0, 1.0].map(|q| quantile(&ratios, q));
            println!(
                "  {name} {:.2}; rekey {:.2} times this ({least:.2} to {most:.2})",
                median(of),
                median(&ratios)
            );
        }
    }
    kafka.delete_topic(&from);
}

/// A command that copies.
fn copy(kafka: &Kafka, from: &str, to: &str, copies: Copies) -> std::process::Command {
    let mut command = child::tied(std::env::current_exe().unwrap());
    command.env(COPY, format!("{} {from} {to} {}", kafka.bootstrap(), copies.name()));
    command
}

/// A command that rekeys, and its port.
fn rekey(kafka: &Kafka, from: &str, to: &str, id: &str) -> (std::process::Command, u16) {
    let port = free_port();
    let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
    command
        .args(["rekey", "--bootstrap-servers", kafka.bootstrap(), "--from", from, "--to", to])
        .args(["--instance", "bench", "--listen", &format!("127.0.0.1:{port}")])
        .env("DEDUPD_IDENTITY__FROM", id)
        .env_remove("RUST_LOG");
    (command, port)
}

/// Records per second, from the first written record to the last, and CPU time of the process per record in microseconds.
fn measure(
    kafka: &Kafka,
    from: &str,
    to: &str,
    records: u64,
    start: impl FnOnce(&str) -> Child,
) -> (f64, f64) {
    kafka.create_topic(to, usize::try_from(PARTITIONS).unwrap(), &[("retention.ms", "-1")]);
    let mut process = start(to);
    let first = reached(kafka, to, 1, process.id());
    let last = reached(kafka, to, records, process.id());
    assert_eq!(last.0, records, "{from}: records were repeated");
    process.kill().unwrap();
    process.wait().unwrap();
    kafka.delete_topic(to);
    let written = (last.0 - first.0) as f64;
    (
        written / (last.1 - first.1).as_secs_f64(),
        last.2.checked_sub(first.2).unwrap().as_secs_f64() * 1e6 / written,
    )
}

/// Waits until a topic has this many records. Returns their number, the time, and the CPU time of the process so far.
fn reached(kafka: &Kafka, topic: &str, least: u64, pid: u32) -> (u64, Instant, Duration) {
    let began = monotonic();
    loop {
        let ends = (0..PARTITIONS).map(|partition| kafka.watermarks(topic, partition).1);
        let written = u64::try_from(ends.sum::<i64>()).unwrap();
        if written >= least {
            return (written, monotonic(), cpu_time(pid));
        }
        assert!(began.elapsed() < LIMIT, "{written} of {least} records in {topic}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Compares the arrival of each record at a reader of the source and at a reader of the target.
fn latency(kafka: &Kafka) {
    let (from, to) = ("latency.from", "latency.to");
    for topic in [from, to] {
        kafka.create_topic(topic, usize::try_from(PARTITIONS).unwrap(), &[]);
    }
    let rate: u64 = setting("DEDUPD_BENCH_RATE", 1_000);
    let span = Duration::from_secs(setting("DEDUPD_BENCH_SECONDS", 30));
    let dir = tempfile::tempdir().unwrap();
    let (command, port) = rekey(kafka, from, to, "json:/id");
    let running = Running::start(command, port, dir.path().join("rekey.log"));
    running.wait_ready(Duration::from_secs(30));
    let (origin, done) = (monotonic(), AtomicBool::new(false));
    let records = rate * (WARM_UP + span).as_secs();
    let [direct, through] = [from, to].map(|topic| Arrivals::of(kafka, topic, PARTITIONS));
    let (direct, through) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| direct.latencies_ms(records, origin, &done));
        let through = scope.spawn(|| through.latencies_ms(records, origin, &done));
        send(kafka, (from, PARTITIONS), (records, rate), origin);
        support::harness::wait_until("the last records", Duration::from_secs(30), || {
            (direct.is_finished() && through.is_finished()).then_some(())
        });
        done.store(true, Ordering::Release);
        (direct.join().unwrap(), through.join().unwrap())
    });
    let counted = usize::try_from(rate * WARM_UP.as_secs()).unwrap()..;
    let added: Vec<f64> = through.iter().zip(&direct).map(|(through, direct)| through - direct).collect();
    println!("\n{rate} records/s for {span:?}, {PARTITIONS} partitions");
    row("source, read directly", &direct[counted.clone()]);
    row("target, through rekey", &through[counted.clone()]);
    row("added, record by record", &added[counted]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
