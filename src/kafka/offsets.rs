//! Adds offsets to a transaction with an enforced time limit.
//!
//! The client's own call ignores its timeout while the group coordinator is unreachable, and waits without limit
//! (<https://github.com/confluentinc/librdkafka/issues/5456>). So a separate thread makes the call, and is abandoned when
//! the call takes too long. The thread keeps the producer alive until the call returns, and then destroys it. Whatever it
//! still sends belongs to a transaction that is never committed, because the next producer fences it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::partitions::{kafka_offset, kafka_partition};
use super::producer::Client;
use crate::ports::CommitPosition;

/// The error for an abandoned call.
pub(super) const ABANDONED: KafkaError = KafkaError::MessageProduction(RDKafkaErrorCode::OperationTimedOut);

/// The offsets with their metadata, as a partition list of the client.
pub(super) fn partition_list<'a>(
    positions: impl IntoIterator<Item = (&'a str, impl Borrow<CommitPosition>)>,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (topic, position) in positions {
        let position = position.borrow();
        let mut element = list.add_partition(topic, kafka_partition(position.partition));
        element.set_offset(kafka_offset(position.next))?;
        element.set_metadata(&position.metadata);
    }
    Ok(list)
}

/// Adds the offsets. Returns [`ABANDONED`] when the call has not returned after `limit`; the producer is unusable then.
pub(super) fn add(
    client: &Client,
    list: TopicPartitionList,
    metadata: ConsumerGroupMetadata,
    wait: Duration,
    limit: Duration,
) -> Result<(), KafkaError> {
    let client = Arc::clone(client);
    let (sender, receiver) = mpsc::sync_channel(1);
    let call = move || {
        let added = client.send_offsets_to_transaction(&list, &metadata, wait);
        // Dropped before the result is sent, so that this thread is not the last owner once the caller has the result.
        drop(client);
        sender.send(added).ok();
    };
    let started = thread::Builder::new().name("send-offsets".to_owned()).spawn(call);
    started.map_err(|_| KafkaError::MessageProduction(RDKafkaErrorCode::CriticalSystemResource))?;
    receiver.recv_timeout(limit).unwrap_or(Err(ABANDONED))
}
