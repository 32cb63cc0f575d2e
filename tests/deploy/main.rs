//! The deployment files match the program and each other: the dashboard and the alerts query existing metrics, and
//! dedupd accepts every flag, variable, path, port and name in the files for containers, Kubernetes and
//! systemd.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod alerts;
mod chart;
mod configured;
mod containers;
mod dashboard;
mod kubernetes;
mod programs;
mod queries;
mod systemd;

use std::path::{Path, PathBuf};

use configured::{configuration, rekeying};
use dedupd::metrics::table::{MetricKind, Row, rekey_rows, rows};
use queries::{Workload, selectors};

/// The metrics of the service and of `rekey`; those of the process are in both.
fn all() -> impl Iterator<Item = &'static Row> {
    rows().chain(rekey_rows())
}

/// The row of the metrics table for a name in an expression.
fn row_of(name: &str) -> Option<&'static Row> {
    all().find(|row| match row.kind {
        MetricKind::Counter | MetricKind::Gauge => row.name == name,
        MetricKind::Histogram(_) => {
            name.strip_prefix(row.name).is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end))
        }
    })
}

/// The errors in the metrics and labels of an expression.
fn errors(query: &Workload) -> Vec<String> {
    let mut errors = Vec::new();
    for selector in selectors(&query.expr) {
        let by = &query.by;
        let Some(row) = row_of(&selector.metric) else {
            errors.push(format!("{by}: no metric {}", selector.metric));
            continue;
        };
        for (label, _, value) in selector.matchers {
            let own = row.label.filter(|own| own.name == label);
            let elsewhere =
                ["job", "instance"].contains(&label.as_str()) || row.configured.contains(&label.as_str());
            if own.is_none() && !elsewhere {
                errors.push(format!("{by}: {} has no label {label}", row.name));
            }
            let known = own.map_or(&[][..], |own| own.values);
            if !known.is_empty() {
                let unknown = value.split('|').filter(|value| !known.contains(value));
                errors.extend(unknown.map(|value| format!("{by}: {label} is never {value}")));
            }
        }
    }
    errors
}

#[test]
fn dashboard_and_alerts_use_existing_metrics_labels_and_values() {
    let queries = [queries::of_the_dashboard(), queries::of_the_alerts()].concat();
    assert!(queries.len() > 60, "too few queries: {}", queries.len());
    let errors: Vec<String> = queries.iter().flat_map(errors).collect();
    assert!(errors.is_empty(), "\n{}", errors.join("\n"));
}

#[test]
fn every_metric_is_on_the_dashboard_or_in_an_alert() {
    let queries = [queries::of_the_dashboard(), queries::of_the_alerts()].concat();
    let selectors: Vec<_> = queries.iter().flat_map(|it| selectors(&it.expr)).collect();
    let is_used =
        |row: &Row| selectors.iter().any(|it| row_of(&it.metric).is_some_and(|of| of.name == row.name));
    let unused: Vec<_> = all().filter(|row| !is_used(row)).map(|row| row.name).collect();
    assert!(unused.is_empty(), "neither on the dashboard nor in an alert: {unused:?}");
}

/// Metrics that no test on a broker compares, with the reason.
const NOT_COMPARED: [(&str, &str); 2] = [
    ("dedupd_expiry_lag_seconds", "the simulation compares it, in tests/sim/life/topic/lagging.rs"),
    ("dedupd_slices_discarded_total", "a disk that fails exactly while a slice is written is only simulated"),
];

#[test]
fn every_metric_is_compared_with_a_value() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let sources: String = ["broker", "mock_broker", "sim", "support"]
        .into_iter()
        .flat_map(|of| texts(tests.join(of)))
        .collect();
    let is_compared = |row: &Row| {
        let rest = sources.split(row.name).skip(1);
        rest.map(|rest| rest.chars().next()).any(|next| next.is_none_or(|next| !next.is_alphanumeric()))
    };
    let missing: Vec<_> = rows().filter(|row| !is_compared(row)).map(|row| row.name).collect();
    assert_eq!(missing, NOT_COMPARED.map(|(name, _)| name), "NOT_COMPARED has the exceptions");
}

/// The texts of the files below a folder.
fn texts(folder: PathBuf) -> Vec<String> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| {
        if path.is_dir() { texts(path) } else { vec![std::fs::read_to_string(path).unwrap()] }
    };
    paths.flat_map(below).collect()
}

#[test]
fn a_missing_program_is_reported_with_the_setup_command() {
    let missing = std::panic::catch_unwind(|| programs::program("prometheus-that-does-not-exist"));
    let message = *missing.expect_err("it does not exist").downcast::<String>().unwrap();
    assert!(message.contains("run scripts/setup"), "{message}");
}

#[test]
fn a_query_for_something_that_does_not_exist_is_an_error() {
    let count = |expr: &str| errors(&Workload { by: "test".to_owned(), expr: expr.to_owned() }).len();
    assert_eq!(count("rate(dedupd_records_total{outcome=~\"retry|forced\", instance=\"a\"}[1m])"), 0);
    assert_eq!(count("sum(dedupd_latency_seconds_bucket) / dedupd_latency_seconds_count"), 0);
    assert_eq!(count("dedupd_record_total"), 1);
    assert_eq!(count("dedupd_latency_seconds"), 1, "a histogram has no series with its own name");
    assert_eq!(count("dedupd_records_total{outcome=\"dead-letter\"}"), 1);
    assert_eq!(count("dedupd_records_total{partition=\"1\"} + dedupd_ready{outcome!=\"x\"}"), 2);
}
