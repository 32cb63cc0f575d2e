//! A client that is a member of the group, and the partitions that it fetches: what `run` and `rekey` read with.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt;
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList, TopicPartitionListElem};

use super::client_config::Settings;
use super::ends::{EndReader, Log};
use super::error::{failure, failure_with_permission};
use super::group::GroupContext;
use super::log_context::LogContext;
use super::native::{self, Fetched, ReadError};
use super::partitions::{self, kafka_offset, kafka_partition, list_of, partition_id};
use super::record::RawRecord;
use super::unread::truncated;
use crate::dedupe::{Epoch, Offset, PartitionId};
use crate::ports::{Committed, Failure, Remedy, Truncation};

/// Time limit of a seek; it waits for the client's own threads, not for the broker.
const SEEK_WAIT: Duration = Duration::from_secs(5);

/// A partition of a source topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLog {
    /// The topic.
    pub topic: String,
    /// The number of the partition.
    pub partition: PartitionId,
}

impl SourceLog {
    /// The partition that the client names.
    fn named(topic: &CStr, partition: i32) -> Self {
        Self { topic: topic.to_string_lossy().into_owned(), partition: partition_id(partition) }
    }

    pub(super) fn name(&self) -> Log<'_> {
        (&self.topic, self.partition)
    }
}

/// `topic/partition`.
impl fmt::Display for SourceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Where a partition is read from: its log, the offset, and the leader epoch of the record before that, if known.
pub type SourceStart = (SourceLog, Offset, Option<Epoch>);

/// The client, and the partitions that it fetches.
///
/// Large because every call on the client is here: polls and offsets, and the assignment.
pub(super) struct MemberClient {
    /// Declared first because it must be dropped before the consumer.
    fetched: Fetched,
    pub consumer: Authenticated<BaseConsumer<GroupContext>>,
    pub ends: EndReader,
    pub settings: Settings,
    /// The topics, for messages.
    topics: String,
    /// The assignment of the client itself, with the offset of the last assignment or seek.
    assigned: RefCell<BTreeMap<SourceLog, Offset>>,
    /// What the client found where the position of the last seek is outside of the log.
    truncated: RefCell<BTreeMap<SourceLog, Truncation>>,
}

impl MemberClient {
    /// Subscribes to topics: names, and regular expressions that begin with `^`. Sends no request yet.
    pub fn subscribe(settings: &Settings, config: &ClientConfig, topics: &[&str]) -> Result<Self, Failure> {
        let named = format!("topic{} {}", if topics.len() == 1 { "" } else { "s" }, topics.join(", "));
        let doing = format!("joining group {} on {named}", settings.group);
        let fail = |e: KafkaError| failure(&doing, &e);
        let consumer: Authenticated<BaseConsumer<GroupContext>> =
            tokens::create(config, GroupContext::default()).map_err(fail)?;
        consumer.subscribe(topics).map_err(|e| {
            let failed = fail(e);
            if !topics.iter().any(|topic| topic.starts_with('^')) {
                return failed;
            }
            let valid = "each text of rekey.from that begins with '^' must be an extended regular expression of POSIX";
            Failure::new(Remedy::Stop, format!("{}; {valid}", failed.what))
        })?;
        Ok(Self {
            fetched: Fetched::of(&consumer).map_err(fail)?,
            consumer,
            ends: EndReader::new(settings)?,
            settings: settings.clone(),
            topics: named,
            assigned: RefCell::default(),
            truncated: RefCell::default(),
        })
    }

    pub fn context(&self) -> &GroupContext {
        self.consumer.context()
    }

    /// `doing` precedes the names of the topics.
    pub fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        let doing = format!("{doing} {} in group {}", self.topics, self.settings.group);
        failure_with_permission(&self.settings, &doing, error)
    }

    /// Whether this member has joined the group.
    pub fn is_member(&self) -> bool {
        native::membership(self.consumer.client()).is_some_and(|member| member.generation >= 0)
    }

    /// Serves the group protocol and appends the next records that are kept, at most `most`. Waits at most `wait`, and only for the first.
    pub fn poll<'a>(
        &'a self,
        records: &mut Vec<RawRecord<'a>>,
        most: usize,
        wait: Duration,
        keeps: impl Fn(&RawRecord<'a>) -> bool,
    ) -> Result<(), ReadError> {
        use RDKafkaErrorCode::{PartitionEOF, PollExceeded};
        let polled = self.fetched.poll(&self.consumer, most, wait, &mut |message| {
            records.extend(Some(RawRecord(message)).filter(&keeps));
            true
        });
        match polled {
            // After `PollExceeded` an event reports the lost assignment, and the next poll rejoins the group.
            Err(ReadError { code: PartitionEOF | PollExceeded, .. }) => Ok(()),
            polled => polled,
        }
    }

    /// Stores where the log of a position that is outside of it was truncated.
    pub fn note_truncated(&self, error: &ReadError) {
        let log = |partition| SourceLog { topic: error.topic.clone(), partition };
        self.truncated
            .borrow_mut()
            .extend(truncated(error).map(|(partition, found)| (log(partition), found)));
    }

    /// The assigned partitions that were found truncated since their last seek.
    pub fn truncated(&self) -> Ref<'_, BTreeMap<SourceLog, Truncation>> {
        self.truncated.borrow()
    }

    /// The high watermark of the last fetch response of a partition; `None` before the first.
    pub fn end(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        native::cached_high_watermark(self.consumer.client(), topic, kafka_partition(partition))
    }

    /// What the group has committed for partitions of a topic.
    pub fn committed(
        &self,
        reader: &BaseConsumer<LogContext>,
        topic: &str,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        let fail = |e| self.fail("reading the committed offsets of", &e);
        let list = list_of(partitions.iter().map(|partition| (topic, *partition)));
        let offsets = native::committed(reader.client(), &list, wait).map_err(fail)?;
        offsets.into_iter().map(|it| it.map_err(KafkaError::OffsetFetch).map_err(fail)).collect()
    }

    /// Returns no more records of these partitions until they are resumed. Some that were fetched before may follow.
    pub fn pause<'l>(&self, logs: impl IntoIterator<Item = &'l SourceLog>) -> Result<(), Failure> {
        let list = list_of(logs.into_iter().map(SourceLog::name));
        self.consumer.pause(&list).map_err(|e| self.fail("pausing partitions of", &e))
    }

    /// Resumes partitions explicitly: a pause can survive a reassignment (librdkafka#1849).
    pub fn resume<'l>(&self, logs: impl IntoIterator<Item = &'l SourceLog>) -> Result<(), Failure> {
        let list = list_of(logs.into_iter().map(SourceLog::name));
        self.consumer.resume(&list).map_err(|e| self.fail("resuming partitions of", &e))
    }
}

/// The assignment of the client: which partitions it fetches, and from which offset.
impl MemberClient {
    fn is_cooperative(&self) -> bool {
        matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
    }

    pub fn is_assigned(&self, log: &SourceLog) -> bool {
        self.assigned.borrow().contains_key(log)
    }

    /// Adds partitions to the client's assignment, each at its offset; this also handles an assign event.
    ///
    /// Offsets are always absolute. For a logical offset (the log end) the client sends a request to the broker. When a
    /// pause or seek overtakes the response, the client repeats the request, and the second response overrides the seek:
    /// everything up to the log end would be skipped without an error.
    pub fn assign(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        let is_added = self.is_cooperative();
        let mut all: BTreeMap<SourceLog, Offset> = if is_added { BTreeMap::new() } else { self.positions()? };
        all.extend(starts.iter().map(|(log, offset, _)| (log.clone(), *offset)));
        let list = list_at(all.iter().map(|(log, offset)| (log, *offset)));
        let added = starts.iter().map(|(log, ..)| log.name());
        let assigned = list.and_then(|list| {
            self.fetched.assign(&self.consumer, added, || {
                if is_added { self.consumer.incremental_assign(&list) } else { self.consumer.assign(&list) }
            })
        });
        assigned.map_err(|e| self.fail("accepting partitions of", &e))?;
        self.assigned.borrow_mut().extend(starts.iter().map(|(log, offset, _)| (log.clone(), *offset)));
        Ok(())
    }

    /// Removes partitions from the client's assignment; this also handles a revoke event.
    pub fn remove<'l>(&self, logs: impl IntoIterator<Item = &'l SourceLog>) -> Result<(), Failure> {
        let mut assigned = self.assigned.borrow_mut();
        let is_cooperative = self.is_cooperative();
        let gone: BTreeSet<&SourceLog> = logs.into_iter().filter(|log| assigned.contains_key(log)).collect();
        let removed = if is_cooperative {
            self.consumer.incremental_unassign(&list_of(gone.iter().map(|log| log.name())))
        } else {
            self.consumer.unassign()
        };
        removed.map_err(|e| self.fail("releasing partitions of", &e))?;
        assigned.retain(|log, _| is_cooperative && !gone.contains(log));
        self.truncated.borrow_mut().retain(|log, _| !gone.contains(log));
        self.fetched.keep(|topic, partition| assigned.contains_key(&SourceLog::named(topic, partition)));
        Ok(())
    }

    /// Removes partitions from the client's assignment and adds them again, each at its offset.
    pub fn reassign(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        if self.is_cooperative() {
            self.remove(starts.iter().map(|(log, ..)| log))?;
        }
        self.assign_and_compare(starts)
    }

    /// Adds partitions to the client's assignment and seeks them where an epoch is known: the client compares leader epochs
    /// at a seek only, not at an assignment.
    pub fn assign_and_compare(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        self.assign(starts)?;
        self.compare(starts)
    }

    /// Compares leader epochs where they are known.
    pub fn compare(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        let compared: Vec<_> = starts.iter().filter(|(.., last)| last.is_some()).cloned().collect();
        self.seek(&compared).map_err(|e| self.fail("comparing leader epochs of", &e))
    }

    /// Seeks assigned partitions, and compares leader epochs where they are known.
    pub fn seek(&self, starts: &[SourceStart]) -> Result<(), KafkaError> {
        if starts.is_empty() {
            return Ok(());
        }
        let list = list_at(starts.iter().map(|(log, offset, _)| (log, *offset)))?;
        for (log, _, last) in starts {
            if let Some(epoch) = last {
                native::set_leader_epoch(&list, &log.topic, kafka_partition(log.partition), epoch.number);
            }
        }
        let sought = self.consumer.seek_partitions(list, SEEK_WAIT)?;
        // The call can succeed although single partitions fail.
        sought.elements().iter().try_for_each(TopicPartitionListElem::error)?;
        self.assigned.borrow_mut().extend(starts.iter().map(|(log, offset, _)| (log.clone(), *offset)));
        Ok(())
    }

    /// Removes what was fetched and found at the positions that these partitions had until now.
    pub fn clear<'l>(&self, logs: impl Iterator<Item = &'l SourceLog>) {
        let logs: BTreeSet<&SourceLog> = logs.collect();
        self.truncated.borrow_mut().retain(|log, _| !logs.contains(log));
        self.fetched.discard(|topic, partition| logs.contains(&SourceLog::named(topic, partition)));
    }

    /// The next offset of each partition in the client's assignment. Only for the eager protocol, where adding a partition
    /// replaces the whole assignment.
    fn positions(&self) -> Result<BTreeMap<SourceLog, Offset>, Failure> {
        let mut positions = self.assigned.borrow().clone();
        let list = self.consumer.position().map_err(|e| self.fail("reading the positions in", &e))?;
        for element in list.elements() {
            let log =
                SourceLog { topic: element.topic().to_owned(), partition: partition_id(element.partition()) };
            if let KafkaOffset::Offset(next) = element.offset()
                && let (Some(position), Ok(next)) = (positions.get_mut(&log), u64::try_from(next))
            {
                *position = next;
            }
        }
        Ok(positions)
    }
}

impl Drop for MemberClient {
    fn drop(&mut self) {
        if self.context().close() {
            // Closing waits until an earlier rebalance event is handled. Removing all partitions handles every kind of
            // event; closing the client resolves any error of these calls.
            let all = self.assigned.borrow().clone();
            drop(self.assign(&[]).and_then(|()| self.remove(all.keys())));
        }
    }
}

fn list_at<'l>(
    starts: impl Iterator<Item = (&'l SourceLog, Offset)>,
) -> Result<TopicPartitionList, KafkaError> {
    let element =
        |(log, start): (&'l SourceLog, Offset)| (log.topic.as_str(), log.partition, kafka_offset(start));
    partitions::list(starts.map(element))
}
