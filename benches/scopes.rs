//! Topic scope compared with partition scope: `cargo bench --bench scopes`.
//!
//! One record in ten repeats an id, in any partition, so with 12 partitions eleven in twelve copies are in another partition
//! than the first record. Both scopes run alternately on one broker and one raw topic per number of partitions. Each run has a
//! new group, clean topic and state; the first round is not counted. `DEDUPD_BENCH_RECORDS` (default 2 million) and
//! `DEDUPD_BENCH_ROUNDS` (default 5) set the size.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

mod support;

use std::process::Stdio;
use std::time::Duration;

use support::harness::{Kafka, child, ports};
use support::progress::{GroupOffsets, Run, follow_beside};
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, quantile, setting};

const LIMIT: Duration = Duration::from_mins(10);
const SHAPE: Shape = Shape::KeyedJson;

fn main() {
    println!("{}", machine());
    let kafka = broker();
    for partitions in [12, 256] {
        compare(&kafka, partitions);
    }
}

/// Measures both scopes with this number of partitions.
fn compare(kafka: &Kafka, partitions: i32) {
    let raw = format!("scopes.{partitions}");
    let traffic = Traffic {
        shape: SHAPE,
        records: setting("DEDUPD_BENCH_RECORDS", 2_000_000),
        partitions,
        repeats_percent: 10,
        repeats_among: 500_000,
        are_repeats_anywhere: true,
        value_bytes: SHAPE.value_bytes(),
    };
    kafka.create_topic(&raw, usize::try_from(partitions).unwrap(), &[]);
    fill(kafka, &raw, traffic);
    println!("\n{partitions} partitions: {} records, 10 % repeats, in any partition", traffic.records);
    let (mut apart, mut together) = (Vec::new(), Vec::new());
    for round in 0..=setting("DEDUPD_BENCH_ROUNDS", 5) {
        let measured = ["partition", "topic"]
            .map(|scope| measure(kafka, (&raw, partitions), (scope, round), traffic.records));
        let ratio = measured[1].records_per_s / measured[0].records_per_s;
        let shown = |run: &Run| {
            format!("{:.0} records/s, CPU {:.2} µs, {:.0} MiB", run.records_per_s, run.cpu_us, run.peak_mib)
        };
        let counted = if round == 0 { ", warm-up, not counted" } else { "" };
        println!(
            "round {round}: partition {}, topic {}, ratio {ratio:.2}{counted}",
            shown(&measured[0]),
            shown(&measured[1])
        );
        let [in_partition, in_topic] = measured;
        if round > 0 {
            apart.push(in_partition);
            together.push(in_topic);
        }
    }
    summary(&apart, &together);
    kafka.delete_topic(&raw);
}

/// The ratios of the medians, and the range of the ratios of the rounds.
fn summary(apart: &[Run], together: &[Run]) {
    type Value = fn(&Run) -> f64;
    let values: [(&str, Value); 3] = [
        ("records/s", |run| run.records_per_s),
        ("CPU, µs per record", |run| run.cpu_us),
        ("peak memory, MiB", |run| run.peak_mib),
    ];
    for (name, value) in values {
        let of = |runs: &[Run]| median(&runs.iter().map(value).collect::<Vec<_>>());
        let ratios: Vec<f64> =
            apart.iter().zip(together).map(|(apart, together)| value(together) / value(apart)).collect();
        println!(
            "{name:<20} partition {:>10.2}, topic {:>10.2}, ratio {:.2} ({:.2} to {:.2})",
            of(apart),
            of(together),
            of(together) / of(apart),
            quantile(&ratios, 0.0),
            quantile(&ratios, 1.0)
        );
    }
}

/// One run, with its own topics, group and state.
fn measure(kafka: &Kafka, (raw, partitions): (&str, i32), (scope, round): (&str, usize), total: u64) -> Run {
    let name = format!("{raw}.{scope}.{round}");
    let topics = [name.clone(), format!("{name}.dedupd")];
    for topic in &topics {
        kafka.create_topic(topic, usize::try_from(partitions).unwrap(), &[("retention.ms", "-1")]);
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut command = child::tied(env!("CARGO_BIN_EXE_dedupd"));
    command
        .args([
            "run",
            "--bootstrap-servers",
            kafka.bootstrap(),
            "--raw",
            raw,
            "--clean",
            &name,
            "--group",
            &name,
        ])
        .args([
            "--instance",
            "bench",
            "--scope",
            scope,
            "--listen",
            &format!("127.0.0.1:{}", ports::free_port()),
        ])
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .env("DEDUPD_IDENTITY__FROM", SHAPE.id_source())
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let offsets = GroupOffsets::new(kafka, &name, raw, partitions);
    let mut process = child::spawn(command);
    let run = follow_beside(&offsets, (process.id(), kafka.pid()), total, LIMIT);
    process.kill().unwrap();
    process.wait().unwrap();
    for topic in &topics {
        kafka.delete_topic(topic);
    }
    run
}
