//! Latency that dedupd adds to a record at low load: `cargo bench --bench latency`.
//!
//! Every record contains its time of creation. One reader reads raw directly, another reads clean, both with
//! `read_committed`. The difference for the same record is the latency that dedupd adds. `DEDUPD_BENCH_RATE` (default
//! 1,000 records/s), `DEDUPD_BENCH_SECONDS` (default 30) and `DEDUPD_BENCH_WORKERS` (default 1) set rate, duration and workers
//! (several only in partition scope); `DEDUPD_BATCH__INTERVAL` sets the interval. `DEDUPD_BENCH_IDS` (default 0) is the number of
//! million ids in the window before. Records that were on their way while a slice was sealed are shown beside the others: with the
//! default rate there are none. The producer sends a request for each record, and a slow machine does not keep up with 5,000 per
//! second: use 3,000 for two minutes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use dedupd::clock::{monotonic, wall_ms};

use support::harness::{Kafka, Running, Sidecar, wait_until};
use support::timed::{Arrivals, row, send};
use support::traffic::{Filler, Shape, Traffic};
use support::{broker, machine, setting, several, with_default_timeouts};

const RAW: &str = "latency.raw";
const CLEAN: &str = "latency.clean";
const PARTITIONS: i32 = 12;
/// Records sent in this time are not counted.
const WARM_UP: Duration = Duration::from_secs(5);
/// Time to process the ids that are in the window before.
const LIMIT: Duration = Duration::from_mins(10);

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
    let running = sidecar.with("RUST_LOG", "info,dedupd::pipeline::worker::sealing=debug").start();
    running.wait_ready(Duration::from_secs(30));
    fill(&kafka, &running, setting("DEDUPD_BENCH_IDS", 0) * 1_000_000);

    let (origin, origin_wall, done) = (monotonic(), wall_ms(), AtomicBool::new(false));
    let records = rate * (WARM_UP + span).as_secs();
    let [direct, through] = [RAW, CLEAN].map(|topic| Arrivals::of(&kafka, topic, PARTITIONS));
    let (direct, through) = std::thread::scope(|scope| {
        let direct = scope.spawn(|| direct.latencies_ms(records, origin, &done));
        let through = scope.spawn(|| through.latencies_ms(records, origin, &done));
        send(&kafka, (RAW, PARTITIONS), (records, rate), origin);
        wait_until("the last records", Duration::from_secs(30), || {
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
    row("added, record by record", &added[counted.clone()]);
    show_sealing(&seals(&running, origin_wall), (&added, &through), rate, counted.start);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

/// Adds so many ids to the window, and waits until they are processed and as many as usual are sealed.
fn fill(kafka: &Kafka, running: &Running, ids: u64) {
    let shape = Shape::Json;
    let traffic = Traffic {
        shape,
        records: 0,
        partitions: PARTITIONS,
        repeats_percent: 0,
        repeats_among: 1,
        are_repeats_anywhere: false,
        value_bytes: shape.value_bytes(),
    };
    if ids > 0 {
        Filler::new(kafka, RAW, traffic).send(ids);
    }
    wait_until("the ids before", LIMIT, || (running.outcome("forwarded") == ids).then_some(()));
    let sealed = || running.metric("dedupd_sealed_ids_total");
    let mut before = sealed();
    wait_until("an end of sealing", LIMIT, || {
        std::thread::sleep(Duration::from_secs(2));
        (std::mem::replace(&mut before, sealed()) == before).then_some(())
    });
}

/// When slices were sealed, in ms since `origin_wall`, epoch milliseconds.
fn seals(running: &Running, origin_wall: i64) -> Vec<(f64, f64)> {
    let text = running.text();
    let at = |line: &str| {
        let time = humantime::parse_rfc3339_weak(line.split_whitespace().next()?).ok()?;
        Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() * 1e3 - origin_wall as f64)
    };
    let times = |message: &str| {
        text.lines().filter(|line| line.contains(message)).filter_map(at).collect::<Vec<f64>>()
    };
    let (begins, ends) = (times("sealing owners"), times("owners sealed"));
    let begun = |end: f64| begins.iter().copied().rfind(|begin| *begin <= end);
    ends.into_iter().filter_map(|end| Some((begun(end)?, end))).collect()
}

/// The latency of the records that were on their way while a slice was sealed, and that of the others.
fn show_sealing(seals: &[(f64, f64)], (added, through): (&[f64], &[f64]), rate: u64, first: usize) {
    let records = added.iter().zip(through).enumerate().skip(first);
    let (during, others): (Vec<_>, Vec<_>) = records.partition(|(number, (_, through))| {
        let sent_ms = *number as f64 * 1e3 / rate as f64;
        seals.iter().any(|(begin, end)| sent_ms <= *end && sent_ms + **through >= *begin)
    });
    if during.is_empty() {
        return;
    }
    let took: f64 = seals.iter().map(|(begin, end)| end - begin).sum();
    println!("{} slices sealed in {took:.0} ms together", seals.len());
    for (what, records) in [("added, while sealing", during), ("added, otherwise", others)] {
        let added: Vec<f64> = records.into_iter().map(|(_, (added, _))| *added).collect();
        row(what, &added);
    }
}
