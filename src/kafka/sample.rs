//! Samples a live raw topic: the record rate, the share of duplicates, the copies in other partitions, their ages, and whether they differ. It only
//! reads.

mod ages;
pub(super) mod difference;
mod figures;
mod ids;
mod respelled;

use std::ops::Range;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::connection::{NoConnection, Probe, error_text};
use super::ends::{Listed, Log, partitions_of};
use super::error::failure;
use super::log_context::LogContext;
use super::reader::{self, BatchReader, Ranges};
use super::record::RawRecord;
use crate::clock;
use crate::dedupe::{CompareRule, Coordinates, Digest, IdPart, Identity, IdentityRule, Offset};
use crate::ports::{Failure, Record, Remedy};
use difference::{ComparedPart, DifferingCopy, compared_parts};
use figures::SPAN;
pub use figures::TopicSample;
pub(crate) use ids::FOLLOWED_IDS;
use ids::{Identified, SampledIds};
pub use respelled::Respelled;
use respelled::SpelledIds;

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

#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The brokers do not answer.
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
    /// The brokers refuse a request, or the topic cannot be sampled.
    #[error("{}", .0.unretried())]
    Refused(Failure),
}

/// Applies a rule to a record. The error is the reason why that is not possible.
pub type Identify<'a> = dyn Fn(&IdentityRule, &RawRecord<'_>) -> Result<Option<Identity>, String> + 'a;

/// How the records of a sample are identified, and what of them is compared. The errors are reasons why that is not possible.
pub struct SampleRule<'a> {
    pub rule: IdentityRule,
    pub identify: &'a Identify<'a>,
    pub digest: &'a dyn Fn(&CompareRule, &RawRecord<'_>) -> Result<Digest, String>,
    /// A record with this header is forwarded whatever its id.
    pub force_header: Option<&'a str>,
    /// As [`CompareRule::new`] takes it.
    pub compare: Vec<IdPart>,
}

impl SampleRule<'_> {
    fn read(&self, compare: &CompareRule, record: &RawRecord<'_>) -> Result<Option<Identified>, String> {
        let Some(identity) = (self.identify)(&self.rule, record)? else { return Ok(None) };
        let is_forced = self.force_header.is_some_and(|name| record.has_header(name));
        Ok(Some(Identified { identity, digest: (self.digest)(compare, record)?, is_forced }))
    }

    fn parts(&self, record: &RawRecord<'_>) -> Vec<ComparedPart> {
        compared_parts(&self.compare, record, |compare| (self.digest)(compare, record))
    }
}

/// Samples a topic. `now_ms` is the wall clock in epoch milliseconds; `seen` is called with the number of records read.
pub fn sample(
    sampling: &Sampling,
    rule: &SampleRule<'_>,
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
    let reading = SampleReading { topic, limits, reader, now_ms };
    let measured = || {
        let ends = ends(&probe.client, topic)?;
        let recent = reading.rate(&probe.client, &ends)?;
        let sample = reading.count(&ends, rule, seen)?;
        Ok(match recent {
            Some((events_per_second, span_seconds)) => {
                TopicSample { events_per_second, span_seconds, ..sample }
            }
            None => sample.at_its_own_rate(),
        })
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
    rule: &SampleRule<'_>,
) -> Result<TopicSample, Failure> {
    let topic = settings.raw.as_str();
    let reader = BatchReader::new(reader::client(settings, "read_committed")?)
        .map_err(|e| failure(&format!("reading topic {topic}"), &e))?;
    let ends = ends(&reader.consumer, topic)?;
    let reading = SampleReading { topic, limits, reader, now_ms: clock::wall_ms() };
    reading.count(&ends, rule, &|_| ())
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

/// The log start and end offsets.
fn ends<C: ConsumerContext>(client: &BaseConsumer<C>, topic: &str) -> Result<Ranges, Failure> {
    let fail =
        |e: KafkaError| failure(&format!("reading the log start and end offsets of topic {topic}"), &e);
    let partitions = partitions_of(client.client(), topic, REQUEST_TIMEOUT).map_err(fail)?;
    if partitions.is_empty() {
        return Err(Failure::new(Remedy::Stop, format!("topic {topic} does not exist; correct --raw")));
    }
    let logs = || partitions.iter().map(|partition| (topic, *partition));
    let starts = Listed::request(client, logs(), KafkaOffset::Beginning, REQUEST_TIMEOUT).map_err(fail)?;
    let ends = Listed::request(client, logs(), KafkaOffset::End, REQUEST_TIMEOUT).map_err(fail)?;
    let range = |log: Log<'_>| Ok((log.1, starts.offset_of(log)?..ends.offset_of(log)?));
    logs().map(|log| range(log).map_err(fail)).collect()
}

/// The number of offsets appended since this time, epoch milliseconds.
fn appended_since<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    topic: &str,
    begin_ms: i64,
    ends: &Ranges,
) -> Result<u64, Failure> {
    let fail = |e: KafkaError| failure(&format!("reading the offsets of an hour ago of topic {topic}"), &e);
    let logs = ends.keys().map(|partition| (topic, *partition));
    let begin = KafkaOffset::Offset(begin_ms);
    let begins = Listed::request(client, logs, begin, REQUEST_TIMEOUT).map_err(fail)?;
    ends.iter().try_fold(0, |appended, (partition, range)| {
        let begin = begins.find((topic, *partition)).map_err(fail)?.unwrap_or(range.end);
        Ok(appended + range.end.saturating_sub(begin.max(range.start)))
    })
}

struct SampleReading<'a> {
    topic: &'a str,
    limits: SampleLimits,
    reader: BatchReader,
    /// Epoch milliseconds.
    now_ms: i64,
}

impl SampleReading<'_> {
    /// Offsets appended in the last [`SPAN`], divided by the time since the first of them was written; and that time, seconds. `None` without one.
    fn rate<C: ConsumerContext>(
        &self,
        client: &BaseConsumer<C>,
        ends: &Ranges,
    ) -> Result<Option<(f64, f64)>, Failure> {
        let begin_ms = self.now_ms.saturating_sub(i64::try_from(SPAN.as_millis()).unwrap_or(i64::MAX));
        let appended = appended_since(client, self.topic, begin_ms, ends)?;
        let first_ms = self.first_ms(ends)?.unwrap_or(begin_ms).max(begin_ms);
        let seconds = self.now_ms.saturating_sub(first_ms).max(1_000) as f64 / 1_000.0;
        Ok((appended > 0).then_some((appended as f64 / seconds, seconds)))
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
        rule: &SampleRule<'_>,
        seen: &dyn Fn(u64),
    ) -> Result<TopicSample, Failure> {
        let share = self.limits.records / (ends.len() as u64).max(1);
        let newest = |it: &Range<Offset>| it.end.saturating_sub(share).max(it.start)..it.end;
        let newest: Ranges = ends.iter().map(|(partition, range)| (*partition, newest(range))).collect();
        let records = newest.values().map(|range| range.end.saturating_sub(range.start)).sum();
        let (mut ids, compare) =
            (SampledIds::new(records, self.now_ms), CompareRule::new(rule.compare.clone()));
        let (mut read, mut failed, begun) = (0, None, clock::monotonic());
        let mut spelled = SpelledIds::new(&rule.rule);
        self.read(&newest, &mut |record| {
            read += 1;
            match rule.read(&compare, record) {
                Ok(found) => {
                    if let Some(found) = &found {
                        let identify = |other: &IdentityRule| (rule.identify)(other, record).ok().flatten();
                        spelled.count(record.coordinates(), found.identity, &identify);
                    }
                    ids.count(record.coordinates(), record.timestamp_ms(), found);
                }
                Err(why) => drop(failed.get_or_insert(why)),
            }
            seen(read);
            failed.is_none() && begun.elapsed() < self.limits.time
        })?;
        if let Some(why) = failed {
            let what = format!("the ids of topic {} cannot be read: {why}", self.topic);
            return Err(Failure::new(Remedy::Stop, what));
        }
        let is_cut = |partition| newest.get(&partition) != ends.get(&partition);
        let mut sample = ids.finish(is_cut);
        self.locate(rule, &mut sample.examples);
        let partitions = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let compare = rule.compare.iter().map(ToString::to_string).collect();
        Ok(TopicSample { partitions, read, compare, respelled: spelled.finish(), ..sample })
    }

    /// Finds where the records of these examples differ first.
    fn locate(&self, rule: &SampleRule<'_>, examples: &mut [DifferingCopy]) {
        for example in examples {
            let parts = [example.copy, example.first].map(|at| self.parts(rule, at));
            if let [Some(copy), Some(first)] = &parts {
                example.place = difference::place(&rule.compare, copy, first);
            }
        }
    }

    /// Reads a record again, because a sample does not hold values; `None` if that fails or the record was deleted since.
    fn parts(&self, rule: &SampleRule<'_>, at: Coordinates) -> Option<Vec<ComparedPart>> {
        let mut parts = None;
        let only = Ranges::from([(at.partition, at.offset..at.offset + 1)]);
        let read = self.read(&only, &mut |record| {
            parts = (record.coordinates() == at).then(|| rule.parts(record));
            true
        });
        read.ok().and(parts)
    }

    /// Passes the records of these offset ranges to `visit`, which returns whether the partition is read further.
    fn read(&self, ranges: &Ranges, visit: &mut dyn FnMut(&RawRecord<'_>) -> bool) -> Result<(), Failure> {
        let wait = MAX_IDLE.min(self.limits.time);
        self.reader.read(self.topic, ranges, wait, &mut |message| visit(&RawRecord(message)))
    }
}
