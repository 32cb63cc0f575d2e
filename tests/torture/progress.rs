//! How far the group has committed. Read without waiting for pending transactions, so a stuck one is no obstacle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};

use super::support::{Isolation, Pipe};

const ASK: Duration = Duration::from_secs(2);

/// One partition of raw: the committed offset, and the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub partition: i32,
    pub committed: i64,
    pub end: i64,
}

impl Standing {
    pub fn unread(&self) -> i64 {
        self.end - self.committed
    }
}

/// Asks for all partitions of raw.
pub struct Asker {
    consumer: BaseConsumer,
    raw: String,
    partitions: i32,
}

impl Asker {
    pub fn of(pipe: &Pipe<'_>, partitions: usize) -> Self {
        let mut config = pipe.kafka.client_config();
        config.set("group.id", pipe.group()).set("enable.auto.commit", "false");
        config.set("isolation.level", Isolation::Uncommitted.level());
        let consumer = config.create().expect("a consumer");
        Self { consumer, raw: pipe.raw.clone(), partitions: i32::try_from(partitions).unwrap() }
    }

    /// The committed offset of each partition; `None` while no broker answers.
    fn committed(&self) -> Option<Vec<i64>> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..self.partitions {
            asked.add_partition(&self.raw, partition);
        }
        let found = self.consumer.committed_offsets(asked, ASK).ok()?;
        let offset = |partition| match found.find_partition(&self.raw, partition)?.offset() {
            Offset::Offset(offset) => Some(offset),
            Offset::Invalid => Some(0),
            _ => None,
        };
        (0..self.partitions).map(offset).collect()
    }

    /// How every partition stands; `None` while no broker answers.
    pub fn standings(&self) -> Option<Vec<Standing>> {
        let committed = self.committed()?;
        let standing = |(partition, committed)| {
            let (_, end) = self.consumer.fetch_watermarks(&self.raw, partition, ASK).ok()?;
            Some(Standing { partition, committed, end })
        };
        (0..).zip(committed).map(standing).collect()
    }
}

/// Asks all the time, on a thread of its own.
pub struct Progress {
    committed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub fn start(asker: Asker) -> Self {
        let (committed, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (out, told) = (Arc::clone(&committed), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                if let Some(offsets) = asker.committed() {
                    out.store(offsets.iter().sum::<i64>().unsigned_abs(), Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        Self { committed, stop, thread: Some(thread) }
    }

    /// Records committed when last asked.
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
