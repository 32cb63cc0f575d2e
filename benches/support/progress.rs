//! Throughput of a group, measured by its committed offsets.

use std::time::{Duration, Instant};

use dedupd::clock::monotonic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::harness::Kafka;
use super::peak_memory;
use super::spent::cpu_time;

const CALL_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A reader of the committed offsets of a group. It does not wait for open transactions.
pub struct GroupOffsets {
    client: BaseConsumer,
    partitions: TopicPartitionList,
}

impl GroupOffsets {
    pub fn new(kafka: &Kafka, group: &str, topic: &str, partitions: i32) -> Self {
        let mut config = kafka.client_config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_uncommitted");
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        Self { client: config.create().expect("a consumer"), partitions: list }
    }

    /// Number of committed records over all partitions. Only valid for logs that start at 0 and have no gaps.
    pub fn committed(&self) -> u64 {
        let found = self.client.committed_offsets(self.partitions.clone(), CALL_LIMIT).unwrap_or_default();
        let offsets = found.elements().into_iter().map(|element| match element.offset() {
            Offset::Offset(offset) => u64::try_from(offset).unwrap_or(0),
            _ => 0,
        });
        offsets.sum()
    }
}

/// Results of one run, from the first commit to the last.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub records_per_s: f64,
    /// CPU time of the process per record, microseconds.
    pub cpu_us: f64,
    /// CPU time of the broker per record, microseconds; 0 where it was not measured.
    pub broker_us: f64,
    pub peak_mib: f64,
}

impl Run {
    /// Several runs, each of this many records, as one. The peak is that of the last.
    pub fn together(runs: &[(u64, Self)]) -> Self {
        let sum = |value: fn(&Self) -> f64| {
            runs.iter().map(|(records, run)| *records as f64 * value(run)).sum::<f64>()
        };
        let records = sum(|_| 1.0);
        Self {
            records_per_s: records / sum(|run| 1.0 / run.records_per_s),
            cpu_us: sum(|run| run.cpu_us) / records,
            broker_us: sum(|run| run.broker_us) / records,
            peak_mib: runs.last().expect("a run").1.peak_mib,
        }
    }
}

/// What a process and the broker have used when this number of records was committed.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub committed: u64,
    at: Instant,
    cpu: Duration,
    broker_cpu: Duration,
    peak_mib: f64,
}

impl Point {
    /// What happened since an earlier point.
    pub fn since(&self, before: &Self) -> Run {
        let records = (self.committed - before.committed) as f64;
        Run {
            records_per_s: records / (self.at - before.at).as_secs_f64(),
            cpu_us: (self.cpu - before.cpu).as_secs_f64() * 1e6 / records,
            broker_us: (self.broker_cpu - before.broker_cpu).as_secs_f64() * 1e6 / records,
            peak_mib: self.peak_mib,
        }
    }
}

/// Waits until the group of process `pid` has committed this many records.
pub fn wait_for(
    offsets: &GroupOffsets,
    (pid, broker): (u32, Option<u32>),
    least: u64,
    limit: Duration,
) -> Point {
    let deadline = monotonic() + limit;
    loop {
        let committed = offsets.committed();
        if committed >= least {
            let (cpu, broker_cpu) = (cpu_time(pid), broker.map(cpu_time).unwrap_or_default());
            return Point { committed, at: monotonic(), cpu, broker_cpu, peak_mib: peak_memory(pid) };
        }
        let alive = std::path::Path::new("/proc").join(pid.to_string()).exists();
        assert!(alive && monotonic() < deadline, "{committed} of {least} records after {limit:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Measures process `pid` until its group has committed `total` records. The time before the first commit
/// (starting, joining) is not part of the rate.
pub fn follow(offsets: &GroupOffsets, pid: u32, total: u64, limit: Duration) -> Run {
    follow_beside(offsets, (pid, None), total, limit)
}

/// The same, also for the broker.
pub fn follow_beside(offsets: &GroupOffsets, pids: (u32, Option<u32>), total: u64, limit: Duration) -> Run {
    let first = wait_for(offsets, pids, 1, limit);
    let last = wait_for(offsets, pids, total, limit);
    assert_eq!(last.committed, total, "the committed offsets exceed the number of records");
    last.since(&first)
}
