//! Rebalance events of the client's callback, queued for the worker.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics, TopicPartitionList as Partitions};

use super::connection::{ConnectionProblem, LastProblem};
use super::log_context::LogContext;
use super::member::SourceLog;
use super::outages;
use super::statistics::{self, ClientUse};
use crate::locked::Locked;
use crate::ports::GroupEvent;

/// Queues rebalance events. It handles a revocation itself only while the consumer is being closed, because the worker no
/// longer polls for events then.
#[derive(Default)]
pub(super) struct GroupContext {
    events: Mutex<Vec<GroupEvent<SourceLog>>>,
    /// The client waits for [`GroupMember::assign`](crate::ports::GroupMember::assign) or
    /// [`GroupMember::unassign`](crate::ports::GroupMember::unassign).
    rebalance_pending: AtomicBool,
    closing: AtomicBool,
    problem: LastProblem,
    /// The worker has a failure that it retries.
    worker_fails: AtomicBool,
}

impl GroupContext {
    /// The connection problem that the client reported last, if it is recent, for a failure that the worker retries.
    pub(super) fn problem(&self) -> Option<ConnectionProblem> {
        self.worker_fails.store(true, Ordering::Release);
        self.problem.latest()
    }

    /// Removes the stored connection problem, because a connection works.
    pub(super) fn connected(&self) {
        self.problem.clear();
        if self.worker_fails.swap(false, Ordering::AcqRel) {
            outages::worker_has_recovered();
        }
    }

    /// The events since the last call.
    pub(super) fn take(&self) -> Vec<GroupEvent<SourceLog>> {
        std::mem::take(&mut self.events.locked())
    }

    /// Marks the last rebalance event as handled.
    pub(super) fn rebalance_handled(&self) {
        self.rebalance_pending.store(false, Ordering::Release);
    }

    /// From now on the callback handles revocations itself. Returns whether an earlier rebalance event is still pending.
    pub(super) fn close(&self) -> bool {
        self.closing.store(true, Ordering::Release);
        self.rebalance_pending.load(Ordering::Acquire)
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        LogContext.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.problem.record(reason);
        LogContext.error(error, reason);
    }

    fn stats(&self, report: Statistics) {
        statistics::note(ClientUse::Consumer, &report);
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut Partitions) {
        if self.closing.load(Ordering::Acquire) {
            // An error here means that the assignment is already removed, as intended.
            drop(consumer.unassign());
            return;
        }
        let log = |topic: &str, partition| {
            Some(SourceLog { topic: topic.to_owned(), partition: u32::try_from(partition).ok()? })
        };
        let logs = list.elements().iter().filter_map(|it| log(it.topic(), it.partition())).collect();
        self.rebalance_pending.store(true, Ordering::Release);
        let event = if err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            GroupEvent::Assigned(logs)
        } else if consumer.assignment_lost() {
            GroupEvent::Lost(logs)
        } else {
            GroupEvent::Revoked(logs)
        };
        self.events.locked().push(event);
    }
}
