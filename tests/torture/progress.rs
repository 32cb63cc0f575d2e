//! The committed offsets of the group. They are read without waiting for pending transactions, which may be stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::support::{Isolation, Pipe};

const TIMEOUT: Duration = Duration::from_secs(2);

/// One partition of raw: the committed offset, and the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionProgress {
    pub partition: i32,
    pub committed: i64,
    pub end: i64,
}

impl PartitionProgress {
    pub fn unread(&self) -> i64 {
        self.end - self.committed
    }
}

/// Requests the offsets of all partitions of raw.
pub struct OffsetClient {
    consumer: BaseConsumer,
    raw: String,
    partitions: i32,
}

impl OffsetClient {
    pub fn of(pipe: &Pipe<'_>, partitions: usize) -> Self {
        let mut config = pipe.kafka.client_config();
        config.set("group.id", pipe.group()).set("enable.auto.commit", "false");
        config.set("isolation.level", Isolation::Uncommitted.level());
        let consumer = config.create().expect("a consumer");
        Self { consumer, raw: pipe.raw.clone(), partitions: i32::try_from(partitions).unwrap() }
    }

    /// The committed offset of each partition, `None` while no broker responds.
    fn committed(&self) -> Option<Vec<i64>> {
        let mut partitions = TopicPartitionList::new();
        for partition in 0..self.partitions {
            partitions.add_partition(&self.raw, partition);
        }
        let found = self.consumer.committed_offsets(partitions, TIMEOUT).ok()?;
        let offset = |partition| match found.find_partition(&self.raw, partition)?.offset() {
            Offset::Offset(offset) => Some(offset),
            Offset::Invalid => Some(0),
            _ => None,
        };
        (0..self.partitions).map(offset).collect()
    }

    /// The progress of each partition, `None` while no broker responds.
    pub fn partition_progress(&self) -> Option<Vec<PartitionProgress>> {
        let committed = self.committed()?;
        let progress = |(partition, committed)| {
            let (_, end) = self.consumer.fetch_watermarks(&self.raw, partition, TIMEOUT).ok()?;
            Some(PartitionProgress { partition, committed, end })
        };
        (0..).zip(committed).map(progress).collect()
    }
}

/// Requests the offsets continuously on its own thread.
pub struct Progress {
    committed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub fn start(client: OffsetClient) -> Self {
        let (committed, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (out, stopped) = (Arc::clone(&committed), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(offsets) = client.committed() {
                    out.store(offsets.iter().sum::<i64>().unsigned_abs(), Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        Self { committed, stop, thread: Some(thread) }
    }

    /// The sum of the committed offsets at the last request.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok(); // its panic has been printed
        }
    }
}
