//! A program that writes transactions, and commits them, aborts them or dies in the middle of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use dedupd::clock::monotonic;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer};

use super::programs::Counts;
use super::sources::{Line, Source};
use super::support::{Kafka, send, wait_until};

/// Time for one request. Brokers are down for up to 16 seconds, and then start.
const REQUEST: Duration = Duration::from_secs(20);
/// Time until the broker has aborted the transaction of a dead program: the timeout, the longest interval between two
/// checks, and an outage.
const EXPIRED_WITHIN: Duration = Duration::from_secs(45);
/// Time to end all transactions when the brokers are running.
const END_WITHIN: Duration = Duration::from_mins(2);
/// Bytes from which a record is in a batch of its own: with others it could exceed the limit of the topic.
const ALONE_FROM: usize = 500_000;
const STEP: Duration = Duration::from_millis(50);

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Commit,
    Abort,
    /// The program is replaced by another one with the same transactional id.
    Fenced,
    /// The program dies, and the broker aborts the transaction after its timeout.
    Expired,
}

/// What a kind of program does, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Percentages of commits, aborts and replacements. The other transactions expire.
    pub percentages: [u8; 3],
    /// `transaction.timeout.ms`.
    pub timeout: u64,
    /// The longest time between the last record and the end of a transaction; half of them are ten times shorter.
    pub open: u64,
    /// The longest pause between two transactions.
    pub pause: u64,
}

impl Habits {
    /// The end of the next transaction, when this number has ended. The first four are one of each kind.
    fn ending(&self, ended: usize, random: &mut fastrand::Rng) -> Ending {
        let [commits, aborts, replacements] = self.percentages;
        let first = [0, commits, commits + aborts, commits + aborts + replacements];
        match first.get(ended).copied().unwrap_or_else(|| random.u8(..100)) {
            drawn if drawn < commits => Ending::Commit,
            drawn if drawn < commits + aborts => Ending::Abort,
            drawn if drawn < commits + aborts + replacements => Ending::Fenced,
            _ => Ending::Expired,
        }
    }
}

pub struct Program<'a> {
    pub nodes: &'a [Kafka],
    pub config: ClientConfig,
    pub id: String,
    pub source: Box<dyn Source>,
    /// Number of transactions whose end is known.
    pub ended: usize,
    pub random: fastrand::Rng,
    pub stop: Arc<AtomicBool>,
    pub counts: Arc<Counts>,
}

impl Program<'_> {
    /// Writes transactions until it is stopped, then ends all of them.
    pub fn run(&mut self) {
        let habits = self.source.habits();
        let mut producer = None;
        while !self.is_stopped() {
            // After an error the outcome of the transaction is unknown, and the next producer ends it.
            producer = match producer.take().map_or_else(|| self.start(), Ok) {
                Ok(running) => self.transaction(running, &habits).unwrap_or_default(),
                Err(_) => None,
            };
            let pause = self.random.u64(0..=habits.pause);
            self.pause(pause);
        }
        drop(producer);
        wait_until(&format!("the end of the transactions of {}", self.id), END_WITHIN, || self.sweep().ok());
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits, but not longer than until it is stopped.
    fn pause(&self, ms: u64) {
        let start = monotonic();
        while !self.is_stopped() && start.elapsed() < Duration::from_millis(ms) {
            sleep(STEP.min(Duration::from_millis(ms)));
        }
    }

    /// A producer that has ended the transaction of its predecessor.
    fn start(&self) -> Result<BaseProducer, KafkaError> {
        let mut config = self.config.clone();
        config.set("transactional.id", &self.id).set("linger.ms", "5");
        config.set("compression.type", "zstd").set("message.max.bytes", "100000000");
        config.set("transaction.timeout.ms", self.source.habits().timeout.to_string());
        // A program that dies does not wait for its records.
        config.set("message.timeout.ms", self.source.habits().timeout.to_string());
        let producer: BaseProducer = config.create()?;
        producer.init_transactions(REQUEST)?;
        Ok(producer)
    }

    /// Writes one transaction. Returns the producer that writes the next one.
    fn transaction(
        &mut self,
        producer: BaseProducer,
        habits: &Habits,
    ) -> Result<Option<BaseProducer>, KafkaError> {
        let ending = habits.ending(self.ended, &mut self.random);
        let lines = self.source.lines(&mut self.random);
        producer.begin_transaction()?;
        write_lines(&producer, &lines)?;
        let longest = if self.random.bool() { habits.open } else { habits.open / 10 };
        let open = self.random.u64(0..=longest);
        self.pause(open);
        let next = match ending {
            Ending::Commit => {
                producer.commit_transaction(REQUEST)?;
                Some(producer)
            }
            Ending::Abort => {
                producer.abort_transaction(REQUEST)?;
                Some(producer)
            }
            Ending::Fenced => {
                let next = self.start()?;
                assert!(
                    producer.commit_transaction(REQUEST).is_err(),
                    "{} was replaced and commits",
                    self.id
                );
                Some(next)
            }
            Ending::Expired => {
                drop(producer);
                if !self.has_expired() {
                    return Ok(None);
                }
                None
            }
        };
        self.ended += 1;
        self.counts.add(ending, lines.len());
        self.source.ended(lines, ending);
        Ok(next)
    }

    /// Waits until the broker has aborted the transaction of the dead program, but not longer than until it is stopped.
    fn has_expired(&self) -> bool {
        let (start, mut was_open) = (monotonic(), false);
        while !self.is_stopped() && start.elapsed() < EXPIRED_WITHIN {
            let states = self.nodes.iter().filter_map(|node| node.transaction_state(&self.id));
            let states: Vec<String> = states.collect();
            was_open |= states.iter().any(|state| state == "Ongoing");
            if was_open && states.iter().any(|state| state == "CompleteAbort") {
                return true;
            }
            sleep(STEP);
        }
        false
    }

    /// Aborts a transaction with a record in each partition. Its markers also end what earlier transactions left open there,
    /// if the broker omitted their markers.
    fn sweep(&self) -> Result<(), KafkaError> {
        let producer = self.start()?;
        producer.begin_transaction()?;
        write_lines(&producer, &self.source.everywhere())?;
        producer.abort_transaction(REQUEST)
    }
}

fn write_lines(producer: &BaseProducer, lines: &[Line]) -> Result<(), KafkaError> {
    for (topic, draft) in lines {
        let is_large = draft.bytes() > ALONE_FROM;
        if is_large {
            producer.flush(REQUEST)?;
        }
        send::queue(producer, topic, std::slice::from_ref(draft))?;
        if is_large {
            producer.flush(REQUEST)?;
        }
    }
    producer.flush(REQUEST)
}
