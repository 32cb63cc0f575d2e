//! The transactional producer: writes the clean, state and side topics and the group's offsets in one transaction.

mod failures;
mod life;
mod outside;
mod oversize;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dedupd_tokens::Authenticated;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, ThreadedProducer};

use super::aside::{SideTopic, reason_headers};
use super::client_config::Settings;
use super::consumer::KafkaSource;
use super::delivery::{Deliveries, opaque};
use super::error::is_record_error;
use super::native;
use super::offsets::{self, ABANDONED};
use super::partitions::{kafka_partition, partition_id};
use super::record::RawRecord;
use super::topic::{Headers, Outgoing, TopicHandle};
use super::unread::{unreadable, unreadable_headers};
use crate::clock;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::{
    CommitPosition, Failure, LogId, OutputTopic, ProducerLife, Reason, Record, Remedy, Side, Sink,
    WrittenEnds,
};
use crate::units::duration_text;
use failures::{drop_queued, root_cause, undelivered};
use outside::Outside;
use oversize::Oversize;

pub(super) type Client = Arc<Authenticated<ThreadedProducer<Deliveries>>>;

/// Interval at which a wait for delivery reports checks for a failure.
const FLUSH_WAIT: Duration = Duration::from_millis(20);
/// Interval at which a wait looks whether the client's own thread has taken delivery reports. A poll would compete with that thread, and
/// spin, because the client's waits are whole milliseconds.
const SERVED_WAIT: Duration = Duration::from_millis(1);
/// Longest time that a send waits for space in the client's queue.
const QUEUE_FULL_WAIT: Duration = Duration::from_secs(30);
/// Longest time that a send waits until the producer's metadata shows a new partition; well below the transaction timeout.
const NEW_PARTITION_WAIT: Duration = Duration::from_secs(2);

/// A producer and the topics it writes to. The topics are declared first because they must be dropped first.
struct ActiveProducer {
    clean: TopicHandle,
    state: TopicHandle,
    dead_letter: Option<SideTopic>,
    duplicates: Option<SideTopic>,
    client: Client,
}

/// One transactional producer. It is replaced whenever the result of a call is unknown.
pub struct KafkaSink {
    settings: Settings,
    producer: Option<ActiveProducer>,
    ready: bool,
    /// The side partitions that records of the transaction were sent to.
    sides: BTreeSet<LogId>,
    /// The raw records that the transaction writes to side topics.
    diverted: Vec<Coordinates>,
    outside: Outside,
    oversize: Oversize,
}

impl KafkaSink {
    /// A sink without a producer; [`ProducerLife::prepare`] creates it.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            producer: None,
            ready: false,
            sides: BTreeSet::new(),
            diverted: Vec::new(),
            outside: Outside::default(),
            oversize: Oversize::default(),
        }
    }

    fn client(&self) -> Result<&Client, Failure> {
        self.producing().map(|producing| &producing.client)
    }

    fn producing(&self) -> Result<&ActiveProducer, Failure> {
        self.producer.as_ref().filter(|_| self.ready).ok_or_else(|| {
            Failure::new(
                Remedy::Renew,
                format!("no producer is ready (transactional id {})", self.settings.transactional_id),
            )
        })
    }

    /// The failure for a raw record that was not copied.
    fn uncopied(&self, at: Coordinates, error: &KafkaError) -> Failure {
        match error {
            KafkaError::MessageConsumption(code) => unreadable(at, *code),
            error => self.fail(&format!("copying raw record {at}"), error),
        }
    }

    /// Sends a record in the transaction. A record that the client does not accept is rejected as one that the broker does not accept.
    fn send(&self, topic: &TopicHandle, record: &mut Outgoing<'_>) -> Result<(), Failure> {
        let client = self.client()?;
        retried(client, topic, record).map_err(|error| {
            if let KafkaError::MessageProduction(code) = error
                && is_record_error(code)
            {
                client.context().fail(code, record.opaque, record.partition.unwrap_or_default());
            }
            self.fail(&format!("writing to topic {}", topic.name()), &root_cause(client, error))
        })
    }
}

/// Sends a record, and retries while the queue is full or the client's metadata lacks a new partition.
fn retried(client: &Client, topic: &TopicHandle, record: &mut Outgoing<'_>) -> Result<(), KafkaError> {
    let (deliveries, bytes) = (client.context(), record.size());
    let mut deadline = None;
    loop {
        let sent = if deliveries.enqueue(bytes) {
            topic.send(client.client(), record).inspect_err(|_| deliveries.dequeue(bytes))
        } else {
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull))
        };
        match sent {
            // After a failure the client sends nothing more, and the queue stays full.
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull))
                if !deliveries.has_failed()
                    && clock::monotonic()
                        < *deadline.get_or_insert_with(|| clock::monotonic() + QUEUE_FULL_WAIT) =>
            {
                std::thread::sleep(SERVED_WAIT);
            }
            // The topic has grown: the partition exists, but this client's metadata does not show it yet.
            Err(KafkaError::MessageProduction(RDKafkaErrorCode::UnknownPartition))
                if clock::monotonic()
                    < *deadline.get_or_insert_with(|| clock::monotonic() + NEW_PARTITION_WAIT) =>
            {
                drop(client.client().fetch_metadata(Some(topic.name()), NEW_PARTITION_WAIT));
            }
            result => return result,
        }
    }
}

/// The timestamp that the client replaces by the current time.
const NOW: i64 = 0;

impl Sink<KafkaSource> for KafkaSink {
    fn begin(&mut self) -> Result<(), Failure> {
        let client = self.client()?;
        self.check_endings(client)?;
        client.begin_transaction().map_err(|e| self.fail("beginning a transaction", &e))?;
        client.context().reset();
        self.sides.clear();
        self.diverted.clear();
        self.oversize.clear();
        Ok(())
    }

    fn forward(&mut self, record: &mut RawRecord<'_>) -> Result<(), Failure> {
        let at = record.coordinates();
        let ActiveProducer { clean, .. } = self.producing()?;
        let moved = Outgoing::moved_from(&mut record.0, opaque(Some(OutputTopic::Clean), at.offset));
        let mut outgoing = moved.map_err(|e| self.uncopied(at, &e))?;
        self.send(clean, &mut outgoing)
    }

    fn divert(&mut self, side: Side, record: &RawRecord<'_>, reason: &Reason) -> Result<(), Failure> {
        let at = record.coordinates();
        let place = if side == Side::Clean {
            at.offset
        } else {
            self.diverted.push(at);
            self.diverted.len() as Offset - 1
        };
        let ActiveProducer { clean, dead_letter, duplicates, .. } = self.producing()?;
        let written = side.topic();
        let target = match side {
            Side::DeadLetter => dead_letter.as_ref().map(|it| it.target_of(at.partition)),
            Side::Duplicates => duplicates.as_ref().map(|it| it.target_of(at.partition)),
            Side::Clean => Some((clean, kafka_partition(at.partition))),
        };
        let Some((topic, partition)) = target else {
            return Err(Failure::new(
                Remedy::Stop,
                format!(
                    "a record must be written to topics.{written}, which is not set; set topics.{written}"
                ),
            ));
        };
        let writer = (side != Side::Clean).then_some(self.settings.transactional_id.as_str());
        let mut more_headers = reason_headers(at, reason, &self.settings.raw, writer);
        let opaque = opaque(Some(written), place);
        let copy = Outgoing::copy_of(&record.0, opaque).or_else(|error| match error {
            KafkaError::MessageConsumption(code) if side != Side::Clean => {
                more_headers.push(("dedupd.headers", unreadable_headers(code)));
                Ok(Outgoing::with_headers(&record.0, Headers::none(), opaque))
            }
            error => Err(error),
        });
        let mut outgoing =
            copy.and_then(|copy| copy.with_more_headers(&more_headers)).map_err(|e| self.uncopied(at, &e))?;
        outgoing.partition = Some(partition);
        if side == Side::Clean {
            return self.send(topic, &mut outgoing);
        }
        let log = LogId { topic: written, partition: partition_id(partition) };
        if self.outside.logs.contains(&log) {
            return self.outside.send(&self.settings, written, outgoing);
        }
        self.send(topic, &mut outgoing)?;
        self.sides.insert(log);
        Ok(())
    }

    fn certain_rejection(&mut self, by: OutputTopic, record: &RawRecord<'_>) -> Option<String> {
        self.oversize.rejection(&self.settings, by, record.0.value()?)
    }

    fn drain(&mut self, wait: Duration) -> Result<(), Failure> {
        let client = self.client()?;
        let deadline = clock::monotonic() + wait;
        while !native::flush(client.client(), FLUSH_WAIT) {
            if let Some(failed) = self.first_failure(client) {
                return Err(failed);
            }
            if clock::monotonic() > deadline {
                return Err(undelivered(client.in_flight_count(), wait));
            }
        }
        match self.first_failure(client) {
            Some(failed) => Err(failed),
            None if client.context().dropped_records() => Err(self.unsent(client)),
            None => self.outside.drain(&self.settings, &self.diverted, wait),
        }
    }

    fn put_state(&mut self, partition: PartitionId, key: &str, block: &[u8]) -> Result<(), Failure> {
        let ActiveProducer { state, .. } = self.producing()?;
        let mut outgoing = Outgoing {
            partition: Some(kafka_partition(partition)),
            key: Some(key.as_bytes()),
            value: Some(block),
            timestamp: NOW,
            headers: Headers::none(),
            opaque: opaque(Some(OutputTopic::State), 0),
        };
        self.send(state, &mut outgoing)
    }

    fn send_offsets(
        &mut self,
        source: &KafkaSource,
        positions: &[CommitPosition],
        wait: Duration,
    ) -> Result<(), Failure> {
        let client = self.client()?;
        let doing = "adding offsets to the transaction";
        let list = offsets::partition_list(positions.iter().map(|it| (source.topic(), it)))
            .map_err(|e| self.fail(doing, &e))?;
        // Read for every transaction: the broker rejects a stale generation.
        let Some(metadata) = source.consumer().group_metadata() else {
            return Err(Failure::new(
                Remedy::Abort,
                "this process is currently not a member of its group; aborting until it is".into(),
            ));
        };
        let limit = self.settings.transaction_timeout;
        match offsets::add(client, list, metadata, wait, limit) {
            Err(error) if error == ABANDONED => Err(Failure::new(
                Remedy::Renew,
                format!(
                    "{doing} has taken more than {} (transactional id {}): the coordinator of group {} is unreachable; \
                     replacing the producer and continuing from the committed offset",
                    duration_text(limit),
                    self.settings.transactional_id,
                    self.settings.group
                ),
            )),
            Err(error) => {
                client.context().endings.failed(&error);
                Err(self.fail(doing, &error))
            }
            Ok(()) => Ok(()),
        }
    }

    fn commit(&mut self, wait: Duration) -> Result<(), Failure> {
        let client = self.client()?;
        client.commit_transaction(wait).map_err(|error| {
            client.context().endings.failed(&error);
            self.fail("committing a transaction", &error)
        })?;
        client.context().endings.ended();
        Ok(())
    }

    fn abort(&mut self, wait: Duration) -> Result<(), Failure> {
        self.outside.discard();
        if !self.ready {
            // A repeated call: the abort is done, but the new producer is not ready.
            return self.prepare(wait);
        }
        let client = self.client()?;
        drop_queued(client, wait);
        client.abort_transaction(wait).map_err(|e| self.fail("aborting a transaction", &e))?;
        client.context().endings.ended();
        if self.first_failure(client).is_some() {
            // Rejected records leave a gap in the sequence numbers. The client detects it at the next record for the
            // partition, and fails that transaction too.
            self.discard();
            return self.prepare(wait);
        }
        Ok(())
    }
}

impl WrittenEnds for KafkaSink {
    fn clean_end(&self, partition: PartitionId) -> Option<Offset> {
        self.producer.as_ref()?.client.context().end(LogId::clean(partition))
    }

    fn state_end(&self, partition: PartitionId) -> Option<Offset> {
        self.producer.as_ref()?.client.context().end(LogId::state(partition))
    }

    fn side_starts(&self) -> Vec<(LogId, Option<Offset>)> {
        let Some(producing) = &self.producer else { return Vec::new() };
        self.sides.iter().map(|log| (*log, producing.client.context().start(*log))).collect()
    }
}
