//! The raw topic, read as a member of the group.
//!
//! The client's callback only queues rebalance events. The worker handles them when its state allows, and then calls
//! [`GroupMember::assign`] or [`GroupMember::unassign`].

mod placing;
mod reading;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::consumer::{BaseConsumer, Consumer, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};

use super::client_config::Settings;
use super::closing::Closing;
use super::ends::{EndReader, partitions_of};
use super::error::{failure, failure_with_permission};
use super::group::GroupContext;
use super::group_monitor;
use super::log_context::LogContext;
use super::native;
use super::partitions::{self, kafka_offset, kafka_partition, list_of, partition_id};
use super::record::RawRecord;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::{
    Committed, Epoch, Failure, GroupEvent, GroupMember, LogBounds, Record, Remedy, Source, Truncation,
};

/// Time limit of a seek; it waits for the client's own threads, not for the broker.
pub(super) const SEEK_WAIT: Duration = Duration::from_secs(5);

/// One member of the group.
pub struct KafkaSource {
    /// Declared first because it must be dropped before the consumer.
    fetched: native::Fetched,
    consumer: Authenticated<BaseConsumer<GroupContext>>,
    ends: EndReader,
    settings: Settings,
    topic: String,
    group: String,
    owned: RefCell<BTreeSet<PartitionId>>,
    /// The assignment of the client itself, with the offset of the last assignment or seek: owned partitions whose start
    /// offset is known.
    assigned: RefCell<BTreeMap<PartitionId, Offset>>,
    /// Why this member can never read again. The client reports it only once.
    fatal: RefCell<Option<Failure>>,
    /// The damaged batches that were read. A second read of one sets the failure that every poll returns until the partition
    /// is sought; the client itself would continue behind the batch.
    damaged: RefCell<BTreeMap<Coordinates, Option<Failure>>>,
    /// The leader epoch that the next seek of a partition compares with the leader's log.
    epochs: RefCell<BTreeMap<PartitionId, Epoch>>,
    /// What the client found where the position of the last seek is outside of the log.
    truncated: RefCell<BTreeMap<PartitionId, Truncation>>,
    /// The clients of earlier members.
    closing: Closing,
}

impl KafkaSource {
    /// Creates the clients and subscribes; assignments arrive through [`GroupMember::events`].
    pub fn subscribe(settings: &Settings) -> Result<Self, Failure> {
        let doing = format!("joining group {} on topic {}", settings.group, settings.raw);
        let fail = |e: KafkaError| failure(&doing, &e);
        let consumer: Authenticated<BaseConsumer<GroupContext>> =
            tokens::create(&settings.reporting(settings.source()), GroupContext::default()).map_err(fail)?;
        consumer.subscribe(&[&settings.raw]).map_err(fail)?;
        Ok(Self {
            fetched: native::Fetched::of(&consumer).map_err(fail)?,
            consumer,
            ends: EndReader::new(settings)?,
            settings: settings.clone(),
            topic: settings.raw.clone(),
            group: settings.group.clone(),
            owned: RefCell::default(),
            assigned: RefCell::default(),
            fatal: RefCell::default(),
            damaged: RefCell::default(),
            epochs: RefCell::default(),
            truncated: RefCell::default(),
            closing: Closing::default(),
        })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer<GroupContext> {
        &self.consumer
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        let doing = format!("{doing} topic {} in group {}", self.topic, self.group);
        failure_with_permission(&self.settings, &doing, error)
    }

    fn list_at(&self, starts: &[(PartitionId, Offset)]) -> Result<TopicPartitionList, KafkaError> {
        let element = |(partition, start): &(_, _)| (self.topic.as_str(), *partition, kafka_offset(*start));
        partitions::list(starts.iter().map(element))
    }

    fn is_cooperative(&self) -> bool {
        matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
    }

    fn fetch_committed(
        &self,
        reader: &BaseConsumer<LogContext>,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        let list = list_of(&self.topic, partitions.iter().copied());
        let fail = |e| self.fail("reading the committed offsets of", &e);
        let offsets = native::committed(reader.client(), &list, wait).map_err(fail)?;
        offsets.into_iter().map(|it| it.map_err(KafkaError::OffsetFetch).map_err(fail)).collect()
    }

    fn seek_each(&self, starts: &[(PartitionId, Offset)]) -> Result<(), KafkaError> {
        if starts.is_empty() {
            return Ok(());
        }
        let list = self.list_at(starts)?;
        for (partition, offset) in starts {
            if let Some(epoch) = self.epoch_before(*partition, *offset) {
                native::set_leader_epoch(&list, &self.topic, kafka_partition(*partition), epoch);
            }
        }
        let sought = self.consumer.seek_partitions(list, SEEK_WAIT)?;
        // The call can succeed although single partitions fail.
        sought.elements().iter().try_for_each(TopicPartitionListElem::error)
    }

    /// Resumes partitions explicitly: a pause can survive a reassignment (librdkafka#1849).
    fn resume(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let list = list_of(&self.topic, starts.iter().map(|(partition, _)| *partition));
        self.consumer.resume(&list).map_err(|e| self.fail("resuming partitions of", &e))
    }

    /// Removes what was fetched and found at the positions that these partitions had until now.
    fn clear_fetched(&self, partitions: impl Iterator<Item = PartitionId>) {
        let partitions: BTreeSet<PartitionId> = partitions.collect();
        self.truncated.borrow_mut().retain(|partition, _| !partitions.contains(partition));
        let mut damaged = self.damaged.borrow_mut();
        let sought = damaged.iter_mut().filter(|(at, _)| partitions.contains(&at.partition));
        sought.for_each(|(_, failure)| *failure = None);
        self.fetched.discard(|_, partition| partitions.contains(&partition_id(partition)));
    }
}

impl Source for KafkaSource {
    type Record<'a> = RawRecord<'a>;

    fn poll<'a>(
        &'a self,
        records: &mut Vec<RawRecord<'a>>,
        most: usize,
        wait: Duration,
    ) -> Result<(), Failure> {
        if let Some(fatal) = self.fatal.borrow().as_ref() {
            return Err(fatal.clone());
        }
        let before = self.found_damaged();
        let is_behind =
            |partition| before.iter().filter_map(|it| it.damaged).any(|at| at.partition == partition);
        let polled = self.fetched.poll(&self.consumer, most, wait, &mut |message| {
            let record = RawRecord(message);
            if before.is_empty() || !is_behind(record.coordinates().partition) {
                records.push(record);
            }
            true
        });
        polled.or_else(|error| self.failure_of_read(&error).map_or(Ok(()), Err))?;
        before.into_iter().next().map_or(Ok(()), Err)
    }

    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.check_ownership(starts)?;
        let (assigned, new): (Vec<_>, Vec<_>) =
            starts.iter().partition(|(partition, _)| self.assigned.borrow().contains_key(partition));
        if let Err(error) = self.seek_each(&assigned) {
            tracing::debug!(%error, "seek failed; reassigning the partitions");
            self.reassign_at(&assigned)?;
        } else {
            self.assigned.borrow_mut().extend(assigned);
        }
        if !new.is_empty() {
            self.assign_and_compare(&new)?;
        }
        self.clear_fetched(starts.iter().map(|(partition, _)| *partition));
        self.resume(starts)
    }

    fn seek_behind(
        &self,
        partition: PartitionId,
        offset: Offset,
        last: Option<Epoch>,
    ) -> Result<(), Failure> {
        self.set_epoch(partition, last);
        self.seek(&[(partition, offset)])
    }

    fn truncated(&self, partition: PartitionId) -> Option<Truncation> {
        self.truncated.borrow().get(&partition).copied()
    }

    fn reassign(&self, starts: &[(PartitionId, Offset, Option<Epoch>)]) -> Result<(), Failure> {
        let positions: Vec<_> = starts.iter().map(|(partition, offset, _)| (*partition, *offset)).collect();
        self.check_ownership(&positions)?;
        for (partition, _, last) in starts {
            self.set_epoch(*partition, *last);
        }
        self.clear_fetched(starts.iter().map(|(partition, ..)| *partition));
        self.reassign_at(&positions)?;
        self.resume(&positions)
    }

    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let list = list_of(&self.topic, partitions.iter().copied());
        self.consumer.pause(&list).map_err(|e| self.fail("pausing partitions of", &e))
    }

    fn bounds(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<LogBounds>, Failure> {
        let logs: Vec<_> = partitions.iter().map(|partition| (self.topic.as_str(), *partition)).collect();
        let bounds = self.ends.bounds(&logs, wait)?;
        self.consumer.context().connected();
        Ok(bounds)
    }

    fn partition_count(&self, wait: Duration) -> Result<usize, Failure> {
        let found = partitions_of(self.ends.stable().client(), &self.topic, wait);
        Ok(found.map_err(|e| self.fail("reading the number of partitions of", &e))?.len())
    }

    fn topic_id(&self, wait: Duration) -> Option<String> {
        let described = native::topics(self.ends.stable().client(), &[&self.topic], wait).ok()?;
        described.into_iter().next()?.id
    }

    fn end(&self, partition: PartitionId) -> Option<Offset> {
        native::cached_high_watermark(self.consumer.client(), &self.topic, kafka_partition(partition))
    }

    fn explained(&self, failed: Failure) -> Failure {
        if failed.remedy != Remedy::Retry {
            return failed;
        }
        match self.consumer.context().problem() {
            Some(problem) => Failure { what: format!("{}: {}", failed.what, problem.what), ..failed },
            None => failed,
        }
    }
}

impl GroupMember for KafkaSource {
    fn events(&self) -> Vec<GroupEvent> {
        self.consumer.context().take()
    }

    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure> {
        let with_start: Vec<(PartitionId, Offset)> =
            starts.iter().filter_map(|(partition, start)| Some((*partition, (*start)?))).collect();
        self.assign_at(&with_start)?;
        self.consumer.context().rebalance_handled();
        self.owned.borrow_mut().extend(starts.iter().map(|(p, _)| *p));
        self.clear_fetched(starts.iter().map(|(partition, _)| *partition));
        self.resume(&with_start)
    }

    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        self.remove_assigned(partitions)?;
        self.consumer.context().rebalance_handled();
        self.owned.borrow_mut().retain(|p| !partitions.contains(p));
        self.clear_fetched(partitions.iter().copied());
        Ok(())
    }

    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure> {
        // The client is not a member: its responses do not depend on the state of the group.
        self.fetch_committed(self.ends.stable(), partitions, wait)
    }

    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        self.fetch_committed(self.ends.unstable(), partitions, wait)
    }

    fn live_writers(&self, wait: Duration) -> Result<BTreeSet<String>, Failure> {
        let view = group_monitor::view(self.ends.unstable(), &self.settings, wait)?;
        // The coordinator describes a group that it is still loading as empty.
        if view.members.is_empty() {
            let what = format!("the coordinator reports no member of group {}; retrying", self.group);
            return Err(Failure::new(Remedy::Retry, what));
        }
        Ok(view.members.into_iter().map(|member| member.worker).collect())
    }

    fn may_commit(&self, partitions: &[PartitionId]) -> bool {
        let owned = self.owned.borrow();
        let member = native::membership(self.consumer.client())
            .is_some_and(|m| m.generation >= 0 && !m.member_id.is_empty());
        member && !self.consumer.assignment_lost() && partitions.iter().all(|p| owned.contains(p))
    }

    fn rejoin(&mut self) -> Result<(), Failure> {
        let mut former = std::mem::replace(self, Self::subscribe(&self.settings)?);
        self.closing = std::mem::take(&mut former.closing);
        // Not here: with a fatal error, the client sometimes does not finish to close.
        self.closing.close(former);
        Ok(())
    }

    fn leave(&self) {
        self.consumer.unsubscribe();
    }

    fn has_left(&self) -> bool {
        native::membership(self.consumer.client()).is_none_or(|member| member.member_id.is_empty())
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if self.consumer.context().close() {
            // Closing waits until an earlier rebalance event is handled. Removing all partitions handles every kind of
            // event; closing the client resolves any error of these calls.
            let all: Vec<PartitionId> = self.assigned.borrow().keys().copied().collect();
            drop(self.assign_at(&[]).and_then(|()| self.remove_assigned(&all)));
        }
    }
}
