//! A member of a group that reads many topics.
//!
//! The client commits offsets itself, every second, when partitions are released and when it is closed: those that
//! [`SourceReader::store`] has stored. The client's callback only queues changes of the assignment; the owner handles them with
//! [`SourceReader::place`] and [`SourceReader::release`].

mod member;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupd_tokens::{self as tokens, Authenticated};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionListElem};
use rdkafka::{ClientConfig, TopicPartitionList};

use self::member::MemberContext;
use crate::dedupe::{Checkpoint, Epoch, Offset, PartitionId};
use crate::kafka::client_config::Settings;
use crate::kafka::consumer::SEEK_WAIT;
use crate::kafka::ends::{EndReader, Listed};
use crate::kafka::error::{failure, failure_with_permission, is_damage};
use crate::kafka::native::{self, Fetched, ReadError};
use crate::kafka::partitions::{self, kafka_offset, kafka_partition, list_of};
use crate::kafka::record::RawRecord;
use crate::kafka::unread::truncated;
use crate::ports::{Failure, LogBounds, Remedy, Truncation};

/// In the client's text about a position behind the end of its leader epoch.
const TRUNCATED: &str = "log truncation detected";

/// A partition of a source topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLog {
    /// The topic.
    pub topic: String,
    /// The number of the partition.
    pub partition: PartitionId,
}

/// `topic/partition`.
impl fmt::Display for SourceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A change of the assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// These partitions were added.
    Assigned(Vec<SourceLog>),
    /// These partitions are to be released; their offsets can still be committed.
    Revoked(Vec<SourceLog>),
    /// These partitions belong to other members already.
    Lost(Vec<SourceLog>),
}

/// Reads many topics as a member of a group.
pub struct SourceReader {
    /// Declared first because it must be dropped before the consumer.
    fetched: Fetched,
    consumer: Authenticated<BaseConsumer<MemberContext>>,
    ends: EndReader,
    settings: Settings,
    assigned: RefCell<BTreeSet<SourceLog>>,
    truncated: RefCell<BTreeMap<SourceLog, Truncation>>,
    /// The regular expressions that matched no topic, until partitions are assigned: the client reports each once.
    unmatched: RefCell<BTreeSet<String>>,
}

/// Where a partition is read from: its log, the offset, and the leader epoch of the record before that, if known.
pub type SourceStart = (SourceLog, Offset, Option<Epoch>);
/// What the group has committed for a partition, with what was stored beside it, and the bounds of its log.
type SourceOffsets = (Option<(Offset, Checkpoint)>, LogBounds);

/// The internal topics of Kafka.
const INTERNAL: &str = "^__(consumer_offsets|transaction_state|share_group_state)$";

/// The properties of the member, from those of the member of `run`. No regular expression matches the `hidden` topics.
fn config(settings: &Settings, hidden: &[String]) -> ClientConfig {
    let mut config = settings.source();
    config
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        // The assignments are changed incrementally.
        .set("partition.assignment.strategy", "cooperative-sticky");
    // A regular expression must not match the target, nor what `run` makes of it: the output would be read again.
    let own = hidden.iter().chain([&settings.clean]);
    let own = own.map(|topic| format!("^{}$", topic.replace('.', "\\.")));
    let users = settings.properties.iter().find(|(name, _)| name == "topic.blacklist");
    let all = users.map(|(_, topics)| topics.clone()).into_iter().chain([INTERNAL.to_owned()]).chain(own);
    config.set("topic.blacklist", all.collect::<Vec<_>>().join(","));
    config
}

/// The regular expression that the client's text is about: "…: EXPRESSION: Broker: Unknown topic or partition".
fn expression_of(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once(": ^")?;
    let (expression, _) = rest.rsplit_once(": Broker: ")?;
    Some(expression)
}

impl SourceReader {
    /// Subscribes to topics: names, and regular expressions that begin with `^` and match none of the
    /// `hidden` topics. `settings.clean` is the target topic.
    pub fn subscribe(settings: &Settings, from: &[String], hidden: &[String]) -> Result<Self, Failure> {
        let doing = format!("joining group {} on topics {}", settings.group, from.join(", "));
        let fail = |e: KafkaError| failure(&doing, &e);
        let consumer: Authenticated<BaseConsumer<MemberContext>> =
            tokens::create(&config(settings, hidden), MemberContext::default()).map_err(fail)?;
        consumer.subscribe(&from.iter().map(String::as_str).collect::<Vec<_>>()).map_err(|e| {
            let valid = "each text of rekey.from that begins with '^' must be an extended regular expression of POSIX";
            Failure::new(Remedy::Stop, format!("{}; {valid}", fail(e).what))
        })?;
        Ok(Self {
            fetched: Fetched::of(&consumer).map_err(fail)?,
            consumer,
            ends: EndReader::new(settings)?,
            settings: settings.clone(),
            assigned: RefCell::default(),
            truncated: RefCell::default(),
            unmatched: RefCell::default(),
        })
    }

    fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        failure_with_permission(&self.settings, &format!("{doing} in group {}", self.settings.group), error)
    }

    /// The changes of the assignment since the last call, in order.
    pub fn changes(&self) -> Vec<MembershipChange> {
        std::mem::take(&mut self.consumer.context().changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this member has joined the group.
    pub fn is_member(&self) -> bool {
        native::membership(self.consumer.client()).is_some_and(|member| member.generation >= 0)
    }

    /// Passes records on, at most `most`. Waits at most `wait`, and only for the first. After a failure
    /// that is not to be retried, this reader must be replaced.
    pub fn poll<'a>(
        &'a self,
        records: &mut Vec<RawRecord<'a>>,
        most: usize,
        wait: Duration,
    ) -> Result<(), Failure> {
        let polled = self.fetched.poll(&self.consumer, most, wait, &mut |message| {
            records.push(RawRecord(message));
            true
        });
        polled.or_else(|error| self.failure_of_read(&error).map_or(Ok(()), Err))
    }

    fn failure_of_read(&self, error: &ReadError) -> Option<Failure> {
        match error.code {
            // After `PollExceeded` an event reports the lost assignment, and the next poll rejoins the group.
            RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::PollExceeded => None,
            RDKafkaErrorCode::AutoOffsetReset if error.reason.contains(TRUNCATED) => {
                let found = truncated(error)
                    .map(|(partition, found)| (SourceLog { topic: error.topic.clone(), partition }, found));
                self.truncated.borrow_mut().extend(found);
                None
            }
            RDKafkaErrorCode::AutoOffsetReset => {
                let what = format!(
                    "a position is outside of the log of topic {} ({}); the log is read again",
                    error.topic, error.reason
                );
                Some(Failure::new(Remedy::Abort, what))
            }
            RDKafkaErrorCode::UnknownTopicOrPartition
                if let Some(expression) = expression_of(&error.reason) =>
            {
                self.note_unmatched(expression);
                None
            }
            code if is_damage(code) && error.at.is_some() => Some(Self::damaged_batch(error)),
            _ => Some(self.fail("reading the source topics", &error.error())),
        }
    }

    /// The client continues behind a damaged batch, so this reader cannot be used any more.
    fn damaged_batch(error: &ReadError) -> Failure {
        let (partition, offset) = error.at.unwrap_or_default();
        let what = format!(
            "partition {partition} of topic {} holds a damaged batch at offset {offset} ({}: {}); it may have been damaged in \
             transit, so restart dedupd rekey. If this recurs, elect a replica that is not damaged as leader, or set the offset \
             of the group behind the batch",
            error.topic, error.code, error.reason
        );
        Failure::new(Remedy::Stop, what)
    }

    fn note_unmatched(&self, expression: &str) {
        let note = format!(
            "no topic matches rekey.from = \"^{expression}\"; waiting for one that this user may describe"
        );
        tracing::warn!("{note}");
        self.unmatched.borrow_mut().insert(note);
    }

    /// A note for each regular expression that matches no topic.
    pub fn unmatched(&self) -> Vec<String> {
        self.unmatched.borrow().iter().cloned().collect()
    }

    /// The assigned logs that by their leader epochs end before the position. The client reads them no further until
    /// [`SourceReader::read_again`].
    pub fn truncated(&self) -> BTreeMap<SourceLog, Truncation> {
        self.truncated.borrow().clone()
    }

    /// The topic ids of those topics that the brokers describe; `None` where they report no ids.
    pub fn topic_ids(
        &self,
        topics: &BTreeSet<&str>,
        wait: Duration,
    ) -> Result<BTreeMap<String, Option<String>>, Failure> {
        // The client takes no names for all topics.
        if topics.is_empty() {
            return Ok(BTreeMap::new());
        }
        // The embedded broker does not answer the request.
        #[cfg(feature = "failpoints")]
        if std::env::var("DEDUPD_WITHOUT").as_deref() == Ok("topic_ids") {
            return Ok(topics.iter().map(|name| ((*name).to_owned(), None)).collect());
        }
        let names: Vec<&str> = topics.iter().copied().collect();
        let described = native::topics(self.ends.stable().client(), &names, wait)
            .map_err(|e| self.fail("reading the ids of the source topics", &e))?;
        let found = names.into_iter().zip(described).filter(|(_, topic)| topic.error.is_none());
        Ok(found.map(|(name, topic)| (name.to_owned(), topic.id)).collect())
    }

    /// Offset committed by the group with what [`SourceReader::store`] has stored with it, log start and end of each partition, in
    /// this order. Sends requests to the brokers, each of which takes at most `wait`.
    pub fn offsets(&self, logs: &[SourceLog], wait: Duration) -> Result<Vec<SourceOffsets>, Failure> {
        let mut by_topic: BTreeMap<&str, Vec<PartitionId>> = BTreeMap::new();
        for log in logs {
            by_topic.entry(&log.topic).or_default().push(log.partition);
        }
        let mut committed = BTreeMap::new();
        for (topic, partitions) in by_topic {
            let fail = |e| self.fail(&format!("reading the committed offsets of topic {topic}"), &e);
            let list = list_of(topic, partitions);
            for found in native::committed(self.ends.stable().client(), &list, wait).map_err(fail)? {
                let found = found.map_err(KafkaError::OffsetFetch).map_err(fail)?;
                let checkpoint = Checkpoint::parse(&found.metadata).unwrap_or_default();
                committed.insert((topic, found.partition), found.offset.map(|at| (at, checkpoint)));
            }
        }
        let named: Vec<_> = logs.iter().map(|log| (log.topic.as_str(), log.partition)).collect();
        let bounds = self.ends.bounds(&named, wait)?;
        let offsets = named.iter().zip(bounds);
        Ok(offsets.map(|(log, bounds)| (committed.remove(log).flatten(), bounds)).collect())
    }

    /// The last stable offset of each partition, in this order; `None` for one without a leader. Sends a request to each leader, which
    /// takes at most `wait`.
    pub fn log_ends(&self, logs: &[SourceLog], wait: Duration) -> Result<Vec<Option<Offset>>, Failure> {
        let named = || logs.iter().map(|log| (log.topic.as_str(), log.partition));
        let listed = Listed::request(self.ends.stable(), named(), KafkaOffset::End, wait);
        let listed = listed.map_err(|e| self.fail("reading the ends of the source topics", &e))?;
        Ok(named().map(|log| listed.offset_of(log).ok()).collect())
    }

    /// Reads these partitions from now on, each from its offset, and compares leader epochs: see [`SourceReader::truncated`]. They
    /// are not read yet: a record that was fetched before would look like the first one behind a gap.
    pub fn place(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        let fail = |e| self.fail("accepting partitions", &e);
        let list = start_list(starts.iter()).map_err(fail)?;
        // The queues of all partitions are opened before the client fetches the first record.
        for (log, ..) in starts {
            let opened = [kafka_partition(log.partition)].into_iter();
            self.fetched.assign(&self.consumer, &log.topic, opened, || Ok(())).map_err(fail)?;
        }
        let assign = || self.consumer.incremental_assign(&list);
        self.fetched.assign(&self.consumer, "", std::iter::empty(), assign).map_err(fail)?;
        // A pause survives a revocation, and the same partition may come back (librdkafka#1849).
        self.consumer.resume(&list).map_err(fail)?;
        self.assigned.borrow_mut().extend(starts.iter().map(|(log, ..)| log.clone()));
        if !starts.is_empty() {
            self.unmatched.borrow_mut().clear();
        }
        self.consumer.context().is_pending.store(false, Ordering::Release);
        // The client compares leader epochs at a seek only. After a failed one it would read without the comparison.
        let compared = start_list(starts.iter().filter(|(.., last)| last.is_some())).map_err(fail)?;
        if compared.count() == 0 {
            return Ok(());
        }
        let sought = self.consumer.seek_partitions(compared, SEEK_WAIT);
        let sought =
            sought.and_then(|list| list.elements().iter().try_for_each(TopicPartitionListElem::error));
        let fail = |e| self.fail("comparing leader epochs", &e).escalated(&[Remedy::Retry], Remedy::Abort);
        sought.map_err(fail)
    }

    /// Reads these partitions no further. The client commits their stored offsets.
    pub fn release(&self, logs: &[SourceLog]) -> Result<(), Failure> {
        let assigned: Vec<SourceLog> = {
            let all = self.assigned.borrow();
            logs.iter().filter(|log| all.contains(log)).cloned().collect()
        };
        self.unassign(&assigned)?;
        self.consumer.context().is_pending.store(false, Ordering::Release);
        Ok(())
    }

    /// Returns no more records of this partition until [`SourceReader::read_again`]. Some that were fetched before may follow.
    pub fn pause(&self, log: &SourceLog) -> Result<(), Failure> {
        let list = partition_list([log].into_iter());
        self.consumer.pause(&list).map_err(|e| self.fail(&format!("pausing {log}"), &e))
    }

    /// Reads an assigned partition again from this offset.
    pub fn read_again(&self, start: SourceStart) -> Result<(), Failure> {
        self.unassign(std::slice::from_ref(&start.0))?;
        self.place(&[start])
    }

    fn unassign(&self, logs: &[SourceLog]) -> Result<(), Failure> {
        let list = partition_list(logs.iter());
        self.consumer.incremental_unassign(&list).map_err(|e| self.fail("releasing partitions", &e))?;
        self.truncated.borrow_mut().retain(|log, _| !logs.contains(log));
        let mut assigned = self.assigned.borrow_mut();
        assigned.retain(|log| !logs.contains(log));
        self.fetched.keep(|topic, partition| assigned.contains(&source_log(topic, partition)));
        Ok(())
    }

    /// Stores the offsets to continue at, for the next commit, with what is known of their logs.
    pub fn store<'l>(&self, positions: impl IntoIterator<Item = (&'l SourceLog, Offset, Checkpoint)>) {
        let mut list = TopicPartitionList::new();
        let listed = positions.into_iter().try_for_each(|(log, at, checkpoint)| {
            let mut element = list.add_partition(&log.topic, kafka_partition(log.partition));
            element.set_metadata(checkpoint.render());
            element.set_offset(kafka_offset(at))
        });
        // An error means that a partition was released meanwhile: the next member repeats its records.
        if let Err(error) = listed.and_then(|()| self.consumer.store_offsets(&list)) {
            tracing::debug!(%error, "offsets of released partitions were not stored");
        }
    }

    /// The high watermark of the last fetch response of a partition; `None` before the first.
    pub fn end(&self, log: &SourceLog) -> Option<Offset> {
        native::cached_high_watermark(self.consumer.client(), &log.topic, kafka_partition(log.partition))
    }
}

/// The partition that the client names.
fn source_log(topic: &CStr, partition: i32) -> SourceLog {
    SourceLog { topic: topic.to_string_lossy().into_owned(), partition: partitions::partition_id(partition) }
}

/// Partitions with their start offsets, and the leader epochs to compare there.
fn start_list<'l>(starts: impl Iterator<Item = &'l SourceStart>) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for (log, start, last) in starts {
        let partition = kafka_partition(log.partition);
        list.add_partition_offset(&log.topic, partition, kafka_offset(*start))?;
        if let Some(epoch) = last {
            native::set_leader_epoch(&list, &log.topic, partition, epoch.number);
        }
    }
    Ok(list)
}

fn partition_list<'l>(logs: impl Iterator<Item = &'l SourceLog>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for log in logs {
        list.add_partition(&log.topic, kafka_partition(log.partition));
    }
    list
}

impl Drop for SourceReader {
    fn drop(&mut self) {
        let context = self.consumer.context();
        context.is_closing.store(true, Ordering::Release);
        if context.is_pending.load(Ordering::Acquire) {
            // Closing waits until an earlier change is handled, and only incremental changes handle it: the assignment of
            // nothing an addition, the release of all partitions a removal. Closing the client resolves any error of these calls.
            let all: Vec<SourceLog> = self.assigned.borrow().iter().cloned().collect();
            drop(self.place(&[]).and_then(|()| self.unassign(&all)));
        }
    }
}
