//! The state topic, read committed, outside of the group's protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::consumer::{kafka_offset, number};
use super::ends::{Ends, Quiet, reader};
use super::error::{failure, is_damage};
use super::native::{self, Queue};
use super::tail;
use super::unread::damaged;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Bounds, Failure, Leftover, Remedy, StateItem, StateLog};

/// Most items handed over by one read, so that the worker gets back to its group in time.
const READ_ITEMS: usize = 256;

/// A reader of the state topic.
pub struct KafkaStateLog {
    /// Comes first, as it has to be dropped before the consumer.
    queue: Queue,
    consumer: BaseConsumer<Quiet>,
    ends: Ends,
    topic: String,
    clean: String,
    settings: Settings,
    /// Where each open partition continues.
    next: BTreeMap<PartitionId, Offset>,
}

impl KafkaStateLog {
    /// Creates the clients; nothing is read until a partition is opened.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        let consumer = reader(settings, "read_committed")?;
        let doing = format!("reading state topic {}", settings.state);
        let no_group = || failure(&doing, &KafkaError::Subscription("there is no group.id".to_owned()));
        Ok(Self {
            queue: Queue::of(&consumer).ok_or_else(no_group)?,
            consumer,
            ends: Ends::new(settings)?,
            topic: settings.state.clone(),
            clean: settings.clean.clone(),
            settings: settings.clone(),
            next: BTreeMap::new(),
        })
    }

    fn one(&self, partition: PartitionId, offset: KafkaOffset) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, number(partition), offset)?;
        Ok(list)
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} state topic {}", self.topic)
    }

    fn item(&mut self, wait: Duration) -> Result<Option<StateItem>, Failure> {
        match native::poll(&self.consumer, &self.queue, wait) {
            Ok(None) => Ok(None),
            Ok(Some(message)) => {
                let partition = u32::try_from(message.partition()).unwrap_or(0);
                let offset = u64::try_from(message.offset()).unwrap_or(0);
                self.next.insert(partition, offset + 1);
                let (key, value) = (message.key(), message.value());
                Ok(Some(block((partition, offset), key, value)))
            }
            Err(unread) => match (unread.error(), unread.at) {
                (KafkaError::PartitionEOF(partition), _) => {
                    let partition = u32::try_from(partition).unwrap_or(0);
                    Ok(self.next.get(&partition).map(|next| StateItem::End { partition, next: *next }))
                }
                // The client would go on behind it, and the restore without its identities.
                (_, Some(at)) if is_damage(unread.code) => Err(damaged(&self.topic, at, &unread, true)),
                (error, _) => Err(failure(&self.doing("reading"), &error)),
            },
        }
    }
}

fn block((partition, offset): (PartitionId, Offset), key: Option<&[u8]>, value: Option<&[u8]>) -> StateItem {
    StateItem::Block {
        partition,
        offset,
        key: String::from_utf8_lossy(key.unwrap_or_default()).into_owned(),
        block: value.unwrap_or_default().to_vec(),
    }
}

impl StateLog for KafkaStateLog {
    fn open(&mut self, partition: PartitionId, from: Option<Offset>) -> Result<(), Failure> {
        self.close(partition)?;
        let start = from.map_or(KafkaOffset::Beginning, kafka_offset);
        self.one(partition, start)
            .and_then(|list| self.consumer.incremental_assign(&list))
            .map_err(|e| failure(&self.doing("opening"), &e))?;
        self.next.insert(partition, from.unwrap_or(0));
        Ok(())
    }

    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure> {
        let mut items = Vec::new();
        let mut wait = wait;
        while items.len() < READ_ITEMS {
            match self.item(wait) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                // What was taken before a failure is not handed over again.
                Err(failed) if items.is_empty() || failed.remedy == Remedy::Stop => return Err(failed),
                Err(failed) => {
                    tracing::debug!(%failed, "reading the state topic");
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        Ok(items)
    }

    fn close(&mut self, partition: PartitionId) -> Result<(), Failure> {
        if self.next.remove(&partition).is_some() {
            self.one(partition, KafkaOffset::Invalid)
                .and_then(|list| self.consumer.incremental_unassign(&list))
                .map_err(|e| failure(&self.doing("closing"), &e))?;
        }
        Ok(())
    }

    fn bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure> {
        self.ends.of(&self.topic, partition, wait)
    }

    fn clean_bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure> {
        self.ends.of(&self.clean, partition, wait)
    }

    fn tail(
        &self,
        partition: PartitionId,
        from: Offset,
        what: Leftover,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure> {
        let mut items = Vec::new();
        tail::read(&self.settings, (&self.topic, partition), (from, what), wait, &mut |message| {
            let offset = u64::try_from(message.offset()).unwrap_or(0);
            items.push(block((partition, offset), message.key(), message.payload()));
            true
        })?;
        Ok(items)
    }

    fn clean_shows(&self, partition: PartitionId, offset: Offset, wait: Duration) -> Result<bool, Failure> {
        let mut shown = false;
        let from = (offset, Leftover::Committed);
        tail::read(&self.settings, (&self.clean, partition), from, wait, &mut |message| {
            shown = u64::try_from(message.offset()) == Ok(offset);
            false
        })?;
        Ok(shown)
    }
}
