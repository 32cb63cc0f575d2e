//! Metrics, and the status snapshots that workers publish.
//!
//! [`table::TABLE`] declares every metric once; the registered handles, the table in docs/metrics.md and the
//! tests are derived from it. Only this module uses the prometheus crate. It depends on neither Kafka, the
//! window nor the store: those return values, and the pipeline counts them.

mod by_partition;
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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter};

pub use history::{History, Rates, Totals};
pub(crate) use labels::ClientLabel;
pub(crate) use labels::{OffsetReset, Resolution, RestoreSource, TransactionResult};
pub use labels::{Outcome, PartitionState, Role, Stall, TopicLabel};
pub use recent::{Recent, Warning};
pub(crate) use registered::Latencies;
pub use rekey::{REKEY_TABLE, RekeyMetrics, RekeyStatus};
pub use standby::StandbyStatus;
pub use status::{About, PartitionStatus, Status, WindowStatus, WorkerStatus};
pub(crate) use status::{ClientStatus, KindStatus, Readiness};

use registered::Registered;

/// The registered handles. Clones are cheap and share the same metrics.
#[derive(Clone)]
pub struct Metrics {
    parts: Arc<Registered>,
    /// Partitions that have series. The lock serialises scrapes, so that each sees one consistent state.
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

    /// A latency histogram local to one worker, filled per record without synchronisation.
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

    /// The time of the last commit, in seconds since 1970; 0 before the first one.
    pub fn last_commit(&self) -> &Gauge {
        &self.parts.transactions.last_commit
    }

    /// Memory of the process, in bytes; 0 where it is not known.
    pub fn resident_bytes(&self) -> f64 {
        self.parts.process.read();
        self.parts.process.resident_bytes()
    }

    /// Torn transactions, by how they were resolved.
    pub fn torn_transactions(&self, resolution: Resolution) -> IntCounter {
        self.parts.transactions.torn.with_label_values(&[resolution.as_str()])
    }

    /// Sets the configured values: the length of the window and the false-positive rate, 0 without filters.
    pub fn set_configured(&self, window: Duration, false_positive_rate: f64) {
        self.parts.state.window_configured.set(window.as_secs_f64());
        self.parts.state.false_positive_rate_promised.set(false_positive_rate);
    }

    /// Size of the local state on disk, in bytes.
    pub fn state_disk_bytes(&self) -> &Gauge {
        &self.parts.state.disk
    }

    /// Time to load the state of a partition, in seconds.
    pub fn restore_seconds(&self) -> &Histogram {
        &self.parts.state.restore_seconds
    }

    /// Identities loaded at an assignment.
    pub fn restored_ids(&self, source: RestoreSource) -> IntCounter {
        self.parts.state.restored.with_label_values(&[source.as_str()])
    }

    /// Partitions that started at another offset than the committed offset, by reason.
    pub fn offset_resets(&self, reset: OffsetReset) -> IntCounter {
        self.parts.group.offset_resets.with_label_values(&[reset.as_str()])
    }

    /// Raw offsets that were deleted before they were read, and skipped.
    pub fn gap_offsets(&self) -> &IntCounter {
        &self.parts.group.gap_offsets
    }

    /// Rebalances forced because partitions were assigned to no member.
    pub fn forced_rebalances(&self) -> &IntCounter {
        &self.parts.group.forced
    }

    /// Partitions reassigned inside the client because it did not return records that the log has, by reason.
    pub fn stalled_fetches(&self, stall: Stall) -> IntCounter {
        self.parts.group.stalled.with_label_values(&[stall.as_str()])
    }

    /// Duplicates whose owner is in another partition.
    pub fn duplicates_elsewhere(&self) -> &IntCounter {
        &self.parts.state.elsewhere
    }

    /// In partition scope, forwarded records of the sample that are copies from another partition.
    pub fn copies_elsewhere_sampled(&self) -> &IntCounter {
        &self.parts.state.copies_sampled
    }

    /// Identities overwritten before they expired.
    pub fn evicted_ids(&self) -> &IntCounter {
        &self.parts.state.evicted
    }

    /// Identities that were sealed.
    #[must_use]
    pub fn sealed_ids(&self) -> &IntCounter {
        &self.parts.state.sealed
    }

    /// Estimated number of new records that were reported as probably seen.
    pub fn false_drops(&self) -> &Gauge {
        &self.parts.state.false_drops
    }

    /// Partition assignments and revocations.
    pub fn rebalances(&self) -> &IntCounter {
        &self.parts.group.rebalances
    }

    /// Removes the series of a partition that was revoked.
    pub fn forget_partition(&self, partition: u32) {
        self.parts.partitions.remove(partition);
    }

    /// Sets the gauges from the published status and returns the metrics in the Prometheus text format.
    /// Removes the series of partitions that are no longer published.
    pub fn scrape(&self, status: &Status) -> String {
        let mut exposed = self.exposed.lock().unwrap_or_else(PoisonError::into_inner);
        let published = self.parts.update_from(status);
        exposed.difference(&published).for_each(|gone| self.parts.partitions.remove(*gone));
        *exposed = published;
        self.render()
    }

    /// The counters that the charts of the status page show.
    pub fn totals(&self, status: &Status) -> Totals {
        let records = |outcomes: &[Outcome]| outcomes.iter().map(|it| self.records(*it).get()).sum();
        Totals {
            records: records(Outcome::ALL),
            duplicates: records(&[Outcome::Duplicate, Outcome::Probable]),
            lag: status.lag(),
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
