//! What the client of the member reports by callbacks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, TopicPartitionList};

use super::{MembershipChange, SourceLog};
use crate::kafka::log_context::LogContext;

/// Queues the changes of the assignment.
#[derive(Default)]
pub(super) struct MemberContext {
    pub changes: Mutex<Vec<MembershipChange>>,
    /// The client waits for [`super::SourceReader::place`] or [`super::SourceReader::release`].
    pub is_pending: AtomicBool,
    pub is_closing: AtomicBool,
}

impl ClientContext for MemberContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        LogContext.error(error, reason);
    }
}

impl ConsumerContext for MemberContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut TopicPartitionList) {
        if self.is_closing.load(Ordering::Acquire) {
            // An error means that the assignment is already removed, as intended.
            drop(consumer.unassign());
            return;
        }
        let log = |topic: &str, partition| {
            Some(SourceLog { topic: topic.to_owned(), partition: u32::try_from(partition).ok()? })
        };
        let logs = list.elements().iter().filter_map(|it| log(it.topic(), it.partition())).collect();
        self.is_pending.store(true, Ordering::Release);
        let change = if err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            MembershipChange::Assigned(logs)
        } else if consumer.assignment_lost() {
            MembershipChange::Lost(logs)
        } else {
            MembershipChange::Revoked(logs)
        };
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
    }
}
