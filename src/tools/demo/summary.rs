//! The summary of the demo.

use std::fmt;

use dedupd_audit::Report;

use super::{Driven, WARM_UP};
use crate::metrics::{Metrics, Outcome, Totals};
use crate::units::{duration_text, seconds_text};

/// The results of the generator, the metrics and the audit.
pub(super) struct DemoSummary<'a> {
    driven: &'a Driven,
    report: &'a Report,
    duplicates: u64,
    /// What was counted after [`WARM_UP`].
    counted: Totals,
    memory: f64,
}

impl<'a> DemoSummary<'a> {
    pub(super) fn new(driven: &'a Driven, metrics: &Metrics, report: &'a Report) -> Self {
        let duplicates = metrics.records(Outcome::Duplicate).get();
        let counted = metrics.totals(None).since(&driven.start);
        Self { driven, report, duplicates, counted, memory: metrics.resident_bytes() }
    }
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
        let latency = |quantile| self.counted.latency_seconds(quantile).map(seconds_text);
        if let (Some(p50), Some(p90)) = (latency(0.5), latency(0.9)) {
            let after = duration_text(WARM_UP);
            writeln!(f, "  fetched → committed   p50 ≤ {p50}, p90 ≤ {p90}, after the first {after}")?;
        }
        if self.memory > 0.0 {
            let mib = self.memory / f64::from(1 << 20);
            writeln!(f, "  memory, broker and generator included   {mib:.0} MiB")?;
        }
        writeln!(f)?;
        writeln!(f, "{}", self.report)?;
        writeln!(f)?;
        write!(
            f,
            "The embedded broker shows how dedupd works. It does not prove exactly-once: it has no real transactions.\n\
             Next: `dedupd try` runs the same on a Kafka, with kill -9 in the middle (`make try` starts one for it); `dedupd check --help` \
             shows how to start with topics of your own."
        )
    }
}
