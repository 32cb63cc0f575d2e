//! Shared code of the benches: the broker of the tests, traffic, process statistics, medians.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::many_single_char_names,
    clippy::unchecked_time_subtraction,
    reason = "a bench fails by panicking"
)]
#![allow(dead_code, reason = "each bench uses its own part")]
#![allow(missing_docs, reason = "benches have no published docs")]

pub mod blocks;
pub mod files;
#[path = "../../tests/support/mod.rs"]
pub mod harness;
pub mod progress;
pub mod spent;
pub mod timed;
pub mod traffic;

use std::str::FromStr;

use harness::{Kafka, Sidecar};

/// A broker for benches. It frees the disk space of deleted topics and segments quickly. `DEDUPD_BENCH_BROKER` (`key=value`, separated by
/// commas) adds settings.
pub fn broker() -> Kafka {
    let more = setting("DEDUPD_BENCH_BROKER", String::new());
    let more = more.split(',').filter_map(|pair| pair.split_once('='));
    let own = [
        ("log.segment.delete.delay.ms", "1000"),
        ("log.initial.task.delay.ms", "1000"),
        ("log.retention.check.interval.ms", "5000"),
    ];
    Kafka::start_for_long(&own.into_iter().chain(more).collect::<Vec<_>>())
}

/// The value of an environment variable, or the default when it is unset or invalid.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The sidecar with the timeouts that it has by default, not those of the tests.
pub fn with_default_timeouts(mut sidecar: Sidecar) -> Sidecar {
    sidecar.environment.retain(|(key, _)| !key.contains("TIMEOUT"));
    sidecar
}

/// The sidecar with this number of workers. Several require partition scope.
pub fn several(sidecar: Sidecar, workers: usize) -> Sidecar {
    if workers > 1 { sidecar.sharing(workers) } else { sidecar }
}

/// A description of the machine, in one line.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let load = read("/proc/loadavg");
    format!(
        "machine: {cores} x {}, load before the run {}; the broker runs on the same cores",
        model.trim_start_matches([' ', '\t', ':']),
        load.split_whitespace().next().unwrap_or("unknown")
    )
}

/// The `q` quantile of the values (`q` from 0 to 1), by nearest rank.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    assert!(!sorted.is_empty(), "no values were measured");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank within the values")]
    let rank = (q * (sorted.len() - 1) as f64).round() as usize;
    sorted[rank]
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Peak resident memory of a process, in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    memory(pid, "VmHWM:")
}

/// Resident memory of a process, in MiB.
pub fn resident_memory(pid: u32) -> f64 {
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
