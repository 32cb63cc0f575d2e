//! Samples a live raw topic: the record rate, the share of duplicates, and the copies in other partitions. It only reads.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;
use serde::Serialize;

use super::client_config::Settings;
use super::connection::{NoConnection, Probe, error_text};
use super::ends::{Listed, partitions_of};
use super::error::failure;
use super::log_context::LogContext;
use super::reader::{self, BatchReader, Ranges};
use super::record::RawRecord;
use crate::clock;
use crate::dedupe::{Identity, Offset, PartitionId};
use crate::ports::{Failure, Record, Remedy};
use crate::units::seconds_text;

/// The rate is measured over at most this time.
const SPAN: Duration = Duration::from_hours(1);
/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A read fails when the broker returns nothing for this long.
const MAX_IDLE: Duration = Duration::from_secs(15);

/// What is sampled, and with which client properties. No `Debug`: the properties hold secrets.
#[derive(Clone)]
pub struct Sampling {
    /// `host:port` list.
    pub bootstrap_servers: String,
    /// librdkafka properties of the user.
    pub properties: Vec<(String, String)>,
    pub topic: String,
    /// How many of the newest records are read, over all partitions.
    pub records: u64,
}

/// The measured figures of a topic.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopicSample {
    pub partitions: u32,
    /// Records per second in the last hour, or since the first record if that is later. Transaction markers count as
    /// records, so the figure tends to be too high.
    pub events_per_second: f64,
    /// The time over which that is measured, seconds: an hour, or less if the oldest record is younger.
    pub span_seconds: f64,
    pub read: u64,
    /// Records with an id.
    pub with_id: u64,
    /// Records with the same id as an earlier record of the sample in the same partition. Duplicates that are further apart
    /// are not counted, so the figure tends to be too low.
    pub repeats: u64,
    /// Records with an id that the sample has in another partition, and not before in their own. Partition scope forwards them.
    pub elsewhere: u64,
    /// Ids that the sample has in more than one partition.
    pub moved_ids: u64,
}

impl TopicSample {
    /// Share of duplicates among the records with an id, 0 to 1.
    #[must_use]
    pub fn duplicates(&self) -> f64 {
        self.repeats as f64 / self.with_id.max(1) as f64
    }

    /// Over which time the rate is measured, and why that is less than an hour.
    #[must_use]
    pub fn span(&self) -> String {
        if self.span_seconds >= SPAN.as_secs_f64() {
            return "in the last hour".to_owned();
        }
        let span = seconds_text(self.span_seconds);
        format!(
            "in the last {span} (the oldest record is younger than an hour: measure again later, or give --events)"
        )
    }
}

impl fmt::Display for TopicSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the topic")?;
        let (rate, span) = (self.events_per_second, self.span());
        writeln!(f, "  {:<30} {rate:.1} per second {span}, {} partitions", "records", self.partitions)?;
        let (repeats, read) = (self.duplicates() * 100.0, self.read);
        writeln!(
            f,
            "  {:<30} {repeats:.2} % of the newest {read}; duplicates further apart are not counted",
            "duplicates"
        )?;
        let elsewhere = self.elsewhere as f64 / self.with_id.max(1) as f64 * 100.0;
        writeln!(f, "  {:<30} {elsewhere:.2} % of the newest {read}", "copies in other partitions")?;
        writeln!(f, "  {:<30} {}", "scope", self.advice(None))
    }
}

/// The ids of a sample, each with the partitions that have it.
#[derive(Debug, Default)]
struct SampledIds(HashMap<Identity, Vec<PartitionId>>);

impl SampledIds {
    /// Counts a record of this partition.
    fn count(&mut self, partition: PartitionId, identity: Identity, sample: &mut TopicSample) {
        sample.with_id += 1;
        let partitions = self.0.entry(identity).or_default();
        if partitions.contains(&partition) {
            sample.repeats += 1;
            return;
        }
        sample.elsewhere += u64::from(!partitions.is_empty());
        sample.moved_ids += u64::from(partitions.len() == 1);
        partitions.push(partition);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The brokers do not answer.
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
    /// The brokers refuse a request, or the topic cannot be sampled.
    #[error("{}", .0.unretried())]
    Refused(Failure),
}

/// Reads the identity of a record. The error is a reason why that is not possible.
pub trait Identify: Fn(&RawRecord<'_>) -> Result<Option<Identity>, String> {}

impl<F: Fn(&RawRecord<'_>) -> Result<Option<Identity>, String>> Identify for F {}

/// Samples a topic. `now_ms` is the wall clock in epoch milliseconds; `seen` is called with the number of records read.
pub fn sample(
    sampling: &Sampling,
    identify: &dyn Identify,
    now_ms: i64,
    seen: &dyn Fn(u64),
) -> Result<TopicSample, SampleError> {
    let Sampling { topic, bootstrap_servers, records, .. } = sampling;
    let config = sampling.config();
    let settings = |error: &KafkaError| NoConnection::Settings(error_text(error));
    let probe = Probe::connect(config.clone(), bootstrap_servers, topic, "READ")?;
    let consumer = dedupd_tokens::create(&config, LogContext).map_err(|e| settings(&e))?;
    let reader = BatchReader::new(consumer).map_err(|e| settings(&e))?;
    let limits = SampleLimits { records: *records, time: Duration::MAX };
    let reading = SampleReading { topic, limits, reader };
    let measured = || {
        let log = SampledLog { topic, client: probe.client() };
        let ends = log.ends()?;
        let (events_per_second, span_seconds) = reading.rate(&log, &ends, now_ms)?;
        Ok(TopicSample { events_per_second, span_seconds, ..reading.count(&ends, identify, seen)? })
    };
    measured().map_err(|failure: Failure| match failure.remedy {
        Remedy::Stop => SampleError::Refused(failure),
        _ => probe.failed(&failure.unretried()).into(),
    })
}

/// What a sample takes at most.
#[derive(Debug, Clone, Copy)]
pub struct SampleLimits {
    /// How many of the newest records are read, over all partitions.
    pub records: u64,
    /// No further records are read after this time. A broker that does not respond has longer time limits.
    pub time: Duration,
}

/// Samples the raw topic of a service without its rate, which takes one read less. It needs no rights beside those of the service.
pub fn sample_ids(
    settings: &Settings,
    limits: SampleLimits,
    identify: &dyn Identify,
) -> Result<TopicSample, Failure> {
    let topic = settings.raw.as_str();
    let reader = BatchReader::new(reader::client(settings, "read_committed")?)
        .map_err(|e| failure(&format!("reading topic {topic}"), &e))?;
    let ends = SampledLog { topic, client: &reader.consumer }.ends()?;
    SampleReading { topic, limits, reader }.count(&ends, identify, &|_| ())
}

impl Sampling {
    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        config
            .set("bootstrap.servers", &self.bootstrap_servers)
            // The client requires a group id, although nothing is committed.
            .set("group.id", "dedupd-plan")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("allow.auto.create.topics", "false");
        config
    }
}

/// A topic, and the client that requests its offsets.
struct SampledLog<'a, C: ConsumerContext> {
    topic: &'a str,
    client: &'a BaseConsumer<C>,
}

impl<C: ConsumerContext> SampledLog<'_, C> {
    fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        failure(&format!("{doing} topic {}", self.topic), error)
    }

    /// One offset of each of these partitions; see [`Listed::request`].
    fn listed(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
        place: KafkaOffset,
    ) -> Result<Listed, KafkaError> {
        let logs = partitions.into_iter().map(|partition| (self.topic, partition));
        Listed::request(self.client, logs, place, REQUEST_TIMEOUT)
    }

    /// The log start and end offsets.
    fn ends(&self) -> Result<Ranges, Failure> {
        let topic = self.topic;
        let fail = |e: KafkaError| self.fail("reading the log start and end offsets of", &e);
        let partitions = partitions_of(self.client.client(), topic, REQUEST_TIMEOUT).map_err(fail)?;
        if partitions.is_empty() {
            return Err(Failure::new(Remedy::Stop, format!("topic {topic} does not exist; correct --raw")));
        }
        let starts = self.listed(partitions.iter().copied(), KafkaOffset::Beginning).map_err(fail)?;
        let ends = self.listed(partitions.iter().copied(), KafkaOffset::End).map_err(fail)?;
        let range = |partition| {
            Ok((partition, starts.offset_of((topic, partition))?..ends.offset_of((topic, partition))?))
        };
        partitions.into_iter().map(|partition| range(partition).map_err(fail)).collect()
    }

    /// The number of offsets appended since this time, epoch milliseconds.
    fn appended_since(&self, begin_ms: i64, ends: &Ranges) -> Result<u64, Failure> {
        let fail = |e: KafkaError| self.fail("reading the offsets of an hour ago of", &e);
        let begins = self.listed(ends.keys().copied(), KafkaOffset::Offset(begin_ms)).map_err(fail)?;
        ends.iter().try_fold(0, |appended, (partition, range)| {
            let begin = begins.find((self.topic, *partition)).map_err(fail)?.unwrap_or(range.end);
            Ok(appended + range.end.saturating_sub(begin.max(range.start)))
        })
    }
}

struct SampleReading<'a> {
    topic: &'a str,
    limits: SampleLimits,
    reader: BatchReader,
}

impl SampleReading<'_> {
    /// Offsets appended in the last [`SPAN`], divided by the time since the first of them was written; and that time, seconds.
    fn rate<C: ConsumerContext>(
        &self,
        log: &SampledLog<'_, C>,
        ends: &Ranges,
        now_ms: i64,
    ) -> Result<(f64, f64), Failure> {
        let begin_ms = now_ms.saturating_sub(i64::try_from(SPAN.as_millis()).unwrap_or(i64::MAX));
        let appended = log.appended_since(begin_ms, ends)?;
        let first_ms = self.first_ms(ends)?.unwrap_or(begin_ms).max(begin_ms);
        let seconds = now_ms.saturating_sub(first_ms).max(1_000) as f64 / 1_000.0;
        Ok((appended as f64 / seconds, seconds))
    }

    /// The oldest timestamp among the first records of the partitions, epoch milliseconds.
    fn first_ms(&self, ends: &Ranges) -> Result<Option<i64>, Failure> {
        let first = ends.iter().map(|(partition, it)| (*partition, it.start..it.end.min(it.start + 1)));
        let mut oldest = None;
        self.read(&first.collect(), &mut |record| {
            oldest = match (oldest, record.timestamp_ms()) {
                (Some(oldest), Some(ms)) => Some(ms.min(oldest)),
                (known, ms) => known.or(ms),
            };
            true
        })?;
        Ok(oldest)
    }

    fn count(
        &self,
        ends: &Ranges,
        identify: &dyn Identify,
        seen: &dyn Fn(u64),
    ) -> Result<TopicSample, Failure> {
        let mut failed = None;
        let share = self.limits.records / (ends.len() as u64).max(1);
        let newest = |it: &Range<Offset>| it.end.saturating_sub(share).max(it.start)..it.end;
        let newest = ends.iter().map(|(partition, range)| (*partition, newest(range)));
        let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let mut sample = TopicSample { partitions, ..TopicSample::default() };
        let (mut known, begun) = (SampledIds::default(), clock::monotonic());
        self.read(&newest.collect(), &mut |record| {
            sample.read += 1;
            match identify(record) {
                Ok(Some(found)) => known.count(record.coordinates().partition, found, &mut sample),
                Ok(None) => {}
                Err(why) => failed = failed.take().or(Some(why)),
            }
            seen(sample.read);
            failed.is_none() && begun.elapsed() < self.limits.time
        })?;
        match failed {
            Some(why) => Err(Failure::new(
                Remedy::Stop,
                format!("the ids of topic {} cannot be read: {why}", self.topic),
            )),
            None => Ok(sample),
        }
    }

    /// Passes the records of these offset ranges to `visit`, which returns whether the partition is read further.
    fn read(&self, ranges: &Ranges, visit: &mut dyn FnMut(&RawRecord<'_>) -> bool) -> Result<(), Failure> {
        let wait = MAX_IDLE.min(self.limits.time);
        self.reader.read(self.topic, ranges, wait, &mut |message| visit(&RawRecord(message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_the_same_partition_and_in_others_are_counted_apart() {
        let empty = TopicSample { partitions: 3, read: 8, ..TopicSample::default() };
        let (mut ids, mut sample) = (SampledIds::default(), empty);
        for (partition, id) in [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (0, 2), (1, 3), (2, 3)] {
            ids.count(partition, Identity([id; 16]), &mut sample);
        }
        assert_eq!((sample.with_id, sample.repeats, sample.elsewhere, sample.moved_ids), (8, 2, 3, 2));
        let text = sample.to_string();
        assert!(text.contains("37.50 % of the newest 8\n"), "{text}");
        assert!(
            text.contains("scope                          2 ids of the sample are in several partitions"),
            "{text}"
        );
    }
}
