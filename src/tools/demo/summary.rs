//! The summary of the demo.

use std::fmt;

use dedupd_audit::Report;

use super::{Driven, WARM_UP};
use crate::metrics::{Metrics, Outcome};

/// The results of the generator, the metrics and the audit.
pub(super) struct DemoSummary<'a> {
    driven: &'a Driven,
    report: &'a Report,
    duplicates: u64,
    page: String,
}

impl<'a> DemoSummary<'a> {
    pub(super) fn new(driven: &'a Driven, metrics: &Metrics, report: &'a Report) -> Self {
        let duplicates = metrics.records(Outcome::Duplicate).get();
        Self { driven, report, duplicates, page: metrics.render() }
    }

    /// The upper bound of the histogram bucket that contains this quantile of the latencies after [`WARM_UP`], in
    /// milliseconds.
    fn latency_ms(&self, quantile: f64) -> Option<f64> {
        let (start, end) = (latency_buckets(&self.driven.start), latency_buckets(&self.page));
        let before = |number: usize| start.get(number).map_or(0.0, |(_, count)| *count);
        let buckets = end.iter().enumerate().map(|(number, (bound, count))| (bound, count - before(number)));
        let buckets: Vec<_> = buckets.collect();
        let (_, all) = buckets.last()?;
        buckets.iter().find(|(_, count)| *count >= all * quantile).map(|(bound, _)| *bound * 1_000.0)
    }

    fn memory_mib(&self) -> Option<f64> {
        let line = self.page.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "))?;
        Some(line.parse::<f64>().ok()? / f64::from(1 << 20))
    }
}

/// The buckets of the latency histogram on a metrics page: upper bound in seconds, and cumulative count.
fn latency_buckets(page: &str) -> Vec<(f64, f64)> {
    let bucket = |line: &str| {
        let (bound, count) = line.strip_prefix("dedupd_latency_seconds_bucket{le=\"")?.split_once("\"} ")?;
        Some((bound.parse().unwrap_or(f64::INFINITY), count.parse().ok()?))
    };
    page.lines().filter_map(bucket).collect()
}

impl fmt::Display for DemoSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traffic = &self.driven.traffic;
        let records = traffic.records + traffic.real_repeats;
        let seconds = traffic.elapsed.as_secs_f64().max(0.001);
        writeln!(f)?;
        writeln!(f, "  records in raw        {records:>10}   {:.0} per second", records as f64 / seconds)?;
        writeln!(f, "  records in clean      {:>10}", self.report.total.clean_records)?;
        let share = 100.0 * self.duplicates as f64 / (records.max(1)) as f64;
        writeln!(f, "  duplicates dropped    {:>10}   {share:.1} %", self.duplicates)?;
        if let (Some(p50), Some(p90)) = (self.latency_ms(0.5), self.latency_ms(0.9)) {
            let after = WARM_UP.as_secs();
            writeln!(
                f,
                "  fetched → committed   p50 ≤ {p50:.0} ms, p90 ≤ {p90:.0} ms, after the first {after} s"
            )?;
        }
        if let Some(memory) = self.memory_mib() {
            writeln!(f, "  memory, broker and generator included   {memory:.0} MiB")?;
        }
        writeln!(f)?;
        writeln!(f, "{}", self.report)?;
        writeln!(f)?;
        write!(
            f,
            "The embedded broker shows how dedupd works. It does not prove exactly-once: it has no real transactions.\n\
             Next: `make demo-kafka` runs the same on a real Apache Kafka, with kill -9 in the middle; `dedupd check --help` shows \
             how to start with topics of your own."
        )
    }
}
