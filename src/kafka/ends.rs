//! Log start and end offsets, read by dedicated clients.
//!
//! A broker processes the requests of a connection in order, and a fetch waits up to half a second for records. A client
//! that fetches from an idle topic would delay every offset request by that time, one partition after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::client::{Client, ClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::error::failure;
use super::log_context::LogContext;
use super::native::Message;
use super::partitions::{self, kafka_partition};
use super::reader::{self, BatchReader, Ranges, Reader, TemporaryReaders};
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Isolation, LogBounds};

/// A partition with the name of its topic.
pub(super) type Log<'a> = (&'a str, PartitionId);

/// The partitions of a topic; empty when the topic does not exist.
pub(super) fn partitions_of<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    wait: Duration,
) -> Result<Vec<PartitionId>, KafkaError> {
    let metadata = client.fetch_metadata(Some(topic), wait)?;
    let partitions =
        metadata.topics().iter().filter(|it| it.name() == topic).flat_map(MetadataTopic::partitions);
    Ok(partitions.filter_map(|partition| PartitionId::try_from(partition.id()).ok()).collect())
}

/// One offset of each of several partitions, by one `ListOffsets` request to each leader. Each partition can have an error
/// of its own. A map for each topic, because the client's list has no index.
pub(super) struct Listed(BTreeMap<String, BTreeMap<i32, Result<Option<Offset>, KafkaError>>>);

impl Listed {
    /// `place` is the log start, the log end for the isolation level of the client, or a time in epoch milliseconds.
    pub(super) fn request<'a, C: ConsumerContext>(
        client: &BaseConsumer<C>,
        logs: impl IntoIterator<Item = Log<'a>>,
        place: KafkaOffset,
        wait: Duration,
    ) -> Result<Self, KafkaError> {
        // A logical offset takes the place of the timestamp.
        let list = partitions::list(logs.into_iter().map(|(topic, partition)| (topic, partition, place)))?;
        let list = if list.count() == 0 { list } else { client.offsets_for_times(list, wait)? };
        let mut listed: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for element in list.elements() {
            let of_topic = match listed.get_mut(element.topic()) {
                Some(of_topic) => of_topic,
                None => listed.entry(element.topic().to_owned()).or_default(),
            };
            let offset = element.offset().to_raw().and_then(|offset| Offset::try_from(offset).ok());
            of_topic.insert(element.partition(), element.error().map(|()| offset));
        }
        Ok(Self(listed))
    }

    /// The offset of a partition; `None` when no record is as new as the requested time.
    pub(super) fn find(&self, (topic, partition): Log<'_>) -> Result<Option<Offset>, KafkaError> {
        let found = self.0.get(topic).and_then(|of_topic| of_topic.get(&kafka_partition(partition)));
        found.cloned().unwrap_or(Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition)))
    }

    /// The log start or end of a partition.
    pub(super) fn offset_of(&self, log: Log<'_>) -> Result<Offset, KafkaError> {
        self.find(log)?.ok_or(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition))
    }
}

/// Reads log start and end offsets.
pub(super) struct EndReader {
    /// The `read_committed` client: its offset fetch waits for pending transactions.
    pub stable: Reader,
    pub unstable: Reader,
}

impl EndReader {
    /// Creates the clients; sends no request yet.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            stable: reader::client(settings, "read_committed")?,
            unstable: reader::client(settings, "read_uncommitted")?,
        })
    }

    /// The bounds of partitions of several topics, in this order. Each leader receives one request for each kind of offset.
    pub(super) fn bounds(&self, logs: &[Log<'_>], wait: Duration) -> Result<Vec<LogBounds>, Failure> {
        logs.iter().map(self.bounds_of(logs, wait)?).collect()
    }

    /// The bounds of one partition.
    pub(super) fn of(&self, log: Log<'_>, wait: Duration) -> Result<LogBounds, Failure> {
        self.bounds_of(&[log], wait)?(&log)
    }

    /// Only the stable ends.
    pub(super) fn stable_ends(&self, logs: &[Log<'_>], wait: Duration) -> Result<Vec<Offset>, Failure> {
        logs.iter().map(offset_of(&self.stable, logs, KafkaOffset::End, wait)?).collect()
    }

    fn bounds_of(
        &self,
        logs: &[Log<'_>],
        wait: Duration,
    ) -> Result<impl Fn(&Log<'_>) -> Result<LogBounds, Failure> + use<>, Failure> {
        let low = offset_of(&self.stable, logs, KafkaOffset::Beginning, wait)?;
        // The stable end is read before the high watermark: records written in between are beyond the stable end, so it
        // never exceeds the high watermark.
        let stable = offset_of(&self.stable, logs, KafkaOffset::End, wait)?;
        let high = offset_of(&self.unstable, logs, KafkaOffset::End, wait)?;
        Ok(move |log: &Log<'_>| {
            let stable = stable(log)?;
            Ok(LogBounds { low: low(log)?, stable, high: high(log)?.max(stable) })
        })
    }
}

/// Requests the offsets of these partitions. Returns a look-up of them; an error for the partition fails the look-up.
fn offset_of(
    client: &BaseConsumer<LogContext>,
    logs: &[Log<'_>],
    place: KafkaOffset,
    wait: Duration,
) -> Result<impl Fn(&Log<'_>) -> Result<Offset, Failure> + use<>, Failure> {
    let listed = Listed::request(client, logs.iter().copied(), place, wait)
        .map_err(|e| failure("reading log start and end offsets", &e))?;
    Ok(move |log: &Log<'_>| {
        let (topic, partition) = log;
        let doing = || format!("reading the log start or end offset of topic {topic}, partition {partition}");
        listed.offset_of(*log).map_err(|e| failure(&doing(), &e))
    })
}

/// One offset for each partition.
pub type Offsets = BTreeMap<PartitionId, Offset>;

/// Reads log start and end offsets with clients of its own, so no worker waits for the responses. Records before the log start
/// offset are permanently deleted; records behind an open transaction cannot be read yet.
///
/// Each broker receives one request for all its partitions. A partition with an error is omitted; when all have errors, the
/// first error is returned.
pub struct LogEnds {
    ends: EndReader,
    readers: TemporaryReaders,
}

impl LogEnds {
    /// Creates the clients; sends no request yet.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self { ends: EndReader::new(settings)?, readers: TemporaryReaders::new(settings) })
    }

    /// The partitions of a topic.
    pub fn partitions(&self, topic: &str, wait: Duration) -> Result<Vec<PartitionId>, Failure> {
        let found = partitions_of(self.ends.stable.client(), topic, wait);
        found.map_err(|e| failure(&format!("reading the partitions of topic {topic}"), &e))
    }

    /// The log start offsets.
    pub fn first(
        &self,
        topic: &str,
        partitions: impl IntoIterator<Item = PartitionId> + Clone,
        wait: Duration,
    ) -> Result<Offsets, Failure> {
        offsets(&self.ends.stable, KafkaOffset::Beginning, topic, partitions, wait)
    }

    /// The last stable offsets and the high watermarks. Where the first is lower, a transaction was open: the high watermarks are read before it,
    /// so records that are written meanwhile do not count.
    pub fn last(
        &self,
        topic: &str,
        partitions: impl IntoIterator<Item = PartitionId> + Clone,
        wait: Duration,
    ) -> Result<(Offsets, Offsets), Failure> {
        let high = offsets(&self.ends.unstable, KafkaOffset::End, topic, partitions.clone(), wait)?;
        Ok((offsets(&self.ends.stable, KafkaOffset::End, topic, partitions, wait)?, high))
    }

    /// Of these ranges, each of which ends at the last stable offset, the starts of those in which there is no committed record. A partition that
    /// cannot be read does not count, and delays no other.
    pub fn without_records(&self, topic: &str, ranges: &Ranges, wait: Duration) -> Result<Offsets, Failure> {
        let mut empty: Offsets = ranges.iter().map(|(partition, range)| (*partition, range.start)).collect();
        if empty.is_empty() {
            return Ok(empty);
        }
        let mut visit = |message: Message<'_>| {
            empty.remove(&message.coordinates().partition);
            false
        };
        let read = |reader: &BatchReader| reader.read_most(topic, ranges, wait, &mut visit);
        let unread = self.readers.with(topic, Isolation::Committed, read)?;
        empty.retain(|partition, _| !unread.ends.contains_key(partition));
        Ok(empty)
    }
}

fn offsets(
    client: &BaseConsumer<LogContext>,
    place: KafkaOffset,
    topic: &str,
    partitions: impl IntoIterator<Item = PartitionId> + Clone,
    wait: Duration,
) -> Result<Offsets, Failure> {
    let fail =
        |e: KafkaError| failure(&format!("reading the log start and end offsets of topic {topic}"), &e);
    let logs = partitions.clone().into_iter().map(|partition| (topic, partition));
    let listed = Listed::request(client, logs, place, wait).map_err(fail)?;
    let mut offsets = Offsets::new();
    let mut first_error = None;
    for partition in partitions {
        match listed.offset_of((topic, partition)) {
            Ok(offset) => drop(offsets.insert(partition, offset)),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    match first_error {
        Some(error) if offsets.is_empty() => Err(fail(error)),
        _ => Ok(offsets),
    }
}
