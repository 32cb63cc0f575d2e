//! The committed offsets of a group. They are read without waiting for pending transactions, which may be stuck.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::support::{Isolation, Kafka, Pipe};

const TIMEOUT: Duration = Duration::from_secs(2);

/// One partition of a topic: the committed offset, and the end of the log.
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

/// Requests the offsets of all partitions of a topic.
pub struct OffsetClient {
    consumer: BaseConsumer,
    topic: String,
    partitions: i32,
}

impl OffsetClient {
    /// The progress of the instances.
    pub fn of(pipe: &Pipe<'_>, partitions: usize) -> Self {
        Self::of_group(pipe.kafka, &pipe.group(), &pipe.raw, partitions)
    }

    /// The progress of a group in one of its topics.
    pub fn of_group(kafka: &Kafka, group: &str, topic: &str, partitions: usize) -> Self {
        let mut config = kafka.client_config();
        config.set("group.id", group).set("enable.auto.commit", "false");
        config.set("isolation.level", Isolation::Uncommitted.level());
        let consumer = config.create().expect("a consumer");
        Self { consumer, topic: topic.to_owned(), partitions: i32::try_from(partitions).unwrap() }
    }

    /// The committed offset of each partition, `None` while no broker responds.
    pub fn committed(&self) -> Option<Vec<i64>> {
        let mut partitions = TopicPartitionList::new();
        for partition in 0..self.partitions {
            partitions.add_partition(&self.topic, partition);
        }
        let found = self.consumer.committed_offsets(partitions, TIMEOUT).ok()?;
        let offset = |partition| match found.find_partition(&self.topic, partition)?.offset() {
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
            let (_, end) = self.consumer.fetch_watermarks(&self.topic, partition, TIMEOUT).ok()?;
            Some(PartitionProgress { partition, committed, end })
        };
        (0..).zip(committed).map(progress).collect()
    }
}

/// The sum of the committed offsets.
pub fn committed(clients: &[OffsetClient]) -> Option<u64> {
    let sums = clients.iter().map(|client| Some(client.committed()?.iter().sum::<i64>().unsigned_abs()));
    sums.sum()
}

/// Number of offsets that are not committed.
pub fn unread(clients: &[OffsetClient]) -> Option<u64> {
    let of = |progress: &Vec<PartitionProgress>| progress.iter().map(PartitionProgress::unread).sum::<i64>();
    clients
        .iter()
        .map(|client| client.partition_progress().map(|progress| of(&progress).unsigned_abs()))
        .sum()
}

/// Requests a number continuously on its own thread.
pub struct Progress {
    number: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// `request` returns `None` while no broker responds.
    pub fn start(request: impl Fn() -> Option<u64> + Send + 'static) -> Self {
        let (number, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (out, stopped) = (Arc::clone(&number), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(number) = request() {
                    out.store(number, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        Self { number, stop, thread: Some(thread) }
    }

    /// The result of the last request.
    pub fn last(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
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
