//! Metrics and status of `dedupd rekey`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Gauge, GaugeVec, IntCounter, Registry, TextEncoder};
use serde::Serialize;

use super::process::Process;
use super::registered::{counters, gauge, gauges, registered, seconds};
use super::table::{self, MetricKind, Row, rows};

rows! {
    /// Every metric of `rekey`.
    REKEY_TABLE = rows + [table::READY, table::BUILD, table::RESIDENT, table::CPU];

    READ = Row::new(
        "dedupd_rekey_read_total",
        MetricKind::Counter,
        "records",
        "Records read from the source topics, repeated ones included.",
    );
    WRITTEN = Row::new(
        "dedupd_rekey_written_total",
        MetricKind::Counter,
        "records",
        "Records that the target topic has acknowledged.",
    );
    MISSING_ID = Row::new(
        "dedupd_rekey_missing_id_total",
        MetricKind::Counter,
        "records",
        "Records without an id, written to the partition that follows from their source partition.",
    );
    FAILURES = Row::new(
        "dedupd_rekey_failures_total",
        MetricKind::Counter,
        "failures",
        "Failures after which the clients were replaced and records were read again from the committed offsets.",
    );
    GAPS = Row::new(
        "dedupd_rekey_gap_offsets_total",
        MetricKind::Counter,
        "offsets",
        "Offsets of source topics deleted before they were read, and skipped because of group.on_gap = accept.",
    );
    IN_FLIGHT = Row::new(
        "dedupd_rekey_in_flight_records",
        MetricKind::Gauge,
        "records",
        "Records that were sent and are not acknowledged.",
    );
    LAG = Row::new(
        "dedupd_rekey_lag_records",
        MetricKind::Gauge,
        "offsets",
        "Offsets from the last acknowledged record to the high watermark, over the assigned partitions of a source topic.",
    )
    .by("topic", &[]);
    PARTITIONS = Row::new(
        "dedupd_rekey_partitions",
        MetricKind::Gauge,
        "partitions",
        "Partitions of source topics that are assigned to this process.",
    );
}

/// The metrics and the status of `rekey`. Clones share the same values.
#[derive(Clone)]
pub struct RekeyMetrics {
    /// Each is documented by its row in [`REKEY_TABLE`].
    pub(crate) parts: Arc<RekeyHandles>,
}

pub(crate) struct RekeyHandles {
    registry: Registry,
    pub(crate) read: IntCounter,
    pub(crate) written: IntCounter,
    pub(crate) missing_id: IntCounter,
    pub(crate) failures: IntCounter,
    pub(crate) gaps: IntCounter,
    in_flight: Gauge,
    lag: GaugeVec,
    partitions: Gauge,
    ready: Gauge,
    process: Process,
    status: Mutex<RekeyStatus>,
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

impl Default for RekeyMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counter = |row: &Row| counters(&registry, row).with_label_values::<&str>(&[]);
        gauges(&registry, &table::BUILD).with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let starting = RekeyStatus { not_ready: Some("is starting".to_owned()), ..RekeyStatus::default() };
        let parts = RekeyHandles {
            read: counter(&READ),
            written: counter(&WRITTEN),
            missing_id: counter(&MISSING_ID),
            failures: counter(&FAILURES),
            gaps: counter(&GAPS),
            in_flight: gauge(&registry, &IN_FLIGHT),
            lag: gauges(&registry, &LAG),
            partitions: gauge(&registry, &PARTITIONS),
            ready: gauge(&registry, &table::READY),
            process: Process::new(gauge(&registry, &table::RESIDENT), seconds(&registry, &table::CPU)),
            status: Mutex::new(starting),
            registry,
        };
        Self { parts: Arc::new(parts) }
    }
}

impl RekeyMetrics {
    fn locked(&self) -> MutexGuard<'_, RekeyStatus> {
        self.parts.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status as it was last published.
    pub fn status(&self) -> RekeyStatus {
        self.locked().clone()
    }

    /// Publishes the status. A failure stays.
    pub fn publish(&self, status: RekeyStatus) {
        let mut published = self.locked();
        let failure = published.failure.take().or(status.failure);
        *published = RekeyStatus { failure, ..status };
    }

    /// Publishes why records are not written.
    pub fn not_ready(&self, why: &str) {
        self.locked().not_ready = Some(why.to_owned());
    }

    /// Publishes why the process is about to end.
    pub fn fail(&self, why: &str) {
        self.locked().failure.get_or_insert_with(|| why.to_owned());
    }

    /// The metrics in the Prometheus text format.
    pub fn scrape(&self) -> String {
        let (parts, status) = (&self.parts, self.status());
        parts.ready.set(f64::from(u8::from(status.is_ready())));
        parts.in_flight.set(status.in_flight as f64);
        parts.partitions.set(status.partitions as f64);
        parts.lag.reset();
        for (topic, lag) in &status.lag {
            parts.lag.with_label_values(&[topic]).set(*lag as f64);
        }
        parts.process.read();
        registered(TextEncoder::new().encode_to_string(&parts.registry.gather()), "the registry of rekey")
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

    use super::*;

    fn names(page: &str) -> BTreeSet<&str> {
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
    }

    #[test]
    fn exported_and_documented_metrics_are_those_of_the_table() {
        let metrics = RekeyMetrics::default();
        metrics.publish(RekeyStatus { lag: BTreeMap::from([("a".to_owned(), 7)]), ..RekeyStatus::default() });
        metrics.parts.written.inc_by(3);
        let page = metrics.scrape();
        assert_eq!(names(&page), REKEY_TABLE.iter().map(|row| row.name).collect());
        for line in
            ["dedupd_rekey_written_total 3", "dedupd_rekey_lag_records{topic=\"a\"} 7", "dedupd_ready 1"]
        {
            assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
        }
        let docs = include_str!("../../docs/rekey.md");
        for row in REKEY_TABLE {
            assert!(docs.contains(&format!("| `{}` | {} |", row.name, row.help)), "{}", row.name);
        }
    }

    #[test]
    fn a_topic_that_is_no_longer_assigned_has_no_lag() {
        let metrics = RekeyMetrics::default();
        metrics.publish(RekeyStatus { lag: BTreeMap::from([("a".to_owned(), 7)]), ..RekeyStatus::default() });
        assert!(metrics.scrape().contains("topic=\"a\""));
        metrics.publish(RekeyStatus::default());
        assert!(!metrics.scrape().contains("topic=\"a\""));
    }

    #[test]
    fn the_first_failure_stays() {
        let metrics = RekeyMetrics::default();
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
