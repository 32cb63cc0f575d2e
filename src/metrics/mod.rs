//! What is counted, and the snapshot that workers publish.
//!
//! [`table::TABLE`] names every metric once; the registered handles, the table in docs/metrics.md and the
//! tests are made from it. Only this module knows the prometheus crate. Nothing here knows Kafka,
//! the window or the store: they return values, and the pipeline counts.

mod by_partition;
mod history;
mod labels;
mod process;
mod recent;
mod registered;
mod status;
pub mod table;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter};

pub use history::{History, Rates, Totals};
pub use labels::{
    Beginning, MemoryPart, Outcome, PartitionState, Resolution, RestoreSource, Stall, Topic,
    TransactionResult,
};
pub use recent::{Recent, Warning};
pub use registered::Latencies;
pub use status::{About, KindStatus, PartitionStatus, Readiness, Status, WindowStatus, WorkerStatus};

use registered::Registered;

/// The registered handles. Cloning is cheap and gives the same metrics.
#[derive(Clone)]
pub struct Metrics {
    parts: Arc<Registered>,
    /// Partitions with series, and the lock that lets one scrape see one moment.
    exposed: Arc<Mutex<BTreeSet<u32>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything in [`table::TABLE`]; series with fixed labels start at 0.
    pub fn new() -> Self {
        Self { parts: Arc::new(Registered::new()), exposed: Arc::default() }
    }

    /// Raw records by what became of them, counted when their transaction has committed.
    pub fn records(&self, outcome: Outcome) -> IntCounter {
        self.parts.flow.records.with_label_values(&[outcome.as_str()])
    }

    /// The same for the records of one named kind.
    pub fn kind_records(&self, kind: &str, outcome: Outcome) -> IntCounter {
        self.parts.flow.kind_records.with_label_values(&[kind, outcome.as_str()])
    }

    /// Bytes of keys and values read or written, by topic.
    pub fn bytes(&self, topic: Topic) -> IntCounter {
        self.parts.flow.bytes.with_label_values(&[topic.as_str()])
    }

    /// Latencies for one worker to fill record by record, without sharing.
    pub fn latencies(&self) -> Latencies {
        Latencies::of(&self.parts.flow.latency)
    }

    /// Counts a finished transaction.
    pub fn transaction(&self, result: TransactionResult, took: Duration) {
        self.parts.transactions.total.with_label_values(&[result.as_str()]).inc();
        self.parts.transactions.seconds.observe(took.as_secs_f64());
    }

    /// Records in a committed transaction.
    pub fn batch_records(&self) -> &Histogram {
        &self.parts.transactions.batch_records
    }

    /// Torn transactions, by how they were settled.
    pub fn torn_transactions(&self, resolution: Resolution) -> IntCounter {
        self.parts.transactions.torn.with_label_values(&[resolution.as_str()])
    }

    /// What the configuration asks for: how far back ids shall be remembered, and how often filters may
    /// be wrong, 0 without filters.
    pub fn asked(&self, window: Duration, false_positive_rate: f64) {
        self.parts.state.window_configured.set(window.as_secs_f64());
        self.parts.state.false_positive_rate_promised.set(false_positive_rate);
    }

    /// Size of the local state on disk, in bytes.
    pub fn state_disk_bytes(&self) -> &Gauge {
        &self.parts.state.disk
    }

    /// How long it took to make a partition's state complete, in seconds.
    pub fn restore_seconds(&self) -> &Histogram {
        &self.parts.state.restore_seconds
    }

    /// Identities loaded at an assignment.
    pub fn restored_ids(&self, source: RestoreSource) -> IntCounter {
        self.parts.state.restored.with_label_values(&[source.as_str()])
    }

    /// Partitions that went on where the group's offset does not say, by why.
    pub fn beginnings(&self, beginning: Beginning) -> IntCounter {
        self.parts.group.beginnings.with_label_values(&[beginning.as_str()])
    }

    /// Raw offsets that were gone before they were read, and were skipped.
    pub fn gap_offsets(&self) -> &IntCounter {
        &self.parts.group.gap_offsets
    }

    /// Rebalances forced because partitions had no owner.
    pub fn forced_rebalances(&self) -> &IntCounter {
        &self.parts.group.forced
    }

    /// Partitions assigned anew inside the client because it did not fetch what the log has, by what was missing.
    pub fn stalled_fetches(&self, stall: Stall) -> IntCounter {
        self.parts.group.stalled.with_label_values(&[stall.as_str()])
    }

    /// Ids overwritten before their time.
    pub fn evicted_ids(&self) -> &IntCounter {
        &self.parts.state.evicted
    }

    /// Records called probably seen that were not, by estimate.
    pub fn false_drops(&self) -> &Gauge {
        &self.parts.state.false_drops
    }

    /// Assignments and revocations seen.
    pub fn rebalances(&self) -> &IntCounter {
        &self.parts.group.rebalances
    }

    /// Removes the series of a partition that moved away.
    pub fn forget_partition(&self, partition: u32) {
        self.parts.partitions.forget(partition);
    }

    /// The page for Prometheus, after the gauges have been set from what the workers published.
    /// Series of partitions that are no longer published disappear.
    pub fn scrape(&self, status: &Status) -> String {
        let mut exposed = self.exposed.lock().unwrap_or_else(PoisonError::into_inner);
        let published = self.parts.set_from(status);
        exposed.difference(&published).for_each(|gone| self.parts.partitions.forget(*gone));
        *exposed = published;
        self.render()
    }

    /// What the charts of the status page are made of.
    pub fn totals(&self, status: &Status) -> Totals {
        let records = |outcomes: &[Outcome]| outcomes.iter().map(|it| self.records(*it).get()).sum();
        Totals {
            records: records(Outcome::ALL),
            duplicates: records(&[Outcome::Duplicate, Outcome::Probable]),
            lag: status.lag(),
        }
    }

    /// The page for Prometheus, as things stand.
    pub fn render(&self) -> String {
        self.parts.process.read();
        self.parts.text()
    }
}

#[cfg(test)]
mod tests;
