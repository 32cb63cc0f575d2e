//! Log start and end offsets, read by dedicated clients.
//!
//! A broker processes the requests of a connection in order, and a fetch waits up to half a second for records. A client
//! that fetches from an idle topic would delay every offset request by that time, one partition after the other.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::error::failure;
use super::partitions::kafka_partition;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Bounds, Failure};

/// A context that logs errors at debug level only. The default context logs the end of a partition, which readers wait for,
/// as an error, and one error per second during an outage. Failed calls are reported by their callers.
pub(super) struct QuietContext;

impl ClientContext for QuietContext {
    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::debug!(%error, reason, "client error");
        }
    }
}

impl ConsumerContext for QuietContext {}

/// A client with the given isolation level that does not join the group.
pub(super) fn reader(settings: &Settings, isolation: &str) -> Result<BaseConsumer<QuietContext>, Failure> {
    let doing = || format!("creating a reader for group {}", settings.group);
    settings.reader(isolation).create_with_context(QuietContext).map_err(|e| failure(&doing(), &e))
}

/// Reads log start and end offsets.
pub(super) struct Ends {
    stable: BaseConsumer<QuietContext>,
    unstable: BaseConsumer<QuietContext>,
}

impl Ends {
    /// Creates the clients; sends no request yet.
    pub(super) fn new(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self {
            stable: reader(settings, "read_committed")?,
            unstable: reader(settings, "read_uncommitted")?,
        })
    }

    /// The `read_committed` client: its offset fetch waits for pending transactions.
    pub(super) fn stable(&self) -> &BaseConsumer<QuietContext> {
        &self.stable
    }

    /// The `read_uncommitted` client.
    pub(super) fn unstable(&self) -> &BaseConsumer<QuietContext> {
        &self.unstable
    }

    /// The bounds of partitions of several topics, in this order. Each leader receives one request for each kind of offset.
    pub(super) fn bounds(
        &self,
        logs: &[(&str, PartitionId)],
        wait: Duration,
    ) -> Result<Vec<Bounds>, Failure> {
        let low = offsets_at(&self.stable, logs, KafkaOffset::Beginning, wait)?;
        // The stable end is read before the high watermark: records written in between are beyond the stable end, so it
        // never exceeds the high watermark.
        let stable = offsets_at(&self.stable, logs, KafkaOffset::End, wait)?;
        let high = offsets_at(&self.unstable, logs, KafkaOffset::End, wait)?;
        let ends = low.into_iter().zip(stable).zip(high);
        Ok(ends.map(|((low, stable), high)| Bounds { low, stable, high: high.max(stable) }).collect())
    }

    /// The bounds of one partition.
    pub(super) fn of(&self, log: (&str, PartitionId), wait: Duration) -> Result<Bounds, Failure> {
        let unknown = || KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
        let bounds = self.bounds(&[log], wait)?.pop();
        bounds.ok_or_else(|| failure("reading log start and end offsets", &unknown()))
    }

    /// Only the stable ends.
    pub(super) fn stable_ends(
        &self,
        logs: &[(&str, PartitionId)],
        wait: Duration,
    ) -> Result<Vec<Offset>, Failure> {
        offsets_at(&self.stable, logs, KafkaOffset::End, wait)
    }
}

/// The log start or end offsets for this reader's isolation level, by one `ListOffsets` request to each leader. Each
/// partition of the result can have an error of its own.
pub(super) fn list_offsets<'a>(
    reader: &BaseConsumer<QuietContext>,
    logs: impl IntoIterator<Item = (&'a str, PartitionId)>,
    end: KafkaOffset,
    wait: Duration,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in logs {
        // A logical offset takes the place of the timestamp.
        list.add_partition_offset(topic, kafka_partition(partition), end)?;
    }
    if list.count() == 0 { Ok(list) } else { reader.offsets_for_times(list, wait) }
}

/// The same as plain offsets; an error for one partition fails the call.
fn offsets_at(
    reader: &BaseConsumer<QuietContext>,
    logs: &[(&str, PartitionId)],
    end: KafkaOffset,
    wait: Duration,
) -> Result<Vec<Offset>, Failure> {
    let list = list_offsets(reader, logs.iter().copied(), end, wait)
        .map_err(|e| failure("reading log start and end offsets", &e))?;
    let offset_of = |(topic, partition): &(&str, PartitionId)| {
        let element = list.find_partition(topic, kafka_partition(*partition));
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
            let fail = |e: KafkaError| {
                failure(
                    &format!("reading the log start or end offset of topic {}, partition {}", log.0, log.1),
                    &e,
                )
            };
            offset_of(log).map_err(fail)
        })
        .collect()
}
