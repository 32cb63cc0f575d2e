//! The handles of the prometheus crate, grouped by subject and registered from the table.

use std::collections::BTreeSet;
use std::time::Duration;

use prometheus::core::Metric as _;
use prometheus::local::LocalHistogram;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry,
    TextEncoder,
};

use super::by_partition::ByPartition;
use super::labels::{MemoryPart, PartitionState, Role};
use super::process::Process;
use super::status::{KindStatus, Status, WorkerStatus};
use super::table::{self, MetricKind, Row};

pub(super) struct Flow {
    pub(super) records: IntCounterVec,
    pub(super) kind_records: IntCounterVec,
    pub(super) bytes: IntCounterVec,
    pub(super) latency: Histogram,
    pub(super) age: Histogram,
}

pub(crate) struct Transactions {
    pub(super) total: IntCounterVec,
    pub(super) seconds: Histogram,
    pub(crate) batch_records: Histogram,
    pub(crate) last_commit: Gauge,
    reduced: Gauge,
    pub(super) torn: IntCounterVec,
}

/// Windows, memory and restores.
pub(crate) struct StateMetrics {
    pub(super) memory: GaugeVec,
    pub(crate) disk: Gauge,
    pub(crate) restore_seconds: Histogram,
    pub(super) restored: IntCounterVec,
    pub(super) window_configured: Gauge,
    expiry_lag: Gauge,
    kind_seconds: GaugeVec,
    kind_ids: GaugeVec,
    pub(crate) elsewhere: IntCounter,
    pub(crate) evicted: IntCounter,
    pub(crate) sealed: IntCounter,
    pub(crate) discarded: IntCounter,
    false_positive_rate: Gauge,
    pub(super) false_positive_rate_promised: Gauge,
    pub(crate) false_drops: Gauge,
}

/// What the Kafka clients report.
pub(super) struct ClientMetrics {
    round_trip: GaugeVec,
    throttle: GaugeVec,
    queued: GaugeVec,
    brokers_down: GaugeVec,
}

pub(crate) struct GroupMetrics {
    pub(super) rebalances: IntCounter,
    pub(super) offset_resets: IntCounterVec,
    pub(crate) gap_offsets: IntCounter,
    pub(crate) forced: IntCounter,
    pub(super) stalled: IntCounterVec,
    unassigned: Gauge,
    output_hanging: GaugeVec,
    lag: GaugeVec,
    partitions: GaugeVec,
    role: GaugeVec,
    ready: Gauge,
    standby_journals: Gauge,
    standby_lag: Gauge,
}

pub(crate) struct Registered {
    registry: Registry,
    pub(super) flow: Flow,
    pub(crate) transactions: Transactions,
    pub(crate) state: StateMetrics,
    pub(super) partitions: ByPartition,
    pub(crate) group: GroupMetrics,
    clients: ClientMetrics,
    pub(super) process: Process,
}

/// Times of records of one worker, collected without synchronisation and flushed once per batch.
pub struct Latencies {
    latency: LocalHistogram,
    age: LocalHistogram,
}

impl Latencies {
    pub(super) fn of(registered: &Registered) -> Self {
        Self { latency: registered.flow.latency.local(), age: registered.flow.age.local() }
    }

    /// Records the latency of one record, and its age if it has a timestamp.
    pub fn observe(&self, latency: Duration, age: Option<Duration>) {
        self.latency.observe(latency.as_secs_f64());
        if let Some(age) = age {
            self.age.observe(age.as_secs_f64());
        }
    }

    /// Adds what was collected to the metrics; called after a commit.
    pub fn flush(&self) {
        self.latency.flush();
        self.age.flush();
    }
}

impl Registered {
    /// Upper bounds in seconds, and the forwarded records with at most this latency.
    pub(super) fn latencies(&self) -> Vec<(f64, u64)> {
        let metric = self.flow.latency.metric();
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter().map(|it| (it.upper_bound(), it.cumulative_count()));
        buckets.chain([(f64::INFINITY, histogram.get_sample_count())]).collect()
    }

    pub(super) fn new() -> Self {
        let registry = Registry::new();
        let build = gauges(&registry, &table::BUILD);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            flow: Flow {
                records: counters(&registry, &table::RECORDS),
                kind_records: counters(&registry, &table::KIND_RECORDS),
                bytes: counters(&registry, &table::BYTES),
                latency: histogram(&registry, &table::LATENCY),
                age: histogram(&registry, &table::AGE),
            },
            transactions: Transactions {
                total: counters(&registry, &table::TRANSACTIONS),
                seconds: histogram(&registry, &table::TRANSACTION_SECONDS),
                batch_records: histogram(&registry, &table::BATCH_RECORDS),
                last_commit: gauge(&registry, &table::LAST_COMMIT),
                reduced: gauge(&registry, &table::REDUCED),
                torn: counters(&registry, &table::TORN),
            },
            state: StateMetrics {
                memory: gauges(&registry, &table::MEMORY),
                disk: gauge(&registry, &table::STATE_DISK),
                restore_seconds: histogram(&registry, &table::RESTORE_SECONDS),
                restored: counters(&registry, &table::RESTORED),
                window_configured: gauge(&registry, &table::WINDOW_CONFIGURED),
                expiry_lag: gauge(&registry, &table::EXPIRY_LAG),
                kind_seconds: gauges(&registry, &table::KIND_WINDOW_SECONDS),
                kind_ids: gauges(&registry, &table::KIND_WINDOW_IDS),
                elsewhere: counters(&registry, &table::ELSEWHERE).with_label_values::<&str>(&[]),
                evicted: counters(&registry, &table::EVICTED).with_label_values::<&str>(&[]),
                sealed: counters(&registry, &table::SEALED).with_label_values::<&str>(&[]),
                discarded: counters(&registry, &table::DISCARDED).with_label_values::<&str>(&[]),
                false_positive_rate: gauge(&registry, &table::FALSE_POSITIVE_RATE),
                false_positive_rate_promised: gauge(&registry, &table::FALSE_POSITIVE_RATE_PROMISED),
                false_drops: gauge(&registry, &table::FALSE_DROPS),
            },
            partitions: ByPartition::new(|row| gauges(&registry, row)),
            group: GroupMetrics {
                rebalances: counters(&registry, &table::REBALANCES).with_label_values::<&str>(&[]),
                offset_resets: counters(&registry, &table::OFFSET_RESETS),
                gap_offsets: counters(&registry, &table::GAP_OFFSETS).with_label_values::<&str>(&[]),
                forced: counters(&registry, &table::FORCED).with_label_values::<&str>(&[]),
                stalled: counters(&registry, &table::STALLED),
                unassigned: gauge(&registry, &table::UNASSIGNED),
                output_hanging: gauges(&registry, &table::OUTPUT_HANGING),
                lag: gauges(&registry, &table::GROUP_LAG),
                partitions: gauges(&registry, &table::PARTITIONS),
                role: gauges(&registry, &table::ROLE),
                ready: gauge(&registry, &table::READY),
                standby_journals: gauge(&registry, &table::STANDBY_JOURNALS),
                standby_lag: gauge(&registry, &table::STANDBY_LAG),
            },
            clients: ClientMetrics {
                round_trip: gauges(&registry, &table::CLIENT_ROUND_TRIP),
                throttle: gauges(&registry, &table::CLIENT_THROTTLE),
                queued: gauges(&registry, &table::CLIENT_QUEUED),
                brokers_down: gauges(&registry, &table::CLIENT_BROKERS_DOWN),
            },
            process: Process::new(gauge(&registry, &table::RESIDENT), seconds(&registry, &table::CPU)),
            registry,
        }
    }

    /// Sets the gauges from the published status; returns the published partitions.
    pub(super) fn update_from(&self, status: &Status) -> BTreeSet<u32> {
        let (workers, starts, hanging) = (status.workers(), status.log_starts(), status.hanging());
        self.group.ready.set(f64::from(u8::from(status.readiness().ready)));
        let (role, _) = status.role();
        for one in Role::ALL {
            self.group.role.with_label_values(&[one.as_str()]).set(f64::from(u8::from(*one == role)));
        }
        self.group.unassigned.set(status.unassigned() as f64);
        let standby = status.standby().unwrap_or_default();
        self.group.standby_journals.set(standby.journals as f64);
        if standby.journals == 0 || standby.lag_records.is_some() {
            self.group.standby_lag.set(standby.lag_records.unwrap_or(0) as f64);
        }
        for (topic, age) in status.output_hanging() {
            self.group.output_hanging.with_label_values(&[&topic]).set(age.as_secs_f64());
        }
        for (partition, lag) in status.group_lag() {
            self.group.lag.with_label_values(&[&partition.to_string()]).set(lag as f64);
        }
        for (client, of) in status.clients() {
            let label = [client.as_str()];
            self.clients.round_trip.with_label_values(&label).set(of.round_trip_seconds);
            self.clients.throttle.with_label_values(&label).set(of.throttle_seconds);
            self.clients.queued.with_label_values(&label).set(of.queued_records as f64);
            self.clients.brokers_down.with_label_values(&label).set(of.brokers_down as f64);
        }
        let reduced = workers.iter().filter_map(|worker| worker.reduced_records).min();
        self.transactions.reduced.set(reduced.unwrap_or(0) as f64);
        let partitions = || workers.iter().flat_map(|worker| &worker.partitions);
        for state in PartitionState::ALL {
            let count = partitions().filter(|partition| partition.state == *state).count();
            self.group.partitions.with_label_values(&[state.as_str()]).set(count as f64);
        }
        let sum = |of: fn(&WorkerStatus) -> u64| workers.iter().map(of).sum::<u64>() as f64;
        let memory = |part: MemoryPart| self.state.memory.with_label_values(&[part.as_str()]);
        memory(MemoryPart::Index).set(sum(|worker| worker.index_bytes));
        memory(MemoryPart::Slices).set(sum(|worker| worker.slices_bytes));
        memory(MemoryPart::Batch).set(sum(|worker| worker.batch_bytes));
        let worst = |of: fn(&WorkerStatus) -> f64| workers.iter().map(of).fold(0.0, f64::max);
        self.state.false_positive_rate.set(worst(|worker| worker.false_positive_rate));
        self.state.expiry_lag.set(worst(|worker| worker.expiry_lag_seconds));
        for kind in KindStatus::of_all(workers.iter().flat_map(|worker| &worker.kinds)) {
            self.state.kind_seconds.with_label_values(&[&kind.kind]).set(kind.window_seconds);
            self.state.kind_ids.with_label_values(&[&kind.kind]).set(kind.window_ids as f64);
        }
        for status in partitions() {
            let of = status.partition;
            self.partitions.set(status, starts.get(&of).copied(), hanging.get(&of).copied());
        }
        partitions().map(|status| status.partition).collect()
    }

    /// The metrics in the Prometheus text format.
    pub(super) fn text(&self) -> String {
        registered(TextEncoder::new().encode_to_string(&self.registry.gather()), "the registry")
    }
}

/// The prometheus crate rejects names and labels that are malformed or already registered. Those of the
/// table are constants, and a test registers them all, so an error is a bug in this module.
pub(super) fn registered<T>(result: prometheus::Result<T>, what: &str) -> T {
    match result {
        Ok(it) => it,
        Err(error) => panic!("metrics table: {what}: {error}"),
    }
}

fn options(row: &Row) -> Opts {
    Opts::new(row.name, row.help)
}

/// The values of the row's only label that are known in advance: their series start at 0.
fn label_values(row: &Row) -> impl Iterator<Item = &'static str> {
    row.label
        .iter()
        .filter(|_| !row.by_kind)
        .flat_map(|label| label.values.iter().copied())
        .collect::<Vec<_>>()
        .into_iter()
}

pub(super) fn counters(registry: &Registry, row: &Row) -> IntCounterVec {
    let counters = registered(IntCounterVec::new(options(row), &row.labels()), row.name);
    registered(registry.register(Box::new(counters.clone())), row.name);
    label_values(row).for_each(|value| drop(counters.with_label_values(&[value])));
    counters
}

pub(super) fn gauges(registry: &Registry, row: &Row) -> GaugeVec {
    let gauges = registered(GaugeVec::new(options(row), &row.labels()), row.name);
    registered(registry.register(Box::new(gauges.clone())), row.name);
    label_values(row).for_each(|value| drop(gauges.with_label_values(&[value])));
    gauges
}

pub(super) fn gauge(registry: &Registry, row: &Row) -> Gauge {
    gauges(registry, row).with_label_values::<&str>(&[])
}

pub(super) fn seconds(registry: &Registry, row: &Row) -> prometheus::Counter {
    let counters = registered(CounterVec::new(options(row), &row.labels()), row.name);
    registered(registry.register(Box::new(counters.clone())), row.name);
    counters.with_label_values::<&str>(&[])
}

fn histogram(registry: &Registry, row: &Row) -> Histogram {
    let MetricKind::Histogram(bounds) = row.kind else {
        panic!("metrics table: {} is not a histogram", row.name)
    };
    let options = HistogramOpts::from(options(row)).buckets(bounds.to_vec());
    let histogram = registered(Histogram::with_opts(options), row.name);
    registered(registry.register(Box::new(histogram.clone())), row.name);
    histogram
}
