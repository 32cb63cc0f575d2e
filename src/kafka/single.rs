//! Reads single records of raw.

use std::time::Duration;

use rdkafka::consumer::Consumer;

use super::client_config::Settings;
use super::error::failure;
use super::partitions::kafka_partition;
use super::reader::{Ranges, TemporaryReaders};
use super::record::RawRecord;
use crate::dedupe::Coordinates;
use crate::ports::{Failure, Isolation, Record as _};

/// Time limit without a response of the broker.
const MAX_IDLE: Duration = Duration::from_secs(5);

/// Passes the record of raw at a place to `visit`, and returns what that returns; `None` where the log has no committed record: it was deleted or
/// compacted, is a marker, or not written yet.
pub(crate) fn read_record<T>(
    settings: &Settings,
    at: Coordinates,
    mut visit: impl FnMut(&RawRecord<'_>) -> T,
) -> Result<Option<T>, Failure> {
    let (topic, mut found) = (settings.raw.as_str(), None);
    TemporaryReaders::new(settings).with(topic, Isolation::Committed, |reader| {
        let bounds = reader.consumer.fetch_watermarks(topic, kafka_partition(at.partition), MAX_IDLE);
        let (low, high) = bounds.map_err(|e| failure(&format!("reading the bounds of topic {topic}"), &e))?;
        if !i64::try_from(at.offset).is_ok_and(|offset| (low..high).contains(&offset)) {
            return Ok(());
        }
        let range = Ranges::from([(at.partition, at.offset..at.offset.saturating_add(1))]);
        reader.read_most(topic, &range, MAX_IDLE, &mut |message| {
            let record = RawRecord(message);
            if record.coordinates() == at {
                found = Some(visit(&record));
            }
            false
        })?;
        Ok(())
    })?;
    Ok(found)
}
