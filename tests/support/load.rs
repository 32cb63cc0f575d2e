//! A producer that writes records with repeated ids until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

use super::{Scope, wait_until};

/// The share of records that repeat an earlier id, and the maximum distance in ids of a partition.
const REPEATS: f64 = 0.3;
const DISTANCE_MAX: usize = 5_000;

/// The timestamps of a load that advances them with each record, whatever time that takes. Other programs read it.
#[derive(Clone, Debug)]
pub struct StreamClock {
    now_ms: Arc<AtomicI64>,
    step_ms: i64,
}

impl StreamClock {
    /// Starts at this time, epoch milliseconds, and advances by `step_ms` for each record.
    pub fn new(start_ms: i64, step_ms: i64) -> Self {
        Self { now_ms: Arc::new(AtomicI64::new(start_ms)), step_ms }
    }

    /// The latest timestamp.
    pub fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn advance(&self) -> i64 {
        self.now_ms.fetch_add(self.step_ms, Ordering::Relaxed) + self.step_ms
    }

    /// The longest time between a record and the first one with its id, in a load of this many places.
    pub fn longest_repeat_ms(&self, places: usize) -> i64 {
        // Seven of ten records have a further id (REPEATS).
        i64::try_from(DISTANCE_MAX * places * 10 / 7).unwrap() * self.step_ms
    }
}

/// Where a load writes.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    pub topics: &'a [String],
    /// Of each topic.
    pub partitions: usize,
    /// Copies of an id are in its partition, or in random ones.
    pub scope: Scope,
    /// The share of records without an id.
    pub missing: f64,
    /// The timestamps; `None`: those of the wall clock.
    pub clock: Option<StreamClock>,
}

/// A running producer.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    held: AtomicBool,
    sent: AtomicU64,
}

impl Load {
    pub(super) fn start(config: &ClientConfig, topic: &str, partitions: usize, rate: u64) -> Self {
        // Successive loads write different ids.
        static LOADS: AtomicU64 = AtomicU64::new(7);
        let topics = [topic.to_owned()];
        let target =
            Target { topics: &topics, partitions, scope: Scope::Partition, missing: 0.0, clock: None };
        Self::seeded(config, target, rate, LOADS.fetch_add(1, Ordering::Relaxed))
    }

    /// Produces about `rate` records per second, with the ids of this seed.
    pub fn seeded(config: &ClientConfig, target: Target<'_>, rate: u64, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let mut writer = Writer {
            producer: config.create().unwrap(),
            topics: target.topics.to_vec(),
            partitions: target.partitions,
            missing: target.missing,
            clock: target.clock,
            random: fastrand::Rng::with_seed(seed),
            ids: match target.scope {
                Scope::Topic => vec![Vec::new()],
                Scope::Partition => vec![Vec::new(); target.partitions * target.topics.len()],
            },
        };
        let writer_shared = Arc::clone(&shared);
        let thread = std::thread::spawn(move || writer.run(rate, &writer_shared));
        Load { shared, thread: Some(thread) }
    }

    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Pauses or resumes the load.
    pub fn hold(&self, held: bool) {
        self.shared.held.store(held, Ordering::Relaxed);
    }

    /// Waits until this number of further records is sent.
    pub fn more(&self, records: u64) {
        let target = self.sent() + records;
        wait_until("the load to send more records", Duration::from_mins(1), || {
            (self.sent() >= target).then_some(())
        });
    }

    /// Stops and waits until everything is acknowledged.
    pub fn finish(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().expect("the load");
        self.sent()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

struct Writer {
    /// Its own thread takes the delivery reports: a poll that waits spins in its last millisecond.
    producer: ThreadedProducer<DefaultProducerContext>,
    topics: Vec<String>,
    random: fastrand::Rng,
    partitions: usize,
    missing: f64,
    clock: Option<StreamClock>,
    /// The ids of each partition, or those of all.
    ids: Vec<Vec<String>>,
}

impl Writer {
    fn run(&mut self, rate: u64, shared: &Shared) {
        let (mut last, mut due) = (monotonic(), 0.0);
        while !shared.stop.load(Ordering::Acquire) {
            let now = monotonic();
            if !shared.held.load(Ordering::Relaxed) {
                due += (now - last).as_secs_f64() * rate as f64;
            }
            last = now;
            while due >= 1.0 && !shared.stop.load(Ordering::Acquire) {
                if self.is_ahead() {
                    due = 0.0;
                    break;
                }
                self.write(shared.sent.load(Ordering::Relaxed));
                shared.sent.fetch_add(1, Ordering::Relaxed);
                due -= 1.0;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.producer.flush(Duration::from_mins(2)).expect("all of the load is acknowledged");
    }

    /// Whether the stream has to wait for its slowest partition, to which all records that are not acknowledged may belong. So a record is late by at most
    /// the time of this number in each partition, which is less than [`StreamClock::longest_repeat_ms`]. One that is late by more than the window may be
    /// forwarded although a copy is in clean.
    fn is_ahead(&self) -> bool {
        self.clock.is_some() && usize::try_from(self.producer.in_flight_count()).unwrap() >= DISTANCE_MAX
    }

    fn write(&mut self, number: u64) {
        let places = self.partitions * self.topics.len();
        let place = self.random.usize(..places);
        let lists = self.ids.len();
        let distance = DISTANCE_MAX * places / lists;
        let known = &mut self.ids[place % lists];
        let id = if !known.is_empty() && self.random.f64() < REPEATS {
            known[known.len() - 1 - self.random.usize(..known.len().min(distance))].clone()
        } else {
            known.push(format!("{:032x}", self.random.u128(..)));
            known[known.len() - 1].clone()
        };
        let is_missing = self.missing > 0.0 && self.random.f64() < self.missing;
        let name = if is_missing { "no id" } else { "id" };
        let value = format!("{{\"{name}\":\"{id}\",\"n\":{number}}}");
        let headers = OwnedHeaders::new().insert(Header { key: "n", value: Some(&number.to_string()) });
        let mut record = BaseRecord::to(&self.topics[place / self.partitions])
            .partition(i32::try_from(place % self.partitions).unwrap())
            .key(&id[..4])
            .payload(&value)
            .headers(headers);
        record.timestamp = self.clock.as_ref().map(StreamClock::advance);
        while let Err((_, returned)) = self.producer.send(record) {
            std::thread::sleep(Duration::from_millis(1));
            record = returned;
        }
    }
}
