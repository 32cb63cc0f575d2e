//! Duration of `dedupd audit`: `cargo bench --bench audit`.
//!
//! dedupd writes the clean topic, then audits run one after the other. Without settings there are two pairs of topics: 1,024
//! partitions with 400,000 raw records, and 12 with 2 million. `DEDUPD_BENCH_PARTITIONS` and `DEDUPD_BENCH_RECORDS`
//! (default 2 million) choose one pair, `DEDUPD_BENCH_MEMORY` (default `256MiB`) sets `--memory`, and
//! `DEDUPD_BENCH_ROUNDS` (default 3) is the number of audits. `DEDUPD_BENCH_BINARY` is the path of another dedupd
//! binary, whose audits alternate with those of this build.
//!
//! `cargo bench --bench audit -- comparison [millions of records] [MiB]` measures the comparison alone, without a broker.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/comparison.rs"]
mod comparison;
mod support;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use dedupd::clock::monotonic;

use support::harness::{Kafka, Pipe, child};
use support::progress::{GroupOffsets, follow};
use support::spent::cpu_time;
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, peak_memory, quantile, setting};

const LIMIT: Duration = Duration::from_mins(10);
/// Interval at which memory and CPU time of the audit are read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "comparison") {
        return comparison::run(&arguments);
    }
    println!("{}", machine());
    let kafka = broker();
    match setting("DEDUPD_BENCH_PARTITIONS", 0) {
        0 => [(1_024, 400_000), (12, 2_000_000)].into_iter().for_each(|(partitions, records)| {
            measure(&kafka, partitions, records);
        }),
        partitions => measure(&kafka, partitions, setting("DEDUPD_BENCH_RECORDS", 2_000_000)),
    }
}

/// Fills a pair of topics and audits it.
fn measure(kafka: &Kafka, partitions: i32, records: u64) {
    let pipe = Pipe::new(kafka, &format!("audit-{partitions}"), usize::try_from(partitions).unwrap());
    let traffic = Traffic {
        shape: Shape::KeyedJson,
        records,
        partitions,
        repeats_percent: 10,
        repeats_among: 500_000,
        are_repeats_anywhere: false,
        value_bytes: 200,
    };
    fill(kafka, &pipe.raw, traffic);
    let running = pipe.sidecar("a").start();
    follow(&GroupOffsets::new(kafka, &pipe.group(), &pipe.raw, partitions), running.pid(), records, LIMIT);
    assert_eq!(running.stop(), Some(0), "{}", running.text());
    let memory = setting("DEDUPD_BENCH_MEMORY", "256MiB".to_owned());
    println!("\n{partitions} partitions, {records} raw records, 10 % repeats, --memory {memory}");
    let other = std::env::var("DEDUPD_BENCH_BINARY").ok();
    let binaries = [Some(env!("CARGO_BIN_EXE_dedupd").to_owned()), other];
    let mut audits: Vec<(String, Vec<Audit>)> =
        binaries.into_iter().flatten().map(|binary| (binary, Vec::new())).collect();
    for _ in 0..setting("DEDUPD_BENCH_ROUNDS", 3) {
        for (binary, runs) in &mut audits {
            runs.push(audit(&pipe, binary, &memory));
        }
    }
    for (binary, runs) in &audits {
        show(binary, runs);
    }
}

/// One run of `dedupd audit`.
struct Audit {
    /// From the start of the process to its end.
    seconds: f64,
    /// Records of raw and clean.
    records: f64,
    cpu_s: f64,
    peak_mib: f64,
    spilled_mib: f64,
}

fn audit(pipe: &Pipe<'_>, binary: &str, memory: &str) -> Audit {
    let report = pipe.dir.path().join("report");
    let mut command = child::tied(binary);
    command.args(["audit", "--json", "--id", "json:/id", "--bootstrap-servers", pipe.kafka.bootstrap()]);
    command.args(["--raw", &pipe.raw, "--clean", &pipe.clean, "--memory", memory, "--temp-dir"]);
    command.arg(env!("CARGO_TARGET_TMPDIR")).stdout(File::create(&report).unwrap());
    let began = monotonic();
    let mut process = child::spawn(command);
    let (mut cpu_s, mut peak_mib) = (0.0, f64::NAN);
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        cpu_s = cpu_time(process.id()).as_secs_f64();
        // A process that ends reports no memory.
        peak_mib = peak_memory(process.id()).max(peak_mib);
        std::thread::sleep(SAMPLE_INTERVAL);
    };
    let seconds = began.elapsed().as_secs_f64();
    let json = json(&report);
    assert!(status.success(), "{json}");
    let number = |name: &str| json[name].as_f64().unwrap();
    Audit {
        seconds,
        records: number("raw_records") + number("clean_records"),
        cpu_s,
        peak_mib,
        spilled_mib: number("spilled_bytes") / f64::from(1 << 20),
    }
}

fn json(report: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(report).unwrap()).expect("a report")
}

fn show(binary: &str, runs: &[Audit]) {
    let all = |value: fn(&Audit) -> f64| runs.iter().map(value).collect::<Vec<_>>();
    let of = |value| median(&all(value));
    println!("{binary}");
    println!(
        "  {:.1} s ({:.1} to {:.1}), {:.0} records/s, CPU {:.2} µs per record, peak memory {:.0} MiB, {:.0} MiB through \
         temporary files",
        of(|run| run.seconds),
        quantile(&all(|run| run.seconds), 0.0),
        quantile(&all(|run| run.seconds), 1.0),
        of(|run| run.records / run.seconds),
        of(|run| run.cpu_s * 1e6 / run.records),
        of(|run| run.peak_mib),
        of(|run| run.spilled_mib)
    );
}
