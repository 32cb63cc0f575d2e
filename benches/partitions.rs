//! A topic with many partitions: `cargo bench --bench partitions`.
//!
//! Raw, clean and state topic have `DEDUPD_BENCH_PARTITIONS` (default 1,024) partitions each. Measured are the start, a
//! backlog of `DEDUPD_BENCH_RECORDS` (default 400,000) records, an idle process, a trickle of `DEDUPD_BENCH_RATE` (default
//! 500) records/s for `DEDUPD_BENCH_SECONDS` (default 30), a restart after `kill -9`, and a restart without local state.
//! `DEDUPD_BENCH_WORKERS` (default 1) divide the partitions, several of them in partition scope.
//! The latency is the time from the creation of a record until a `read_committed` reader of clean has received it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dedupd::clock::monotonic;

use support::harness::{Kafka, Pipe, Running, Sidecar, wait_until};
use support::progress::GroupOffsets;
use support::spent::cpu_time;
use support::timed::{Arrivals, row, send};
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, peak_memory, setting, several, with_default_timeouts};

const LIMIT: Duration = Duration::from_mins(5);
/// Interval between two reads of the committed offsets of all partitions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time over which the CPU of the idle process is measured.
const IDLE: Duration = Duration::from_secs(10);
/// How long after the input has ended the lag is measured.
const LAG_AFTER: Duration = Duration::from_secs(3);

fn main() {
    println!("{}", machine());
    let partitions: i32 = setting("DEDUPD_BENCH_PARTITIONS", 1_024);
    let records: u64 = setting("DEDUPD_BENCH_RECORDS", 400_000);
    println!("{partitions} partitions each in raw, clean and state; {records} records, 10 % repeats");
    let kafka = broker();
    let pipe = Pipe::new(&kafka, "partitions", usize::try_from(partitions).unwrap());
    for topic in [pipe.clean.clone(), format!("{}.dedupd", pipe.clean)] {
        kafka.create_topic(&topic, usize::try_from(partitions).unwrap(), &[("retention.ms", "-1")]);
    }
    // The defaults, but a session that is longer than the pause before the backlog.
    let sidecar = several(with_default_timeouts(pipe.sidecar("a")), setting("DEDUPD_BENCH_WORKERS", 1));
    let bench = Bench {
        kafka: &kafka,
        offsets: GroupOffsets::new(&kafka, &pipe.group(), &pipe.raw, partitions),
        sidecar: sidecar.with("DEDUPD_GROUP__SESSION_TIMEOUT", "60s"),
        pipe: &pipe,
        partitions,
    };
    let running = bench.start("first start, empty topics");
    bench.catch_up(&running, records);
    let used = bench.use_per_partition(&running);
    bench.trickle(&running, records);
    running.kill9();
    let running = bench.start("restart after kill -9");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    std::fs::remove_dir_all(&bench.sidecar.state_dir).unwrap();
    let running = bench.start("restart without local state");
    let restored = running.metric("dedupd_restored_ids_total{source=\"state_topic\"}").unwrap_or(0.0);
    println!("{:<32} {restored:.0} ids restored", "");
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    println!("{used}");
}

struct Bench<'k> {
    kafka: &'k Kafka,
    pipe: &'k Pipe<'k>,
    sidecar: Sidecar,
    offsets: GroupOffsets,
    partitions: i32,
}

impl Bench<'_> {
    /// Starts dedupd and measures the time from the start of the process until all partitions run.
    fn start(&self, what: &str) -> Running {
        let began = monotonic();
        let running = self.sidecar.start();
        // An instance may report ready while it has no partitions yet, so readiness alone is not sufficient.
        wait_until(what, LIMIT, || {
            std::thread::sleep(Duration::from_millis(50));
            let all = Some(f64::from(self.partitions));
            (running.is_ready() && running.metric("dedupd_partitions{state=\"running\"}") == all)
                .then_some(())
        });
        let cpu = cpu_time(running.pid()).as_secs_f64();
        println!("{what:<32} ready after {:.2} s, CPU {cpu:.2} s", began.elapsed().as_secs_f64());
        running
    }

    fn cpu(&self, running: &Running) -> [Duration; 2] {
        [running.pid(), self.kafka.pid().unwrap()].map(cpu_time)
    }

    /// Writes a backlog while dedupd is suspended, and measures the time from its continuation to the last commit.
    fn catch_up(&self, running: &Running, records: u64) {
        running.signal("STOP");
        let traffic = Traffic {
            shape: Shape::Json,
            records,
            partitions: self.partitions,
            repeats_percent: 10,
            repeats_among: u64::MAX,
            are_repeats_anywhere: false,
            value_bytes: Shape::Json.value_bytes(),
        };
        fill(self.kafka, &self.pipe.raw, traffic);
        let (began, before) = (monotonic(), self.cpu(running));
        running.signal("CONT");
        self.wait_committed(records);
        let seconds = began.elapsed().as_secs_f64();
        let [client, broker] = used_since(before, self.cpu(running)).map(|used| used * 1e6 / records as f64);
        println!(
            "{:<32} {:.0} records/s ({seconds:.1} s), CPU {client:.1} + broker {broker:.1} µs per record",
            "catching up",
            records as f64 / seconds
        );
    }

    fn wait_committed(&self, records: u64) {
        wait_until("all records to be committed", LIMIT, || {
            std::thread::sleep(POLL_INTERVAL);
            (self.offsets.committed() == records).then_some(())
        });
    }

    /// CPU of the idle process and its broker; returns a text about memory and open files per partition.
    fn use_per_partition(&self, running: &Running) -> String {
        std::thread::sleep(Duration::from_secs(3));
        let before = self.cpu(running);
        std::thread::sleep(IDLE);
        let shares = used_since(before, self.cpu(running)).map(|used| used / IDLE.as_secs_f64() * 100.0);
        println!("{:<32} {:.1} % of a core, the broker {:.1} %", "idle", shares[0], shares[1]);
        let files = std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
        let peak = peak_memory(running.pid());
        let each = f64::from(self.partitions);
        format!(
            "memory {peak:.0} MiB at most, {:.0} KiB per partition; {files} open files, {:.2} per partition",
            peak * 1024.0 / each,
            files as f64 / each
        )
    }

    fn trickle(&self, running: &Running, before: u64) {
        let rate: u64 = setting("DEDUPD_BENCH_RATE", 500);
        let seconds: u64 = setting("DEDUPD_BENCH_SECONDS", 30);
        let (records, origin, done) = (rate * seconds, monotonic(), AtomicBool::new(false));
        let arrivals = Arrivals::of(self.kafka, &self.pipe.clean, self.partitions);
        let committed = || running.metric("dedupd_transactions_total{result=\"committed\"}").unwrap_or(0.0);
        let sample = || (monotonic(), self.cpu(running), committed());
        let latencies_ms = std::thread::scope(|scope| {
            let reader = scope.spawn(|| arrivals.latencies_ms(records, origin, &done));
            // At first the broker compiles its code, which takes more CPU time than the requests.
            let half = scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(seconds / 2));
                sample()
            });
            send(self.kafka, (&self.pipe.raw, self.partitions), (records, rate), origin);
            let (began, used, first) = half.join().unwrap();
            let elapsed = began.elapsed().as_secs_f64();
            let [client, broker] = used_since(used, self.cpu(running));
            let transactions = committed() - first;
            println!(
                "{:<32} {:.1} transactions/s, CPU of each {:.1} ms, of the broker {:.1} ms",
                format!("{rate} records/s, the last half"),
                transactions / elapsed,
                client * 1e3 / transactions,
                broker * 1e3 / transactions
            );
            let [client, broker] = [client, broker].map(|used| used / elapsed * 100.0);
            std::thread::sleep(LAG_AFTER);
            let lag = before + records - self.offsets.committed();
            println!(
                "{:<32} lag {lag} after {LAG_AFTER:?}; {client:.0} % of a core, the broker {broker:.0} %",
                format!("{rate} records/s")
            );
            wait_until("the last records", LIMIT, || {
                std::thread::sleep(POLL_INTERVAL);
                reader.is_finished().then_some(())
            });
            done.store(true, Ordering::Release);
            reader.join().unwrap()
        });
        self.wait_committed(before + records);
        row("latency, all records", &latencies_ms);
        row("latency, the last half", &latencies_ms[latencies_ms.len() / 2..]);
    }
}

/// The seconds between two values of each clock.
fn used_since(before: [Duration; 2], after: [Duration; 2]) -> [f64; 2] {
    [0, 1].map(|at| after[at].as_secs_f64() - before[at].as_secs_f64())
}
