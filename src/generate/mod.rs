//! `dedupd generate`: load with the duplicates that production has.
//!
//! Some are planned: an application that sends an event again, soon or late. With `cut_acks` others are
//! real: a producer that never got its answer sends a batch again, and the log holds it twice.

mod error;
mod events;
mod frame;
mod proxy;
mod topic;
mod writer;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;

pub use error::GenerateError;
pub use events::{Event, Generator, Repeat, Shape};
use proxy::Proxy;
use topic::Topic;
use writer::Writer;

use crate::clock;

/// Time between two reports of progress.
const TELL: Duration = Duration::from_millis(200);
/// Longest wait for the next record's time, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(50);
/// The client waits in whole milliseconds.
const SHORTEST_NAP: Duration = Duration::from_millis(2);

/// What to write where. No `Debug`: the properties hold secrets.
#[derive(Clone)]
pub struct Options {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties.
    pub properties: Vec<(String, String)>,
    /// Topic to write.
    pub topic: String,
    /// Create it with so many partitions if it does not exist.
    pub partitions: Option<u32>,
    /// What the events look like.
    pub shape: Shape,
    /// How many records, repeats included; `None` is until stopped.
    pub records: Option<u64>,
    /// Records a second; `None` is as fast as the broker takes them.
    pub rate: Option<u32>,
    /// Lose answers of the broker now and then, so that a producer without idempotence sends again.
    /// For plain-text brokers on the loopback interface.
    pub cut_acks: bool,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Records given to the client.
    pub sent: u64,
    /// Records that the broker acknowledged.
    pub delivered: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Records acknowledged, each counted once.
    pub records: u64,
    /// Of these, planned repeats of an earlier id.
    pub planned_repeats: u64,
    /// Records that the log has in addition, because batches were sent again; right if nobody else wrote.
    pub real_repeats: u64,
    /// Answers lost by [`Options::cut_acks`].
    pub cuts: u64,
    /// Bytes of the values, without real repeats.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{} records in {seconds:.1} s ({:.0} a second), {} of them planned duplicates",
            self.records,
            self.records as f64 / seconds.max(0.001),
            self.planned_repeats
        )?;
        if self.cuts > 0 {
            write!(
                f,
                "; {} more duplicates came from {} lost answers of the broker",
                self.real_repeats, self.cuts
            )?;
        }
        Ok(())
    }
}

/// Writes until all records are there or `stop` is set, and waits until all of them are acknowledged.
/// `progress` is called some five times a second.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<Summary, GenerateError> {
    let direct = config(options)?;
    let topic = Topic::new(&direct, &options.bootstrap_servers, &options.topic)?;
    let partitions = topic.ensure(options.partitions)?;
    let length_before = topic.length(partitions)?;
    let proxy = if options.cut_acks { Some(detour(options, &topic)?) } else { None };
    let writer = Writer::new(&direct, proxy.as_ref(), &options.topic)?;
    let mut load =
        Load { options, writer, started: clock::monotonic(), told: Duration::ZERO, planned: 0, bytes: 0 };
    let sent = load.write(stop, &mut progress)?;
    load.writer.drain(|writer| progress(load.progress(writer, sent)))?;
    progress(load.progress(&load.writer, sent));
    let elapsed = load.started.elapsed();
    let records = load.writer.delivered();
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

fn config(options: &Options) -> Result<ClientConfig, GenerateError> {
    let protocol = options.properties.iter().find(|(name, _)| name == "security.protocol");
    if let Some((_, protocol)) = protocol
        && options.cut_acks
        && !protocol.to_ascii_lowercase().ends_with("plaintext")
    {
        return Err(GenerateError::Encrypted { protocol: protocol.clone() });
    }
    let mut config = ClientConfig::new();
    config.set("client.id", "dedupd.generate").set("reconnect.backoff.max.ms", "1000");
    for (name, value) in &options.properties {
        config.set(name, value);
    }
    config.set("bootstrap.servers", &options.bootstrap_servers).set("allow.auto.create.topics", "false");
    Ok(config)
}

/// The proxy in front of all brokers, if each of them can have one.
fn detour(options: &Options, topic: &Topic<'_>) -> Result<Proxy, GenerateError> {
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
    told: Duration,
    planned: u64,
    bytes: u64,
}

impl Load<'_> {
    /// Returns how many records were given to the client.
    fn write(
        &mut self,
        stop: &AtomicBool,
        progress: &mut impl FnMut(Progress),
    ) -> Result<u64, GenerateError> {
        let mut events = Generator::new(self.options.shape);
        let mut sent = 0;
        while self.options.records.is_none_or(|all| sent < all) && !stop.load(Ordering::Relaxed) {
            // Looking at the clock for each record would cost more than making it.
            let looks = self.options.rate.is_some() || sent % 64 == 0;
            let elapsed = if looks { self.started.elapsed() } else { self.told };
            if looks {
                self.writer.serve(Duration::ZERO)?;
            }
            if elapsed.saturating_sub(self.told) > TELL {
                self.told = elapsed;
                progress(self.progress(&self.writer, sent));
            }
            let early = self.due(sent).saturating_sub(elapsed);
            if !early.is_zero() {
                // Less than a millisecond would not wait at all: the records due by then go together.
                self.writer.serve(early.clamp(SHORTEST_NAP, NAP))?;
                continue;
            }
            let event = events.next_at(clock::wall_ms());
            self.planned += u64::from(event.repeat.is_some());
            self.bytes += event.value.len() as u64;
            self.writer.send(&event)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// When record number `sent` is due, since the start.
    fn due(&self, sent: u64) -> Duration {
        let rate = self.options.rate.map(|rate| f64::from(rate.max(1)));
        rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(sent as f64 / rate))
    }

    fn progress(&self, writer: &Writer<'_>, sent: u64) -> Progress {
        Progress { sent, delivered: writer.delivered(), elapsed: self.started.elapsed() }
    }
}
