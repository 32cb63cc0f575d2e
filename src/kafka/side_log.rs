//! Reads the side topics, also beyond their last stable offset.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::aside;
use super::client_config::Settings;
use super::ends::partitions_of;
use super::error::failure;
use super::log_context::LogContext;
use super::native::Message;
use super::reader::{Ranges, TemporaryReaders};
use crate::clock;
use crate::dedupe::{Coordinates, Offset};
use crate::ports::{Failure, Isolation, LogId, OutputTopic, SideRecord, SideRecords};

/// Maximum records of one read; it limits the result to a few megabytes.
const READ_RECORDS: usize = 50_000;
/// A read fails when the brokers send nothing for this long.
const MAX_IDLE: Duration = Duration::from_secs(5);

/// The side topics that are configured.
fn topics(settings: &Settings) -> impl Iterator<Item = (OutputTopic, &str)> {
    settings.configured([OutputTopic::DeadLetter, OutputTopic::Duplicates])
}

/// All partitions of the side topics that are configured.
pub(super) fn all(
    settings: &Settings,
    client: &BaseConsumer<LogContext>,
    wait: Duration,
) -> Result<Vec<LogId>, Failure> {
    let mut logs = Vec::new();
    for (topic, name) in topics(settings) {
        let doing = || format!("reading the partitions of topic {name}");
        let partitions = partitions_of(client.client(), name, wait).map_err(|e| failure(&doing(), &e))?;
        logs.extend(partitions.into_iter().map(|partition| LogId { topic, partition }));
    }
    Ok(logs)
}

/// The records of these partitions, committed or not, in the given offset ranges. Stops after `wait` or [`READ_RECORDS`]
/// records; the result includes the offset at which the next read continues.
pub(super) fn records(
    readers: &TemporaryReaders,
    from_to: &BTreeMap<LogId, (Offset, Offset)>,
    wait: Duration,
) -> Result<SideRecords, Failure> {
    let deadline = clock::monotonic() + wait;
    let (mut found, mut next) = SideRecords::default();
    let settings = &readers.settings;
    for (topic, name) in topics(settings) {
        let of_topic = || from_to.iter().filter(|(log, _)| log.topic == topic);
        let ranges = of_topic().map(|(log, (from, to))| (log.partition, *from..*to)).collect();
        let mut cut = BTreeSet::new();
        readers.read(name, &ranges, Isolation::Uncommitted, MAX_IDLE, &mut |message| {
            let Coordinates { partition, offset } = message.coordinates();
            let log = LogId { topic, partition };
            if found.len() >= READ_RECORDS || clock::monotonic() >= deadline {
                next.insert(log, offset);
                cut.insert(partition);
                return false;
            }
            let aside::SideOrigin { writer, raw, is_outside } = aside::origin(&message, settings);
            found.push(SideRecord { log, offset, writer, raw, is_outside });
            true
        })?;
        let complete = of_topic().filter(|(log, _)| !cut.contains(&log.partition));
        next.extend(complete.map(|(log, (_, to))| (*log, *to)));
    }
    Ok((found, next))
}

/// Passes the records at these offsets of a partition to `each`, until `each` fails.
pub(super) fn visit(
    settings: &Settings,
    log: LogId,
    offsets: &[Offset],
    mut each: impl FnMut(&Message<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let wanted: BTreeSet<Offset> = offsets.iter().copied().collect();
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(()) };
    let name = settings.topic_of(log.topic);
    let ranges = Ranges::from([(log.partition, *first..*last + 1)]);
    let mut visited = Ok(());
    let readers = TemporaryReaders::new(settings);
    readers.read(name, &ranges, Isolation::Uncommitted, MAX_IDLE, &mut |message| {
        if wanted.contains(&message.coordinates().offset) {
            visited = each(&message);
        }
        visited.is_ok()
    })?;
    visited
}
