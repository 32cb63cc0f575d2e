//! Offsets into a transaction, by a call that comes back.
//!
//! The client's own call waits without end for a group coordinator that cannot be reached, whatever time it is given
//! (<https://github.com/confluentinc/librdkafka/issues/5456>). So it is made by a thread of its own, which is left behind
//! when it takes too long: it keeps the producer alive until the call returns, and then destroys it. What it may still
//! send belongs to a transaction that nobody commits, because the next producer fences it.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use rdkafka::topic_partition_list::TopicPartitionList;

use super::consumer::{kafka_offset, number};
use super::producer::Client;
use crate::ports::Position;

/// What an abandoned call counts as.
pub(super) const ABANDONED: KafkaError = KafkaError::MessageProduction(RDKafkaErrorCode::OperationTimedOut);

/// The offsets with their metadata, as the client wants them.
pub(super) fn listed(topic: &str, positions: &[Position]) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for position in positions {
        let mut element = list.add_partition(topic, number(position.partition));
        element.set_offset(kafka_offset(position.next))?;
        element.set_metadata(&position.metadata);
    }
    Ok(list)
}

/// Adds the offsets; [`ABANDONED`] when the call has not come back after `patience`. The producer is of no use then.
pub(super) fn add(
    client: &Client,
    list: TopicPartitionList,
    metadata: ConsumerGroupMetadata,
    wait: Duration,
    patience: Duration,
) -> Result<(), KafkaError> {
    let client = Arc::clone(client);
    let (answer, answered) = mpsc::sync_channel(1);
    let call = move || {
        let added = client.send_offsets_to_transaction(&list, &metadata, wait);
        // First, so that the producer is never destroyed while its owner believes to have it.
        drop(client);
        answer.send(added).ok();
    };
    let started = thread::Builder::new().name("send-offsets".to_owned()).spawn(call);
    started.map_err(|_| KafkaError::MessageProduction(RDKafkaErrorCode::CriticalSystemResource))?;
    answered.recv_timeout(patience).unwrap_or(Err(ABANDONED))
}
