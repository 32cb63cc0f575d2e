//! Throughput compared with a plain transactional copy: `cargo bench --bench end_to_end`.
//!
//! Copy and dedupd run alternately on one broker and one raw topic. Each run has a new group, clean topic and
//! state. The first round of each is not counted, because the broker's JVM is still warming up. `DEDUPD_BENCH_RECORDS`
//! (default 3 million) and `DEDUPD_BENCH_ROUNDS` (default 5) set the size. `DEDUPD_BENCH_BINARY` is the path of another
//! dedupd binary to measure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench fails by panicking"
)]

#[path = "support/copy.rs"]
mod copy;
mod support;

use std::process::Stdio;
use std::time::Duration;

use support::harness::{Kafka, child};
use support::progress::{GroupOffsets, Run, follow};
use support::traffic::{Traffic, fill};
use support::{broker, machine, median, setting};

const RAW: &str = "bench.raw";
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
    let traffic = Traffic {
        records: setting("DEDUPD_BENCH_RECORDS", 3_000_000),
        partitions: PARTITIONS,
        repeats_percent: 10,
        value_bytes: 200,
    };
    kafka.create_topic(RAW, usize::try_from(PARTITIONS).unwrap(), &[]);
    fill(&kafka, RAW, traffic);
    println!(
        "{} records of {} bytes, {PARTITIONS} partitions, {} % repeats",
        traffic.records, traffic.value_bytes, traffic.repeats_percent
    );
    let (mut copies, mut dedupds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=setting("DEDUPD_BENCH_ROUNDS", 5) {
        let copy = Round::new(&kafka, "copy", round).measure(traffic.records);
        let dedupd = Round::new(&kafka, "dedupd", round).measure(traffic.records);
        let ratio = dedupd.records_per_s / copy.records_per_s;
        let counted = if round == 0 { "warm-up, not counted" } else { "" };
        println!(
            "round {round}: copy {}, dedupd {}, ratio {ratio:.3} {counted}",
            shown(&copy),
            shown(&dedupd)
        );
        if round > 0 {
            copies.push(copy);
            dedupds.push(dedupd);
            ratios.push(ratio);
        }
    }
    summary("copy", &copies);
    summary("dedupd", &dedupds);
    let spread = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>().join(" ");
    println!("{:<8} median {:.3} of {spread}", "ratio", median(&ratios));
}

fn shown(run: &Run) -> String {
    format!("{:.0} records/s {:.2} µs", run.records_per_s, run.cpu_us)
}

fn summary(name: &str, runs: &[Run]) {
    let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
    println!(
        "{name:<8} median {:.0} records/s, {:.2} µs of CPU per record, peak {:.0} MiB",
        of(|run| run.records_per_s),
        of(|run| run.cpu_us),
        of(|run| run.peak_mib)
    );
}

/// One run of the copy or of dedupd, with its own topics and group.
struct Round<'k> {
    kafka: &'k Kafka,
    subject: &'static str,
    name: String,
    dir: tempfile::TempDir,
}

impl<'k> Round<'k> {
    fn new(kafka: &'k Kafka, subject: &'static str, round: usize) -> Self {
        let name = format!("{subject}.{round}");
        for topic in [name.clone(), format!("{name}.dedupd")] {
            kafka.create_topic(&topic, usize::try_from(PARTITIONS).unwrap(), &[("retention.ms", "-1")]);
        }
        Self { kafka, subject, name, dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// The configuration, the same for both, so that both have the same clients and batches.
    fn environment(&self) -> Vec<(String, String)> {
        let pairs = [
            ("KAFKA__BOOTSTRAP_SERVERS", self.kafka.bootstrap().to_owned()),
            ("TOPICS__RAW", RAW.to_owned()),
            ("TOPICS__CLEAN", self.name.clone()),
            ("GROUP__ID", self.name.clone()),
            ("GROUP__INSTANCE", "bench".to_owned()),
            ("IDENTITY__FROM", "[\"json:/id\"]".to_owned()),
            ("STATE__DIR", self.dir.path().join("state").display().to_string()),
            ("HTTP__LISTEN", format!("127.0.0.1:{}", support::harness::ports::free_port())),
        ];
        pairs.into_iter().map(|(key, value)| (format!("DEDUPD_{key}"), value)).collect()
    }

    fn measure(self, total: u64) -> Run {
        let binary = std::env::var("DEDUPD_BENCH_BINARY");
        let mut command = if self.subject == "copy" {
            let mut command = child::tied(std::env::current_exe().unwrap());
            command.env(COPY, "1");
            command
        } else {
            let mut command = child::tied(binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_dedupd")));
            command.arg("run");
            command
        };
        let log = self.dir.path().join("log");
        let file = std::fs::File::create(&log).unwrap();
        command.envs(self.environment()).stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let offsets = GroupOffsets::new(self.kafka, &self.name, RAW, PARTITIONS);
        let mut process = child::spawn(command);
        let run = follow(&offsets, process.id(), total, LIMIT);
        process.kill().unwrap();
        process.wait().unwrap();
        for topic in [self.name.clone(), format!("{}.dedupd", self.name)] {
            self.kafka.delete_topic(&topic);
        }
        run
    }
}
