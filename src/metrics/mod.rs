//! Metrics, and the status snapshots that workers publish.
//!
//! [`table`] declares every metric once; the handles, their registration, the table in docs/metrics.md and the tests are derived
//! from it. Only this module uses the prometheus crate. It depends on neither Kafka, the
//! window nor the store: those return values, and the pipeline counts them.

mod by_partition;
mod duplicates;
mod history;
mod labels;
mod process;
mod recent;
mod registered;
mod rekey;
mod standby;
mod status;
pub mod table;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::{Histogram, IntCounter};

use crate::locked::Locked;

pub use duplicates::{
    AgeCount, DuplicateStatus, DuplicatesStatus, DuplicatesSummary, NeededWindow, SourceStatus, TopValues,
    ValueCount,
};
pub use history::{History, Rates, Totals};
pub use labels::{ClientLabel, ContentLabel, Outcome, PartitionState, Role, Stall, TopicLabel};
pub(crate) use labels::{OffsetReset, Resolution, RestoreSource, TransactionResult};
pub use recent::{Recent, Warning};
pub use rekey::{RekeyMetrics, RekeyStatus};
pub use standby::StandbyStatus;
pub(crate) use status::Readiness;
pub use status::{
    About, ClientStatus, KindStatus, PartitionStatus, Snapshot, Status, WindowStatus, WorkerStatus,
};

use registered::Registered;

/// The registered handles. Clones are cheap and share the same metrics.
#[derive(Clone)]
pub struct Metrics {
    /// Each is documented by its help text in [`table`].
    pub(crate) parts: Arc<Registered>,
    /// Partitions that have series. The lock serialises scrapes, so that each sees one consistent state.
    exposed: Arc<Mutex<BTreeSet<u32>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything in [`table`]; series with fixed labels start at 0.
    pub fn new() -> Self {
        Self { parts: Arc::new(Registered::new()), exposed: Arc::default() }
    }

    /// Raw records by outcome, counted when their transaction is committed.
    pub fn records(&self, outcome: Outcome) -> IntCounter {
        self.parts.flow.records.with_label_values(&[outcome.as_str()])
    }

    /// Raw records of one named kind by outcome.
    pub fn kind_records(&self, kind: &str, outcome: Outcome) -> IntCounter {
        self.parts.flow.kind_records.with_label_values(&[kind, outcome.as_str()])
    }

    /// Bytes of keys and values read or written, by topic.
    pub fn bytes(&self, topic: TopicLabel) -> IntCounter {
        self.parts.flow.bytes.with_label_values(&[topic.as_str()])
    }

    /// Counts a finished transaction, and the time from its first record to its end.
    pub fn transaction(&self, result: TransactionResult, took: Duration) {
        self.parts.transactions.total.with_label_values(&[result.as_str()]).inc();
        self.parts.transactions.seconds.observe(took.as_secs_f64());
    }

    /// Memory of the process, in bytes; 0 where it is not known.
    pub fn resident_bytes(&self) -> f64 {
        self.parts.process.read();
        self.parts.process.resident.get()
    }

    /// Torn transactions, by how they were resolved.
    pub fn torn_transactions(&self, resolution: Resolution) -> IntCounter {
        self.parts.transactions.torn.with_label_values(&[resolution.as_str()])
    }

    /// Identities loaded at an assignment.
    pub fn restored_ids(&self, source: RestoreSource) -> IntCounter {
        self.parts.state.restored.with_label_values(&[source.as_str()])
    }

    /// Partitions that started at another offset than the committed offset, by reason.
    pub fn offset_resets(&self, reset: OffsetReset) -> IntCounter {
        self.parts.group.offset_resets.with_label_values(&[reset.as_str()])
    }

    /// Partitions reassigned inside the client because it did not return records that the log has, by reason.
    pub fn stalled_fetches(&self, stall: Stall) -> IntCounter {
        self.parts.group.stalled.with_label_values(&[stall.as_str()])
    }

    /// Partition assignments and revocations.
    pub fn rebalances(&self) -> &IntCounter {
        &self.parts.group.rebalances
    }

    /// Sets the gauges from the published status and returns the metrics in the Prometheus text format.
    /// Removes the series of partitions that are no longer published.
    pub fn scrape(&self, status: &Status) -> String {
        self.parts.process.describe(&status.about);
        let mut exposed = self.exposed.locked();
        let published = self.parts.update_from(&status.snapshot());
        exposed.difference(&published).for_each(|gone| self.parts.partitions.remove(*gone));
        *exposed = published;
        self.render()
    }

    /// The ages of duplicates, in seconds.
    pub fn duplicate_age(&self) -> &Histogram {
        &self.parts.state.duplicate_age
    }

    /// The raw records of each outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.iter().map(|outcome| (*outcome, self.records(*outcome).get()))
    }

    /// The counters that the charts of the status page show, with this lag.
    pub fn totals(&self, lag: Option<u64>) -> Totals {
        let duplicates = self.outcomes().filter(|(outcome, _)| outcome.is_duplicate());
        Totals {
            records: self.outcomes().map(|(_, count)| count).sum(),
            duplicates: duplicates.map(|(_, count)| count).sum(),
            lag,
            latency: registered::buckets(&self.parts.flow.latency),
        }
    }

    /// What is known about duplicates; of single ones, what was published in this status.
    pub fn duplicates(&self, published: &Snapshot) -> DuplicatesSummary {
        let Totals { records, duplicates, .. } = self.totals(None);
        let ages = duplicates::ages(&registered::buckets(&self.parts.state.duplicate_age));
        let configured = published.longest_window();
        DuplicatesSummary {
            records,
            duplicates,
            conflicts: self.records(Outcome::Conflict).get(),
            not_compared: self.parts.state.not_compared.get(),
            window_seconds: configured.unwrap_or(0.0),
            needed_windows: duplicates::needed_windows(&ages, configured),
            ages,
            status: published.total().duplicates,
        }
    }

    /// The metrics in the Prometheus text format, without an update of the gauges.
    pub fn render(&self) -> String {
        self.parts.process.read();
        self.parts.text()
    }
}

#[cfg(test)]
mod tests;
