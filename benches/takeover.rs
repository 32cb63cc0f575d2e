//! How long the clean topic receives no records after kill -9 or a stop: `cargo bench --bench takeover`.
//!
//! An instance is killed under steady load. Either it is restarted at once, or another running instance or a spare takes over.
//! The bench measures the time until a `read_committed` reader of clean receives the first record
//! that was sent after the kill, in the partitions of the killed instance. When an instance is stopped with SIGTERM and a spare
//! takes over, it measures the longest time without any record. `DEDUPD_BENCH_ROUNDS`
//! (default 7) sets the number of kills of each kind. The session timeout is 6 s.
//!
//! `-- standby` compares spares with and without `state.standby` instead, with a window of `DEDUPD_BENCH_IDS` ids (default 5
//! million) and without local state of an earlier time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dedupd::clock::{monotonic, wall_ms};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use support::blocks::Blocks;
use support::harness::{Kafka, Pipe, Running, Scope, wait_until};
use support::spent::cpu_time;
use support::{broker, machine, median, peak_memory, quantile, setting};

const PARTITIONS: usize = 12;
const RATE: u64 = 1_000;
const LIMIT: Duration = Duration::from_mins(1);
/// With a large window.
const LONG: Duration = Duration::from_mins(10);
/// Ids of a block of the large window.
const BLOCK_IDS: u64 = 1_400;
/// How long the records are observed after a stop.
const STOPPED: Duration = Duration::from_secs(4);

fn main() {
    println!("{}", machine());
    let rounds: usize = setting("DEDUPD_BENCH_ROUNDS", 7);
    let kafka = broker();
    println!("{PARTITIONS} partitions, {RATE} records/s, session timeout 6 s, {rounds} kills each");
    if std::env::args().any(|argument| argument == "standby") {
        return by_standby(&kafka, rounds);
    }
    restarted(&kafka, rounds);
    replaced(&kafka, rounds);
    by_spare(&kafka, rounds);
}

/// The killed instance is restarted at once, with the same static membership.
fn restarted(kafka: &Kafka, rounds: usize) {
    let pipe = Pipe::new(kafka, "restarted", PARTITIONS);
    let sidecar = pipe.sidecar("a").with("RUST_LOG", "info,dedupd=debug");
    let mut running = sidecar.start();
    running.wait_ready(LIMIT);
    let load = pipe.load(PARTITIONS, RATE);
    let arrivals = Arrivals::of(kafka, &pipe.clean);
    let gaps: Vec<Gap> = (0..rounds)
        .map(|_| {
            arrivals.wait_flowing();
            let kill = Kill::now(&running);
            running = sidecar.start();
            arrivals.gap(&kill, &all())
        })
        .collect();
    show("same instance, restarted at once", &gaps);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    pipe.assert_exactly_once();
}

/// In partition scope: another instance of the group takes over. The killed one is restarted after that.
fn replaced(kafka: &Kafka, rounds: usize) {
    let pipe = Pipe::new(kafka, "replaced", PARTITIONS);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name).scoped(Scope::Partition));
    let mut running = sidecars.each_ref().map(|sidecar| {
        let running = sidecar.start();
        running.wait_ready(LIMIT);
        running
    });
    let load = pipe.load(PARTITIONS, RATE);
    let arrivals = Arrivals::of(kafka, &pipe.clean);
    let gaps: Vec<Gap> = (0..rounds)
        .map(|round| {
            wait_until("both instances to have partitions", LIMIT, || {
                running.iter().all(|one| one.is_ready() && owned(one).len() == PARTITIONS / 2).then_some(())
            });
            arrivals.wait_flowing();
            let victim = round % 2;
            let affected = owned(&running[victim]);
            let kill = Kill::now(&running[victim]);
            let gap = arrivals.gap(&kill, &affected);
            running[victim] = sidecars[victim].start();
            gap
        })
        .collect();
    show("another running instance takes over", &gaps);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
}

/// In topic scope: the active instance is killed, then stopped, and the spare takes over. The former one
/// becomes the spare.
fn by_spare(kafka: &Kafka, rounds: usize) {
    let pipe = Pipe::new(kafka, "spare", PARTITIONS);
    let sidecars = ["a", "b"].map(|name| pipe.sidecar(name));
    let mut running = sidecars.each_ref().map(|sidecar| {
        let running = sidecar.start();
        running.wait_ready(LIMIT);
        running
    });
    let load = pipe.load(PARTITIONS, RATE);
    let arrivals = Arrivals::of(kafka, &pipe.clean);
    let mut victim = 0;
    let mut next_victim = |running: &[Running; 2]| {
        wait_until("one active instance and one spare", LIMIT, || {
            let spare = running[1 - victim].metric("dedupd_role{role=\"spare\"}") == Some(1.0);
            (owned(&running[victim]).len() == PARTITIONS && spare).then_some(())
        });
        arrivals.wait_flowing();
        let now = victim;
        victim = 1 - victim;
        now
    };
    let gaps: Vec<Gap> = (0..rounds)
        .map(|_| {
            let victim = next_victim(&running);
            let kill = Kill::now(&running[victim]);
            let gap = arrivals.gap(&kill, &all());
            running[victim] = sidecars[victim].start();
            gap
        })
        .collect();
    show("a spare takes over", &gaps);
    let pauses: Vec<f64> = (0..rounds)
        .map(|_| {
            let victim = next_victim(&running);
            running[victim].signal("TERM");
            let pause = arrivals.longest_pause(STOPPED);
            assert_eq!(running[victim].wait(LIMIT).code(), Some(0), "{}", running[victim].text());
            running[victim] = sidecars[victim].start();
            pause
        })
        .collect();
    let (middle, longest) = (median(&pauses), quantile(&pauses, 1.0));
    println!(
        "{:<36} longest time without a clean record: median {middle:.2} s, max {longest:.2} s",
        "the same, the active one is stopped"
    );
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LIMIT);
    pipe.assert_exactly_once();
}

/// In topic scope, with a large window: a spare without local state takes over, or one that has followed the state topic.
fn by_standby(kafka: &Kafka, rounds: usize) {
    let ids: u64 = setting("DEDUPD_BENCH_IDS", 5_000_000);
    let transactions = ids / (PARTITIONS as u64 * BLOCK_IDS);
    let partitions = u32::try_from(PARTITIONS).unwrap();
    let written = Blocks { partitions, transactions, ids: BLOCK_IDS, over: Duration::from_hours(12) };
    let pipe = Pipe::new(kafka, "standby", PARTITIONS);
    written.write(&pipe);
    let sidecar = |name: &str| pipe.sidecar(name).with("DEDUPD_WINDOW__MAX_IDS", "1000000000");
    let mut active = sidecar("first");
    let mut running = active.start();
    running.wait_running(PARTITIONS, LONG);
    let load = pipe.load(PARTITIONS, RATE);
    let arrivals = Arrivals::from(kafka, &pipe.clean, Offset::End);
    let mut gaps = [Vec::new(), Vec::new()];
    for round in 0..2 * rounds {
        let follows = round % 2 == 1;
        let spare =
            sidecar(&round.to_string()).with("DEDUPD_STATE__STANDBY", if follows { "true" } else { "false" });
        let start = monotonic();
        let next = spare.start();
        wait_until("the spare", LONG, || next.has_role("spare").then_some(()));
        if follows {
            wait_until("the standby copies", LONG, || {
                let page = next.get("/status.json")?;
                // One journal has the ids of all partitions.
                page.contains("\"standby\":{\"complete\":1,").then_some(())
            });
            let copied = start.elapsed();
            wait_sealed(&next);
            let (cpu, memory) = (cpu_time(next.pid()), peak_memory(next.pid()));
            println!(
                "copied after {copied:.1?}; sealed after {:.1?}, {cpu:.1?} of CPU time, peak {memory:.0} MiB",
                start.elapsed()
            );
        }
        arrivals.wait_flowing();
        let kill = Kill::now(&running);
        let gap = arrivals.gap(&kill, &all());
        println!("{}: {:.2} s", if follows { "with a copy" } else { "without" }, gap.every);
        gaps[usize::from(follows)].push(gap);
        std::fs::remove_dir_all(&active.state_dir).unwrap();
        (running, active) = (next, spare);
    }
    println!("{} ids", written.total());
    show("a spare without local state", &gaps[0]);
    show("a spare with state.standby", &gaps[1]);
    load.finish();
    pipe.wait_caught_up(PARTITIONS, LONG);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Waits until an instance has sealed nothing for some seconds.
fn wait_sealed(running: &Running) {
    let mut sealed = (None, monotonic());
    wait_until("old ids to be sealed", LONG, || {
        let now = running.metric("dedupd_sealed_ids_total");
        if sealed.0 != now {
            sealed = (now, monotonic());
        }
        (sealed.1.elapsed() > Duration::from_secs(5)).then_some(())
    });
}

fn all() -> BTreeSet<i32> {
    (0..i32::try_from(PARTITIONS).unwrap()).collect()
}

/// The partitions in state `running` of an instance, from its `/status.json`.
fn owned(running: &Running) -> BTreeSet<i32> {
    let page = running.get("/status.json").unwrap_or_default();
    let body = page.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let workers = status["workers"].as_array().cloned().unwrap_or_default();
    let partitions = workers.iter().filter_map(|worker| worker["partitions"].as_array().cloned()).flatten();
    let flowing = partitions.filter(|partition| partition["state"] == "running");
    flowing.map(|partition| i32::try_from(partition["partition"].as_i64().unwrap()).unwrap()).collect()
}

/// Seconds from the kill to the first record of any affected partition (`first`), and of the last one (`every`).
struct Gap {
    first: f64,
    every: f64,
}

fn show(what: &str, gaps: &[Gap]) {
    let first: Vec<f64> = gaps.iter().map(|gap| gap.first).collect();
    let every: Vec<f64> = gaps.iter().map(|gap| gap.every).collect();
    println!(
        "{what:<36} first clean record: median {:.2} s, max {:.2} s; every partition: median {:.2} s, max {:.2} s",
        median(&first),
        quantile(&first, 1.0),
        median(&every),
        quantile(&every, 1.0)
    );
}

struct Kill {
    at: Instant,
    wall_ms: i64,
}

impl Kill {
    fn now(running: &Running) -> Self {
        let kill = Self { at: monotonic(), wall_ms: wall_ms() };
        running.kill9();
        kill
    }
}

/// A record received from clean.
struct Arrival {
    partition: i32,
    sent_ms: i64,
    at: Instant,
}

/// A `read_committed` reader of the clean topic, on its own thread.
struct Arrivals {
    inbox: Receiver<Arrival>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Arrivals {
    fn of(kafka: &Kafka, topic: &str) -> Self {
        Self::from(kafka, topic, Offset::Beginning)
    }

    fn from(kafka: &Kafka, topic: &str, start: Offset) -> Self {
        let mut config = kafka.client_config();
        config.set("group.id", "bench").set("enable.auto.commit", "false");
        config.set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut list = TopicPartitionList::new();
        for partition in all() {
            list.add_partition_offset(topic, partition, start).unwrap();
        }
        consumer.assign(&list).unwrap();
        let (found, inbox) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reader = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    let (partition, at) = (message.partition(), monotonic());
                    let sent_ms = message.timestamp().to_millis().unwrap();
                    found.send(Arrival { partition, sent_ms, at }).ok();
                }
            }
        });
        Self { inbox, stop, reader: Some(reader) }
    }

    /// Waits until a record that was sent after this call has arrived from every partition.
    fn wait_flowing(&self) {
        let now_ms = wall_ms();
        let mut missing = all();
        while !missing.is_empty() {
            let arrival = self.inbox.recv_timeout(LIMIT).expect("no record arrived in time");
            if arrival.sent_ms >= now_ms {
                missing.remove(&arrival.partition);
            }
        }
    }

    /// The longest time between two arrivals within `time`, in seconds.
    fn longest_pause(&self, time: Duration) -> f64 {
        let mut last = monotonic();
        let (end, mut longest) = (last + time, Duration::ZERO);
        while last < end {
            let at = self.inbox.recv_timeout(LIMIT).expect("no record arrived after the stop").at;
            longest = longest.max(at.saturating_duration_since(last));
            last = last.max(at);
        }
        longest.as_secs_f64()
    }

    /// Measures the gap. Records sent after the kill can only come from the instance that took over.
    fn gap(&self, kill: &Kill, affected: &BTreeSet<i32>) -> Gap {
        assert!(!affected.is_empty(), "the killed instance had no partitions");
        let mut missing = affected.clone();
        let mut first = None;
        loop {
            let arrival = self.inbox.recv_timeout(LONG).expect("no record arrived after the kill");
            if arrival.sent_ms >= kill.wall_ms && missing.remove(&arrival.partition) {
                let since = (arrival.at - kill.at).as_secs_f64();
                let first = *first.get_or_insert(since);
                if missing.is_empty() {
                    return Gap { first, every: since };
                }
            }
        }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.reader.take().map(JoinHandle::join);
    }
}
