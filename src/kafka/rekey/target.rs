//! The idempotent producer of one topic.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{Producer, ProducerContext, ThreadedProducer};

use crate::dedupe::{PartitionId, SOURCE_HEADER};
use crate::kafka::client_config::Settings;
use crate::kafka::ends::partitions_of;
use crate::kafka::error::{failure_with_permission, is_record_error, rejection};
use crate::kafka::log_context::LogContext;
use crate::kafka::native;
use crate::kafka::partitions::kafka_partition;
use crate::kafka::record::RawRecord;
use crate::kafka::topic::{Outgoing, TopicHandle};
use crate::kafka::topic_monitor::ABSENT_CHECKS;
use crate::kafka::unread::unreadable_headers;
use crate::locked::Locked;
use crate::ports::{Failure, Remedy};

/// The property that ends the producer at the first record that the broker rejects.
const GAPLESS: &str = "enable.gapless.guarantee";

/// The producer and its topic. After a failure it must be replaced.
pub struct TargetWriter {
    /// Declared first because it must be dropped before the client.
    topic: TopicHandle,
    client: Authenticated<ThreadedProducer<Reports>>,
    settings: Settings,
    /// Consecutive requests in which the topic was not found.
    absent: Cell<u32>,
}

/// The records that the broker has acknowledged since the last call, by the numbers given to [`TargetWriter::send`].
#[derive(Debug, Default)]
pub struct Acknowledgements {
    pub numbers: Vec<usize>,
    /// The number of the first record that failed, and why. Records that failed because another one is rejected come after that.
    pub failed: Option<(usize, RDKafkaErrorCode)>,
}

impl Acknowledgements {
    /// Records that the client drops, and the others of a rejected batch, can be reported before the record whose failure is the cause.
    fn fail(&mut self, number: usize, code: RDKafkaErrorCode) {
        use RDKafkaErrorCode::{InvalidDifferentRecord, PurgeInflight, PurgeQueue};
        let is_other = |code| matches!(code, PurgeQueue | PurgeInflight | InvalidDifferentRecord);
        if self.failed.is_none_or(|(_, first)| is_other(first) && !is_other(code)) {
            self.failed = Some((number, code));
        }
    }
}

impl TargetWriter {
    /// Creates the producer. `settings.clean` is the topic.
    pub fn open(settings: &Settings) -> Result<Self, Failure> {
        let mut config = settings.copier();
        config
            // The producer retries without limit, and so keeps the order of each partition.
            .set("message.timeout.ms", "0")
            // Without it the client continues behind a record that the broker rejects, until the owner stops it. The rejected
            // record is written after the restart, and so after later records with the same id.
            .set(GAPLESS, "true")
            // The owner limits what is in flight.
            .set("queue.buffering.max.messages", "0");
        let doing = format!("creating the producer of topic {}", settings.clean);
        let fail = |e: KafkaError| failure_with_permission(settings, &doing, &e);
        let client: Authenticated<ThreadedProducer<Reports>> =
            tokens::create(&config, Reports::default()).map_err(fail)?;
        let topic = TopicHandle::open(client.client(), &settings.clean).map_err(fail)?;
        Ok(Self { topic, client, settings: settings.clone(), absent: Cell::new(0) })
    }

    /// The number of partitions of the topic.
    pub fn partitions(&self, wait: Duration) -> Result<u32, Failure> {
        let to = &self.settings.clean;
        let found = partitions_of(self.client.client(), to, wait)
            .map_err(|e| self.fail(&format!("reading the partitions of topic {to}"), &e))?;
        let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
        self.absent.set(if count > 0 { 0 } else { self.absent.get() + 1 });
        let (remedy, what) = match self.absent.get() {
            0 => return Ok(count),
            1..ABSENT_CHECKS => {
                (Remedy::Retry, format!("the brokers do not report topic {to}; requesting it again"))
            }
            _ => {
                let what = "does not exist any more; create it again, and restart dedupd rekey";
                (Remedy::Stop, format!("topic {to} (rekey.to) {what}"))
            }
        };
        Err(Failure::new(remedy, what))
    }

    fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        failure_with_permission(&self.settings, doing, error)
    }

    /// Sends a copy of a record to a partition, with one more header that names its source. The record loses its headers.
    pub fn send(
        &self,
        record: &mut RawRecord<'_>,
        partition: PartitionId,
        source: &str,
        number: usize,
    ) -> Result<(), Failure> {
        let copy = Outgoing::moved_from(&mut record.0, number);
        let copy = copy.and_then(|copy| copy.with_more_headers(&[(SOURCE_HEADER, source)]));
        let sent = copy.and_then(|mut copy| {
            copy.partition = Some(kafka_partition(partition));
            self.topic.send(self.client.client(), &mut copy)
        });
        sent.map_err(|error| match error {
            KafkaError::MessageProduction(code) => self.failure(source, code),
            KafkaError::MessageConsumption(code) => {
                let what = format!(
                    "record {source} cannot be copied: {}; to skip it, set the offset of group {} behind it with \
                     kafka-consumer-groups.sh --reset-offsets, and restart",
                    unreadable_headers(code),
                    self.settings.group
                );
                Failure::new(Remedy::Stop, what)
            }
            other => self.fail(&format!("writing record {source} to topic {}", self.settings.clean), &other),
        })
    }

    /// Moves what was acknowledged since the last call to `into`, which is empty.
    pub fn take_acknowledged(&self, into: &mut Acknowledgements) {
        let reports = &mut *self.client.context().0.locked();
        std::mem::swap(reports, into);
    }

    /// Whether the client sends no more records, because the broker has rejected one. It drops those that it has not sent.
    pub fn has_ended(&self) -> bool {
        self.client.client().fatal_error().is_some()
    }

    /// Waits at most `wait` until every record is acknowledged or failed.
    pub fn flush(&self, wait: Duration) {
        if !native::flush(self.client.client(), wait) {
            tracing::debug!(wait_ms = wait.as_millis(), "records are still in flight");
        }
    }

    /// The failure for a record that was not delivered. A failure to stop means that a new producer does not help.
    pub fn failure(&self, source: &str, code: RDKafkaErrorCode) -> Failure {
        let to = &self.settings.clean;
        if is_record_error(code) {
            let what = format!(
                "record {source} cannot be written: {}; change that setting, and restart",
                rejection(to, code)
            );
            return Failure::new(Remedy::Stop, what);
        }
        self.fail(&format!("writing record {source} to topic {to}"), &KafkaError::MessageProduction(code))
    }
}

/// The delivery reports since they were last taken.
#[derive(Default)]
struct Reports(Mutex<Acknowledgements>);

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // The client warns that this property is experimental.
        if facility != "CONFWARN" || !message.contains(GAPLESS) {
            LogContext.log(level, facility, message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        LogContext.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let reports = &mut *self.0.locked();
        match result {
            Ok(_) => reports.numbers.push(number),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                reports.fail(number, code);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts_unless_another_record_is_the_cause() {
        use RDKafkaErrorCode::{InvalidDifferentRecord, InvalidTimestamp, MessageSizeTooLarge, PurgeQueue};
        let mut reports = Acknowledgements::default();
        for (number, code) in [
            (7, PurgeQueue),
            (8, InvalidDifferentRecord),
            (1, MessageSizeTooLarge),
            (9, PurgeQueue),
            (2, InvalidTimestamp),
        ] {
            reports.fail(number, code);
        }
        assert_eq!(reports.failed, Some((1, MessageSizeTooLarge)));
    }
}
