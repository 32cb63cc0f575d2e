//! What the benches share: the broker of the tests, traffic, the process table, medians.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::many_single_char_names,
    clippy::unchecked_time_subtraction,
    reason = "a bench fails by panicking"
)]
#![allow(dead_code, reason = "each bench uses its own part")]
#![allow(missing_docs, reason = "benches have no readers of docs pages")]

pub mod files;
#[path = "../../tests/support/mod.rs"]
pub mod harness;
pub mod progress;
pub mod spent;
pub mod traffic;

use std::str::FromStr;

use harness::Kafka;

/// A broker for measuring: deleted topics give their disk back soon.
pub fn broker() -> Kafka {
    Kafka::start_for_bench(&[("log.segment.delete.delay.ms", "1000"), ("log.initial.task.delay.ms", "1000")])
}

/// A number from the environment, for longer or shorter runs.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What the figures were measured on, in one line.
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

/// The value below which the share `q` (0 to 1) of the values lies; the nearest rank.
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

/// The most memory that a process has held, in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
