//! A member of a group that reads many topics.
//!
//! The client commits offsets itself, every second, when partitions are released and when it is closed: those that
//! [`SourceReader::store`] has stored. The client's callback only queues changes of the assignment; the owner handles them with
//! [`SourceReader::place`] and [`SourceReader::release`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::Offset as KafkaOffset;

use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::kafka::client_config::Settings;
use crate::kafka::ends::Listed;
use crate::kafka::error::is_damage;
use crate::kafka::member::{MemberClient, SourceLog, SourceStart};
use crate::kafka::native::{self, ReadError};
use crate::kafka::offsets;
use crate::kafka::partitions::coordinates;
use crate::kafka::record::RawRecord;
use crate::kafka::unread::damaged_batch;
use crate::ports::{CommitPosition, Failure, GroupEvent, LogBounds, Remedy, Truncation};

/// In the client's text about a position behind the end of its leader epoch.
const TRUNCATED: &str = "log truncation detected";

/// Reads many topics as a member of a group.
pub struct SourceReader {
    member: MemberClient,
    /// The regular expressions that matched no topic, until partitions are assigned: the client reports each once.
    unmatched: RefCell<BTreeSet<String>>,
}

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
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        let member = MemberClient::subscribe(settings, &config(settings, hidden), &from)?;
        Ok(Self { member, unmatched: RefCell::default() })
    }

    /// The changes of the assignment since the last call, in order.
    pub fn changes(&self) -> Vec<GroupEvent<SourceLog>> {
        self.member.context().take()
    }

    /// Whether this member has joined the group.
    pub fn is_member(&self) -> bool {
        self.member.is_member()
    }

    /// Passes records on, at most `most`. Waits at most `wait`, and only for the first. After a failure
    /// that is not to be retried, this reader must be replaced.
    pub fn poll<'a>(
        &'a self,
        records: &mut Vec<RawRecord<'a>>,
        most: usize,
        wait: Duration,
    ) -> Result<(), Failure> {
        let polled = self.member.poll(records, most, wait, |_| true);
        polled.or_else(|error| self.failure_of_read(&error).map_or(Ok(()), Err))
    }

    fn failure_of_read(&self, error: &ReadError) -> Option<Failure> {
        match error.code {
            RDKafkaErrorCode::AutoOffsetReset if error.reason.contains(TRUNCATED) => {
                self.member.note_truncated(error);
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
            code => Some(match error.at.filter(|_| is_damage(code)) {
                // The client continues behind a damaged batch, so this reader cannot be used any more.
                Some((partition, offset)) => {
                    let batch = damaged_batch(&error.topic, coordinates(partition, offset), error);
                    let what = format!(
                        "{batch}; it may have been damaged in transit, so restart dedupd rekey. If this recurs, elect a replica \
                         that is not damaged as leader, or set the offset of the group behind the batch"
                    );
                    Failure::new(Remedy::Stop, what)
                }
                None => self.member.fail("reading", &error.error()),
            }),
        }
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
        self.member.truncated().clone()
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
        let described = native::topics(self.member.ends.stable.client(), &names, wait)
            .map_err(|e| self.member.fail("reading the ids of", &e))?;
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
        let (ends, mut committed) = (&self.member.ends, BTreeMap::new());
        for (topic, partitions) in by_topic {
            for found in self.member.committed(&ends.stable, topic, &partitions, wait)? {
                let checkpoint = Checkpoint::parse(&found.metadata).unwrap_or_default();
                committed.insert((topic, found.partition), found.offset.map(|at| (at, checkpoint)));
            }
        }
        let named: Vec<_> = logs.iter().map(SourceLog::name).collect();
        let bounds = ends.bounds(&named, wait)?;
        let offsets = named.iter().zip(bounds);
        Ok(offsets.map(|(log, bounds)| (committed.remove(log).flatten(), bounds)).collect())
    }

    /// The last stable offset of each partition, in this order; `None` for one without a leader. Sends a request to each leader, which
    /// takes at most `wait`.
    pub fn log_ends(&self, logs: &[SourceLog], wait: Duration) -> Result<Vec<Option<Offset>>, Failure> {
        let named = || logs.iter().map(SourceLog::name);
        let listed = Listed::request(&self.member.ends.stable, named(), KafkaOffset::End, wait);
        let listed = listed.map_err(|e| self.member.fail("reading the ends of", &e))?;
        Ok(named().map(|log| listed.offset_of(log).ok()).collect())
    }

    /// Reads these partitions from now on, each from its offset, and compares leader epochs: see [`SourceReader::truncated`]. They
    /// are not read yet: a record that was fetched before would look like the first one behind a gap.
    pub fn place(&self, starts: &[SourceStart]) -> Result<(), Failure> {
        self.member.assign(starts)?;
        self.member.context().rebalance_handled();
        if !starts.is_empty() {
            self.unmatched.borrow_mut().clear();
        }
        self.member.resume(starts.iter().map(|(log, ..)| log))?;
        // After a failed comparison it would read without one.
        self.member.compare(starts).map_err(|failed| failed.escalated(&[Remedy::Retry], Remedy::Abort))
    }

    /// Reads these partitions no further. The client commits their stored offsets.
    pub fn release(&self, logs: &[SourceLog]) -> Result<(), Failure> {
        self.member.remove(logs)?;
        self.member.context().rebalance_handled();
        Ok(())
    }

    /// Returns no more records of this partition until [`SourceReader::read_again`]. Some that were fetched before may follow.
    pub fn pause(&self, log: &SourceLog) -> Result<(), Failure> {
        self.member.pause([log])
    }

    /// Reads an assigned partition again from this offset.
    pub fn read_again(&self, start: SourceStart) -> Result<(), Failure> {
        self.member.remove([&start.0])?;
        self.place(&[start])
    }

    /// Stores the offsets to continue at, for the next commit, with what is known of their logs.
    pub fn store<'l>(&self, positions: impl IntoIterator<Item = (&'l SourceLog, Offset, Checkpoint)>) {
        let list = offsets::partition_list(positions.into_iter().map(|(log, next, known)| {
            let (partition, metadata) = (log.partition, known.render());
            (log.topic.as_str(), CommitPosition { partition, next, metadata })
        }));
        // An error means that a partition was released meanwhile: the next member repeats its records.
        if let Err(error) = list.and_then(|list| self.member.consumer.store_offsets(&list)) {
            tracing::debug!(%error, "offsets of released partitions were not stored");
        }
    }

    /// The high watermark of the last fetch response of a partition; `None` before the first.
    pub fn end(&self, log: &SourceLog) -> Option<Offset> {
        self.member.end(&log.topic, log.partition)
    }
}
