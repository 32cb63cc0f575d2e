//! Load with realistic duplicates.
//!
//! Planned duplicates are retries of an application, soon or late. With `cut_acks` there are also real
//! duplicates: a producer that received no response retries a batch, and the log holds it twice.

mod error;
mod events;
mod frame;
mod proxy;
mod topic;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

pub use error::GenerateError;
pub use events::{Event, EventShape, Generator, REPEATABLE, Repeat};
use proxy::Proxy;
use topic::Topic;
use writer::Writer;

/// Time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum wait until the next record is due, so that a stop takes effect.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// Minimum wait; the client waits in whole milliseconds.
const MIN_WAIT: Duration = Duration::from_millis(2);

/// What to write and where. No `Debug`: the properties hold secrets.
#[derive(Clone)]
pub struct Options {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties.
    pub properties: Vec<(String, String)>,
    /// Topic to write.
    pub topic: String,
    /// Create the topic with this number of partitions if it does not exist.
    pub partitions: Option<u32>,
    /// The properties of the events.
    pub shape: EventShape,
    /// Number of records, including repeats; `None` is until stopped.
    pub records: Option<u64>,
    /// Records per second; `None` is without limit.
    pub rate: Option<u32>,
    /// Drop some responses of the broker, so that a producer without idempotence retries. Only for plaintext
    /// brokers on the loopback interface.
    pub cut_acks: bool,
}

impl Options {
    /// The configuration of the clients, without what only the producer has. Fails if [`Options::cut_acks`] does not
    /// work with the configured protocol.
    pub fn client_config(&self) -> Result<ClientConfig, GenerateError> {
        let protocol = self.properties.iter().find(|(name, _)| name == "security.protocol");
        if let Some((_, protocol)) = protocol
            && self.cut_acks
            && !protocol.to_ascii_lowercase().ends_with("plaintext")
        {
            return Err(GenerateError::Encrypted { protocol: protocol.clone() });
        }
        let mut config = ClientConfig::new();
        config.set("client.id", "dedupd.generate").set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.bootstrap_servers).set("allow.auto.create.topics", "false");
        Ok(config)
    }
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Records given to the client.
    pub sent: u64,
    /// Records acknowledged by the broker.
    pub delivered: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Acknowledged records, each counted once.
    pub records: u64,
    /// Of these, planned repeats of an earlier id.
    pub planned_repeats: u64,
    /// Additional records in the log, from retried batches; correct if there is no other producer.
    pub real_repeats: u64,
    /// Responses dropped by [`Options::cut_acks`].
    pub cuts: u64,
    /// Bytes of the values, without real repeats.
    pub bytes: u64,
    /// Duration of the run.
    pub elapsed: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{} records in {seconds:.1} s ({:.0} per second), {} of them planned duplicates",
            self.records,
            self.records as f64 / seconds.max(0.001),
            self.planned_repeats
        )?;
        if self.cuts > 0 {
            write!(
                f,
                "; {} more duplicates from {} dropped responses of the broker",
                self.real_repeats, self.cuts
            )?;
        }
        Ok(())
    }
}

/// Writes until all records are sent or `stop` is set, then waits until all of them are acknowledged.
/// `progress` is called about five times per second.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, GenerateError> {
    let direct = options.client_config()?;
    let topic = Topic::new(&direct, &options.bootstrap_servers, &options.topic)?;
    let partitions = topic.ensure(options.partitions)?;
    let length_before = topic.length(partitions)?;
    let proxy = if options.cut_acks { Some(start_proxy(options, &topic)?) } else { None };
    let writer = Writer::new(&direct, proxy.as_ref(), &options.topic)?;
    let mut load =
        Load { options, writer, started: now(), reported: Duration::ZERO, sent: 0, planned: 0, bytes: 0 };
    let given = load.write(stop, &mut progress);
    // Also after a failure, so that it is known how many records are written.
    let drained = load.writer.drain(|writer| progress(load.progress(writer)));
    let records = load.writer.delivered();
    given.and(drained).map_err(|why| {
        let wanted = options.records.unwrap_or(load.sent);
        let failed = wanted.saturating_sub(records);
        GenerateError::Refused { topic: options.topic.clone(), failed, records: wanted, why }
    })?;
    progress(load.progress(&load.writer));
    let elapsed = load.started.elapsed();
    let grown = topic.length(partitions)?.saturating_sub(length_before);
    Ok(Summary {
        records,
        planned_repeats: load.planned,
        real_repeats: grown.saturating_sub(records),
        cuts: proxy.as_ref().map_or(0, Proxy::cuts),
        bytes: load.bytes,
        elapsed,
    })
}

/// Starts the proxy in front of all brokers. Fails if one of them is not on the loopback interface.
fn start_proxy(options: &Options, topic: &Topic<'_>) -> Result<Proxy, GenerateError> {
    let brokers = topic.brokers()?;
    let is_local = |host: &str| {
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_ipv4() && ip.is_loopback())
    };
    match brokers.iter().find(|(host, _)| !is_local(host)) {
        Some((host, _)) => Err(GenerateError::NotLocal { host: host.clone() }),
        None => Proxy::start(&brokers, options.shape.seed).map_err(GenerateError::Proxy),
    }
}

struct Load<'a> {
    options: &'a Options,
    writer: Writer<'a>,
    started: Instant,
    reported: Duration,
    /// Number of records given to the client, with one that it does not accept.
    sent: u64,
    planned: u64,
    bytes: u64,
}

impl Load<'_> {
    /// Gives all records to the client. The error is why one was not written.
    fn write(&mut self, stop: &AtomicBool, progress: &mut impl FnMut(Progress)) -> Result<(), KafkaError> {
        let mut events = Generator::new(self.options.shape);
        while self.options.records.is_none_or(|all| self.sent < all) && !stop.load(Ordering::Relaxed) {
            // Reading the clock for each record would cost more than generating the record.
            let reads_clock = self.options.rate.is_some() || self.sent.is_multiple_of(64);
            let elapsed = if reads_clock { self.started.elapsed() } else { self.reported };
            if reads_clock {
                self.writer.poll(Duration::ZERO)?;
            }
            if elapsed.saturating_sub(self.reported) > PROGRESS_INTERVAL {
                self.reported = elapsed;
                progress(self.progress(&self.writer));
            }
            let early = self.due(self.sent).saturating_sub(elapsed);
            if !early.is_zero() {
                // A wait below a millisecond would not wait at all; the records due by then are sent together.
                self.writer.poll(early.clamp(MIN_WAIT, MAX_WAIT))?;
                continue;
            }
            let event = events.next_at(wall_ms());
            self.planned += u64::from(event.repeat.is_some());
            self.bytes += event.value.len() as u64;
            self.sent += 1;
            self.writer.send(&event)?;
        }
        Ok(())
    }

    /// When record number `sent` is due, as time since the start.
    fn due(&self, sent: u64) -> Duration {
        let rate = self.options.rate.map(|rate| f64::from(rate.max(1)));
        rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(sent as f64 / rate))
    }

    fn progress(&self, writer: &Writer<'_>) -> Progress {
        Progress { sent: self.sent, delivered: writer.delivered(), elapsed: self.started.elapsed() }
    }
}

#[expect(clippy::disallowed_methods, reason = "the rate is measured against the clock")]
fn now() -> Instant {
    Instant::now()
}

/// The time of creation of an event, epoch milliseconds.
#[expect(clippy::disallowed_methods, reason = "events have the time at which they are written")]
fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
