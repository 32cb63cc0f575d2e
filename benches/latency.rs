//! Latency that dedupd adds to a record at low load: `cargo bench --bench latency`.
//!
//! Every record contains its time of creation. One reader reads raw directly, another reads clean, both with
//! `read_committed`. The difference for the same record is the latency that dedupd adds. `DEDUPD_BENCH_RATE` (default
//! 1,000 records/s), `DEDUPD_BENCH_SECONDS` (default 30) and `DEDUPD_BENCH_WORKERS` (default 1) set rate, duration and workers
//! (several only in partition scope); `DEDUPD_BATCH__INTERVAL` sets the interval.
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

use support::harness::Sidecar;
use support::timed::{Arrivals, row, send};
use support::{broker, machine, setting, several, with_default_timeouts};

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
    let sidecar = Sidecar::new(kafka.bootstrap(), RAW, CLEAN, "a", dir.path());
    let sidecar = several(with_default_timeouts(sidecar), setting("DEDUPD_BENCH_WORKERS", 1));
    let running = sidecar.start();
    running.wait_ready(Duration::from_secs(30));

    let (origin, done) = (monotonic(), AtomicBool::new(false));
    let records = rate * (WARM_UP + span).as_secs();
    let [direct, through] = [RAW, CLEAN].map(|topic| Arrivals::of(&kafka, topic, PARTITIONS));
    let (direct, through) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| direct.latencies_ms(records, origin, &done));
        let through = scope.spawn(|| through.latencies_ms(records, origin, &done));
        send(&kafka, (RAW, PARTITIONS), (records, rate), origin);
        support::harness::wait_until("the last records", Duration::from_secs(30), || {
            (direct.is_finished() && through.is_finished()).then_some(())
        });
        done.store(true, Ordering::Release);
        (direct.join().unwrap(), through.join().unwrap())
    });
    let counted = usize::try_from(rate * WARM_UP.as_secs()).unwrap()..;
    let added: Vec<f64> = through.iter().zip(&direct).map(|(through, direct)| through - direct).collect();
    let interval = std::env::var("DEDUPD_BATCH__INTERVAL").unwrap_or_else(|_| "100ms".to_owned());
    println!("{rate} records/s for {span:?}, batch.interval {interval}, {PARTITIONS} partitions");
    row("raw, read directly", &direct[counted.clone()]);
    row("clean, through dedupd", &through[counted.clone()]);
    row("added, record by record", &added[counted]);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}
