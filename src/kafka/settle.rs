//! Settling transactions. Their only purpose is their abort marker: it ends records and offsets as aborted that a broker left
//! open without a marker.

use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, Producer};

use super::aside;
use super::client_config::Settings;
use super::delivery::opaque;
use super::log_context::LogContext;
use super::offsets;
use super::partitions::kafka_partition;
use super::producer::Client;
use crate::ports::{CommitPosition, LogId};

/// Runs one aborted transaction over these partitions and the group's offsets. Its records are never visible to
/// `read_committed` readers, and its offset is never committed.
pub(super) fn purge(
    settings: &Settings,
    client: &Client,
    writer: &str,
    logs: &[LogId],
    position: &CommitPosition,
    wait: Duration,
) -> Result<(), KafkaError> {
    client.begin_transaction()?;
    for log in logs {
        let record = BaseRecord {
            topic: settings.topic_of(log.topic),
            partition: Some(kafka_partition(log.partition)),
            payload: Some(b"".as_slice()),
            key: Some(b"dedupd purge".as_slice()),
            timestamp: None,
            headers: Some(aside::writer_header(writer)),
            delivery_opaque: opaque(None, 0),
        };
        client.send(record).map_err(|(error, _)| error)?;
    }
    client.flush(wait)?;
    // With the group metadata of a consumer that never joined: the group may have no member yet.
    let non_member: Authenticated<BaseConsumer<LogContext>> =
        tokens::create(&settings.reader("read_committed"), LogContext)?;
    let list = offsets::partition_list([(settings.raw.as_str(), position)])?;
    let metadata = non_member
        .group_metadata()
        .ok_or_else(|| KafkaError::ClientCreation("a consumer without a group".to_owned()))?;
    offsets::add(client, list, metadata, wait, wait)?;
    client.abort_transaction(wait)?;
    client.context().endings.ended();
    Ok(())
}
