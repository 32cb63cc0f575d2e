//! Throughput compared with a plain transactional copy: `cargo bench --bench end_to_end`, for records of five shapes.
//!
//! Copy and dedupd run alternately on one broker and one raw topic per shape. Each run has a new group, clean topic and
//! state. The first round of each shape is not counted. `DEDUPD_BENCH_SHAPES` (default `abcde`), `DEDUPD_BENCH_RECORDS`
//! (default 2 million) and `DEDUPD_BENCH_ROUNDS` (default 5) set the size. `DEDUPD_BENCH_BINARY` is the path of another
//! dedupd binary to measure. `DEDUPD_BENCH_BASE`, such as `DEDUPD_IDENTITY__COMPARE=off`, measures dedupd with this variable in place of the
//! copy. Pin the processes with `taskset` to give client and broker a core each:
//! `DEDUPD_BENCH_PINNED=1`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/copy.rs"]
mod copy;
mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use support::harness::{Kafka, child};
use support::progress::{GroupOffsets, Run, follow_beside};
use support::traffic::{Shape, Traffic, fill};
use support::{broker, machine, median, quantile, setting};

const PARTITIONS: i32 = 12;
const LIMIT: Duration = Duration::from_mins(10);
/// Environment variable that is set for the child process that copies.
const COPY: &str = "DEDUPD_BENCH_COPY";

fn main() {
    if std::env::var_os(COPY).is_some() {
        copy::run();
    }
    println!("{}", machine());
    let kafka = broker();
    pin(kafka.pid(), "0");
    let shapes = setting("DEDUPD_BENCH_SHAPES", "abcde".to_owned());
    for (letter, shape) in Shape::ALL.into_iter().filter(|(letter, _)| shapes.contains(*letter)) {
        compare(&kafka, letter, shape);
    }
}

/// With `DEDUPD_BENCH_PINNED`, lets a process run on one core only.
fn pin(pid: Option<u32>, core: &str) {
    if let (Some(_), Some(pid)) = (std::env::var_os("DEDUPD_BENCH_PINNED"), pid) {
        let pinned = Command::new("taskset").args(["-a", "-c", "-p", core, &pid.to_string()]).output();
        assert!(pinned.expect("taskset (util-linux)").status.success());
    }
}

/// Measures copy and dedupd with records of one shape.
fn compare(kafka: &Kafka, letter: char, shape: Shape) {
    let raw = format!("bench.{letter}");
    let traffic = Traffic {
        shape,
        records: setting("DEDUPD_BENCH_RECORDS", 2_000_000),
        partitions: PARTITIONS,
        repeats_percent: 10,
        repeats_among: if shape == Shape::Json { u64::MAX } else { 500_000 },
        are_repeats_anywhere: false,
        value_bytes: shape.value_bytes(),
    };
    kafka.create_topic(&raw, usize::try_from(PARTITIONS).unwrap(), &[]);
    fill(kafka, &raw, traffic);
    println!(
        "\n({letter}) {}: {} records, {PARTITIONS} partitions, 10 % repeats",
        shape.name(),
        traffic.records
    );
    let (mut copies, mut dedupds) = (Vec::new(), Vec::new());
    for round in 0..=setting("DEDUPD_BENCH_ROUNDS", 5) {
        let measure = |subject| Round::new(kafka, (subject, &raw, shape), round).measure(traffic.records);
        let (copy, dedupd) = (measure("copy"), measure("dedupd"));
        let ratio = dedupd.records_per_s / copy.records_per_s;
        let counted = if round == 0 { "warm-up, not counted" } else { "" };
        println!(
            "round {round}: copy {}, dedupd {}, ratio {ratio:.2} {counted}",
            shown(&copy),
            shown(&dedupd)
        );
        if round > 0 {
            copies.push(copy);
            dedupds.push(dedupd);
        }
    }
    summary(&copies, &dedupds);
    kafka.delete_topic(&raw);
}

fn shown(run: &Run) -> String {
    format!("{:.0} records/s, CPU {:.2} + broker {:.2} µs", run.records_per_s, run.cpu_us, run.broker_us)
}

/// The ratios of the medians, and the range of the ratios of the rounds.
fn summary(copies: &[Run], dedupds: &[Run]) {
    type Value = fn(&Run) -> f64;
    let values: [(&str, Value); 3] = [
        ("records/s", |run| run.records_per_s),
        ("client CPU, µs per record", |run| run.cpu_us),
        ("broker CPU, µs per record", |run| run.broker_us),
    ];
    for (name, value) in values {
        let of = |runs: &[Run]| median(&runs.iter().map(value).collect::<Vec<_>>());
        let ratios: Vec<f64> =
            copies.iter().zip(dedupds).map(|(copy, dedupd)| value(dedupd) / value(copy)).collect();
        println!(
            "{name:<26} copy {:>10.2}, dedupd {:>10.2}, ratio {:.2} ({:.2} to {:.2})",
            of(copies),
            of(dedupds),
            of(dedupds) / of(copies),
            quantile(&ratios, 0.0),
            quantile(&ratios, 1.0)
        );
    }
    let peak = median(&dedupds.iter().map(|run| run.peak_mib).collect::<Vec<_>>());
    println!("peak memory of dedupd: {peak:.0} MiB");
}

/// One run of the copy or of dedupd, with its own topics and group.
struct Round<'k> {
    kafka: &'k Kafka,
    subject: &'static str,
    raw: &'k str,
    shape: Shape,
    name: String,
    dir: tempfile::TempDir,
}

impl<'k> Round<'k> {
    fn new(kafka: &'k Kafka, (subject, raw, shape): (&'static str, &'k str, Shape), round: usize) -> Self {
        let name = format!("{raw}.{subject}.{round}");
        for topic in [name.clone(), format!("{name}.dedupd")] {
            kafka.create_topic(&topic, usize::try_from(PARTITIONS).unwrap(), &[("retention.ms", "-1")]);
        }
        Self {
            kafka,
            subject,
            raw,
            shape,
            name,
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
        }
    }

    /// The configuration of dedupd. The copy uses the names from it, and clients of its own.
    fn environment(&self) -> Vec<(String, String)> {
        let pairs = [
            ("KAFKA__BOOTSTRAP_SERVERS", self.kafka.bootstrap().to_owned()),
            ("TOPICS__RAW", self.raw.to_owned()),
            ("TOPICS__CLEAN", self.name.clone()),
            ("GROUP__ID", self.name.clone()),
            ("GROUP__INSTANCE", "bench".to_owned()),
            ("IDENTITY__FROM", self.shape.id_source().to_owned()),
            ("STATE__DIR", self.dir.path().join("state").display().to_string()),
            ("HTTP__LISTEN", format!("127.0.0.1:{}", support::harness::ports::free_port())),
        ];
        pairs.into_iter().map(|(key, value)| (format!("DEDUPD_{key}"), value)).collect()
    }

    fn measure(self, total: u64) -> Run {
        let binary = std::env::var("DEDUPD_BENCH_BINARY");
        let base = std::env::var("DEDUPD_BENCH_BASE").ok().filter(|_| self.subject == "copy");
        let mut command = if self.subject == "copy" && base.is_none() {
            let mut command = child::tied(std::env::current_exe().unwrap());
            command.env(COPY, "1");
            command
        } else {
            let mut command = child::tied(binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_dedupd")));
            command.arg("run").envs(base.as_ref().and_then(|pair| pair.split_once('=')));
            command
        };
        let log = self.dir.path().join("log");
        let file = std::fs::File::create(&log).unwrap();
        command.envs(self.environment()).stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let offsets = GroupOffsets::new(self.kafka, &self.name, self.raw, PARTITIONS);
        let mut process = child::spawn(command);
        pin(Some(process.id()), "1");
        let run = follow_beside(&offsets, (process.id(), self.kafka.pid()), total, LIMIT);
        process.kill().unwrap();
        process.wait().unwrap();
        for topic in [self.name.clone(), format!("{}.dedupd", self.name)] {
            self.kafka.delete_topic(&topic);
        }
        run
    }
}
