//! Metrics and status of `dedupd rekey`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use prometheus::Registry;
use serde::Serialize;

use super::registered::{flag, set, text};
use super::status::About;
use super::table::{ProcessMetrics, RekeyHandles};
use crate::locked::Locked;

/// The metrics and the status of `rekey`. Clones share the same values.
#[derive(Clone)]
pub struct RekeyMetrics {
    pub(crate) parts: Arc<RekeyHandles>,
    process: Arc<ProcessMetrics>,
    registry: Registry,
    /// The identification of this process.
    pub(crate) about: Arc<About>,
    status: Arc<Mutex<RekeyStatus>>,
}

/// What the loop of `rekey` publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RekeyStatus {
    /// Why no records are being written, or `None`.
    pub not_ready: Option<String>,
    /// Why the process is about to end, or `None`.
    pub failure: Option<String>,
    /// What an operator should know although records are written.
    pub notes: Vec<String>,
    /// Number of assigned partitions of source topics.
    pub partitions: usize,
    /// Number of records that were sent and are not acknowledged.
    pub in_flight: usize,
    /// Source topic → offsets from the last acknowledged record to the high watermark, over its assigned partitions.
    pub lag: BTreeMap<String, u64>,
}

impl RekeyMetrics {
    /// Registers everything, for this process: `raw` are its source topics, `clean` is its target.
    pub fn new(about: About) -> Self {
        let registry = Registry::new();
        let starting = RekeyStatus { not_ready: Some("is starting".to_owned()), ..RekeyStatus::default() };
        let process = ProcessMetrics::new(&registry);
        process.describe(&about);
        Self {
            parts: Arc::new(RekeyHandles::new(&registry)),
            process: Arc::new(process),
            registry,
            about: Arc::new(about),
            status: Arc::new(Mutex::new(starting)),
        }
    }

    /// The status as it was last published.
    pub fn status(&self) -> RekeyStatus {
        self.status.locked().clone()
    }

    /// Memory of the process, in bytes; 0 where it is not known.
    pub fn resident_bytes(&self) -> f64 {
        self.process.read();
        self.process.resident.get()
    }

    /// Publishes the status. A failure stays.
    pub fn publish(&self, status: RekeyStatus) {
        let mut published = self.status.locked();
        let failure = published.failure.take().or(status.failure);
        *published = RekeyStatus { failure, ..status };
    }

    /// Publishes why records are not written.
    pub fn not_ready(&self, why: &str) {
        self.status.locked().not_ready = Some(why.to_owned());
    }

    /// Publishes why the process is about to end.
    pub fn fail(&self, why: &str) {
        self.status.locked().failure.get_or_insert_with(|| why.to_owned());
    }

    /// The metrics in the Prometheus text format.
    pub fn scrape(&self) -> String {
        let (parts, status) = (&self.parts, self.status());
        self.process.ready.set(flag(status.is_ready()));
        parts.in_flight.set(status.in_flight as f64);
        parts.partitions.set(status.partitions as f64);
        parts.lag.reset();
        for (topic, lag) in &status.lag {
            set(&parts.lag, topic, *lag as f64);
        }
        self.process.read();
        text(&self.registry)
    }
}

impl RekeyStatus {
    /// Whether records are written as they arrive.
    pub fn is_ready(&self) -> bool {
        self.not_ready.is_none() && self.failure.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::table::rekey_rows;
    use super::*;

    fn names(page: &str) -> BTreeSet<&str> {
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
    }

    #[test]
    fn exported_and_documented_metrics_are_those_of_the_table() {
        let metrics = RekeyMetrics::new(About { raw: "a,b".to_owned(), ..About::default() });
        metrics.publish(RekeyStatus { lag: BTreeMap::from([("a".to_owned(), 7)]), ..RekeyStatus::default() });
        metrics.parts.written.inc_by(3);
        let page = metrics.scrape();
        assert_eq!(names(&page), rekey_rows().map(|row| row.name).collect());
        for line in
            ["dedupd_rekey_written_total 3", "dedupd_rekey_lag_records{topic=\"a\"} 7", "dedupd_ready 1"]
        {
            assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
        }
        let (docs, of_run) = (include_str!("../../docs/rekey.md"), include_str!("../../docs/metrics.md"));
        for row in rekey_rows() {
            let (name, help) = (format!("| `{}` |", row.name), format!(" {} |", row.help));
            // Those that `run` has too are in its table, with more columns.
            let is_described = if row.name.starts_with("dedupd_rekey_") {
                docs.contains(&format!("{name}{help}"))
            } else {
                of_run.lines().any(|line| line.starts_with(&name) && line.ends_with(&help))
            };
            assert!(is_described, "{}", row.name);
        }
    }

    #[test]
    fn a_topic_that_is_no_longer_assigned_has_no_lag() {
        let metrics = RekeyMetrics::new(About { raw: "a,b".to_owned(), ..About::default() });
        metrics.publish(RekeyStatus { lag: BTreeMap::from([("a".to_owned(), 7)]), ..RekeyStatus::default() });
        assert!(metrics.scrape().contains("topic=\"a\""));
        metrics.publish(RekeyStatus::default());
        assert!(!metrics.scrape().contains("topic=\"a\""));
    }

    #[test]
    fn the_first_failure_stays() {
        let metrics = RekeyMetrics::new(About { raw: "a,b".to_owned(), ..About::default() });
        assert!(!metrics.status().is_ready(), "it is ready before it has started");
        metrics.publish(RekeyStatus::default());
        assert!(metrics.status().is_ready());
        metrics.fail("first");
        metrics.fail("second");
        metrics.publish(RekeyStatus::default());
        assert_eq!(metrics.status().failure.as_deref(), Some("first"));
        assert!(!metrics.status().is_ready());
    }
}
