//! A real Prometheus scrapes a real dedupd with the committed configuration: every query of the dashboard and the
//! alerts returns data, and no alert fires on a healthy instance.

#[path = "../deploy/programs.rs"]
mod programs;
#[path = "../deploy/queries.rs"]
mod queries;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::rekey::Rekey;
use crate::support::{Pipe, child, ports::free_port, shared_kafka, wait_until};
use programs::{printed, program, promtool, text};
use queries::Workload;

const PARTITIONS: usize = 3;
const SOON: Duration = Duration::from_mins(1);
/// Records deleted from partition 0 before dedupd starts, as retention does.
const DELETED: i64 = 50;

/// Queries without data on a healthy instance.
const EMPTY: [(&str, &str); 1] = [("annotation \"Alerts\"", "no alert fires")];

/// A Prometheus that scrapes one target every second. It is killed when dropped.
struct Prometheus {
    child: Child,
    url: String,
    dir: tempfile::TempDir,
}

impl Prometheus {
    /// Starts it with the committed configuration, except for the target and the intervals.
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

    /// The current samples of an expression, or the error of Prometheus. Each call starts a process, so a loop pauses.
    fn query(&self, expr: &str) -> Result<Vec<Value>, String> {
        let output = promtool(self.dir.path(), &["query", "instant", "--format=json", &self.url, expr]);
        if !output.status.success() {
            return Err(printed(&output));
        }
        Ok(serde_json::from_slice(&output.stdout).expect("promtool prints JSON"))
    }

    /// Panics unless a comparison holds for one sample. A scrape that took too long leaves no sample of its left side: the next one
    /// is compared.
    fn holds(&self, comparison: &str) {
        let left = comparison.rsplitn(3, ' ').last().unwrap_or(comparison);
        wait_until(&format!("a sample of {left}"), SOON, || {
            let samples = self.query(comparison).unwrap_or_else(|error| panic!("{comparison}: {error}"));
            let compared = self.query(left);
            let is_missing = samples.is_empty() && compared.as_ref().is_ok_and(Vec::is_empty);
            assert!(samples.len() == 1 || is_missing, "{comparison} does not hold; {left} is {compared:?}");
            (!is_missing).then_some(()).or_else(pause)
        });
    }

    /// Waits until a comparison holds.
    fn wait_for(&self, comparison: &str) {
        wait_until(comparison, SOON, || {
            self.query(comparison).ok().filter(|samples| samples.len() == 1).or_else(pause)
        });
    }

    /// Waits until it scrapes the target.
    fn wait_scraping(&self) {
        let up = || self.query("up{job=\"dedupd\"} == 1").ok().filter(|samples| samples.len() == 1);
        let log = self.dir.path().join("log");
        let start = dedupd::clock::monotonic();
        while up().or_else(pause).is_none() {
            let in_time = start.elapsed() < SOON;
            assert!(in_time, "Prometheus does not scrape:\n{}", fs::read_to_string(&log).unwrap_or_default());
        }
    }
}

/// Leaves the cores to others until the next scrape.
fn pause<T>() -> Option<T> {
    std::thread::sleep(Duration::from_millis(250));
    None
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

/// Runs `promtool check metrics` on the body of the metrics page.
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
    assert!(output.status.success() && printed(&output).is_empty(), "{}", printed(&output));
}

/// Waits until a query returns a number. Panics if the query is invalid.
fn wait_for_data(prometheus: &Prometheus, query: &Workload) {
    wait_until(&format!("data of {}: {}", query.by, query.expr), SOON, || {
        let samples = prometheus.query(&query.expr).unwrap_or_else(|error| panic!("{query:?}: {error}"));
        samples.iter().any(|sample| !number(sample).is_nan()).then_some(()).or_else(pause)
    });
}

/// The panels about kinds require at least one.
const KIND: &str = "[[kinds]]\nname = \"rare\"\nfrom = \"header:kind\"\nvalues = [\"rare\"]\n";

#[test]
fn a_real_prometheus_has_data_for_dashboard_and_alerts() {
    let kafka = shared_kafka();
    let pipe = Pipe::new(kafka, "monitoring", PARTITIONS);
    let load = pipe.load(PARTITIONS, 400);
    load.more(1_000);
    kafka.delete_records(&pipe.raw, 0, DELETED);
    let dedupd = pipe
        .sidecar("a")
        .with_file(KIND)
        // So short that filters are used, so long that no copy of the load is outside of the window.
        .with("DEDUPD_WINDOW__EXACT", "2s")
        .with("DEDUPD_WINDOW__BLOOM", "3m")
        .with("DEDUPD_SMALLEST_SLICE", "50")
        // The copies of the load have numbers of their own.
        .comparing_ids()
        .start();
    dedupd.wait_running(PARTITIONS, SOON);
    let prometheus = Prometheus::start(dedupd.port);
    prometheus.wait_scraping();

    let empty: BTreeSet<&str> = EMPTY.iter().map(|(by, _)| *by).collect();
    let queries = queries::of_the_dashboard();
    for query in queries.iter().filter(|query| !is_of_rekey(query) && !empty.contains(query.by.as_str())) {
        wait_for_data(&prometheus, query);
    }
    for (by, why) in EMPTY {
        let query = queries.iter().find(|query| query.by == by).expect("a query with that name");
        assert_eq!(prometheus.query(&query.expr), Ok(Vec::new()), "{by}: {why}");
    }
    // The metrics of each alert have data, so an alert without samples does not fire.
    for rule in queries::of_the_alerts().into_iter().filter(|rule| !is_of_rekey(rule)) {
        // A backlog of two seconds, or a scrape that took too long, satisfies some for a moment, which their `for` allows.
        wait_until(&format!("{} not to fire", rule.by), SOON, || {
            (prometheus.query(&rule.expr) == Ok(Vec::new())).then_some(()).or_else(pause)
        });
        for selector in queries::selectors(&rule.expr) {
            wait_for_data(&prometheus, &Workload { by: rule.by.clone(), expr: selector.metric });
        }
    }
    assert_figures(&prometheus);
    check_metrics(&dedupd.page("/metrics"));

    load.finish();
    pipe.wait_caught_up(PARTITIONS, SOON);
    prometheus.wait_for("sum(dedupd_lag_records) == 0");
    pipe.assert_exactly_once();
    assert_retention(&prometheus, &pipe);
    assert_eq!(dedupd.stop(), Some(0));
    // The committed rules are active. This alert fires after two more minutes.
    prometheus.wait_for("ALERTS{alertname=\"DedupdDown\", alertstate=\"pending\"} == 1");
}

/// Whether a query is about the stage before the service.
fn is_of_rekey(query: &Workload) -> bool {
    query.expr.contains("dedupd_rekey_") || query.expr.contains("scope=\"rekey\"")
}

#[test]
fn a_real_prometheus_has_data_for_the_panels_and_alerts_of_rekey() {
    let pipe = Pipe::new(shared_kafka(), "monitored-rekey", PARTITIONS);
    let load = pipe.load(PARTITIONS, 400);
    let to = "monitored-rekey.by-id";
    pipe.kafka.create_topic(to, PARTITIONS, &[]);
    let rekey = Rekey::new(pipe.kafka, to, &format!("--from {} --id json:/id", pipe.raw)).start();
    let prometheus = Prometheus::start(rekey.port);
    prometheus.wait_scraping();
    let (panels, rules) = (queries::of_the_dashboard(), queries::of_the_alerts());
    let [panels, rules] = [panels, rules].map(|all| all.into_iter().filter(is_of_rekey).collect::<Vec<_>>());
    assert!(!panels.is_empty() && !rules.is_empty());
    for query in &panels {
        wait_for_data(&prometheus, query);
    }
    for rule in &rules {
        wait_until(&format!("{} not to fire", rule.by), SOON, || {
            (prometheus.query(&rule.expr) == Ok(Vec::new())).then_some(()).or_else(pause)
        });
        for selector in queries::selectors(&rule.expr) {
            wait_for_data(&prometheus, &Workload { by: rule.by.clone(), expr: selector.metric });
        }
    }
    check_metrics(&rekey.page("/metrics"));
    load.finish();
    assert_eq!(rekey.stop(), Some(0));
}

fn assert_figures(prometheus: &Prometheus) {
    prometheus.holds("dedupd_ready == 1");
    prometheus.holds(&format!("dedupd_partitions{{state=\"running\"}} == {PARTITIONS}"));
    prometheus.holds("dedupd_group_unassigned_partitions == 0");
    prometheus.holds(&format!("count(dedupd_group_lag_records) == {PARTITIONS}"));
    prometheus.holds("dedupd_window_configured_seconds == 180");
    prometheus.holds("min(dedupd_window_seconds) == 180");
    prometheus.holds("max(dedupd_window_certain_seconds) <= 2");
    prometheus.holds("dedupd_false_positive_rate_promised == 1e-9");
    prometheus.holds("dedupd_false_positive_rate <= 1e-9");
    prometheus.wait_for("dedupd_false_positive_rate > 0");
    prometheus.wait_for("dedupd_records_total{outcome=\"probable\"} > 0");
    prometheus.holds(&format!("dedupd_raw_start_offset{{partition=\"0\"}} == {DELETED}"));
    prometheus.holds(&format!("sum(dedupd_raw_start_offset) == {DELETED}"));
    prometheus.holds("max_over_time(dedupd_memory_bytes{part=\"batch\"}[1m]) > 0");
    prometheus.holds("min(dedupd_raw_retained_records) > 100");
    // 30 % of the load are copies.
    let share =
        "sum(dedupd_records_total{outcome=~\"duplicate|conflict|probable\"}) / sum(dedupd_records_total)";
    prometheus.holds(&format!("{share} > 0.2"));
    prometheus.holds(&format!("{share} < 0.4"));
}

/// The metrics follow retention within the refresh interval of dedupd.
fn assert_retention(prometheus: &Prometheus, pipe: &Pipe<'_>) {
    let (_, end) = pipe.kafka.watermarks(&pipe.raw, 1);
    // A sample may be older than the newest records.
    prometheus.wait_for(&format!("dedupd_raw_retained_records{{partition=\"1\"}} == {end}"));
    pipe.kafka.delete_records(&pipe.raw, 1, DELETED);
    prometheus.wait_for(&format!("dedupd_raw_start_offset{{partition=\"1\"}} == {DELETED}"));
    prometheus.holds(&format!("dedupd_raw_retained_records{{partition=\"1\"}} == {}", end - DELETED));
}
