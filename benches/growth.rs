//! How throughput and memory change with the number of workers, the share of duplicates, and the number of ids in the
//! window: `cargo bench --bench growth [-- <million ids>] [<svg file>]`. With a number, `-- 1000`, only the long run is measured, up to
//! this many million ids. With a file name it draws the figures too.
//!
//! `DEDUPD_BENCH_RECORDS` (default 2 million) is the backlog of a run with other workers or duplicates, of which
//! `DEDUPD_BENCH_ROUNDS` (default 3) are measured. `DEDUPD_BENCH_IDS` (default 1, 20 and 100 million, as `1,20,100`) are
//! the numbers of ids at which one long run is measured, and after which the process is killed and loads its state again.
//! The long run needs 45 bytes of disk per id and 6 GB, because its topics are short.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/plot.rs"]
mod plot;
mod support;

use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;

use plot::{Panel, draw};
use support::files::{drop_cached, size_of_files};
use support::harness::{Kafka, Pipe, Running, Sidecar, wait_until};
use support::progress::{GroupOffsets, Run, follow_beside, wait_for};
use support::traffic::{Filler, Shape, Traffic, fill};
use support::{broker, machine, median, peak_memory, resident_memory, setting, with_default_timeouts};

const PARTITIONS: i32 = 12;
const LIMIT: Duration = Duration::from_mins(30);
/// Records of a part of the long run.
const PART: u64 = 10_000_000;
/// Share of duplicates in the runs with other workers and in the long run, percent.
const REPEATS: u8 = 10;

fn main() {
    println!("{}", machine());
    let kafka = broker();
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).peekable();
    if let Some(last) = arguments.peek().and_then(|argument| argument.parse().ok()) {
        let steps = [1, 20, 60, 100, 200, 400, 600, 800].into_iter().filter(|millions| *millions < last);
        let ids = long_run(&kafka, &steps.chain([last]).collect::<Vec<_>>());
        draw_if_named(arguments.nth(1), &by_ids(&ids));
        return;
    }
    println!("once more at first, because the broker is slow until its code is compiled:");
    backlog(&kafka, (1, REPEATS));
    let one = backlog(&kafka, (1, REPEATS));
    let mut workers = vec![(1.0, one)];
    workers.extend([2, 4].map(|workers| (workers as f64, backlog(&kafka, (workers, REPEATS)))));
    let mut repeats = vec![(f64::from(REPEATS), one)];
    repeats.extend([50, 90].map(|percent| (f64::from(percent), backlog(&kafka, (1, percent)))));
    let millions = setting("DEDUPD_BENCH_IDS", "1,20,100".to_owned());
    let millions: Vec<u64> = millions.split(',').map(|text| text.parse().expect("million ids")).collect();
    let ids = long_run(&kafka, &millions);
    let mut panels = vec![
        Panel { title: "by workers", points: rates(&workers), unit: "thousand records/s" },
        Panel { title: "by duplicates, %", points: rates(&repeats), unit: "thousand records/s" },
    ];
    panels.extend(by_ids(&ids));
    draw_if_named(arguments.next(), &panels);
}

fn rates(runs: &[(f64, Run)]) -> Vec<(f64, f64)> {
    runs.iter().map(|(at, run)| (*at, run.records_per_s / 1e3)).collect()
}

fn by_ids(ids: &[(f64, Run)]) -> [Panel; 2] {
    let title = "by million ids in the window";
    let memory = ids.iter().map(|(at, run)| (*at, run.peak_mib)).collect();
    [
        Panel { title, points: rates(ids), unit: "thousand records/s" },
        Panel { title, points: memory, unit: "MiB of memory" },
    ]
}

fn draw_if_named(path: Option<String>, panels: &[Panel]) {
    let Some(path) = path else { return };
    draw(&path, panels);
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
/// uniformly distributed over everything before. The rate at a number of ids is that of all parts after the number before it.
///
/// The raw topic is written in parts, each when the one before it has been processed, so raw and clean can be short. The
/// process is suspended meanwhile, so it neither shares the cores with the producer nor gets time to seal.
fn long_run(kafka: &Kafka, millions: &[u64]) -> Vec<(f64, Run)> {
    let pipe = Pipe::new(kafka, "long", PARTITIONS as usize);
    let short = [("retention.bytes", "150000000"), ("segment.bytes", "50000000")];
    kafka.create_topic(&pipe.clean, PARTITIONS as usize, &short);
    kafka.alter_topic_config(&pipe.raw, &short);
    let sidecar = sidecar(&pipe).with("DEDUPD_IDENTITY__FROM", Shape::Opaque.id_source());
    // Longer than a part is written.
    let sidecar = sidecar.with("DEDUPD_GROUP__SESSION_TIMEOUT", "60s");
    // The default limit is 100 M ids.
    let sidecar = sidecar.with("DEDUPD_WINDOW__MAX_IDS", "2000000000");
    let running = sidecar.start();
    running.wait_ready(LIMIT);
    let offsets = GroupOffsets::new(kafka, &pipe.group(), &pipe.raw, PARTITIONS);
    let pids = (running.pid(), kafka.pid());
    let traffic = Traffic { value_bytes: 16, ..traffic(Shape::Opaque, 0, REPEATS) };
    let mut filler = Filler::new(kafka, &pipe.raw, traffic);
    let mut measured = Vec::new();
    for &millions in millions {
        let records = millions * 1_000_000 * 100 / u64::from(100 - REPEATS);
        let mut parts = Vec::new();
        while filler.records() < records {
            let part = PART.min(records - filler.records());
            running.signal("STOP");
            filler.send(part);
            let before = wait_for(&offsets, pids, 0, LIMIT);
            running.signal("CONT");
            parts.push((part, wait_for(&offsets, pids, filler.records(), LIMIT).since(&before)));
        }
        let run = Run::together(&parts);
        show(&format!("{millions} M ids in the window"), &run);
        show_parts(&running, filler.ids(), &sidecar.state_dir);
        measured.push((millions as f64, run));
    }
    let ids = filler.ids();
    wait_until("the metrics, which follow the commits", LIMIT, || {
        (["forwarded", "duplicate", "conflict"].map(|it| running.outcome(it)).iter().sum::<u64>()
            == filler.records())
        .then_some(())
    });
    assert_eq!(running.outcome("forwarded"), ids, "one record of each id is forwarded");
    running.kill9();
    load(&sidecar, ids, "after kill -9");
    drop_cached(&sidecar.state_dir);
    load(&sidecar, ids, "with files that are not cached");
    measured
}

/// Where the memory and the disk space are. Nothing has expired.
fn show_parts(running: &Running, ids: u64, state: &Path) {
    const MIB: f64 = 1_048_576.0;
    let metric = |name: &str| running.metric(name).unwrap_or(0.0);
    let part = |part: &str| {
        format!("{part} {:.0}", metric(&format!("dedupd_memory_bytes{{part=\"{part}\"}}")) / MIB)
    };
    let disk = size_of_files(state, &|_| true) as f64;
    println!(
        "  resident {:.0} MiB, of these {}; {:.1} M ids in the index; disk {:.1} GB, {:.1} bytes per id",
        resident_memory(running.pid()),
        ["index", "slices", "filter", "batch"].map(part).join(", "),
        (ids as f64 - metric("dedupd_sealed_ids_total")) / 1e6,
        disk / 1e9,
        disk / ids as f64
    );
}

/// Restarts with the local state.
fn load(sidecar: &Sidecar, ids: u64, how: &str) {
    let began = monotonic();
    let running = sidecar.start();
    let loaded = |source: &str| running.metric(&format!("dedupd_restored_ids_total{{source=\"{source}\"}}"));
    running.wait_ready(LIMIT);
    let sources = ["local", "state_topic"].map(|source| loaded(source).unwrap_or(0.0));
    assert!(sources.iter().sum::<f64>() >= ids as f64, "{sources:?} of {ids} ids were loaded");
    println!(
        "restart {how} with {:.1} M ids: ready after {:.1} s, of which {:.1} s load the state; {:.0} ids from the \
         state topic; peak memory {:.0} MiB",
        ids as f64 / 1e6,
        began.elapsed().as_secs_f64(),
        running.metric("dedupd_restore_seconds_sum").unwrap_or(0.0)
            / running.metric("dedupd_restore_seconds_count").unwrap_or(1.0),
        sources[1],
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
        repeats_among: if shape == Shape::Opaque { u64::MAX } else { 500_000 },
        are_repeats_anywhere: false,
        value_bytes: shape.value_bytes(),
    }
}

/// The defaults, apart from the source of the id.
fn sidecar(pipe: &Pipe<'_>) -> Sidecar {
    with_default_timeouts(pipe.sidecar("a"))
}

fn show(what: &str, run: &Run) {
    println!(
        "{what:<32} {:>8.0} records/s, CPU {:.2} + broker {:.2} µs per record, peak memory {:.0} MiB",
        run.records_per_s, run.cpu_us, run.broker_us, run.peak_mib
    );
}
