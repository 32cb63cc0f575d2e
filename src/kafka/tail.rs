//! Reads ranges of records from several partitions of one topic, outside of the group.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::client_config::Settings;
use super::ends::{QuietContext, reader};
use super::error::{failure, is_damage};
use super::native::{self, Message, Queue};
use super::partitions::{kafka_offset, kafka_partition};
use super::unread::damaged;
use crate::clock;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Leftover, Remedy};

/// Reads with a client of its own; see [`read_with`].
pub(super) fn read(
    settings: &Settings,
    (topic, from): (&str, &BTreeMap<PartitionId, Offset>),
    what: Leftover,
    wait: Duration,
    visit: Visit<'_>,
) -> Result<(), Failure> {
    if from.is_empty() {
        return Ok(());
    }
    let isolation = match what {
        Leftover::Committed => "read_committed",
        Leftover::Everything => "read_uncommitted",
    };
    read_with(&reader(settings, isolation)?, (topic, from), wait, visit)
}

/// Called with each record; returns whether the partition is read further.
pub(super) type Visit<'a> = &'a mut dyn FnMut(PartitionId, Message<'_>) -> bool;

/// Passes every record of these partitions, each from its offset to its end, to `visit`, until `visit` returns false for the
/// partition. `wait` limits the time without a response of the broker, so a slow connection is not a failure.
///
/// The client must report the end of a partition (`enable.partition.eof`). Its assignment is replaced.
pub(super) fn read_with(
    consumer: &BaseConsumer<QuietContext>,
    (topic, from): (&str, &BTreeMap<PartitionId, Offset>),
    wait: Duration,
    visit: Visit<'_>,
) -> Result<(), Failure> {
    let doing = || format!("reading topic {topic}, partitions {:?}", from.keys());
    let fail = |e: KafkaError| failure(&doing(), &e);
    let mut open = from.clone();
    if open.is_empty() {
        return Ok(());
    }
    consumer.assign(&listed(topic, &open).map_err(fail)?).map_err(fail)?;
    let mut last_response = clock::monotonic();
    let no_group = || fail(KafkaError::Subscription("there is no group.id".to_owned()));
    let queue = Queue::of(consumer).ok_or_else(no_group)?;
    while last_response.elapsed() < wait && !open.is_empty() {
        let polled = native::poll(consumer, &queue, Duration::from_millis(100));
        if !matches!(polled, Ok(None)) {
            last_response = clock::monotonic();
        }
        match polled {
            Ok(Some(message)) => {
                let partition = message.coordinates().partition;
                if open.contains_key(&partition) && !visit(partition, message) {
                    open.remove(&partition);
                }
            }
            Err(unread) => match (unread.error(), unread.at) {
                (KafkaError::PartitionEOF(partition), _) => {
                    open.remove(&u32::try_from(partition).unwrap_or(0));
                }
                (_, Some(at)) if is_damage(unread.code) => return Err(damaged(topic, at, &unread, true)),
                (error, _) => return Err(fail(error)),
            },
            Ok(None) => {}
        }
    }
    if open.is_empty() {
        return Ok(());
    }
    let what = format!("no response within {} s while {}; retrying", wait.as_secs(), doing());
    Err(Failure::new(Remedy::Retry, what))
}

fn listed(topic: &str, from: &BTreeMap<PartitionId, Offset>) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in from {
        list.add_partition_offset(topic, kafka_partition(*partition), kafka_offset(*offset))?;
    }
    Ok(list)
}
