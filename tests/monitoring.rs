//! A real Prometheus scrapes a real dedupd with the committed configuration: everything that the dashboard and
//! the alerts ask has an answer, and no alert fires while all is well.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

#[path = "deploy/programs.rs"]
mod programs;
#[path = "deploy/questions.rs"]
mod questions;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use programs::{program, promtool, said, text};
use questions::Workload;
use support::{Pipe, child, ports::free_port, shared_kafka, wait_until};

const PARTITIONS: usize = 3;
const SOON: Duration = Duration::from_mins(1);
/// Deleted from partition 0 before dedupd starts, as retention does.
const DELETED: i64 = 50;

/// What has no answer while all is well.
const SILENT: [(&str, &str); 1] = [("annotation \"Alerts\"", "no alert fires")];

/// A Prometheus that scrapes one target every second; killed when dropped.
struct Prometheus {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
}

impl Prometheus {
    /// With the committed configuration, of which only the target and the intervals are others.
    fn start(target: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = text("config/prometheus.yml");
        for (from, to) in [
            ("scrape_interval: 5s", "scrape_interval: 1s".to_owned()),
            ("evaluation_interval: 5s", "evaluation_interval: 1s".to_owned()),
            ("dedupd:9464", format!("127.0.0.1:{target}")),
        ] {
            assert_eq!(config.matches(from).count(), 1, "{from} in config/prometheus.yml");
            config = config.replace(from, &to);
        }
        fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        fs::write(dir.path().join("alerts.yml"), text("config/alerts.yml")).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut command = child::tied(program("prometheus"));
        command
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Self { child: child::spawn(command), url: format!("http://{address}"), dir }
    }

    /// The samples that an expression has now; the error is what Prometheus says.
    fn ask(&self, expr: &str) -> Result<Vec<Value>, String> {
        let output = promtool(self.dir.path(), &["query", "instant", "--format=json", &self.url, expr]);
        if !output.status.success() {
            return Err(said(&output));
        }
        Ok(serde_json::from_slice(&output.stdout).expect("promtool prints JSON"))
    }

    /// Fails unless a comparison holds, for one sample.
    fn holds(&self, comparison: &str) {
        let samples = self.ask(comparison).unwrap_or_else(|said| panic!("{comparison}: {said}"));
        let left = comparison.rsplitn(3, ' ').last().unwrap_or(comparison);
        assert_eq!(samples.len(), 1, "{comparison} does not hold; {left} is {:?}", self.ask(left));
    }

    /// Waits until a comparison holds.
    fn wait_for(&self, comparison: &str) {
        wait_until(comparison, SOON, || self.ask(comparison).ok().filter(|samples| samples.len() == 1));
    }

    /// Waits until it scrapes.
    fn wait_scraping(&self) {
        let up = || self.ask("up{job=\"dedupd\"} == 1").ok().filter(|samples| samples.len() == 1);
        let log = self.dir.path().join("log");
        let start = dedupd::clock::monotonic();
        while up().is_none() {
            let waits = start.elapsed() < SOON;
            assert!(waits, "Prometheus does not scrape:\n{}", fs::read_to_string(&log).unwrap_or_default());
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn number(sample: &Value) -> f64 {
    sample["value"][1].as_str().expect("a number as text").parse().expect("a number")
}

/// The body of the metrics page, to `promtool check metrics`.
fn check_metrics(page: &str) {
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let mut lint = Command::new(program("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    lint.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = lint.wait_with_output().unwrap();
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
}

/// Asks until there is an answer with a number in it. A question that Prometheus does not understand fails at once.
fn answered(prometheus: &Prometheus, question: &Workload) {
    wait_until(&format!("an answer to {}: {}", question.by, question.expr), SOON, || {
        let samples = prometheus.ask(&question.expr).unwrap_or_else(|said| panic!("{question:?}: {said}"));
        samples.iter().any(|sample| !number(sample).is_nan()).then_some(())
    });
}

/// The panels about kinds need one.
const KIND: &str = "[[kinds]]\nname = \"rare\"\nfrom = \"header:kind\"\nvalues = [\"rare\"]\n";

#[test]
fn dashboard_and_alerts_are_answered_by_a_real_prometheus() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "monitoring", PARTITIONS);
    let load = pipe.load(PARTITIONS, 400);
    load.more(1_000);
    kafka.delete_records(&pipe.raw, 0, DELETED);
    let dedupd = pipe
        .sidecar("a")
        .with_file(KIND)
        // So short that filters are filled and asked, so long that no copy of the load is too old.
        .with("DEDUPD_WINDOW__EXACT", "2s")
        .with("DEDUPD_WINDOW__BLOOM", "10m")
        .start();
    dedupd.wait_running(PARTITIONS, SOON);
    let prometheus = Prometheus::start(dedupd.port);
    prometheus.wait_scraping();

    let silent: BTreeSet<&str> = SILENT.iter().map(|(by, _)| *by).collect();
    let questions = questions::of_the_dashboard();
    for question in questions.iter().filter(|question| !silent.contains(question.by.as_str())) {
        answered(&prometheus, question);
    }
    for (by, why) in SILENT {
        let question = questions.iter().find(|question| question.by == by).expect("a question of that name");
        assert_eq!(prometheus.ask(&question.expr), Ok(Vec::new()), "{by}: {why}");
    }
    // What an alert compares is there, so its silence means something.
    for rule in questions::of_the_alerts() {
        assert_eq!(prometheus.ask(&rule.expr), Ok(Vec::new()), "{} would fire", rule.by);
        for selector in questions::selectors(&rule.expr) {
            answered(&prometheus, &Workload { by: rule.by.clone(), expr: selector.metric });
        }
    }
    figures_are_those_of_the_pipe(&prometheus);
    check_metrics(&dedupd.get("/metrics").expect("the metrics page"));

    load.finish();
    pipe.wait_caught_up(PARTITIONS, SOON);
    prometheus.wait_for("sum(dedupd_lag_records) == 0");
    pipe.assert_exactly_once();
    retention_is_followed(&prometheus, &pipe);
    assert_eq!(dedupd.stop(), Some(0));
    // The committed rules are at work; it takes two minutes more until this one fires.
    prometheus.wait_for("ALERTS{alertname=\"DedupdDown\", alertstate=\"pending\"} == 1");
}

fn figures_are_those_of_the_pipe(prometheus: &Prometheus) {
    prometheus.holds("dedupd_ready == 1");
    prometheus.holds(&format!("dedupd_partitions{{state=\"running\"}} == {PARTITIONS}"));
    prometheus.holds("dedupd_group_unassigned_partitions == 0");
    prometheus.holds(&format!("count(dedupd_group_lag_records) == {PARTITIONS}"));
    prometheus.holds("dedupd_window_configured_seconds == 600");
    prometheus.holds("min(dedupd_window_seconds) == 600");
    prometheus.holds("max(dedupd_window_certain_seconds) <= 2");
    prometheus.holds("dedupd_false_positive_rate_promised == 1e-9");
    prometheus.holds("dedupd_false_positive_rate <= 1e-9");
    prometheus.holds("dedupd_false_positive_rate > 0");
    prometheus.holds("dedupd_records_total{outcome=\"probable\"} > 0");
    prometheus.holds(&format!("dedupd_raw_start_offset{{partition=\"0\"}} == {DELETED}"));
    prometheus.holds(&format!("sum(dedupd_raw_start_offset) == {DELETED}"));
    prometheus.holds("max_over_time(dedupd_memory_bytes{part=\"batch\"}[1m]) > 0");
    prometheus.holds("min(dedupd_raw_retained_records) > 100");
    // 30 % of the load are copies.
    let share = "sum(dedupd_records_total{outcome=~\"duplicate|probable\"}) / sum(dedupd_records_total)";
    prometheus.holds(&format!("{share} > 0.2"));
    prometheus.holds(&format!("{share} < 0.4"));
}

/// Within the time in which dedupd asks again.
fn retention_is_followed(prometheus: &Prometheus, pipe: &Pipe<'_>) {
    let (_, end) = pipe.kafka.watermarks(&pipe.raw, 1);
    // No lag may have been scraped before dedupd learned of the newest records.
    prometheus.wait_for(&format!("dedupd_raw_retained_records{{partition=\"1\"}} == {end}"));
    pipe.kafka.delete_records(&pipe.raw, 1, DELETED);
    prometheus.wait_for(&format!("dedupd_raw_start_offset{{partition=\"1\"}} == {DELETED}"));
    prometheus.holds(&format!("dedupd_raw_retained_records{{partition=\"1\"}} == {}", end - DELETED));
}
