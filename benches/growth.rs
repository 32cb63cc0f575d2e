//! How throughput and memory change with the number of workers, the share of duplicates, and the number of ids in the
//! window: `cargo bench --bench growth [-- <svg file>]`. With a file name it draws the figures too.
//!
//! `DEDUPD_BENCH_RECORDS` (default 2 million) is the backlog of a run with other workers or duplicates, of which
//! `DEDUPD_BENCH_ROUNDS` (default 3) are measured. `DEDUPD_BENCH_IDS` (default 1, 20 and 100 million, as `1,20,100`) are
//! the numbers of ids at which one long run is measured, and after which the state is loaded by a restart.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/plot.rs"]
mod plot;
mod support;

use std::time::Duration;

use dedupd::clock::monotonic;

use plot::{Panel, draw};
use support::harness::{Kafka, Pipe, Sidecar, wait_until};
use support::progress::{GroupOffsets, Run, follow_beside, wait_for};
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, peak_memory, setting};

const PARTITIONS: i32 = 12;
const LIMIT: Duration = Duration::from_mins(30);
/// Records over which the long run is measured at each number of ids.
const AROUND: u64 = 2_000_000;
/// Share of duplicates in the runs with other workers and in the long run, percent.
const REPEATS: u8 = 10;

fn main() {
    println!("{}", machine());
    let kafka = broker();
    let svg = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    println!("once more at first, because the broker is slow until its code is compiled:");
    backlog(&kafka, (1, REPEATS));
    let one = backlog(&kafka, (1, REPEATS));
    let mut workers = vec![(1.0, one)];
    workers.extend([2, 4].map(|workers| (workers as f64, backlog(&kafka, (workers, REPEATS)))));
    let mut repeats = vec![(f64::from(REPEATS), one)];
    repeats.extend([50, 90].map(|percent| (f64::from(percent), backlog(&kafka, (1, percent)))));
    let ids = long_run(&kafka);
    let Some(path) = svg else { return };
    let rate =
        |points: &[(f64, Run)]| points.iter().map(|(at, run)| (*at, run.records_per_s / 1e3)).collect();
    let panels = [
        Panel { title: "by workers", points: rate(&workers), unit: "thousand records/s" },
        Panel { title: "by duplicates, %", points: rate(&repeats), unit: "thousand records/s" },
        Panel { title: "by million ids in the window", points: rate(&ids), unit: "thousand records/s" },
        Panel {
            title: "by million ids in the window",
            points: ids.iter().map(|(at, run)| (*at, run.peak_mib)).collect(),
            unit: "MiB of memory",
        },
    ];
    draw(&path, &panels);
    println!("written: {path}");
}

/// Runs with a backlog, with so many workers and percent of duplicates.
fn backlog(kafka: &Kafka, (workers, percent): (usize, u8)) -> Run {
    let records = setting("DEDUPD_BENCH_RECORDS", 2_000_000);
    let runs: Vec<Run> = (0..setting("DEDUPD_BENCH_ROUNDS", 3))
        .map(|round| {
            let pipe = Pipe::new(kafka, &format!("{workers}-{percent}-{round}"), PARTITIONS as usize);
            fill(kafka, &pipe.raw, traffic(Shape::KeyedJson, records, percent));
            // One worker too, because the runs are compared.
            let running = sidecar(&pipe).sharing(workers).start();
            let offsets = GroupOffsets::new(kafka, &pipe.group(), &pipe.raw, PARTITIONS);
            let run = follow_beside(&offsets, (running.pid(), kafka.pid()), records, LIMIT);
            assert_eq!(running.stop(), Some(0), "{}", running.text());
            for topic in [&pipe.raw, &pipe.clean, &format!("{}.dedupd", pipe.clean)] {
                kafka.delete_topic(topic);
            }
            run
        })
        .collect();
    let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
    let run = Run {
        records_per_s: of(|run| run.records_per_s),
        cpu_us: of(|run| run.cpu_us),
        broker_us: of(|run| run.broker_us),
        peak_mib: of(|run| run.peak_mib),
    };
    show(&format!("{workers} workers, {percent} % duplicates"), &run);
    run
}

/// One run from an empty window through all numbers of ids, and a restart that loads the last of them. The duplicates are
/// uniformly distributed over everything before.
fn long_run(kafka: &Kafka) -> Vec<(f64, Run)> {
    let millions = setting("DEDUPD_BENCH_IDS", "1,20,100".to_owned());
    let millions: Vec<u64> = millions.split(',').map(|text| text.parse().expect("million ids")).collect();
    // The raw records until there are as many ids.
    let records = |millions: u64| millions * 1_000_000 * 100 / u64::from(100 - REPEATS);
    let total = records(*millions.last().expect("a number of ids")) + AROUND / 2;
    let pipe = Pipe::new(kafka, "long", PARTITIONS as usize);
    fill(kafka, &pipe.raw, Traffic { value_bytes: 16, ..traffic(Shape::Opaque, total, REPEATS) });
    let sidecar = sidecar(&pipe).with("DEDUPD_IDENTITY__FROM", Shape::Opaque.id_source());
    // The default limit is 100 M ids.
    let sidecar = sidecar.with("DEDUPD_WINDOW__MAX_IDS", "1000000000");
    let running = sidecar.start();
    let offsets = GroupOffsets::new(kafka, &pipe.group(), &pipe.raw, PARTITIONS);
    let pids = (running.pid(), kafka.pid());
    let mut measured = Vec::new();
    for millions in millions {
        let middle = records(millions);
        let before = wait_for(&offsets, pids, middle.saturating_sub(AROUND / 2).max(1), LIMIT);
        let run = wait_for(&offsets, pids, middle + AROUND / 2, LIMIT).since(&before);
        show(&format!("{millions} M ids in the window"), &run);
        let part = |part: &str| {
            let bytes = running.metric(&format!("dedupd_memory_bytes{{part=\"{part}\"}}"));
            format!("{part} {:.0}", bytes.unwrap_or(0.0) / f64::from(1 << 20))
        };
        println!("  of these: {} MiB", ["index", "slices", "filter", "batch"].map(part).join(", "));
        measured.push((millions as f64, run));
    }
    let ids = wait_until("the metrics, which follow the commits", LIMIT, || {
        let [forwarded, duplicates] = ["forwarded", "duplicate"].map(|outcome| running.outcome(outcome));
        (forwarded + duplicates == total).then_some(forwarded)
    });
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    load(&sidecar, ids);
    measured
}

/// Restarts with the local state.
fn load(sidecar: &Sidecar, ids: u64) {
    let began = monotonic();
    let running = sidecar.start();
    let loaded = "dedupd_restored_ids_total{source=\"local\"}";
    wait_until("all state to be loaded", LIMIT, || {
        (running.is_ready() && running.metric(loaded) == Some(ids as f64)).then_some(())
    });
    println!(
        "restart with {:.1} M ids: ready after {:.1} s, peak memory {:.0} MiB",
        ids as f64 / 1e6,
        began.elapsed().as_secs_f64(),
        peak_memory(running.pid())
    );
    assert_eq!(running.stop(), Some(0), "{}", running.text());
}

fn traffic(shape: Shape, records: u64, repeats_percent: u8) -> Traffic {
    Traffic {
        shape,
        records,
        partitions: PARTITIONS,
        repeats_percent,
        repeats_among: if shape == Shape::Opaque { usize::MAX } else { 500_000 },
        are_repeats_anywhere: false,
        value_bytes: shape.value_bytes(),
    }
}

/// The defaults, apart from the source of the id.
fn sidecar(pipe: &Pipe<'_>) -> Sidecar {
    let mut sidecar = pipe.sidecar("a");
    sidecar.environment.retain(|(key, _)| !key.contains("TIMEOUT"));
    sidecar
}

fn show(what: &str, run: &Run) {
    println!(
        "{what:<32} {:>8.0} records/s, CPU {:.2} + broker {:.2} µs per record, peak memory {:.0} MiB",
        run.records_per_s, run.cpu_us, run.broker_us, run.peak_mib
    );
}
