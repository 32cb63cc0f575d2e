//! Transactions whose only purpose is their marker: they settle what a broker left without one.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, Producer};

use super::client_config::Settings;
use super::consumer::number;
use super::delivery::{Kind, mark};
use super::ends::Quiet;
use super::offsets;
use super::producer::Client;
use crate::dedupe::PartitionId;
use crate::ports::Position;

/// Knows the topics and the group whose leftovers are settled.
pub(super) struct Settling<'a> {
    pub settings: &'a Settings,
}

impl Settling<'_> {
    /// An aborted transaction over the partition of clean and state topic and the group's offsets. Its
    /// records are never visible to `read_committed`, its offsets never become real.
    pub(super) fn purge(
        &self,
        client: &Client,
        partition: PartitionId,
        (clean, state): (bool, bool),
        wait: Duration,
    ) -> Result<(), KafkaError> {
        client.begin_transaction()?;
        let topics = [clean.then_some(&self.settings.clean), state.then_some(&self.settings.state)];
        for topic in topics.into_iter().flatten() {
            send(client, topic, partition, (b"dedupd purge", b""))?;
        }
        client.flush(wait)?;
        let position = Position { partition, next: 0, metadata: String::new() };
        self.offsets(client, &position, wait)?;
        client.abort_transaction(wait)
    }

    /// A committed transaction of one block and one offset.
    pub(super) fn seal(
        &self,
        client: &Client,
        (key, block): (&str, &[u8]),
        position: &Position,
        wait: Duration,
    ) -> Result<(), KafkaError> {
        client.begin_transaction()?;
        send(client, &self.settings.state, position.partition, (key.as_bytes(), block))?;
        client.flush(wait)?;
        self.offsets(client, position, wait)?;
        client.commit_transaction(wait)
    }

    /// Offsets under the metadata of a consumer that never joined: the group may have no member yet.
    fn offsets(&self, client: &Client, position: &Position, wait: Duration) -> Result<(), KafkaError> {
        let outsider: BaseConsumer<Quiet> =
            self.settings.reader("read_committed").create_with_context(Quiet)?;
        let list = offsets::listed(&self.settings.raw, std::slice::from_ref(position))?;
        let metadata = outsider
            .group_metadata()
            .ok_or_else(|| KafkaError::ClientCreation("a consumer without a group".to_owned()))?;
        offsets::add(client, list, metadata, wait, wait)
    }
}

fn send(
    client: &Client,
    topic: &str,
    partition: PartitionId,
    (key, value): (&[u8], &[u8]),
) -> Result<(), KafkaError> {
    let record = BaseRecord {
        topic,
        partition: Some(number(partition)),
        payload: Some(value),
        key: Some(key),
        timestamp: None,
        headers: None,
        delivery_opaque: mark(Kind::DeadLetter, 0),
    };
    client.send(record).map_err(|(error, _)| error)
}
