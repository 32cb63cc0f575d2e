//! What the client's callback says about the group, queued for the worker.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, TopicPartitionList as Partitions};

use super::connection::{Complaint, Heard};
use super::ends::Quiet;
use crate::dedupe::PartitionId;
use crate::ports::GroupEvent;

/// Queues group events; answers revocations itself only while the consumer is being closed,
/// because nobody polls for them any more.
#[derive(Default)]
pub(super) struct Group {
    events: Mutex<Vec<GroupEvent>>,
    /// The client waits for [`Source::assign`](crate::ports::Source::assign) or [`Source::unassign`](crate::ports::Source::unassign).
    unanswered: AtomicBool,
    closing: AtomicBool,
    heard: Heard,
}

impl Group {
    /// Why there is no connection, as far as the client has said it lately.
    pub(super) fn complaint(&self) -> Option<Complaint> {
        self.heard.latest()
    }

    /// A connection stands.
    pub(super) fn connected(&self) {
        self.heard.clear();
    }

    fn push(&self, event: GroupEvent) {
        self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(event);
    }

    /// The events since the last call.
    pub(super) fn take(&self) -> Vec<GroupEvent> {
        std::mem::take(&mut self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// The last rebalance has been answered.
    pub(super) fn answered(&self) {
        self.unanswered.store(false, Ordering::Release);
    }

    /// From now on revocations answer themselves. Returns whether a rebalance announced before still
    /// waits for its answer.
    pub(super) fn close(&self) -> bool {
        self.closing.store(true, Ordering::Release);
        self.unanswered.load(Ordering::Acquire)
    }
}

impl ClientContext for Group {
    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.note(reason);
        Quiet.error(error, reason);
    }
}

impl ConsumerContext for Group {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, list: &mut Partitions) {
        let partitions: Vec<PartitionId> =
            list.elements().iter().filter_map(|e| u32::try_from(e.partition()).ok()).collect();
        if self.closing.load(Ordering::Acquire) {
            // An error here means that the assignment is gone already, which is what we want.
            drop(consumer.unassign());
            return;
        }
        self.unanswered.store(true, Ordering::Release);
        if err == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.push(GroupEvent::Assigned(partitions));
        } else if consumer.assignment_lost() {
            self.push(GroupEvent::Lost(partitions));
        } else {
            self.push(GroupEvent::Revoked(partitions));
        }
    }
}
