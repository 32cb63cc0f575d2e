//! Size of the state and time to load it: `cargo bench --bench restore`.
//!
//! Fills the state with distinct ids (`DEDUPD_BENCH_IDS`, default 5 million), then restarts dedupd several times
//! (`DEDUPD_BENCH_ROUNDS`, default 3): first with its state directory, then without it, so that all state is restored
//! from the state topic. Then restores state topics with blocks of several sizes; `-- blocks` does only this part, and
//! `-- blocks 1 8` only these sizes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::time::Duration;

use dedupd::clock::monotonic;

use support::blocks::Blocks;
use support::files::size_of_files;
use support::harness::{Kafka, Pipe, Sidecar, wait_until};
use support::progress::{GroupOffsets, follow};
use support::spent::cpu_time;
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, peak_memory, resident_memory, setting};

const PARTITIONS: i32 = 12;
const LIMIT: Duration = Duration::from_mins(10);
/// Time after the last record in which the jobs that seal end.
const SETTLE: Duration = Duration::from_secs(10);

fn main() {
    println!("{}", machine());
    let rounds: usize = setting("DEDUPD_BENCH_ROUNDS", 3);
    let kafka = broker();
    if std::env::args().all(|argument| argument != "blocks") {
        whole(&kafka, rounds);
    }
    let sizes: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for ids in if sizes.is_empty() { vec![1, 8, 100, 1_400] } else { sizes } {
        blocks(&kafka, ids, rounds);
    }
}

/// The state of one run of dedupd with a backlog.
fn whole(kafka: &Kafka, rounds: usize) {
    let ids: u64 = setting("DEDUPD_BENCH_IDS", 5_000_000);
    let pipe = Pipe::new(kafka, "restore", usize::try_from(PARTITIONS).unwrap());
    fill(
        kafka,
        &pipe.raw,
        Traffic {
            shape: Shape::Json,
            records: ids,
            partitions: PARTITIONS,
            repeats_percent: 0,
            repeats_among: 1,

            are_repeats_anywhere: false,
            value_bytes: 0,
        },
    );
    println!("{ids} distinct ids, {PARTITIONS} partitions");
    let sidecar = pipe.sidecar("a");
    let running = sidecar.start();
    follow(&GroupOffsets::new(kafka, &pipe.group(), &pipe.raw, PARTITIONS), running.pid(), ids, LIMIT);
    std::thread::sleep(SETTLE);
    println!(
        "resident memory of the process with the whole window: {:.0} MiB",
        resident_memory(running.pid())
    );
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    show_per_id("on disk", size_of_files(&sidecar.state_dir, &|_| true) as f64, ids);
    show_per_id("in the state topic", state_topic_bytes(&pipe), ids);

    let reopened: Vec<Start> = (0..rounds).map(|_| start(&sidecar, "local", ids)).collect();
    show_per_id("in memory, exact index", reopened[0].index_bytes, ids);
    show("reopened from the directory", &reopened, ids);
    show("restored from the state topic", &restore(&sidecar, rounds, ids), ids);
}

/// State of transactions with one block of `ids` ids in each partition.
fn blocks(kafka: &Kafka, ids: u64, rounds: usize) {
    let transactions: u64 = setting("DEDUPD_BENCH_TRANSACTIONS", 20_000);
    let written = Blocks {
        partitions: PARTITIONS.unsigned_abs(),
        transactions: transactions.min(transactions * 12 / ids),
        ids,
        over: Duration::ZERO,
    };
    let pipe = Pipe::new(kafka, &format!("blocks-{ids}"), usize::try_from(PARTITIONS).unwrap());
    written.write(&pipe);
    show_per_id(&format!("blocks of {ids} ids, in the topic"), state_topic_bytes(&pipe), written.total());
    let restored = restore(&pipe.sidecar("a"), rounds, written.total());
    show(&format!("blocks of {ids} ids, restored"), &restored, written.total());
}

/// Bytes of the state topic's log files: with batch headers and transaction markers.
fn state_topic_bytes(pipe: &Pipe<'_>) -> f64 {
    let log_files = |path: &std::path::Path| {
        let of_state = path
            .parent()
            .and_then(|dir| dir.file_name())
            .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{}.dedupd-", pipe.clean)));
        of_state && path.extension().is_some_and(|extension| extension == "log")
    };
    size_of_files(pipe.kafka.dir(), &log_files) as f64
}

/// Starts without local state.
fn restore(sidecar: &Sidecar, rounds: usize, ids: u64) -> Vec<Start> {
    (0..rounds)
        .map(|_| {
            std::fs::remove_dir_all(&sidecar.state_dir).ok();
            start(sidecar, "state_topic", ids)
        })
        .collect()
}

fn show_per_id(what: &str, bytes: f64, ids: u64) {
    println!("{what:<32} {:>8.2} bytes per id", bytes / ids as f64);
}

fn show(what: &str, starts: &[Start], ids: u64) {
    let of = |value: fn(&Start) -> f64| median(&starts.iter().map(value).collect::<Vec<_>>());
    println!(
        "{what:<32} {:>8.2} M ids/s loading ({:.2} s); {:.2} s from start to ready, {:.2} s of CPU time, peak memory {:.0} MiB",
        ids as f64 / of(|start| start.loading_s) / 1e6,
        of(|start| start.loading_s),
        of(|start| start.ready_s),
        of(|start| start.cpu_s),
        of(|start| start.peak_mib)
    );
}

/// Figures of one start that loads all state.
struct Start {
    /// Time from the start of the process until `/readyz` succeeds: includes opening the store and joining the group.
    ready_s: f64,
    /// Time to load the state.
    loading_s: f64,
    /// CPU time of the process until then.
    cpu_s: f64,
    /// Resident memory of the process, at most until then.
    peak_mib: f64,
    index_bytes: f64,
}

fn start(sidecar: &Sidecar, source: &str, ids: u64) -> Start {
    let began = monotonic();
    let running = sidecar.start();
    let loaded = format!("dedupd_restored_ids_total{{source=\"{source}\"}}");
    // An instance may report ready while it has no partitions yet, so readiness alone is not sufficient.
    wait_until("all state to be loaded", LIMIT, || {
        (running.metric(&loaded) == Some(ids as f64) && running.is_ready()).then_some(())
    });
    let ready_s = began.elapsed().as_secs_f64();
    let cpu_s = cpu_time(running.pid()).as_secs_f64();
    let peak_mib = peak_memory(running.pid());
    // Memory is published after the next poll loop iterations, up to a second later.
    let index_bytes = wait_until("the memory of the index", LIMIT, || {
        running.metric("dedupd_memory_bytes{part=\"index\"}").filter(|bytes| *bytes > 0.0)
    });
    let loading_s = running.metric("dedupd_restore_seconds_sum").unwrap_or_default();
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    Start { ready_s, loading_s, cpu_s, peak_mib, index_bytes }
}
