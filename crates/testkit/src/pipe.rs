//! A trial pipeline as its brokers see it: how far its group has come, and its removal.

use std::time::Duration;

use dedupd_tokens::Authenticated;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

const TIMEOUT: Duration = Duration::from_secs(30);
/// A member that has just left may still be in the group.
const ATTEMPTS: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A client that reads the offsets of a group.
pub fn reader(config: &ClientConfig, group: &str) -> Result<Authenticated<BaseConsumer>, KafkaError> {
    let mut config = config.clone();
    config.set("group.id", group);
    dedupd_tokens::create(&config, DefaultConsumerContext)
}

/// Whether the committed offsets of its group are the ends of all partitions of a topic.
pub fn is_consumed(reader: &BaseConsumer, topic: &str, partitions: i32) -> Result<bool, KafkaError> {
    let mut wanted = TopicPartitionList::new();
    wanted.add_partition_range(topic, 0, partitions - 1);
    let committed = reader.committed_offsets(wanted, TIMEOUT)?;
    for partition in committed.elements() {
        let (_, end) = reader.fetch_watermarks(topic, partition.partition(), TIMEOUT)?;
        let is_at_end = match partition.offset() {
            Offset::Offset(next) => next >= end,
            _ => end == 0,
        };
        if !is_at_end {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Deletes the topics that exist, and the group. Returns what is left, with the reason. The error is why no request was sent.
pub fn remove(config: &ClientConfig, topics: &[&str], group: &str) -> Result<Vec<(String, String)>, String> {
    let admin: Authenticated<AdminClient<DefaultClientContext>> =
        dedupd_tokens::create(config, DefaultClientContext).map_err(|error| error.to_string())?;
    let options = AdminOptions::new().operation_timeout(Some(TIMEOUT)).request_timeout(Some(TIMEOUT));
    let mut left = Vec::new();
    let deleted =
        pollster::block_on(admin.delete_topics(topics, &options)).map_err(|error| error.to_string())?;
    for deleted in deleted {
        match deleted {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err((topic, why)) => left.push((format!("topic {topic}"), why.to_string())),
        }
    }
    for attempt in 1..=ATTEMPTS {
        let deleted = pollster::block_on(admin.delete_groups(&[group], &options));
        let deleted = deleted.map_err(|error| error.to_string())?;
        match deleted.into_iter().find_map(Result::err) {
            None | Some((_, RDKafkaErrorCode::GroupIdNotFound)) => break,
            Some((_, RDKafkaErrorCode::NonEmptyGroup)) if attempt < ATTEMPTS => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            Some((group, why)) => {
                left.push((format!("group {group}"), why.to_string()));
                break;
            }
        }
    }
    Ok(left)
}
