//! Reads partitions of one topic, several at the same time, as a `read_committed` consumer. Joins no group and commits
//! nothing.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset as Start, TopicPartitionList};

use super::clock;
use super::connection::{Access, Connection, is_rejection};
use super::error::AuditError;
use super::events::Events;
use super::native::{self, headers};
use super::record::Fields;
use super::{Offset, PartitionId};

/// How long a call may take, or no record may arrive, before the audit fails.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The readable offsets of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Log start offset.
    pub low: Offset,
    /// Last stable offset: one past the last offset visible to a `read_committed` reader.
    pub end: Offset,
}

impl Span {
    /// Number of offsets.
    pub(super) fn len(self) -> u64 {
        self.end.saturating_sub(self.low)
    }
}

/// A span of each partition.
pub(super) type SpanOf = BTreeMap<PartitionId, Span>;
/// An offset of each partition.
pub(super) type OffsetOf = BTreeMap<PartitionId, Offset>;

/// A record that was read.
pub(super) struct Arrived<'a> {
    pub partition: PartitionId,
    pub offset: Offset,
    /// The leader epoch under which it was written, if its format has that.
    pub epoch: Option<i32>,
    /// How many offsets of the span it and the preceding transaction markers, aborted and deleted records took.
    pub passed: u64,
    pub fields: &'a Fields<'a>,
}

/// Called for each record; returns whether its partition is read further.
pub(super) type Visit<'a> = dyn FnMut(&Arrived<'_>) -> Result<ControlFlow<()>, AuditError> + 'a;

pub(super) struct Reader {
    connection: Connection,
    /// The number of its partitions.
    pub partitions: PartitionId,
}

impl Reader {
    /// Connects and finds the topic. Only records read with `read_committed` are audited.
    pub fn open(access: &Access<'_>, topic: &str, isolation: &str) -> Result<Self, AuditError> {
        let mut reader = Self { connection: Connection::new(access, topic, isolation)?, partitions: 0 };
        reader.partitions = reader.count_partitions()?;
        Ok(reader)
    }

    pub fn topic(&self) -> &str {
        &self.connection.topic
    }

    /// The id of the topic; `None` if the brokers report none.
    pub fn topic_id(&self) -> Result<Option<String>, AuditError> {
        let ask = || native::topic_id(&self.connection.consumer, self.topic(), TIMEOUT);
        self.connection.retried(TIMEOUT, ask)
    }

    fn events(&self) -> &Events {
        self.connection.consumer.context()
    }

    fn missing_topic(&self) -> AuditError {
        AuditError::MissingTopic { topic: self.topic().to_owned(), servers: self.connection.servers.clone() }
    }

    fn count_partitions(&self) -> Result<PartitionId, AuditError> {
        let metadata = self.connection.metadata()?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.topic());
        let error = found.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from);
        match (found, error) {
            (Some(topic), None) if !topic.partitions().is_empty() => {
                Ok(PartitionId::try_from(topic.partitions().len()).unwrap_or(PartitionId::MAX))
            }
            (Some(_), Some(code)) if is_rejection(code) => {
                Err(self.connection.failed(&KafkaError::MetadataFetch(code)))
            }
            _ => Err(self.missing_topic()),
        }
    }

    /// The offsets of these partitions that are readable now; empty for a partition that does not exist.
    pub fn spans(&self, partitions: impl Iterator<Item = PartitionId> + Clone) -> Result<SpanOf, AuditError> {
        let lows = self.log_offsets(partitions.clone(), Start::Beginning)?;
        let ends = self.ends(partitions.clone())?;
        let at = |offsets: &OffsetOf, partition| offsets.get(&partition).copied().unwrap_or_default();
        Ok(partitions.map(|p| (p, Span { low: at(&lows, p), end: at(&ends, p) })).collect())
    }

    /// The ends of the spans; none for a partition that does not exist.
    pub fn ends(&self, partitions: impl Iterator<Item = PartitionId>) -> Result<OffsetOf, AuditError> {
        self.log_offsets(partitions, Start::End)
    }

    fn log_offsets(
        &self,
        partitions: impl Iterator<Item = PartitionId>,
        place: Start,
    ) -> Result<OffsetOf, AuditError> {
        let existing: Vec<_> = partitions.filter(|partition| *partition < self.partitions).collect();
        let found = self.offsets(existing.iter().map(|partition| (*partition, place)))?;
        // A partition without an offset must not count as empty.
        if existing.iter().all(|partition| found.contains_key(partition)) {
            Ok(found)
        } else {
            Err(self.connection.failed(&KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition)))
        }
    }

    /// The spans from an offset on before which no record has this timestamp or a later one; empty if no record has.
    pub fn since(&self, ms: i64, spans: &SpanOf) -> Result<SpanOf, AuditError> {
        let filled = spans.iter().filter(|(_, span)| span.low < span.end);
        let found = self.offsets(filled.map(|(partition, _)| (*partition, Start::Offset(ms.max(0)))))?;
        let cut = |(partition, span): (&PartitionId, &Span)| {
            let low = found.get(partition).map_or(span.end, |at| (*at).clamp(span.low, span.end));
            (*partition, Span { low, ..*span })
        };
        Ok(spans.iter().map(cut).collect())
    }

    /// One offset of each partition, by one request to each leader: the log start, the log end, or the first one at or after a
    /// time, given as an offset in epoch milliseconds; none if no record is as new.
    fn offsets(&self, places: impl Iterator<Item = (PartitionId, Start)>) -> Result<OffsetOf, AuditError> {
        // A logical offset takes the place of the timestamp.
        let list = self.list(places)?;
        if list.count() == 0 {
            return Ok(OffsetOf::new());
        }
        self.connection.retried(TIMEOUT, || {
            let mut offsets = OffsetOf::new();
            for element in self.connection.consumer.offsets_for_times(list.clone(), TIMEOUT)?.elements() {
                element.error()?;
                if let Start::Offset(at) = element.offset() {
                    offsets.insert(partition_id(element.partition()), offset(at));
                }
            }
            Ok(offsets)
        })
    }

    /// Visits the records of these spans, those of a partition by increasing offset, until `visit` breaks for the partition.
    pub fn read(&self, spans: SpanOf, visit: &mut Visit<'_>) -> Result<(), AuditError> {
        let mut open = spans;
        open.retain(|_, span| span.low < span.end);
        match self.read_all(&mut open, visit) {
            // The client's error does not name the partition. Alone, each is known. A new client reads them: behind a damaged
            // batch the old one goes on at an offset that it takes from the bytes of the batch, and the resulting error about
            // an offset outside of the log would be read as the error of the next partition.
            Err(AuditError::Deleted { .. } | AuditError::Damaged { .. }) if open.len() > 1 => {
                self.connection.consumer.unassign().map_err(|e| AuditError::settings(&e))?;
                let alone = Self { connection: self.connection.again()?, partitions: self.partitions };
                open.into_iter().try_for_each(|rest| alone.read_all(&mut SpanOf::from([rest]), visit))
            }
            result => result,
        }
    }

    /// Reads open spans and leaves what was not read. An error that is not about one of several partitions names the first.
    fn read_all(&self, open: &mut SpanOf, visit: &mut Visit<'_>) -> Result<(), AuditError> {
        let starts = open.iter().map(|(partition, span)| {
            (*partition, Start::Offset(i64::try_from(span.low).unwrap_or(i64::MAX)))
        });
        self.connection.consumer.assign(&self.list(starts)?).map_err(|e| AuditError::settings(&e))?;
        let (mut last_record, mut waiting) = (clock::monotonic(), true);
        let mut early = OffsetOf::new();
        while let Some((&first, _)) = open.first_key_value() {
            let is_progress = match self.connection.consumer.poll(POLL_INTERVAL) {
                Some(Ok(message)) => take(&message, open, visit)?,
                Some(Err(KafkaError::PartitionEOF(at))) => self.end(partition_id(at), open, &mut early),
                Some(Err(error)) => self.fail_unless_transient(first, &error).map(|()| false)?,
                None => false,
            };
            if is_progress {
                waiting = false;
            } else if !waiting {
                (last_record, waiting) = (clock::monotonic(), true);
            } else if last_record.elapsed() > TIMEOUT {
                return Err(self.incomplete(first, open, &early));
            }
        }
        self.connection.consumer.unassign().map_err(|e| AuditError::settings(&e))
    }

    /// Takes the reported end of a partition. Returns whether it is the end of the span: then only transaction markers and
    /// aborted records are left. An earlier end is that of a leader that does not serve its whole log yet; the client fetches
    /// on and reports the next end that it reaches.
    fn end(&self, partition: PartitionId, open: &mut SpanOf, early: &mut OffsetOf) -> bool {
        let Some(span) = open.get(&partition) else { return false };
        let at = self.events().last_end().and_then(|text| reported_end(&text)).unwrap_or(span.low);
        if at < span.end {
            early.insert(partition, at);
            return false;
        }
        open.remove(&partition).is_some()
    }

    fn list(
        &self,
        places: impl Iterator<Item = (PartitionId, Start)>,
    ) -> Result<TopicPartitionList, AuditError> {
        let mut list = TopicPartitionList::new();
        for (partition, place) in places {
            list.add_partition_offset(self.topic(), number(partition), place)
                .map_err(|e| AuditError::settings(&e))?;
        }
        Ok(list)
    }

    /// An unreachable broker is transient; rejected requests and deleted records are not.
    fn fail_unless_transient(&self, partition: PartitionId, error: &KafkaError) -> Result<(), AuditError> {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                Err(AuditError::Deleted { topic: self.topic().to_owned(), partition })
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Err(self.missing_topic())
            }
            Some(code @ (RDKafkaErrorCode::BadMessage | RDKafkaErrorCode::BadCompression)) => {
                let reason = self.events().last_error().map(|(_, reason)| reason);
                let why = reason.unwrap_or_else(|| code.to_string());
                Err(AuditError::Damaged { topic: self.topic().to_owned(), partition, why })
            }
            Some(code) if is_rejection(code) => Err(self.connection.failed(error)),
            // Includes a missing permission on the group, which is not used.
            _ => Ok(()),
        }
    }

    /// The error when nothing arrives any more of spans that are not read to their ends.
    fn incomplete(&self, first: PartitionId, open: &SpanOf, early: &OffsetOf) -> AuditError {
        let (topic, seconds) = (self.topic().to_owned(), TIMEOUT.as_secs());
        let ended =
            open.iter().find_map(|(partition, span)| Some((*partition, span.end, *early.get(partition)?)));
        if let Some((partition, end, at)) = ended {
            return AuditError::EndedEarly { topic, partition, at, end, seconds };
        }
        let Span { low: offset, end } = open.get(&first).copied().unwrap_or_default();
        AuditError::Silent {
            topic,
            partition: first,
            offset,
            end,
            seconds,
            why: self
                .events()
                .last_error()
                .map_or_else(|| "the client reports no error".to_owned(), |(_, reason)| reason),
        }
    }
}

/// Visits a record, if its partition is open. Returns whether it is.
fn take(message: &BorrowedMessage<'_>, open: &mut SpanOf, visit: &mut Visit<'_>) -> Result<bool, AuditError> {
    let (partition, offset) = (partition_id(message.partition()), offset(message.offset()));
    let Some(span) = open.get_mut(&partition) else { return Ok(false) };
    let passed = (offset + 1).saturating_sub(span.low);
    span.low = offset + 1;
    let epoch = native::leader_epoch(message);
    let is_done = offset >= span.end
        || visit(&Arrived { partition, offset, epoch, passed, fields: &fields(message) })?.is_break()
        || span.low >= span.end;
    if is_done {
        open.remove(&partition);
    }
    Ok(true)
}

/// The offset in the client's text about the end of a partition (`rdkafka_fetcher.c`): the Rust client passes on only the
/// partition. With another text no end is known, and what is not read fails the audit.
fn reported_end(text: &str) -> Option<Offset> {
    let (_, rest) = text.split_once("reached end of partition at offset ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn number(partition: PartitionId) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

fn partition_id(number: i32) -> PartitionId {
    PartitionId::try_from(number).unwrap_or(PartitionId::MAX)
}

fn offset(number: i64) -> Offset {
    Offset::try_from(number).unwrap_or(0)
}

fn fields<'a>(message: &'a BorrowedMessage<'_>) -> Fields<'a> {
    Fields {
        key: message.key(),
        value: message.payload(),
        headers: headers(message),
        timestamp_ms: message.timestamp().to_millis(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_end_is_an_end() {
        let text = "Fetch from broker 1 reached end of partition at offset 17 (HighwaterMark 20)";
        assert_eq!(reported_end(text), Some(17));
        for text in
            ["", "reached end of partition", "reached end of partition at offset -1001 (HighwaterMark 20)"]
        {
            assert_eq!(reported_end(text), None, "{text}");
        }
    }
}
