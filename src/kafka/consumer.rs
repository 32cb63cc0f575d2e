//! The raw topic, read as a member of the group.
//!
//! Group events are only queued by the client's callback; the worker acts on them when its state
//! allows, and then calls [`Source::assign`] or [`Source::unassign`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdkafka::TopicPartitionList as Partitions;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset as KafkaOffset, TopicPartitionList};

use super::client_config::Settings;
use super::ends::Ends;
use super::error::{failure, failure_of};
use super::group::Group;
use super::native;
use super::record::RawRecord;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Bounds, Committed, Failure, GroupEvent, Remedy, Source};

/// How long a seek may take; it waits for the client's own threads, not for the broker.
const SEEK_WAIT: Duration = Duration::from_secs(5);

/// One member of the group.
pub struct KafkaSource {
    consumer: BaseConsumer<Group>,
    ends: Ends,
    settings: Settings,
    topic: String,
    group: String,
    owned: RefCell<BTreeSet<PartitionId>>,
    /// What the client itself was assigned, and where it last had to begin: owned partitions whose
    /// offset is known.
    placed: RefCell<BTreeMap<PartitionId, Offset>>,
    /// Why this member can never read again. The client says it once.
    ended: RefCell<Option<Failure>>,
}

impl KafkaSource {
    /// Creates the clients and subscribes; the group answers through [`Source::events`].
    pub fn subscribe(settings: &Settings) -> Result<Self, Failure> {
        let doing = || format!("joining group {} on topic {}", settings.group, settings.raw);
        let consumer: BaseConsumer<Group> =
            settings.source().create_with_context(Group::default()).map_err(|e| failure(&doing(), &e))?;
        consumer.subscribe(&[&settings.raw]).map_err(|e| failure(&doing(), &e))?;
        Ok(Self {
            consumer,
            ends: Ends::new(settings)?,
            settings: settings.clone(),
            topic: settings.raw.clone(),
            group: settings.group.clone(),
            owned: RefCell::default(),
            placed: RefCell::default(),
            ended: RefCell::default(),
        })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer<Group> {
        &self.consumer
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        let failed = failure_of(
            &self.settings,
            &format!("{doing} topic {} in group {}", self.topic, self.group),
            error,
        );
        self.explained(failed)
    }

    /// With the reason why there is no connection, where that is what failed.
    fn explained(&self, failed: Failure) -> Failure {
        match self.consumer.context().complaint().filter(|_| failed.remedy == Remedy::Retry) {
            Some(complaint) => Failure { what: format!("{}: {}", failed.what, complaint.what), ..failed },
            None => failed,
        }
    }

    fn list(
        &self,
        starts: impl IntoIterator<Item = (PartitionId, KafkaOffset)>,
    ) -> Result<Partitions, Failure> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in starts {
            list.add_partition_offset(&self.topic, number(partition), offset)
                .map_err(|e| self.fail("naming a partition of", &e))?;
        }
        Ok(list)
    }

    fn plain(&self, partitions: &[PartitionId]) -> Result<Partitions, Failure> {
        self.list(partitions.iter().map(|p| (*p, KafkaOffset::Invalid)))
    }

    fn is_cooperative(&self) -> bool {
        matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
    }

    /// Lets the client read partitions, each from its offset; also answers an assignment.
    ///
    /// Offsets are always absolute. The client would look a logical one (the log's end) up at the
    /// broker, and an answer overtaken by a pause or a seek makes it ask again and then overrule the
    /// seek: everything up to the end of the log would be skipped, silently.
    fn place(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let list = |starts: &[(PartitionId, Offset)]| {
            self.list(starts.iter().map(|(partition, start)| (*partition, kafka_offset(*start))))
        };
        if self.is_cooperative() {
            self.consumer.incremental_assign(&list(starts)?)
        } else {
            let mut all = self.positions()?;
            all.extend(starts.iter().copied());
            self.consumer.assign(&list(&all.into_iter().collect::<Vec<_>>())?)
        }
        .map_err(|e| self.fail("accepting partitions of", &e))?;
        self.placed.borrow_mut().extend(starts.iter().copied());
        Ok(())
    }

    /// Takes partitions away from the client; also answers a revocation.
    fn displace(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let mut placed = self.placed.borrow_mut();
        let gone: Vec<PartitionId> = partitions.iter().copied().filter(|p| placed.contains_key(p)).collect();
        if self.is_cooperative() {
            self.consumer.incremental_unassign(&self.plain(&gone)?)
        } else {
            self.consumer.unassign()
        }
        .map_err(|e| self.fail("giving back partitions of", &e))?;
        if self.is_cooperative() {
            placed.retain(|p, _| !gone.contains(p));
        } else {
            placed.clear();
        }
        Ok(())
    }

    /// Takes partitions away from the client and lets it read them again, each from its offset.
    fn replace(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        if self.is_cooperative() {
            self.displace(&starts.iter().map(|(p, _)| *p).collect::<Vec<_>>())?;
        }
        self.place(starts)
    }

    /// Fails when the group has not given one of these partitions to this member.
    fn are_ours(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let foreign = starts.iter().find(|(partition, _)| !self.owned.borrow().contains(partition));
        if foreign.is_none() && !self.consumer.assignment_lost() {
            return Ok(());
        }
        let (partition, _) = foreign.or(starts.first()).copied().unwrap_or_default();
        Err(Failure {
            remedy: Remedy::Retry,
            what: format!(
                "partition {partition} of topic {} cannot be read from its committed offset: the group {} has not \
                 given it to this member; waiting for the group",
                self.topic, self.group
            ),
            refused: None,
        })
    }

    /// Where each placed partition goes on. Only for eager protocols, which replace the whole
    /// assignment to add to it.
    fn positions(&self) -> Result<BTreeMap<PartitionId, Offset>, Failure> {
        let mut positions = self.placed.borrow().clone();
        let told = self.consumer.position().map_err(|e| self.fail("reading the positions in", &e))?;
        for element in told.elements() {
            if let (Ok(partition), KafkaOffset::Offset(next)) =
                (u32::try_from(element.partition()), element.offset())
                && let (Some(position), Ok(next)) = (positions.get_mut(&partition), u64::try_from(next))
            {
                *position = next;
            }
        }
        Ok(positions)
    }

    fn query(
        &self,
        reader: &impl CommittedReader,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        let list = self.plain(partitions)?;
        let doing = "reading the committed offsets of";
        let answer = reader.read(&list, wait).map_err(|e| self.fail(doing, &e))?;
        answer
            .into_iter()
            .map(|element| match element.error {
                Some(code) => Err(self.fail(doing, &KafkaError::OffsetFetch(code))),
                None => Ok(Committed {
                    partition: u32::try_from(element.partition).unwrap_or(0),
                    offset: u64::try_from(element.offset).ok(),
                    metadata: element.metadata,
                }),
            })
            .collect()
    }

    fn seek_each(&self, starts: &[(PartitionId, Offset)]) -> Result<(), KafkaError> {
        if starts.is_empty() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        for (partition, offset) in starts {
            list.add_partition_offset(&self.topic, number(*partition), kafka_offset(*offset))?;
        }
        let sought = self.consumer.seek_partitions(list, SEEK_WAIT)?;
        // The call succeeds while single partitions fail.
        sought.elements().iter().try_for_each(rdkafka::topic_partition_list::TopicPartitionListElem::error)
    }

    /// A pause can survive a re-assignment (librdkafka#1849).
    fn resume(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        let list = self.plain(&starts.iter().map(|(p, _)| *p).collect::<Vec<_>>())?;
        self.consumer.resume(&list).map_err(|e| self.fail("resuming partitions of", &e))
    }

    /// A failure that repeats itself with every poll from now on.
    fn end_with(&self, failure: Failure) -> Failure {
        self.ended.borrow_mut().get_or_insert(failure).clone()
    }
}

trait CommittedReader {
    fn read(&self, list: &Partitions, wait: Duration) -> Result<Vec<native::CommittedOffset>, KafkaError>;
}

impl<C: ConsumerContext> CommittedReader for BaseConsumer<C> {
    fn read(&self, list: &Partitions, wait: Duration) -> Result<Vec<native::CommittedOffset>, KafkaError> {
        native::committed(self.client(), list, wait)
    }
}

pub(super) fn number(partition: PartitionId) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

pub(super) fn kafka_offset(offset: Offset) -> KafkaOffset {
    KafkaOffset::Offset(i64::try_from(offset).unwrap_or(i64::MAX))
}

impl Source for KafkaSource {
    type Record<'a> = RawRecord<'a>;

    fn poll(&self, wait: Duration) -> Result<Option<RawRecord<'_>>, Failure> {
        if let Some(ended) = self.ended.borrow().as_ref() {
            return Err(ended.clone());
        }
        match self.consumer.poll(wait) {
            Some(Ok(message)) => Ok(Some(RawRecord(message))),
            // After `PollExceeded` the loss of the assignment follows as an event; polling again rejoins.
            Some(Err(
                KafkaError::PartitionEOF(_) | KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded),
            ))
            | None => Ok(None),
            Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset))) => Err(Failure {
                // Everything is located anew, and finds out which partition it is and what the log holds.
                remedy: Remedy::Abort,
                what: format!(
                    "the position in topic {} is outside of its log: records were deleted before they were read, \
                     or the topic was truncated or created again; asking the group where it stands",
                    self.topic
                ),
                refused: None,
            }),
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                Err(self.end_with(self.fail("reading", &error)))
            }
            Some(Err(error)) => Err(self.fail("reading", &error)),
        }
    }

    fn events(&self) -> Vec<GroupEvent> {
        self.consumer.context().take()
    }

    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure> {
        let known: Vec<(PartitionId, Offset)> =
            starts.iter().filter_map(|(partition, start)| Some((*partition, (*start)?))).collect();
        self.place(&known)?;
        self.consumer.context().answered();
        self.owned.borrow_mut().extend(starts.iter().map(|(p, _)| *p));
        self.resume(&known)
    }

    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        self.displace(partitions)?;
        self.consumer.context().answered();
        self.owned.borrow_mut().retain(|p| !partitions.contains(p));
        Ok(())
    }

    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.are_ours(starts)?;
        let (placed, new): (Vec<_>, Vec<_>) =
            starts.iter().partition(|(partition, _)| self.placed.borrow().contains_key(partition));
        if let Err(error) = self.seek_each(&placed) {
            tracing::debug!(%error, "seek refused; assigning the partitions anew");
            self.replace(&placed)?;
        } else {
            self.placed.borrow_mut().extend(placed);
        }
        if !new.is_empty() {
            self.place(&new)?;
        }
        self.resume(starts)
    }

    fn reassign(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.are_ours(starts)?;
        self.replace(starts)?;
        self.resume(starts)
    }

    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        let list = self.plain(partitions)?;
        self.consumer.pause(&list).map_err(|e| self.fail("pausing partitions of", &e))
    }

    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure> {
        // By a client that is no member: its answers do not depend on how the group fares.
        self.query(self.ends.stable(), partitions, wait)
    }

    fn committed_unstable(
        &self,
        partitions: &[PartitionId],
        wait: Duration,
    ) -> Result<Vec<Committed>, Failure> {
        self.query(self.ends.unstable(), partitions, wait)
    }

    fn bounds(&self, partition: PartitionId, wait: Duration) -> Result<Bounds, Failure> {
        let bounds = self.ends.of(&self.topic, partition, wait).map_err(|failed| self.explained(failed))?;
        self.consumer.context().connected();
        Ok(bounds)
    }

    fn topic_id(&self, wait: Duration) -> Option<String> {
        let described = native::topics(self.ends.stable().client(), &[&self.topic], wait).ok()?;
        described.into_iter().next()?.id
    }

    fn end(&self, partition: PartitionId) -> Option<Offset> {
        native::known_end(self.consumer.client(), &self.topic, number(partition))
    }

    fn may_commit(&self, partitions: &[PartitionId]) -> bool {
        let owned = self.owned.borrow();
        let member = native::membership(self.consumer.client())
            .is_some_and(|m| m.generation >= 0 && !m.member_id.is_empty());
        member && !self.consumer.assignment_lost() && partitions.iter().all(|p| owned.contains(p))
    }

    fn rejoin(&mut self) -> Result<(), Failure> {
        *self = Self::subscribe(&self.settings)?;
        Ok(())
    }

    fn leave(&self) {
        self.consumer.unsubscribe();
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        if self.consumer.context().close() {
            // Closing waits for the answer to a rebalance that the client has announced before. Giving
            // everything back answers all of them; what is an error here is settled by the closing.
            let all: Vec<PartitionId> = self.placed.borrow().keys().copied().collect();
            drop(self.place(&[]).and_then(|()| self.displace(&all)));
        }
    }
}
