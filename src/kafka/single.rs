//! Reads single records of raw.

use std::time::Duration;

use rdkafka::consumer::Consumer;

use super::client_config::Settings;
use super::ends::partitions_of;
use super::error::failure;
use super::partitions::kafka_partition;
use super::reader::{Ranges, Reader, TemporaryReaders};
use super::record::RawRecord;
use crate::dedupe::{Coordinates, Offset};
use crate::ports::{Failure, Isolation, Record as _};

/// Time limit without a response of the broker.
const MAX_IDLE: Duration = Duration::from_secs(5);

/// Why there is no record at a place of raw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoRecord {
    Topic,
    /// The topic has as many partitions.
    Partition(usize),
    /// The log starts at this offset.
    Deleted(Offset),
    /// The last stable offset is this one.
    Beyond(Offset),
    /// A marker, an aborted record, or one that compaction has removed.
    Nothing,
}

/// Passes the record of raw at a place to `visit`, and returns what that returns, or why there is none.
pub(crate) fn read_record<T>(
    settings: &Settings,
    at: Coordinates,
    mut visit: impl FnMut(&RawRecord<'_>) -> T,
) -> Result<Result<T, NoRecord>, Failure> {
    let (topic, mut found) = (settings.raw.as_str(), None);
    let absent = TemporaryReaders::new(settings).with(topic, Isolation::Committed, |reader| {
        if let Some(absent) = absent(&reader.consumer, topic, at)? {
            return Ok(absent);
        }
        let range = Ranges::from([(at.partition, at.offset..at.offset.saturating_add(1))]);
        reader.read(topic, &range, MAX_IDLE, &mut |message| {
            let record = RawRecord(message);
            if record.coordinates() == at {
                found = Some(visit(&record));
            }
            false
        })?;
        Ok(NoRecord::Nothing)
    })?;
    Ok(found.ok_or(absent))
}

/// Why a topic cannot have a record there.
fn absent(consumer: &Reader, topic: &str, at: Coordinates) -> Result<Option<NoRecord>, Failure> {
    let partitions = partitions_of(consumer.client(), topic, MAX_IDLE);
    let partitions =
        partitions.map_err(|e| failure(&format!("reading the partitions of topic {topic}"), &e))?;
    if partitions.is_empty() {
        return Ok(Some(NoRecord::Topic));
    }
    if !partitions.contains(&at.partition) {
        return Ok(Some(NoRecord::Partition(partitions.len())));
    }
    let bounds = consumer.fetch_watermarks(topic, kafka_partition(at.partition), MAX_IDLE);
    let (low, high) = bounds.map_err(|e| failure(&format!("reading the bounds of topic {topic}"), &e))?;
    let [low, high] = [low, high].map(|offset| Offset::try_from(offset).unwrap_or(0));
    Ok(match at.offset {
        offset if offset < low => Some(NoRecord::Deleted(low)),
        offset if offset >= high => Some(NoRecord::Beyond(high)),
        _ => None,
    })
}
