//! The handles of all metrics, and the gauges that follow from the status.

use std::collections::BTreeSet;

use prometheus::core::Metric as _;
use prometheus::{GaugeVec, Histogram, Registry, TextEncoder};

use super::labels::{MemoryPart, PartitionState, Role};
use super::status::Snapshot;
use super::table::{
    ByPartition, ClientMetrics, Flow, GroupMetrics, ProcessMetrics, StateMetrics, Transactions, valid,
};

pub(crate) struct Registered {
    registry: Registry,
    pub(crate) flow: Flow,
    pub(crate) transactions: Transactions,
    clients: ClientMetrics,
    pub(super) partitions: ByPartition,
    pub(crate) state: StateMetrics,
    pub(crate) group: GroupMetrics,
    pub(super) process: ProcessMetrics,
}

impl Registered {
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        Self {
            flow: Flow::new(&registry),
            transactions: Transactions::new(&registry),
            clients: ClientMetrics::new(&registry),
            partitions: ByPartition::new(&registry),
            state: StateMetrics::new(&registry),
            group: GroupMetrics::new(&registry),
            process: ProcessMetrics::new(&registry),
            registry,
        }
    }

    /// Sets the gauges from the status; returns the published partitions.
    pub(super) fn update_from(&self, shown: &Snapshot) -> BTreeSet<u32> {
        let Self { transactions, clients, state, group, .. } = self;
        let total = shown.total();
        self.process.ready.set(flag(shown.readiness().ready));
        let (role, _) = shown.role();
        for one in Role::ALL {
            set(&group.role, one.as_str(), flag(*one == role));
        }
        group.unassigned.set(shown.unassigned as f64);
        let standby = shown.standby.clone().unwrap_or_default();
        group.standby_journals.set(standby.journals as f64);
        if standby.journals == 0 || standby.lag_records.is_some() {
            group.standby_lag.set(standby.lag_records.unwrap_or(0) as f64);
        }
        for (partition, lag) in &shown.group_lag {
            set(&group.lag, &partition.to_string(), *lag as f64);
        }
        for one in PartitionState::ALL {
            let count = shown.partitions().filter(|partition| partition.state == *one).count();
            set(&group.partitions, one.as_str(), count as f64);
        }
        for (topic, age) in &shown.output_hanging {
            set(&transactions.output_hanging, topic, age.as_secs_f64());
        }
        transactions.reduced.set(total.reduced_records.unwrap_or(0) as f64);
        for (client, of) in &shown.clients {
            set(&clients.round_trip, client.as_str(), of.round_trip_seconds);
            set(&clients.throttle, client.as_str(), of.throttle_seconds);
            set(&clients.queued, client.as_str(), of.queued_records as f64);
            set(&clients.brokers_down, client.as_str(), of.brokers_down as f64);
        }
        set(&state.memory, MemoryPart::Index.as_str(), total.index_bytes as f64);
        set(&state.memory, MemoryPart::Slices.as_str(), total.slices_bytes as f64);
        set(&state.memory, MemoryPart::Batch.as_str(), total.batch_bytes as f64);
        state.false_positive_rate.set(total.false_positive_rate);
        state.expiry_lag.set(total.expiry_lag_seconds);
        for kind in &total.kinds {
            set(&state.kind_seconds, &kind.kind, kind.window_seconds);
            set(&state.kind_ids, &kind.kind, kind.window_ids as f64);
        }
        for status in shown.partitions() {
            let of = status.partition;
            self.partitions.set(status, shown.log_starts.get(&of).copied(), shown.hanging.get(&of).copied());
        }
        shown.partitions().map(|status| status.partition).collect()
    }

    /// The metrics in the Prometheus text format.
    pub(super) fn text(&self) -> String {
        text(&self.registry)
    }
}

/// Upper bounds in seconds, and the observed times of at most this length; the last bound is infinite.
pub(super) fn buckets(of: &Histogram) -> Vec<(f64, u64)> {
    let metric = of.metric();
    let histogram = metric.get_histogram();
    let buckets = histogram.get_bucket().iter().map(|it| (it.upper_bound(), it.cumulative_count()));
    buckets.chain([(f64::INFINITY, histogram.get_sample_count())]).collect()
}

/// Sets the series with this value of the only label.
pub(super) fn set(gauges: &GaugeVec, label: &str, value: f64) {
    gauges.with_label_values(&[label]).set(value);
}

/// The value of a gauge that is 0 or 1.
pub(super) fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// All metrics of a registry in the Prometheus text format.
pub(super) fn text(registry: &Registry) -> String {
    valid(TextEncoder::new().encode_to_string(&registry.gather()), "the registry")
}
