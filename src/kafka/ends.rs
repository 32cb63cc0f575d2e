//! The ends of logs, asked by clients that do nothing else.
//!
//! A broker answers the requests of a connection in turn, and a fetch waits up to half a second for
//! records. A client that reads a quiet topic would wait as long for every question about its ends,
//! one partition after the other.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::consumer::number;
use super::error::failure;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Bounds, Failure};

/// The default context logs the end of a partition, which is what readers wait for, as an error, and
/// during an outage an error a second; the calls that fail are reported where they are made.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::debug!(%error, reason, "client");
        }
    }
}

impl ConsumerContext for Quiet {}

/// A client outside of the group's protocol, of the given isolation.
pub(super) fn reader(settings: &Settings, isolation: &str) -> Result<BaseConsumer<Quiet>, Failure> {
    let doing = || format!("creating a reader for group {}", settings.group);
    settings.reader(isolation).create_with_context(Quiet).map_err(|e| failure(&doing(), &e))
}

/// Asks for the ends of logs.
pub(super) struct Ends {
    stable: BaseConsumer<Quiet>,
    unstable: BaseConsumer<Quiet>,
}

impl Ends {
    /// Creates the clients; nothing is asked yet.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            stable: reader(settings, "read_committed")?,
            unstable: reader(settings, "read_uncommitted")?,
        })
    }

    /// The client that waits for pending transactions.
    pub(super) fn stable(&self) -> &BaseConsumer<Quiet> {
        &self.stable
    }

    /// The client that sees what is not committed.
    pub(super) fn unstable(&self) -> &BaseConsumer<Quiet> {
        &self.unstable
    }

    /// The ends of partitions of several topics, in this order; one request to each leader for each kind of end.
    pub(super) fn of_all(
        &self,
        logs: &[(&str, PartitionId)],
        wait: Duration,
    ) -> Result<Vec<Bounds>, Failure> {
        let low = offsets_at(&self.stable, logs, KafkaOffset::Beginning, wait)?;
        // The stable end first: what is written in between is beyond it, never behind the written end.
        let stable = offsets_at(&self.stable, logs, KafkaOffset::End, wait)?;
        let high = offsets_at(&self.unstable, logs, KafkaOffset::End, wait)?;
        let ends = low.into_iter().zip(stable).zip(high);
        Ok(ends.map(|((low, stable), high)| Bounds { low, stable, high: high.max(stable) }).collect())
    }

    /// The stable ends alone.
    pub(super) fn stable_of_all(
        &self,
        logs: &[(&str, PartitionId)],
        wait: Duration,
    ) -> Result<Vec<Offset>, Failure> {
        offsets_at(&self.stable, logs, KafkaOffset::End, wait)
    }

    /// The stable end by a `read_committed` client, the written end by the other.
    pub(super) fn of(&self, topic: &str, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure> {
        let fail = |e| failure(&format!("reading the ends of topic {topic}, partition {partition}"), &e);
        let at = (topic, number(partition));
        let (low, stable) = watermarks(&self.stable, at, wait).map_err(fail)?;
        let (_, high) = watermarks(&self.unstable, at, wait).map_err(fail)?;
        let offset = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(Bounds { low: offset(low), stable: offset(stable), high: offset(high).max(offset(stable)) })
    }
}

/// Where logs begin or end for this reader, by a list-offsets request to each leader. A partition can have an error of
/// its own.
pub(super) fn listed<'a>(
    reader: &BaseConsumer<Quiet>,
    logs: impl IntoIterator<Item = (&'a str, PartitionId)>,
    end: KafkaOffset,
    wait: Duration,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in logs {
        // In the place of a time.
        list.add_partition_offset(topic, number(partition), end)?;
    }
    if list.count() == 0 { Ok(list) } else { reader.offsets_for_times(list, wait) }
}

/// The same, each partition with its offset; an error for one is an error for all.
fn offsets_at(
    reader: &BaseConsumer<Quiet>,
    logs: &[(&str, PartitionId)],
    end: KafkaOffset,
    wait: Duration,
) -> Result<Vec<Offset>, Failure> {
    let answer = listed(reader, logs.iter().copied(), end, wait)
        .map_err(|e| failure("reading where logs begin and end", &e))?;
    let offset_of = |(topic, partition): &(&str, PartitionId)| {
        let element = answer.find_partition(topic, number(*partition));
        let unknown = || KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
        let element = element.ok_or_else(unknown)?;
        element.error()?;
        match element.offset() {
            KafkaOffset::Offset(offset) => Ok(u64::try_from(offset).unwrap_or(0)),
            _ => Err(unknown()),
        }
    };
    logs.iter()
        .map(|log| {
            let named = |e: KafkaError| {
                failure(&format!("reading where topic {}, partition {} begins and ends", log.0, log.1), &e)
            };
            offset_of(log).map_err(named)
        })
        .collect()
}

fn watermarks(
    reader: &BaseConsumer<Quiet>,
    (topic, partition): (&str, i32),
    wait: Duration,
) -> Result<(i64, i64), KafkaError> {
    match reader.fetch_watermarks(topic, partition, wait) {
        // The topic has grown. Nobody who is not asked to refreshes what this client knows of it.
        Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition)) => {
            reader.fetch_metadata(Some(topic), wait)?;
            reader.fetch_watermarks(topic, partition, wait)
        }
        known => known,
    }
}
