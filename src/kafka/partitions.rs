//! Partitions and offsets in the types of the Kafka client, which are signed.

use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use crate::dedupe::{Coordinates, Offset, PartitionId};

pub(super) fn kafka_partition(partition: PartitionId) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

pub(super) fn kafka_offset(offset: Offset) -> KafkaOffset {
    KafkaOffset::Offset(i64::try_from(offset).unwrap_or(i64::MAX))
}

/// A partition that the client has returned. It returns none below 0.
pub(super) fn partition_id(partition: i32) -> PartitionId {
    PartitionId::try_from(partition).unwrap_or(0)
}

/// The coordinates of a record that the client has returned. It returns none with an offset below 0.
pub(super) fn coordinates(partition: i32, offset: i64) -> Coordinates {
    Coordinates { partition: partition_id(partition), offset: Offset::try_from(offset).unwrap_or(0) }
}

/// Partitions of topics, each with an offset: its own, or a logical one.
pub(super) fn list<'a>(
    elements: impl IntoIterator<Item = (&'a str, PartitionId, KafkaOffset)>,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (topic, partition, offset) in elements {
        list.add_partition_offset(topic, kafka_partition(partition), offset)?;
    }
    Ok(list)
}

/// Partitions of topics, without offsets.
pub(super) fn list_of<'a>(logs: impl IntoIterator<Item = (&'a str, PartitionId)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (topic, partition) in logs {
        list.add_partition(topic, kafka_partition(partition));
    }
    list
}
