//! Clients that read without joining the group, and the reader of offset ranges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use super::client_config::Settings;
use super::closing::Closing;
use super::error::failure;
use super::log_context::LogContext;
use super::native::{Fetched, Message, ReadError};
use super::partitions::{self, coordinates, kafka_offset, kafka_partition, list_of};
use super::unread::failure_of;
use crate::clock;
use crate::dedupe::coordinates::ranges as listed;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::{Failure, Isolation, LogBounds, Remedy};

/// A client that does not join the group.
pub(super) type Reader = Authenticated<BaseConsumer<LogContext>>;

/// A client with the given isolation level that does not join the group.
pub(super) fn client(settings: &Settings, isolation: &str) -> Result<Reader, Failure> {
    let doing = || format!("creating a reader for group {}", settings.group);
    tokens::create(&settings.reader(isolation), LogContext).map_err(|e| failure(&doing(), &e))
}

/// Most records of one poll.
const POLL_RECORDS: usize = 256;

/// A client that reads records in batches.
pub(super) struct BatchReader {
    /// Declared first because it must be dropped before the consumer.
    fetched: Fetched,
    pub(super) consumer: Reader,
}

/// What a poll returned after the records.
pub(super) enum Polled {
    /// The leader reported that a partition ends at this offset, and all records before it have been read.
    End(Coordinates),
    /// Another poll may return more.
    More,
    /// No record arrived in time.
    Nothing,
}

/// Offset ranges of the partitions of one topic.
pub(super) type Ranges = BTreeMap<PartitionId, Range<Offset>>;

/// Called with each record; returns whether the partition is read further.
pub(super) type VisitMessage<'a> = &'a mut dyn FnMut(Message<'_>) -> bool;

impl BatchReader {
    /// The client must report the end of a partition (`enable.partition.eof`).
    pub(super) fn new(consumer: Reader) -> Result<Self, KafkaError> {
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
        let assign = || self.consumer.incremental_assign(&list);
        self.fetched.assign(&self.consumer, [(topic, partition)].into_iter(), assign)
    }

    /// Reads this partition no further.
    pub(super) fn close(&self, topic: &str, partition: PartitionId) -> Result<(), KafkaError> {
        self.consumer.incremental_unassign(&list_of([(topic, partition)]))?;
        self.fetched.keep(|_, other| other != kafka_partition(partition));
        Ok(())
    }

    /// Passes records to `each`, until it returns false. Waits at most `wait`, and only for the first.
    pub(super) fn poll(
        &self,
        wait: Duration,
        each: &mut dyn FnMut(Message<'_>) -> bool,
    ) -> Result<Polled, ReadError> {
        let mut polled = Polled::Nothing;
        let result = self.fetched.poll(&self.consumer, POLL_RECORDS, wait, &mut |message| {
            polled = Polled::More;
            each(message)
        });
        match result {
            Ok(()) => Ok(polled),
            Err(ReadError {
                code: RDKafkaErrorCode::PartitionEOF, at: Some((partition, offset)), ..
            }) => Ok(Polled::End(coordinates(partition, offset))),
            Err(error) => Err(error),
        }
    }

    /// Passes every record in these ranges to `visit`, until `visit` returns false for the partition. A range ends at an offset
    /// that the leader has returned as the end of the log for the isolation level of the client, or before it. A range that
    /// ends beyond the log fails, after `wait`. Otherwise `wait` limits the time without a response of the broker, so a slow
    /// connection is not a failure. Replaces the client's assignment.
    pub(super) fn read(
        &self,
        topic: &str,
        ranges: &Ranges,
        wait: Duration,
        visit: VisitMessage<'_>,
    ) -> Result<(), Failure> {
        let unread = self.read_most(topic, ranges, wait, visit)?;
        if unread.ends.is_empty() {
            return Ok(());
        }
        let (why, doing) = (unread.why(wait), doing(topic, ranges));
        Err(Failure::new(Remedy::Retry, format!("{why} while {doing}; retrying")))
    }

    /// The same, but returns what was not read.
    pub(super) fn read_most(
        &self,
        topic: &str,
        ranges: &Ranges,
        wait: Duration,
        visit: VisitMessage<'_>,
    ) -> Result<Unread, Failure> {
        let doing = || doing(topic, ranges);
        let mut unread = Unread::of(ranges);
        if unread.ends.is_empty() {
            return Ok(unread);
        }
        self.assign(topic, ranges, &unread).map_err(|e| failure(&doing(), &e))?;
        let (mut last_response, mut broken) = (clock::monotonic(), None);
        while !unread.ends.is_empty() && last_response.elapsed() < wait {
            let polled = self.poll(Duration::from_millis(100), &mut |message| {
                unread.pass(message.coordinates(), || visit(message));
                true
            });
            let is_response = match polled {
                Ok(Polled::Nothing) => false,
                Ok(Polled::More) => true,
                Ok(Polled::End(at)) => unread.end(at),
                // The client connects again. It may be a broker that has none of these partitions.
                Err(error) if error.is_of_connection() => {
                    broken = Some(error);
                    false
                }
                Err(error) => return Err(failure_of(&error, topic, &doing())),
            };
            if is_response {
                (last_response, broken) = (clock::monotonic(), None);
            }
        }
        match broken.filter(|_| !unread.ends.is_empty()) {
            Some(error) => Err(failure_of(&error, topic, &doing())),
            None => Ok(unread),
        }
    }

    /// Reads only the unread partitions, each from the start of its range on.
    fn assign(&self, topic: &str, ranges: &Ranges, unread: &Unread) -> Result<(), KafkaError> {
        let read = || ranges.iter().filter(|(partition, _)| unread.ends.contains_key(partition));
        let starts = read().map(|(partition, range)| (topic, *partition, kafka_offset(range.start)));
        let list = partitions::list(starts)?;
        self.fetched.keep(|_, _| false);
        let read = read().map(|(partition, _)| (topic, *partition));
        self.fetched.assign(&self.consumer, read, || self.consumer.assign(&list))
    }
}

fn doing(topic: &str, ranges: &Ranges) -> String {
    format!("reading topic {topic}, partitions {}", listed(ranges.keys().copied()))
}

/// The ranges that are not read to their ends.
///
/// A leader reports the end of a partition with each response to a fetch. After an election this end can be before an offset
/// that the previous leader returned as the end: the new leader learns the high watermark from its followers, and until then
/// it serves no record beyond the one it knows. It does not return such an end to a request for the end of the log
/// (`OFFSET_NOT_AVAILABLE`, KIP-207). The client fetches on after an end, and reports each other end that it reaches once
/// (`rdkafka_fetcher.c`, `eof_offset`), so an early end never repeats and a later one follows. It reaches an end also when
/// only markers and aborted records are before it, which are not passed on.
pub(super) struct Unread {
    /// The ends of the ranges.
    pub(super) ends: BTreeMap<PartitionId, Offset>,
    /// Where a partition was reported to end before its range.
    early: BTreeMap<PartitionId, Offset>,
}

impl Unread {
    fn of(ranges: &Ranges) -> Self {
        let unread = ranges.iter().filter(|(_, range)| !range.is_empty());
        Self { ends: unread.map(|(id, range)| (*id, range.end)).collect(), early: BTreeMap::new() }
    }

    /// Visits a record, if its partition is unread. `visit` returns whether the partition is read further.
    fn pass(&mut self, at: Coordinates, visit: impl FnOnce() -> bool) {
        let Some(end) = self.ends.get(&at.partition).copied() else { return };
        if at.offset >= end || !visit() || at.offset + 1 >= end {
            self.ends.remove(&at.partition);
        }
    }

    /// Notes a reported end. Returns whether it ends a range.
    fn end(&mut self, at: Coordinates) -> bool {
        let Some(end) = self.ends.get(&at.partition).copied() else { return false };
        if at.offset >= end {
            self.ends.remove(&at.partition);
            return true;
        }
        tracing::debug!(
            partition = at.partition,
            at = at.offset,
            end,
            "a log was reported to end early; reading on"
        );
        self.early.insert(at.partition, at.offset);
        false
    }

    /// Why a range was not read to its end within `wait`.
    fn why(&self, wait: Duration) -> String {
        let seconds = wait.as_secs();
        let early = self.ends.iter().find_map(|(id, end)| Some((id, end, self.early.get(id)?)));
        match early {
            None => format!("no response within {seconds} s"),
            Some((id, end, at)) => format!(
                "partition {id} was reported to end at offset {at}, before offset {end}, which its leader had returned as \
                 the end, and no more arrived within {seconds} s"
            ),
        }
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

    pub(super) fn read(
        &self,
        topic: &str,
        ranges: &Ranges,
        what: Isolation,
        wait: Duration,
        visit: VisitMessage<'_>,
    ) -> Result<(), Failure> {
        if ranges.is_empty() {
            return Ok(());
        }
        self.with(topic, what, |reader| reader.read(topic, ranges, wait, visit))
    }

    /// Those of these partitions in which `read_committed` readers see a record before the last stable offset. Bounds alone do not show that: aborted
    /// records and markers have offsets too. A partition that is not read within `wait` counts as empty.
    pub(super) fn with_records(
        &self,
        topic: &str,
        logs: impl IntoIterator<Item = (PartitionId, LogBounds)>,
        wait: Duration,
    ) -> Result<Vec<PartitionId>, Failure> {
        let ranges = logs.into_iter().map(|(id, log)| (id, log.low..log.stable));
        let ranges: Ranges = ranges.filter(|(_, range)| !range.is_empty()).collect();
        let mut found = Vec::new();
        if !ranges.is_empty() {
            self.with(topic, Isolation::Committed, |reader| {
                reader.read_most(topic, &ranges, wait, &mut |message| {
                    found.push(message.coordinates().partition);
                    false
                })
            })?;
        }
        Ok(found)
    }

    /// Reads with a new client.
    pub(super) fn with<T>(
        &self,
        topic: &str,
        what: Isolation,
        read: impl FnOnce(&BatchReader) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let isolation = match what {
            Isolation::Committed => "read_committed",
            Isolation::Uncommitted => "read_uncommitted",
        };
        let reader = BatchReader::new(client(&self.settings, isolation)?)
            .map_err(|e| failure(&format!("reading topic {topic}"), &e))?;
        let read = read(&reader);
        self.closing.close(reader);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn at(partition: PartitionId, offset: Offset) -> Coordinates {
        Coordinates { partition, offset }
    }

    #[test]
    fn an_end_before_the_range_ends_does_not_end_it() {
        let mut unread = Unread::of(&Ranges::from([(3, 5..20), (4, 0..7), (5, 2..2)]));
        assert!(!unread.end(at(3, 17)) && !unread.end(at(3, 19)));
        assert_eq!(unread.ends, BTreeMap::from([(3, 20), (4, 7)]));
        let why = unread.why(WAIT);
        assert!(why.contains("partition 3 was reported to end at offset 19, before offset 20"), "{why}");
        // The records before the end are markers and aborted ones.
        assert!(unread.end(at(3, 20)));
        assert_eq!(unread.why(WAIT), "no response within 10 s");
        assert!(unread.end(at(4, 9)) && !unread.end(at(4, 9)));
        assert_eq!(unread.ends, BTreeMap::new());
    }

    #[test]
    fn the_last_record_of_a_range_ends_it() {
        let mut unread = Unread::of(&Ranges::from([(3, 5..20), (4, 0..7), (5, 0..9)]));
        let mut visited = 0;
        let mut pass = |unread: &mut Unread, at, goes_on| {
            unread.pass(at, || {
                visited += 1;
                goes_on
            });
        };
        pass(&mut unread, at(3, 18), true);
        assert!(unread.ends.contains_key(&3));
        pass(&mut unread, at(3, 19), true);
        // Beyond the range: the last offsets in it hold no record.
        pass(&mut unread, at(4, 7), true);
        pass(&mut unread, at(5, 1), false);
        pass(&mut unread, at(5, 2), true);
        assert_eq!((unread.ends, visited), (BTreeMap::new(), 3));
    }
}
