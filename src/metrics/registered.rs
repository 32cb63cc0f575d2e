//! The handles of the prometheus crate, one struct a part, registered from the table.

use std::collections::BTreeSet;
use std::time::Duration;

use prometheus::local::LocalHistogram;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry,
    TextEncoder,
};

use super::labels::{MemoryPart, PartitionState};
use super::process::Process;
use super::status::WorkerStatus;
use super::table::{self, Kind, Row};

/// What passes through.
pub(super) struct Flow {
    pub(super) records: IntCounterVec,
    pub(super) bytes: IntCounterVec,
    pub(super) latency: Histogram,
}

/// The transactions around it.
pub(super) struct Transactions {
    pub(super) total: IntCounterVec,
    pub(super) seconds: Histogram,
    pub(super) batch_records: Histogram,
    pub(super) torn: IntCounterVec,
}

/// What is remembered.
pub(super) struct State {
    pub(super) memory: GaugeVec,
    pub(super) disk: Gauge,
    pub(super) restore_seconds: Histogram,
    pub(super) restored: IntCounterVec,
    lag: GaugeVec,
    window_seconds: GaugeVec,
    window_ids: GaugeVec,
    pub(super) evicted: IntCounter,
    miss_rate: GaugeVec,
    false_positive_rate: Gauge,
    pub(super) false_drops: Gauge,
}

/// The membership.
pub(super) struct Group {
    pub(super) rebalances: IntCounter,
    partitions: GaugeVec,
    ready: Gauge,
}

/// Everything, by part.
pub(super) struct Registered {
    registry: Registry,
    pub(super) flow: Flow,
    pub(super) transactions: Transactions,
    pub(super) state: State,
    pub(super) group: Group,
    pub(super) process: Process,
}

/// The gauges of one partition.
pub struct PartitionGauges {
    /// From the next offset to the end that can be read, in offsets.
    pub lag_records: Gauge,
    /// How far back identities are remembered, in seconds of stream time.
    pub window_seconds: Gauge,
    /// Identities in the window.
    pub window_ids: Gauge,
    /// Share of them that were overwritten.
    pub miss_rate: Gauge,
}

/// Latencies of one worker, collected without sharing and handed over once a batch.
pub struct Latencies(LocalHistogram);

impl Latencies {
    pub(super) fn of(histogram: &Histogram) -> Self {
        Self(histogram.local())
    }

    /// Notes one record's latency.
    pub fn observe(&self, latency: Duration) {
        self.0.observe(latency.as_secs_f64());
    }

    /// Hands over what was noted; after a commit.
    pub fn flush(&self) {
        self.0.flush();
    }

    /// Forgets what was noted since the last hand-over; after an abort.
    pub fn clear(&self) {
        self.0.clear();
    }
}

impl Registered {
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        let build = gauges(&registry, &table::BUILD);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            flow: Flow {
                records: counters(&registry, &table::RECORDS),
                bytes: counters(&registry, &table::BYTES),
                latency: histogram(&registry, &table::LATENCY),
            },
            transactions: Transactions {
                total: counters(&registry, &table::TRANSACTIONS),
                seconds: histogram(&registry, &table::TRANSACTION_SECONDS),
                batch_records: histogram(&registry, &table::BATCH_RECORDS),
                torn: counters(&registry, &table::TORN),
            },
            state: State {
                memory: gauges(&registry, &table::MEMORY),
                disk: gauge(&registry, &table::STATE_DISK),
                restore_seconds: histogram(&registry, &table::RESTORE_SECONDS),
                restored: counters(&registry, &table::RESTORED),
                lag: gauges(&registry, &table::LAG),
                window_seconds: gauges(&registry, &table::WINDOW_SECONDS),
                window_ids: gauges(&registry, &table::WINDOW_IDS),
                evicted: counters(&registry, &table::EVICTED).with_label_values::<&str>(&[]),
                miss_rate: gauges(&registry, &table::MISS_RATE),
                false_positive_rate: gauge(&registry, &table::FALSE_POSITIVE_RATE),
                false_drops: gauge(&registry, &table::FALSE_DROPS),
            },
            group: Group {
                rebalances: counters(&registry, &table::REBALANCES).with_label_values::<&str>(&[]),
                partitions: gauges(&registry, &table::PARTITIONS),
                ready: gauge(&registry, &table::READY),
            },
            process: Process::new(gauge(&registry, &table::RESIDENT), seconds(&registry, &table::CPU)),
            registry,
        }
    }

    pub(super) fn partition(&self, partition: u32) -> PartitionGauges {
        let label = partition.to_string();
        PartitionGauges {
            lag_records: self.state.lag.with_label_values(&[&label]),
            window_seconds: self.state.window_seconds.with_label_values(&[&label]),
            window_ids: self.state.window_ids.with_label_values(&[&label]),
            miss_rate: self.state.miss_rate.with_label_values(&[&label]),
        }
    }

    /// Series that are not there are as good as removed.
    pub(super) fn forget_partition(&self, partition: u32) {
        let label = partition.to_string();
        let State { lag, window_seconds, window_ids, miss_rate, .. } = &self.state;
        for gauges in [lag, window_seconds, window_ids, miss_rate] {
            drop(gauges.remove_label_values(&[&label]));
        }
    }

    /// Sets the gauges that follow from what the workers published; returns the partitions seen.
    pub(super) fn set_from(&self, workers: &[WorkerStatus], ready: bool) -> BTreeSet<u32> {
        self.group.ready.set(f64::from(u8::from(ready)));
        let partitions = || workers.iter().flat_map(|worker| &worker.partitions);
        for state in PartitionState::ALL {
            let count = partitions().filter(|partition| partition.state == *state).count();
            self.group.partitions.with_label_values(&[state.as_str()]).set(count as f64);
        }
        let sum = |of: fn(&WorkerStatus) -> u64| workers.iter().map(of).sum::<u64>() as f64;
        let memory = |part: MemoryPart| self.state.memory.with_label_values(&[part.as_str()]);
        memory(MemoryPart::Index).set(sum(|worker| worker.index_bytes));
        memory(MemoryPart::Bloom).set(sum(|worker| worker.bloom_bytes));
        memory(MemoryPart::Batch).set(sum(|worker| worker.batch_bytes));
        let worst = partitions().map(|status| status.false_positive_rate).fold(0.0, f64::max);
        self.state.false_positive_rate.set(worst);
        for status in partitions() {
            let gauges = self.partition(status.partition);
            gauges.window_seconds.set(status.window_seconds);
            gauges.window_ids.set(status.window_ids as f64);
            gauges.miss_rate.set(status.window.miss_rate);
            if let Some(lag) = status.lag_records {
                gauges.lag_records.set(lag as f64);
            }
        }
        partitions().map(|status| status.partition).collect()
    }

    /// The page for Prometheus.
    pub(super) fn text(&self) -> String {
        sound(TextEncoder::new().encode_to_string(&self.registry.gather()), "the registry")
    }
}

/// The prometheus crate refuses names and labels that are malformed or taken. Those of the table
/// are constants, and a test registers them all, so a refusal is a mistake in this module.
fn sound<T>(result: prometheus::Result<T>, what: &str) -> T {
    match result {
        Ok(it) => it,
        Err(error) => panic!("metrics table: {what}: {error}"),
    }
}

fn options(row: &Row) -> Opts {
    Opts::new(row.name, row.help)
}

fn label_names(row: &Row) -> Vec<&'static str> {
    row.label.iter().map(|label| label.name).collect()
}

/// The values of a row's label that are known beforehand, so that their series start at 0.
fn label_values(row: &Row) -> impl Iterator<Item = &'static str> {
    row.label.iter().flat_map(|label| label.values.iter().copied()).collect::<Vec<_>>().into_iter()
}

fn counters(registry: &Registry, row: &Row) -> IntCounterVec {
    let counters = sound(IntCounterVec::new(options(row), &label_names(row)), row.name);
    sound(registry.register(Box::new(counters.clone())), row.name);
    label_values(row).for_each(|value| drop(counters.with_label_values(&[value])));
    counters
}

fn gauges(registry: &Registry, row: &Row) -> GaugeVec {
    let gauges = sound(GaugeVec::new(options(row), &label_names(row)), row.name);
    sound(registry.register(Box::new(gauges.clone())), row.name);
    label_values(row).for_each(|value| drop(gauges.with_label_values(&[value])));
    gauges
}

fn gauge(registry: &Registry, row: &Row) -> Gauge {
    gauges(registry, row).with_label_values::<&str>(&[])
}

fn seconds(registry: &Registry, row: &Row) -> prometheus::Counter {
    let counters = sound(CounterVec::new(options(row), &label_names(row)), row.name);
    sound(registry.register(Box::new(counters.clone())), row.name);
    counters.with_label_values::<&str>(&[])
}

fn histogram(registry: &Registry, row: &Row) -> Histogram {
    let Kind::Histogram(bounds) = row.kind else { panic!("metrics table: {} is no histogram", row.name) };
    let options = HistogramOpts::from(options(row)).buckets(bounds.to_vec());
    let histogram = sound(Histogram::with_opts(options), row.name);
    sound(registry.register(Box::new(histogram.clone())), row.name);
    histogram
}
