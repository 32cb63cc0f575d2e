//! What the repository offers for running dedupd elsewhere fits the program and itself: the dashboard and the
//! alerts ask for what exists, and every flag, variable, path, port and name in the files for containers,
//! Kubernetes and systemd is one that dedupd accepts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod alerts;
mod containers;
mod dashboard;
mod kubernetes;
mod programs;
mod questions;
mod systemd;

use std::path::PathBuf;

use dedupd::cli::{Command, parse_from};
use dedupd::config::{Config, FileText, Sources};
use dedupd::metrics::table::{Kind, Row, TABLE};
use questions::{Workload, selectors};

/// The configuration in force for `dedupd run`, started with these words (without the program's name), this
/// file where `--config` names it, and these variables.
fn configuration(words: &[String], file: &(String, String), environment: &[(String, String)]) -> Config {
    let line = std::iter::once("dedupd").chain(words.iter().map(String::as_str));
    let command = parse_from(line).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let Command::Run(args) = command else { panic!("{words:?} does not run the service") };
    let (path, text) = file.clone();
    assert_eq!(args.config_file().map(|path| path.display().to_string()), Some(path.clone()));
    let file = Some(FileText { path: PathBuf::from(path), text });
    let environment = environment.to_vec();
    let sources = Sources { file, environment, flags: args.overrides(), host: "host".to_owned() };
    Config::from_sources(&sources).unwrap_or_else(|error| panic!("{error}"))
}

/// The row of the table that a name in an expression belongs to.
fn row_of(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| match row.kind {
        Kind::Counter | Kind::Gauge => row.name == name,
        Kind::Histogram(_) => {
            name.strip_prefix(row.name).is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end))
        }
    })
}

/// What is wrong with the metrics and labels that an expression names.
fn wrong(question: &Workload) -> Vec<String> {
    let mut wrong = Vec::new();
    for selector in selectors(&question.expr) {
        let by = &question.by;
        let Some(row) = row_of(&selector.metric) else {
            wrong.push(format!("{by}: there is no metric {}", selector.metric));
            continue;
        };
        for (label, _, value) in selector.matchers {
            let own = row.label.filter(|own| own.name == label);
            let elsewhere = ["job", "instance"].contains(&label.as_str()) || (row.by_kind && label == "kind");
            if own.is_none() && !elsewhere {
                wrong.push(format!("{by}: {} has no label {label}", row.name));
            }
            let known = own.map_or(&[][..], |own| own.values);
            if !known.is_empty() {
                let unknown = value.split('|').filter(|value| !known.contains(value));
                wrong.extend(unknown.map(|value| format!("{by}: {label} is never {value}")));
            }
        }
    }
    wrong
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_labels_and_values_that_exist() {
    let asked = [questions::of_the_dashboard(), questions::of_the_alerts()].concat();
    assert!(asked.len() > 60, "questions are missed: {}", asked.len());
    let wrong: Vec<String> = asked.iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_metric_is_looked_at() {
    let asked = [questions::of_the_dashboard(), questions::of_the_alerts()].concat();
    let seen: Vec<_> = asked.iter().flat_map(|it| selectors(&it.expr)).collect();
    let looked_at =
        |row: &Row| seen.iter().any(|it| row_of(&it.metric).is_some_and(|of| of.name == row.name));
    let unseen: Vec<_> = TABLE.iter().filter(|row| !looked_at(row)).map(|row| row.name).collect();
    assert!(unseen.is_empty(), "counted, and neither on the dashboard nor in an alert: {unseen:?}");
}

#[test]
fn a_missing_program_is_named_with_its_remedy() {
    let missing = std::panic::catch_unwind(|| programs::program("prometheus-that-nobody-has"));
    let said = *missing.expect_err("it does not exist").downcast::<String>().unwrap();
    assert!(said.contains("run scripts/setup"), "{said}");
}

#[test]
fn a_question_for_what_does_not_exist_is_noticed() {
    let ask = |expr: &str| wrong(&Workload { by: "test".to_owned(), expr: expr.to_owned() }).len();
    assert_eq!(ask("rate(dedupd_records_total{outcome=~\"retry|forced\", instance=\"a\"}[1m])"), 0);
    assert_eq!(ask("sum(dedupd_latency_seconds_bucket) / dedupd_latency_seconds_count"), 0);
    assert_eq!(ask("dedupd_record_total"), 1);
    assert_eq!(ask("dedupd_latency_seconds"), 1, "a histogram has no series of its own name");
    assert_eq!(ask("dedupd_records_total{outcome=\"dead-letter\"}"), 1);
    assert_eq!(ask("dedupd_records_total{partition=\"1\"} + dedupd_ready{outcome!=\"x\"}"), 2);
}
