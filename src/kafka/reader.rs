//! Clients that read without joining the group, and the reader of offset ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::closing::Closing;
use super::error::failure;
use super::log_context::LogContext;
use super::native::{Fetched, Message, ReadError};
use super::partitions::{self, kafka_offset, kafka_partition, list_of, partition_id};
use super::unread::failure_of;
use crate::clock;
use crate::dedupe::coordinates::ranges as listed;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, Leftover, Remedy};

/// A client with the given isolation level that does not join the group.
pub(super) fn client(settings: &Settings, isolation: &str) -> Result<BaseConsumer<LogContext>, Failure> {
    let doing = || format!("creating a reader for group {}", settings.group);
    settings.reader(isolation).create_with_context(LogContext).map_err(|e| failure(&doing(), &e))
}

/// Most records of one poll.
const POLL_RECORDS: usize = 256;

/// A client that reads records in batches.
pub(super) struct Reader {
    /// Declared first because it must be dropped before the consumer.
    fetched: Fetched,
    pub(super) consumer: BaseConsumer<LogContext>,
}

/// What a poll returned after the records.
pub(super) enum Polled {
    /// All records of the partition have been read.
    End(PartitionId),
    /// Another poll may return more.
    More,
    /// No record arrived in time.
    Nothing,
}

/// Offset ranges of the partitions of one topic.
pub(super) type Ranges = BTreeMap<PartitionId, Range<Offset>>;

/// Called with each record; returns whether the partition is read further.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Message<'_>) -> bool;

impl Reader {
    /// The client must report the end of a partition (`enable.partition.eof`).
    pub(super) fn new(consumer: BaseConsumer<LogContext>) -> Result<Self, KafkaError> {
        Ok(Self { fetched: Fetched::of(&consumer)?, consumer })
    }

    /// Also reads this partition, from `start` on.
    pub(super) fn open(
        &self,
        topic: &str,
        partition: PartitionId,
        start: KafkaOffset,
    ) -> Result<(), KafkaError> {
        let list = partitions::list([(topic, partition, start)])?;
        let opened = [kafka_partition(partition)].into_iter();
        self.fetched.assign(&self.consumer, (topic, opened), || self.consumer.incremental_assign(&list))
    }

    /// Reads this partition no further.
    pub(super) fn close(&self, topic: &str, partition: PartitionId) -> Result<(), KafkaError> {
        self.consumer.incremental_unassign(&list_of(topic, [partition]))?;
        self.fetched.keep(|other| other != kafka_partition(partition));
        Ok(())
    }

    /// Passes records to `each`. Waits at most `wait`, and only for the first.
    pub(super) fn poll(
        &self,
        wait: Duration,
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<Polled, ReadError> {
        let mut polled = Polled::Nothing;
        let result = self.fetched.poll(&self.consumer, (POLL_RECORDS, wait), &mut |message| {
            polled = Polled::More;
            each(message);
        });
        match result {
            Ok(()) => Ok(polled),
            Err(ReadError { code: RDKafkaErrorCode::PartitionEOF, at: Some((partition, _)), .. }) => {
                Ok(Polled::End(partition_id(partition)))
            }
            Err(error) => Err(error),
        }
    }

    /// Passes every record in these ranges to `visit`, until `visit` returns false for the partition. A range that goes
    /// beyond the end of its partition ends there. `wait` limits the time without a response of the broker, so a slow
    /// connection is not a failure. Replaces the client's assignment.
    pub(super) fn read(
        &self,
        topic: &str,
        ranges: &Ranges,
        wait: Duration,
        visit: Visit<'_>,
    ) -> Result<(), Failure> {
        let doing = || format!("reading topic {topic}, partitions {}", listed(ranges.keys().copied()));
        let mut open: BTreeMap<_, _> = ranges.iter().filter(|(_, range)| !range.is_empty()).collect();
        if open.is_empty() {
            return Ok(());
        }
        self.assign(topic, &open).map_err(|e| failure(&doing(), &e))?;
        let mut last_response = clock::monotonic();
        while !open.is_empty() {
            if last_response.elapsed() >= wait {
                let what = format!("no response within {} s while {}; retrying", wait.as_secs(), doing());
                return Err(Failure::new(Remedy::Retry, what));
            }
            let polled = self.poll(Duration::from_millis(100), &mut |message| {
                let at = message.coordinates();
                let is_last = |end: Offset| at.offset >= end || !visit(message) || at.offset + 1 >= end;
                if open.get(&at.partition).map(|range| range.end).is_some_and(is_last) {
                    open.remove(&at.partition);
                }
            });
            match polled.map_err(|error| failure_of(&error, topic, &doing()))? {
                Polled::Nothing => continue,
                Polled::End(partition) => drop(open.remove(&partition)),
                Polled::More => {}
            }
            last_response = clock::monotonic();
        }
        Ok(())
    }

    /// Reads only these partitions, each from the start of its range on.
    fn assign(&self, topic: &str, ranges: &BTreeMap<&PartitionId, &Range<Offset>>) -> Result<(), KafkaError> {
        let starts = ranges.iter().map(|(partition, range)| (topic, **partition, kafka_offset(range.start)));
        let list = partitions::list(starts)?;
        self.fetched.keep(|_| false);
        let read = ranges.keys().map(|partition| kafka_partition(**partition));
        self.fetched.assign(&self.consumer, (topic, read), || self.consumer.assign(&list))
    }
}

/// Reads ranges, each time with a new client.
pub(super) struct TemporaryReaders {
    pub(super) settings: Settings,
    closing: Closing,
}

impl TemporaryReaders {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone(), closing: Closing::default() }
    }

    /// See [`Reader::read`].
    pub(super) fn read(
        &self,
        (topic, ranges): (&str, &Ranges),
        what: Leftover,
        wait: Duration,
        visit: Visit<'_>,
    ) -> Result<(), Failure> {
        if ranges.is_empty() {
            return Ok(());
        }
        let isolation = match what {
            Leftover::Committed => "read_committed",
            Leftover::Everything => "read_uncommitted",
        };
        let reader = Reader::new(client(&self.settings, isolation)?)
            .map_err(|e| failure(&format!("reading topic {topic}"), &e))?;
        let read = reader.read(topic, ranges, wait, visit);
        self.closing.close(reader);
        read
    }
}
