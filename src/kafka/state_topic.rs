//! The state topic, read with `read_committed` by a client that does not join the group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;

use super::client_config::Settings;
use super::ends::EndReader;
use super::error::failure;
use super::native::Message;
use super::partitions::kafka_offset;
use super::reader::{BatchReader, Polled, Ranges, TemporaryReaders, client};
use super::side_log;
use super::topic::TopicHandle;
use super::unread::failure_of;
use crate::clock;
use crate::dedupe::{Coordinates, Offset, PartitionId, StateKey, other_version};
use crate::ports::{
    Failure, Isolation, LogBounds, LogId, LogReads, Remedy, SideRecords, StateItem, StateLog,
};

/// A read with this many items, or this many bytes of blocks (some 60,000 ids), ends. So the worker polls its group in time, and seals owners
/// as fast as it reads them: a block of a large transaction has thousands of ids.
const READ_ITEMS: usize = 256;
const READ_BYTES: usize = 1024 * 1024;

/// An open partition that returns neither a record nor its end for this long is checked.
const CHECK_AFTER: Duration = Duration::from_secs(10);
/// Maximum partitions checked in one read, and the time limit of one check: the worker must poll its group in time.
const CHECKS: usize = 4;
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// The read position of an open partition.
struct OpenRead {
    /// The next offset to read.
    next: Offset,
    /// When to check that the log still holds `next`, monotonic time.
    check_at: Instant,
    /// The client may have stopped fetching the partition: it does so when an offset is out of range, and the error does not
    /// name the partition.
    may_be_stopped: bool,
}

impl OpenRead {
    fn at(next: Offset, now: Instant) -> Self {
        Self { next, check_at: now + CHECK_AFTER, may_be_stopped: false }
    }
}

/// A reader of the state topic.
pub struct KafkaStateLog {
    /// With a handle, the client requests the leaders of the topic when it connects, and again when they change. Otherwise it
    /// does so within a second of the first assignment. Declared first because it must be dropped before the reader.
    _topic: TopicHandle,
    reader: BatchReader,
    ends: EndReader,
    /// For records that are read once.
    others: TemporaryReaders,
    open: BTreeMap<PartitionId, OpenRead>,
    /// The failure of the last read, which returned records from before it.
    failed: Option<Failure>,
}

impl KafkaStateLog {
    /// Creates the clients; nothing is read until a partition is opened.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        let doing = format!("reading state topic {}", settings.state);
        let consumer = client(settings, "read_committed")?;
        Ok(Self {
            _topic: TopicHandle::open(consumer.client(), &settings.state).map_err(|e| failure(&doing, &e))?,
            reader: BatchReader::new(consumer).map_err(|e| failure(&doing, &e))?,
            ends: EndReader::new(settings)?,
            others: TemporaryReaders::new(settings),
            open: BTreeMap::new(),
            failed: None,
        })
    }

    fn topic(&self) -> &str {
        &self.others.settings.state
    }

    /// Each partition with its topic's name.
    fn with_names(&self, logs: &[LogId]) -> Vec<(&str, PartitionId)> {
        logs.iter().map(|log| (self.others.settings.topic_of(log.topic), log.partition)).collect()
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} state topic {}", self.topic())
    }

    fn of_other_release(&self, at: Coordinates, version: u32) -> Failure {
        let what = format!(
            "the record at offset {} of partition {} of topic {} was written by another release of dedupd, with a key of \
             version {version} that this build cannot read; start that release; or set topics.state to a new topic, and the group's offsets to \
             their current values (kafka-consumer-groups.sh --reset-offsets --to-current): the windows then start empty",
            at.offset,
            at.partition,
            self.topic()
        );
        Failure::new(Remedy::Stop, what)
    }

    /// Reads what has arrived, up to `left` bytes. Returns false when nothing has.
    fn read_some(
        &mut self,
        wait: Duration,
        now: Instant,
        left: &mut usize,
        items: &mut Vec<StateItem>,
    ) -> Result<bool, Failure> {
        let Self { reader, open, .. } = self;
        let mut other = None;
        let polled = reader.poll(wait, &mut |message| {
            let at = message.coordinates();
            *left = left.saturating_sub(message.value().map_or(0, <[u8]>::len));
            if let Some(reading) = open.get_mut(&at.partition) {
                *reading = OpenRead::at(at.offset + 1, now);
            }
            match key(&message).and_then(other_version) {
                Some(version) => other = Some((at, version)),
                None => items.push(block(&message)),
            }
            // What follows a record that cannot be read is not applied.
            other.is_none() && *left > 0
        });
        if let Some((at, version)) = other {
            return Err(self.of_other_release(at, version));
        }
        match polled {
            Ok(Polled::Nothing) => Ok(false),
            Ok(Polled::More) => Ok(true),
            Ok(Polled::End(Coordinates { partition, .. })) => {
                let reading = open.get(&partition);
                items.extend(reading.map(|reading| StateItem::End { partition, next: reading.next }));
                Ok(true)
            }
            Err(error) if error.code == RDKafkaErrorCode::AutoOffsetReset => {
                for reading in open.values_mut() {
                    *reading = OpenRead { check_at: now, may_be_stopped: true, ..*reading };
                }
                Ok(false)
            }
            Err(error) => Err(failure_of(&error, self.topic(), &self.doing("reading"))),
        }
    }

    /// Checks partitions that are silent or may be stopped. When the log does not hold the next offset, the partition is
    /// closed and reported as gone. Otherwise reading continues. Only a partition that may be stopped is reopened, because
    /// that discards records fetched before.
    fn check_due(&mut self, now: Instant, items: &mut Vec<StateItem>) -> Result<(), Failure> {
        let due = self.open.iter().filter(|(_, reading)| reading.check_at <= now);
        let due =
            due.take(CHECKS).map(|(partition, reading)| (*partition, reading.next, reading.may_be_stopped));
        for (partition, next, may_be_stopped) in due.collect::<Vec<_>>() {
            let bounds = self.ends.of((self.topic(), partition), CHECK_TIMEOUT)?;
            if !(bounds.low..=bounds.stable).contains(&next) {
                self.close(partition)?;
                items.push(StateItem::Gone { partition });
            } else if may_be_stopped {
                self.open(partition, next)?;
            } else {
                self.open.insert(partition, OpenRead::at(next, now));
            }
        }
        Ok(())
    }
}

fn key<'m>(message: &'m Message<'_>) -> Option<&'m str> {
    str::from_utf8(message.key()?).ok()
}

/// A record of the state topic.
pub(super) fn block(message: &Message<'_>) -> StateItem {
    let Coordinates { partition, offset } = message.coordinates();
    StateItem::Record {
        partition,
        offset,
        key: key(message).and_then(StateKey::parse),
        value: message.value().unwrap_or_default().to_vec(),
    }
}

impl StateLog for KafkaStateLog {
    fn open(&mut self, partition: PartitionId, from: Offset) -> Result<(), Failure> {
        self.close(partition)?;
        let opened = self.reader.open(self.topic(), partition, kafka_offset(from));
        opened.map_err(|e| failure(&self.doing("opening"), &e))?;
        self.open.insert(partition, OpenRead::at(from, clock::monotonic()));
        Ok(())
    }

    fn read(&mut self, wait: Duration) -> Result<Vec<StateItem>, Failure> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let (mut items, now) = (Vec::new(), clock::monotonic());
        let checked = self.check_due(now, &mut items);
        let (mut wait, mut left) = (wait, READ_BYTES);
        while items.len() < READ_ITEMS && left > 0 {
            match self.read_some(wait, now, &mut left, &mut items) {
                Ok(true) => {}
                Ok(false) => break,
                // The client returns each item once, so items read before the failure must be returned.
                Err(failed) if items.is_empty() => return Err(failed),
                Err(failed) if failed.remedy == Remedy::Stop => {
                    self.failed = Some(failed);
                    break;
                }
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
            let closed = self.reader.close(self.topic(), partition);
            closed.map_err(|e| failure(&self.doing("closing"), &e))?;
        }
        Ok(())
    }
}

impl LogReads for KafkaStateLog {
    fn bounds(&self, logs: &[LogId], wait: Duration) -> Result<Vec<LogBounds>, Failure> {
        self.ends.bounds(&self.with_names(logs), wait)
    }

    fn stable_ends(&self, logs: &[LogId], wait: Duration) -> Result<Vec<Offset>, Failure> {
        self.ends.stable_ends(&self.with_names(logs), wait)
    }

    fn records(
        &self,
        ranges: &[(PartitionId, Range<Offset>)],
        what: Isolation,
        wait: Duration,
    ) -> Result<Vec<StateItem>, Failure> {
        let mut items = Vec::new();
        let ranges = ranges.iter().cloned().collect();
        self.others.read(self.topic(), &ranges, what, wait, &mut |message| {
            items.push(block(&message));
            true
        })?;
        Ok(items)
    }

    fn with_records(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<PartitionId>, Failure> {
        let logs: Vec<_> = partitions.iter().copied().map(LogId::clean).collect();
        let bounds = self.bounds(&logs, wait)?;
        self.others.with_records(&self.others.settings.clean, partitions.iter().copied().zip(bounds), wait)
    }

    fn side_logs(&self, wait: Duration) -> Result<Vec<LogId>, Failure> {
        side_log::all(&self.others.settings, &self.ends.stable, wait)
    }

    fn side_records(
        &self,
        from_to: &BTreeMap<LogId, (Offset, Offset)>,
        wait: Duration,
    ) -> Result<SideRecords, Failure> {
        side_log::records(&self.others, from_to, wait)
    }

    fn visible(
        &self,
        at: &[(PartitionId, Offset)],
        what: Isolation,
        wait: Duration,
    ) -> Result<Vec<bool>, Failure> {
        let mut shown = BTreeSet::new();
        let mut ranges = Ranges::new();
        let logs: Vec<LogId> =
            at.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>().into_iter().map(LogId::clean).collect();
        let ends = match what {
            Isolation::Committed => self.stable_ends(&logs, wait)?,
            Isolation::Uncommitted => self.bounds(&logs, wait)?.iter().map(|bounds| bounds.high).collect(),
        };
        let ends: BTreeMap<_, _> = logs.iter().map(|log| log.partition).zip(ends).collect();
        // No such reader finds a record at or beyond the end, and a read up to there would wait for it.
        let is_within = |(id, offset): &&(PartitionId, Offset)| ends.get(id).is_some_and(|end| offset < end);
        for (partition, offset) in at.iter().filter(is_within) {
            let range = ranges.entry(*partition).or_insert(*offset..*offset + 1);
            *range = range.start.min(*offset)..range.end.max(*offset + 1);
        }
        self.others.read(&self.others.settings.clean, &ranges, what, wait, &mut |message| {
            let at = message.coordinates();
            shown.insert((at.partition, at.offset));
            true
        })?;
        Ok(at.iter().map(|at| shown.contains(at)).collect())
    }
}
