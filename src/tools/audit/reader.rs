//! Reads one topic, partition by partition, as a `read_committed` consumer. Joins no group and commits nothing.

use std::ops::ControlFlow;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{ClientConfig, Offset as Start, TopicPartitionList};

use super::error::{AuditError, remedy};
use super::record::Fields;
use crate::clock;
use crate::dedupe::{Offset, PartitionId};
use crate::kafka::connection::{self, ConnectionProblem, ProblemCapture};
use crate::kafka::headers_of;

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

/// Called for each record; returns whether to continue.
pub(super) type Visit<'a> = dyn FnMut(Offset, &Fields<'_>) -> Result<ControlFlow<()>, AuditError> + 'a;

/// How to connect to the brokers.
pub(super) struct Access<'a> {
    /// `host:port` list.
    pub servers: &'a str,
    /// librdkafka properties.
    pub properties: &'a [(String, String)],
    /// How much the client prefetches, bytes.
    pub prefetch: u64,
}

pub(super) struct Reader {
    consumer: BaseConsumer<ProblemCapture>,
    config: ClientConfig,
    servers: String,
    topic: String,
    partitions: PartitionId,
}

impl Reader {
    /// Connects and finds the topic. Only records read with `read_committed` are audited.
    pub fn open(access: &Access<'_>, topic: &str, isolation: &str) -> Result<Self, AuditError> {
        let mut config = config(access);
        config.set("isolation.level", isolation);
        let consumer = ProblemCapture::reader(config.clone()).map_err(|e| AuditError::settings(&e))?;
        let (servers, topic) = (access.servers.to_owned(), topic.to_owned());
        let mut reader = Self { consumer, config, servers, topic, partitions: 0 };
        reader.partitions = reader.count_partitions()?;
        Ok(reader)
    }

    /// Number of partitions of the topic.
    pub fn partitions(&self) -> PartitionId {
        self.partitions
    }

    fn count_partitions(&self) -> Result<PartitionId, AuditError> {
        let metadata = connection::metadata(&self.consumer, &self.config, &self.topic)
            .map_err(|(error, problem)| self.with_cause(&error, problem))?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let error = found.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from);
        match (found, error) {
            (Some(topic), None) if !topic.partitions().is_empty() => {
                Ok(PartitionId::try_from(topic.partitions().len()).unwrap_or(PartitionId::MAX))
            }
            (Some(_), Some(code)) if remedy(code).is_some() => {
                Err(self.failed(&KafkaError::MetadataFetch(code)))
            }
            _ => Err(AuditError::MissingTopic { topic: self.topic.clone(), servers: self.servers.clone() }),
        }
    }

    /// The offsets of a partition that are readable now; empty if the partition does not exist.
    pub fn span(&self, partition: PartitionId) -> Result<Span, AuditError> {
        if partition >= self.partitions {
            return Ok(Span::default());
        }
        let (low, end) = self
            .consumer
            .fetch_watermarks(&self.topic, number(partition), TIMEOUT)
            .map_err(|e| self.failed(&e))?;
        Ok(Span { low: offset(low), end: offset(end) })
    }

    /// An offset of the span before which no record has this timestamp or a later one; the end of the span if no
    /// record has.
    pub fn first_since(&self, partition: PartitionId, ms: i64, span: Span) -> Result<Offset, AuditError> {
        if span.low >= span.end {
            return Ok(span.low);
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, number(partition), Start::Offset(ms.max(0)))
            .map_err(|e| AuditError::settings(&e))?;
        let found = self.consumer.offsets_for_times(list, TIMEOUT).map_err(|e| self.failed(&e))?;
        match found.elements().first().map(|element| (element.error(), element.offset())) {
            Some((Ok(()), Start::Offset(at))) => Ok(offset(at).clamp(span.low, span.end)),
            Some((Err(error), _)) => Err(self.failed(&error)),
            _ => Ok(span.end),
        }
    }

    /// Visits the records of a span by increasing offset, until `visit` breaks.
    pub fn read(&self, partition: PartitionId, span: Span, visit: &mut Visit<'_>) -> Result<(), AuditError> {
        if span.low >= span.end {
            return Ok(());
        }
        self.assign(partition, span.low)?;
        let (mut last_record, mut waiting) = (clock::monotonic(), true);
        loop {
            match self.consumer.poll(POLL_INTERVAL) {
                Some(Ok(message)) => {
                    waiting = false;
                    let at = offset(message.offset());
                    let stop = at < span.end && visit(at, &fields(&message))?.is_break();
                    if stop || at + 1 >= span.end {
                        break;
                    }
                    continue;
                }
                // Only transaction markers and aborted records are left.
                Some(Err(KafkaError::PartitionEOF(at))) if at == number(partition) => break,
                Some(Err(error)) => self.fail_unless_transient(partition, &error)?,
                None => {}
            }
            if !waiting {
                (last_record, waiting) = (clock::monotonic(), true);
            } else if last_record.elapsed() > TIMEOUT {
                return Err(self.silent(partition));
            }
        }
        self.consumer.unassign().map_err(|e| AuditError::settings(&e))
    }

    fn assign(&self, partition: PartitionId, from: Offset) -> Result<(), AuditError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(
            &self.topic,
            number(partition),
            Start::Offset(i64::try_from(from).unwrap_or(i64::MAX)),
        )
        .map_err(|e| AuditError::settings(&e))?;
        self.consumer.assign(&list).map_err(|e| AuditError::settings(&e))
    }

    /// An unreachable broker is transient; rejected requests and deleted records are not.
    fn fail_unless_transient(&self, partition: PartitionId, error: &KafkaError) -> Result<(), AuditError> {
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                Err(AuditError::Deleted { topic: self.topic.clone(), partition })
            }
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                Err(AuditError::MissingTopic { topic: self.topic.clone(), servers: self.servers.clone() })
            }
            Some(code @ (RDKafkaErrorCode::BadMessage | RDKafkaErrorCode::BadCompression)) => {
                let reason = self.consumer.context().last().map(|(_, reason)| reason);
                let why = reason.unwrap_or_else(|| code.to_string());
                Err(AuditError::Damaged { topic: self.topic.clone(), partition, why })
            }
            Some(code) if remedy(code).is_some() => Err(self.failed(error)),
            // Includes a missing permission on the group, which is not used.
            _ => Ok(()),
        }
    }

    /// The error of a call that was rejected or timed out.
    fn failed(&self, error: &KafkaError) -> AuditError {
        self.with_cause(error, connection::connection_problem(&self.consumer, &self.config))
    }

    /// The cause is often only in the error events of the client.
    fn with_cause(&self, error: &KafkaError, problem: Option<ConnectionProblem>) -> AuditError {
        if let Some(ConnectionProblem { what, .. }) = problem {
            return AuditError::NotConnected { servers: self.servers.clone(), what };
        }
        let problem = self.consumer.context().last();
        let codes = [error.rdkafka_error_code(), problem.as_ref().and_then(|(e, _)| e.rdkafka_error_code())];
        if let Some((why, remedy)) = codes.into_iter().flatten().find_map(|code| Some((code, remedy(code)?)))
        {
            return AuditError::Refused { topic: self.topic.clone(), why, remedy };
        }
        AuditError::Unreachable {
            servers: self.servers.clone(),
            why: problem.map_or_else(|| error.to_string(), |(_, reason)| reason),
        }
    }

    fn silent(&self, partition: PartitionId) -> AuditError {
        AuditError::Silent {
            topic: self.topic.clone(),
            partition,
            seconds: TIMEOUT.as_secs(),
            why: self
                .consumer
                .context()
                .last()
                .map_or_else(|| "the client reports no error".to_owned(), |(_, reason)| reason),
        }
    }
}

fn config(access: &Access<'_>) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("client.id", "dedupd.audit")
        .set("reconnect.backoff.max.ms", "1000")
        .set("fetch.wait.max.ms", "50")
        .set("fetch.queue.backoff.ms", "20")
        .set("queued.max.messages.kbytes", (access.prefetch >> 10).clamp(1, 2_097_151).to_string());
    for (name, value) in access.properties {
        config.set(name, value);
    }
    config
        .set("bootstrap.servers", access.servers)
        // The client requires a group id to assign partitions; the group is never joined.
        .set("group.id", "dedupd.audit")
        .set("check.crcs", "true")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("allow.auto.create.topics", "false");
    config
}

fn number(partition: PartitionId) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

fn offset(number: i64) -> Offset {
    Offset::try_from(number).unwrap_or(0)
}

fn fields<'a>(message: &'a BorrowedMessage<'_>) -> Fields<'a> {
    Fields {
        key: message.key(),
        value: message.payload(),
        headers: headers_of(message).collect(),
        timestamp_ms: message.timestamp().to_millis(),
    }
}
