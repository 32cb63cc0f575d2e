//! The raw topic, read as a member of the group.
//!
//! The client's callback only queues rebalance events. The worker handles them when its state allows, and then calls
//! [`GroupMember::assign`] or [`GroupMember::unassign`].

mod reading;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};

use super::client_config::Settings;
use super::closing::Closing;
use super::ends::partitions_of;
use super::group::GroupContext;
use super::group_monitor;
use super::member::{MemberClient, SourceLog, SourceStart};
use super::native;
use super::record::RawRecord;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::{
    Committed, Epoch, Failure, GroupEvent, GroupMember, LogBounds, Record, Remedy, Source, Truncation,
};

/// One member of the group.
pub struct KafkaSource {
    member: MemberClient,
    owned: RefCell<BTreeSet<PartitionId>>,
    /// Why this member can never read again. The client reports it only once.
    fatal: RefCell<Option<Failure>>,
    /// The damaged batches that were read. A second read of one sets the failure that every poll returns until the partition
    /// is sought; the client itself would continue behind the batch.
    damaged: RefCell<BTreeMap<Coordinates, Option<Failure>>>,
    /// The leader epoch that the next seek of a partition compares with the leader's log.
    epochs: RefCell<BTreeMap<PartitionId, Epoch>>,
    /// The clients of earlier members.
    closing: Closing,
}

impl KafkaSource {
    /// Creates the clients and subscribes; assignments arrive through [`GroupMember::events`].
    pub fn subscribe(settings: &Settings) -> Result<Self, Failure> {
        let config = settings.reporting(settings.source());
        Ok(Self {
            member: MemberClient::subscribe(settings, &config, &[&settings.raw])?,
            owned: RefCell::default(),
            fatal: RefCell::default(),
            damaged: RefCell::default(),
            epochs: RefCell::default(),
            closing: Closing::default(),
        })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer<GroupContext> {
        &self.member.consumer
    }

    pub(super) fn topic(&self) -> &str {
        &self.member.settings.raw
    }

    fn log(&self, partition: PartitionId) -> SourceLog {
        SourceLog { topic: self.topic().to_owned(), partition }
    }

    fn logs(&self, partitions: &[PartitionId]) -> Vec<SourceLog> {
        partitions.iter().map(|partition| self.log(*partition)).collect()
    }

    /// Each with the leader epoch to compare at its offset, if that is known.
    fn starts(&self, starts: &[(PartitionId, Offset)]) -> Vec<SourceStart> {
        let epochs = self.epochs.borrow();
        let epoch = |partition, at: Offset| epochs.get(partition).copied().filter(|epoch| epoch.covers(at));
        starts.iter().map(|(id, offset)| (self.log(*id), *offset, epoch(id, *offset))).collect()
    }

    /// Stores the leader epoch of the record before the next offset of a partition, or removes it.
    fn set_epoch(&self, partition: PartitionId, last: Option<Epoch>) {
        let mut epochs = self.epochs.borrow_mut();
        epochs.remove(&partition);
        epochs.extend(last.map(|last| (partition, last)));
    }

    /// Fails when one of these partitions is not assigned to this member.
    fn check_ownership(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let not_owned = starts.iter().find(|(partition, _)| !self.owned.borrow().contains(partition));
        if not_owned.is_none() && !self.consumer().assignment_lost() {
            return Ok(());
        }
        let (partition, _) = not_owned.or(starts.first()).copied().unwrap_or_default();
        Err(Failure::new(
            Remedy::Retry,
            format!(
                "partition {partition} of topic {} cannot be read from its committed offset: it is not assigned to this \
                 member of group {}; waiting for an assignment",
                self.topic(),
                self.member.settings.group
            ),
        ))
    }

    /// Removes what was fetched and found at the positions that these partitions had until now.
    fn clear_fetched<'l>(&self, logs: impl Iterator<Item = &'l SourceLog> + Clone) {
        let mut damaged = self.damaged.borrow_mut();
        let is_sought = |at: &Coordinates| logs.clone().any(|log| log.partition == at.partition);
        damaged.iter_mut().filter(|(at, _)| is_sought(at)).for_each(|(_, failure)| *failure = None);
        self.member.clear(logs);
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
        let polled = self.member.poll(records, most, wait, |record| {
            before.is_empty() || !is_behind(record.coordinates().partition)
        });
        polled.map_err(|error| self.failure_of_read(&error))?;
        before.into_iter().next().map_or(Ok(()), Err)
    }

    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.check_ownership(starts)?;
        let starts = self.starts(starts);
        let (assigned, new): (Vec<_>, Vec<_>) =
            starts.iter().cloned().partition(|(log, ..)| self.member.is_assigned(log));
        if let Err(error) = self.member.seek(&assigned) {
            tracing::debug!(%error, "seek failed; reassigning the partitions");
            self.member.reassign(&assigned)?;
        }
        if !new.is_empty() {
            self.member.assign_and_compare(&new)?;
        }
        let logs = starts.iter().map(|(log, ..)| log);
        self.clear_fetched(logs.clone());
        self.member.resume(logs)
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
        self.member.truncated().get(&self.log(partition)).copied()
    }

    fn reassign(&self, starts: &[(PartitionId, Offset, Option<Epoch>)]) -> Result<(), Failure> {
        let positions: Vec<_> = starts.iter().map(|(partition, offset, _)| (*partition, *offset)).collect();
        self.check_ownership(&positions)?;
        for (partition, _, last) in starts {
            self.set_epoch(*partition, *last);
        }
        let starts = self.starts(&positions);
        let logs = starts.iter().map(|(log, ..)| log);
        self.clear_fetched(logs.clone());
        self.member.reassign(&starts)?;
        self.member.resume(logs)
    }

    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        self.member.pause(&self.logs(partitions))
    }

    fn bounds(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<LogBounds>, Failure> {
        let logs: Vec<_> = partitions.iter().map(|partition| (self.topic(), *partition)).collect();
        let bounds = self.member.ends.bounds(&logs, wait)?;
        self.member.context().connected();
        Ok(bounds)
    }

    fn partition_count(&self, wait: Duration) -> Result<usize, Failure> {
        let found = partitions_of(self.member.ends.stable.client(), self.topic(), wait);
        Ok(found.map_err(|e| self.member.fail("reading the number of partitions of", &e))?.len())
    }

    fn topic_id(&self, wait: Duration) -> Option<String> {
        let described = native::topics(self.member.ends.stable.client(), &[self.topic()], wait).ok()?;
        described.into_iter().next()?.id
    }

    fn end(&self, partition: PartitionId) -> Option<Offset> {
        self.member.end(self.topic(), partition)
    }

    fn explained(&self, failed: Failure) -> Failure {
        if failed.remedy != Remedy::Retry {
            return failed;
        }
        match self.member.context().problem() {
            Some(problem) => Failure {
                what: format!("{}; the last connection that failed: {}", failed.what, problem.what),
                ..failed
            },
            None => failed,
        }
    }
}

impl GroupMember for KafkaSource {
    fn events(&self) -> Vec<GroupEvent> {
        let events = self.member.context().take().into_iter();
        events.map(|event| event.renamed(|log| log.partition)).collect()
    }

    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure> {
        let with_start: Vec<(PartitionId, Offset)> =
            starts.iter().filter_map(|(partition, start)| Some((*partition, (*start)?))).collect();
        let with_start = self.starts(&with_start);
        self.member.assign(&with_start)?;
        self.member.context().rebalance_handled();
        self.owned.borrow_mut().extend(starts.iter().map(|(partition, _)| *partition));
        let all: Vec<_> = starts.iter().map(|(partition, _)| self.log(*partition)).collect();
        self.clear_fetched(all.iter());
        self.member.resume(with_start.iter().map(|(log, ..)| log))
    }

    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let logs = self.logs(partitions);
        self.member.remove(&logs)?;
        self.member.context().rebalance_handled();
        self.owned.borrow_mut().retain(|p| !partitions.contains(p));
        self.clear_fetched(logs.iter());
        Ok(())
    }

    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure> {
        // The client is not a member: its responses do not depend on the state of the group.
        self.member.committed(&self.member.ends.stable, self.topic(), partitions, wait)
    }

    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        self.member.committed(&self.member.ends.unstable, self.topic(), partitions, wait)
    }

    fn live_writers(&self, wait: Duration) -> Result<BTreeSet<String>, Failure> {
        let view = group_monitor::view(&self.member.ends.unstable, &self.member.settings, wait)?;
        // The coordinator describes a group that it is still loading as empty.
        if view.members.is_empty() {
            let group = &self.member.settings.group;
            let what = format!("the coordinator reports no member of group {group}; retrying");
            return Err(Failure::new(Remedy::Retry, what));
        }
        Ok(view.members.into_iter().map(|member| member.worker).collect())
    }

    fn may_commit(&self, partitions: &[PartitionId]) -> bool {
        let owned = self.owned.borrow();
        let member = native::membership(self.consumer().client())
            .is_some_and(|m| m.generation >= 0 && !m.member_id.is_empty());
        member && !self.consumer().assignment_lost() && partitions.iter().all(|p| owned.contains(p))
    }

    fn rejoin(&mut self) -> Result<(), Failure> {
        let mut former = std::mem::replace(self, Self::subscribe(&self.member.settings)?);
        self.closing = std::mem::take(&mut former.closing);
        // Not here: with a fatal error, the client sometimes does not finish to close.
        self.closing.close(former);
        Ok(())
    }

    fn leave(&self) {
        self.consumer().unsubscribe();
    }

    fn has_left(&self) -> bool {
        native::membership(self.consumer().client()).is_none_or(|member| member.member_id.is_empty())
    }
}
