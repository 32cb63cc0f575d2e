//! The state topic, read with `read_committed` by a client that does not join the group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::ends::{Ends, QuietContext, reader};
use super::error::{failure, is_damage};
use super::native::{self, Queue};
use super::partitions::{kafka_offset, kafka_partition};
use super::unread::damaged;
use super::{side_log, tail};
use crate::clock;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Bounds, Failure, Leftover, LogId, Remedy, SideRecords, StateItem, StateLog};

/// Maximum items of one read, so that the worker polls its group in time.
const READ_ITEMS: usize = 256;

/// An open partition that returns neither a record nor its end for this long is checked.
const CHECK_AFTER: Duration = Duration::from_secs(10);
/// Maximum partitions checked in one read, and the time limit of one check: the worker must poll its group in time.
const CHECKS: usize = 4;
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// The read position of an open partition.
struct Reading {
    /// The next offset to read.
    next: Offset,
    /// When to check that the log still holds `next`, monotonic time.
    check_at: Instant,
    /// The client may have stopped fetching the partition: it does so when an offset is out of range, and the error does not
    /// name the partition.
    may_be_stopped: bool,
}

impl Reading {
    fn at(next: Offset) -> Self {
        Self { next, check_at: clock::monotonic() + CHECK_AFTER, may_be_stopped: false }
    }
}

/// A reader of the state topic.
pub struct KafkaStateLog {
    /// Declared first because it must be dropped before the consumer.
    queue: Queue,
    consumer: BaseConsumer<QuietContext>,
    ends: Ends,
    topic: String,
    clean: String,
    settings: Settings,
    open: BTreeMap<PartitionId, Reading>,
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
            open: BTreeMap::new(),
        })
    }

    fn single(&self, partition: PartitionId, offset: KafkaOffset) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, kafka_partition(partition), offset)?;
        Ok(list)
    }

    /// Each partition with its topic's name.
    fn with_names(&self, logs: &[LogId]) -> Vec<(&str, PartitionId)> {
        logs.iter().map(|log| (self.settings.topic_of(log.topic), log.partition)).collect()
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} state topic {}", self.topic)
    }

    fn item(&mut self, wait: Duration) -> Result<Option<StateItem>, Failure> {
        match native::poll(&self.consumer, &self.queue, wait) {
            Ok(None) => Ok(None),
            Ok(Some(message)) => {
                let partition = message.coordinates().partition;
                let offset = message.coordinates().offset;
                if let Some(reading) = self.open.get_mut(&partition) {
                    *reading = Reading::at(offset + 1);
                }
                let (key, value) = (message.key(), message.value());
                Ok(Some(block((partition, offset), key, value)))
            }
            Err(unread) => match (unread.error(), unread.at) {
                (KafkaError::PartitionEOF(partition), _) => {
                    let partition = u32::try_from(partition).unwrap_or(0);
                    Ok(self
                        .open
                        .get(&partition)
                        .map(|reading| StateItem::End { partition, next: reading.next }))
                }
                _ if unread.code == RDKafkaErrorCode::AutoOffsetReset => {
                    let check_at = clock::monotonic();
                    for reading in self.open.values_mut() {
                        *reading = Reading { check_at, may_be_stopped: true, ..*reading };
                    }
                    Ok(None)
                }
                // The client would skip the batch, and the restore would lack its identities.
                (_, Some(at)) if is_damage(unread.code) => Err(damaged(&self.topic, at, &unread, true)),
                (error, _) => Err(failure(&self.doing("reading"), &error)),
            },
        }
    }

    /// Checks partitions that are silent or may be stopped. When the log does not hold the next offset, the partition is
    /// closed and reported as gone. Otherwise reading continues. Only a partition that may be stopped is reopened, because
    /// that discards records fetched before.
    fn check_due(&mut self, items: &mut Vec<StateItem>) -> Result<(), Failure> {
        let now = clock::monotonic();
        let due = self.open.iter().filter(|(_, reading)| reading.check_at <= now);
        let due =
            due.take(CHECKS).map(|(partition, reading)| (*partition, reading.next, reading.may_be_stopped));
        for (partition, next, may_be_stopped) in due.collect::<Vec<_>>() {
            let bounds = self.ends.of((&self.topic, partition), CHECK_TIMEOUT)?;
            if !(bounds.low..=bounds.stable).contains(&next) {
                self.close(partition)?;
                items.push(StateItem::Gone { partition });
            } else if may_be_stopped {
                self.open(partition, Some(next))?;
            } else {
                self.open.insert(partition, Reading::at(next));
            }
        }
        Ok(())
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
        self.single(partition, start)
            .and_then(|list| self.consumer.incremental_assign(&list))
            .map_err(|e| failure(&self.doing("opening"), &e))?;
        self.open.insert(partition, Reading::at(from.unwrap_or(0)));
        Ok(())
    }

    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure> {
        let mut items = Vec::new();
        let checked = self.check_due(&mut items);
        let mut wait = wait;
        while items.len() < READ_ITEMS {
            match self.item(wait) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                // The client returns each item once, so items read before the failure must be returned.
                Err(failed) if items.is_empty() || failed.remedy == Remedy::Stop => return Err(failed),
                Err(failed) => {
                    tracing::debug!(%failed, "reading the state topic failed; retrying");
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        // A failed check is repeated by the next read, but items that were read are returned only once.
        if items.is_empty() { checked.map(|()| items) } else { Ok(items) }
    }

    fn close(&mut self, partition: PartitionId) -> Result<(), Failure> {
        if self.open.remove(&partition).is_some() {
            self.single(partition, KafkaOffset::Invalid)
                .and_then(|list| self.consumer.incremental_unassign(&list))
                .map_err(|e| failure(&self.doing("closing"), &e))?;
        }
        Ok(())
    }

    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Bounds>, Failure> {
        self.ends.bounds(&self.with_names(logs), wait)
    }

    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure> {
        self.ends.stable_ends(&self.with_names(logs), wait)
    }

    fn tails(
        &self,
        from: &[(PartitionId, Offset)],
        what: Leftover,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure> {
        let mut items = Vec::new();
        let from = from.iter().copied().collect();
        tail::read(&self.settings, (&self.topic, &from), what, wait, &mut |partition, message| {
            let offset = message.coordinates().offset;
            items.push(block((partition, offset), message.key(), message.value()));
            true
        })?;
        Ok(items)
    }

    fn side_logs(&self, wait: Duration) -> Result<Vec<LogId>, Failure> {
        side_log::all(&self.settings, self.ends.stable(), wait)
    }

    fn side_records(
        &self,
        from_to: &BTreeMap<LogId, (Offset, Offset)>,
        wait: Duration,
    ) -> Result<SideRecords, Failure> {
        side_log::records(&self.settings, from_to, wait)
    }

    fn visible(&self, at: &[(PartitionId, Offset)], wait: Duration) -> Result<Vec<bool>, Failure> {
        let mut shown = BTreeSet::new();
        let (mut from, mut to) = (BTreeMap::new(), BTreeMap::new());
        for (partition, offset) in at {
            let (first, last) =
                (from.entry(*partition).or_insert(*offset), to.entry(*partition).or_insert(*offset));
            (*first, *last) = ((*first).min(*offset), (*last).max(*offset));
        }
        let topic = (self.clean.as_str(), &from);
        tail::read(&self.settings, topic, Leftover::Committed, wait, &mut |partition, message| {
            let offset = message.coordinates().offset;
            shown.insert((partition, offset));
            to.get(&partition).is_some_and(|last| offset < *last)
        })?;
        Ok(at.iter().map(|at| shown.contains(at)).collect())
    }
}
