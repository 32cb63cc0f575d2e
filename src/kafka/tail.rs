//! One look at the end of a partition, by a client made for it: rare, so nothing is kept for it.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::client_config::Settings;
use super::consumer::{kafka_offset, number};
use super::ends::Quiet;
use super::error::failure;
use crate::clock;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Leftover, Remedy};

/// Hands every record from `from` to the end of the partition to `visit`, until it returns false.
pub(super) fn read(
    settings: &Settings,
    (topic, partition): (&str, PartitionId),
    (from, what): (Offset, Leftover),
    wait: Duration,
    visit: &mut dyn FnMut(&BorrowedMessage<'_>) -> bool,
) -> Result<(), Failure> {
    let doing = || format!("reading the tail of topic {topic}, partition {partition}, from offset {from}");
    let isolation = match what {
        Leftover::Committed => "read_committed",
        Leftover::Everything => "read_uncommitted",
    };
    let fail = |e: KafkaError| failure(&doing(), &e);
    let consumer: BaseConsumer<Quiet> =
        settings.reader(isolation).create_with_context(Quiet).map_err(fail)?;
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, number(partition), kafka_offset(from)).map_err(fail)?;
    consumer.assign(&list).map_err(fail)?;
    let deadline = clock::monotonic() + wait;
    while clock::monotonic() < deadline {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) if !visit(&message) => return Ok(()),
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(()),
            Some(Err(error)) => return Err(fail(error)),
            Some(Ok(_)) | None => {}
        }
    }
    let what = format!("no end of it within {} s while {}; trying again", wait.as_secs(), doing());
    Err(Failure { remedy: Remedy::Retry, what, refused: None })
}
