//! How fast a group gets through a topic, seen from outside: by its committed offsets.

use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::harness::Kafka;
use super::peak_memory;
use super::spent::cpu_time;

const CALL_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// The committed offsets of a group, read without waiting for open transactions.
pub struct Watch {
    client: BaseConsumer,
    asked: TopicPartitionList,
}

impl Watch {
    pub fn new(kafka: &Kafka, group: &str, topic: &str, partitions: i32) -> Self {
        let mut config = kafka.client_config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_uncommitted");
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(topic, 0, partitions - 1);
        Self { client: config.create().expect("a consumer"), asked }
    }

    /// Records committed, over all partitions. Only for logs that begin at 0 and have no gaps.
    pub fn committed(&self) -> u64 {
        let found = self.client.committed_offsets(self.asked.clone(), CALL_LIMIT).unwrap_or_default();
        let offsets = found.elements().into_iter().map(|element| match element.offset() {
            Offset::Offset(offset) => u64::try_from(offset).unwrap_or(0),
            _ => 0,
        });
        offsets.sum()
    }
}

/// One run, from the first commit to the last.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub records_per_s: f64,
    pub cpu_us: f64,
    pub peak_mib: f64,
}

/// Follows process `pid` until its group has committed `total` records. What comes before the first commit
/// (starting, joining) is not part of the rate.
pub fn follow(watch: &Watch, pid: u32, total: u64, limit: Duration) -> Run {
    let started = monotonic();
    let look = |least: u64| {
        loop {
            let committed = watch.committed();
            if committed >= least {
                return (committed, monotonic(), cpu_time(pid));
            }
            let alive = std::path::Path::new("/proc").join(pid.to_string()).exists();
            assert!(alive && started.elapsed() < limit, "{committed} of {total} records after {limit:?}");
            std::thread::sleep(LOOK);
        }
    };
    let (first, began, cpu_before) = look(1);
    let (last, ended, cpu_after) = look(total);
    assert_eq!(last, total, "more was committed than there is");
    let records = (last - first) as f64;
    Run {
        records_per_s: records / (ended - began).as_secs_f64(),
        cpu_us: (cpu_after - cpu_before).as_secs_f64() * 1e6 / records,
        peak_mib: peak_memory(pid),
    }
}
