//! Reads the side topics beyond their last stable offset, and copies records to their end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, ThreadedProducer};

use super::aside;
use super::client_config::Settings;
use super::delivery::{Deliveries, opaque};
use super::ends::partitions_of;
use super::error::failure;
use super::log_context::LogContext;
use super::native::{self, Message};
use super::reader::{Ranges, TemporaryReaders};
use super::topic::{Outgoing, TopicHandle};
use crate::clock;
use crate::dedupe::{Coordinates, Offset};
use crate::ports::{Failure, Leftover, LogId, OutputTopic, Remedy, SideRecord, SideRecords};

/// Maximum records of one read; it limits the result to a few megabytes.
const READ_RECORDS: usize = 50_000;
/// A read fails when the brokers send nothing for this long.
const MAX_IDLE: Duration = Duration::from_secs(5);
/// Pause while the client's queue is full.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(1);

/// The side topics that are configured.
fn topics(settings: &Settings) -> impl Iterator<Item = (OutputTopic, &str)> {
    let topics =
        [(OutputTopic::DeadLetter, &settings.dead_letter), (OutputTopic::Duplicates, &settings.duplicates)];
    topics.into_iter().filter_map(|(topic, name)| Some((topic, name.as_deref()?)))
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
        readers.read((name, &ranges), Leftover::Everything, MAX_IDLE, &mut |message| {
            let Coordinates { partition, offset } = message.coordinates();
            let log = LogId { topic, partition };
            if found.len() >= READ_RECORDS || clock::monotonic() >= deadline {
                next.insert(log, offset);
                cut.insert(partition);
                return false;
            }
            let aside::SideOrigin { writer, raw, is_outside } = aside::origin(&message, &settings.raw);
            found.push(SideRecord { log, offset, writer, raw, is_outside });
            true
        })?;
        let complete = of_topic().filter(|(log, _)| !cut.contains(&log.partition));
        next.extend(complete.map(|(log, (_, to))| (*log, *to)));
    }
    Ok((found, next))
}

/// Writes the records at these offsets of a partition to its end again, with a producer without transactions: the
/// copies are visible at once, even if the process ends right after.
pub(super) fn copy(
    settings: &Settings,
    log: LogId,
    offsets: &[Offset],
    wait: Duration,
) -> Result<(), Failure> {
    let wanted: BTreeSet<Offset> = offsets.iter().copied().collect();
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return Ok(()) };
    let name = settings.topic_of(log.topic);
    let fail = |e: KafkaError| failure(&format!("copying records of topic {name}"), &e);
    let client: Authenticated<ThreadedProducer<Deliveries>> =
        tokens::create(&settings.copier(), Deliveries::default()).map_err(fail)?;
    let topic = TopicHandle::open(client.client(), name).map_err(fail)?;
    let ranges = Ranges::from([(log.partition, *first..*last + 1)]);
    let mut failed = None;
    let readers = TemporaryReaders::new(settings);
    readers.read((name, &ranges), Leftover::Everything, MAX_IDLE, &mut |message| {
        if wanted.contains(&message.coordinates().offset) {
            failed = send(&client, &topic, (log.topic, &message), wait).err();
        }
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(fail(error));
    }
    if !native::flush(client.client(), wait) {
        let what = format!("copies of records of topic {name} were not acknowledged; retrying");
        return Err(Failure::new(Remedy::Retry, what));
    }
    client.context().failure(|_| name).map_or(Ok(()), Err)
}

fn send(
    client: &ThreadedProducer<Deliveries>,
    topic: &TopicHandle,
    (written, message): (OutputTopic, &Message<'_>),
    wait: Duration,
) -> Result<(), KafkaError> {
    let copy = Outgoing::copy_of(message, opaque(Some(written), 0))?;
    let mut copy = copy.with_more_headers(&[aside::outside_header()])?;
    let deadline = clock::monotonic() + wait;
    loop {
        match topic.send(client.client(), &mut copy) {
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull))
                if clock::monotonic() < deadline =>
            {
                std::thread::sleep(QUEUE_FULL_PAUSE);
            }
            sent => return sent,
        }
    }
}
