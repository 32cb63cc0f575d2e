//! Side records that are written outside of transactions.
//!
//! While another program has a transaction open in a side partition, nothing shows whether the marker of a transaction behind
//! it is written. Records without a transaction have no marker. They are durable before the transaction that processes their raw
//! records commits, so none is lost; one whose transaction is aborted is written again. The copies of leftovers are written by the
//! same client.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dedupd_tokens as tokens;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;

use super::{Client, retried};
use crate::dedupe::{Coordinates, Offset};
use crate::kafka::aside::outside_header;
use crate::kafka::client_config::Settings;
use crate::kafka::delivery::{Deliveries, opaque};
use crate::kafka::error::failure_with_permission;
use crate::kafka::native::{self, Message};
use crate::kafka::side_log;
use crate::kafka::topic::{Outgoing, TopicHandle};
use crate::ports::{Failure, LogId, OutputTopic, Remedy};

/// The side partitions that are written outside of transactions, and the producer for them.
#[derive(Default)]
pub(super) struct Outside {
    /// Only added to, until the process ends: the other program probably opens its next transaction.
    pub(super) logs: BTreeSet<LogId>,
    producer: Option<Producing>,
}

/// The topics are declared first because they must be dropped first.
struct Producing {
    topics: BTreeMap<OutputTopic, TopicHandle>,
    client: Client,
}

impl Outside {
    /// The client, and the topic of one of the logs. Creates the client when there is none.
    fn target(
        &mut self,
        settings: &Settings,
        topic: OutputTopic,
    ) -> Result<(&Client, &TopicHandle), KafkaError> {
        let producing = if let Some(producing) = self.producer.take() {
            producing
        } else {
            let client =
                tokens::create(&settings.copier(), Deliveries::new(settings.queue_bytes())).map(Arc::new)?;
            Producing { topics: BTreeMap::new(), client }
        };
        let Producing { topics, client } = self.producer.insert(producing);
        let topic = match topics.entry(topic) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(TopicHandle::open(client.client(), settings.topic_of(topic))?),
        };
        Ok((client, topic))
    }

    /// Writes a record, and marks it as written outside of transactions.
    pub(super) fn send(
        &mut self,
        settings: &Settings,
        topic: OutputTopic,
        record: Outgoing<'_>,
    ) -> Result<(), Failure> {
        let name = settings.topic_of(topic);
        let fail = |e: KafkaError| failure_with_permission(settings, &format!("writing to topic {name}"), &e);
        let mut record = record.with_more_headers(&[outside_header()]).map_err(fail)?;
        let (client, handle) = self.target(settings, topic).map_err(fail)?;
        retried(client, handle, &mut record)
            .map_err(|e| unwritten(settings, client, &format!("topic {name}"), e))
    }

    /// Copies the records at these offsets of a partition to its end, and waits until they are acknowledged: the copies are visible
    /// at once, even if the process ends right after.
    pub(super) fn copy(
        &mut self,
        settings: &Settings,
        log: LogId,
        offsets: &[Offset],
        wait: Duration,
    ) -> Result<(), Failure> {
        let doing = format!("copying records of topic {}", settings.topic_of(log.topic));
        let sent = side_log::visit(settings, log, offsets, |message: &Message<'_>| {
            let copy = Outgoing::copy_of(message, opaque(Some(log.topic), 0));
            let copy = copy.map_err(|e| failure_with_permission(settings, &doing, &e))?;
            self.send(settings, log.topic, copy)
        });
        let copied = sent.and_then(|()| self.drain(settings, &[], wait));
        // The client may be unusable after a failure, and is rarely needed again after a success.
        self.discard();
        copied.map_err(|failed| match failed.remedy {
            // No transaction is open. The next check copies what is not in the log.
            Remedy::Abort => Failure::new(Remedy::Retry, format!("{doing} failed; retrying: {failed}")),
            _ => failed,
        })
    }

    /// Drops the client after a transaction that did not commit: a record that it could not write can make it unusable, and nothing shows
    /// that later. The records are written again.
    pub(super) fn discard(&mut self) {
        self.producer = None;
    }

    /// Waits until all records are acknowledged. After a failure the next record is sent by a new client, because this one may
    /// not be usable any more.
    /// `diverted` has the raw records of those that were sent.
    pub(super) fn drain(
        &mut self,
        settings: &Settings,
        diverted: &[Coordinates],
        wait: Duration,
    ) -> Result<(), Failure> {
        let Some(Producing { client, .. }) = &self.producer else { return Ok(()) };
        let is_flushed = native::flush(client.client(), wait);
        let deliveries = client.context();
        let name = |topic: Option<OutputTopic>| settings.topic_of(topic.unwrap_or(OutputTopic::DeadLetter));
        let failed = deliveries.failure(name, diverted);
        let is_complete = is_flushed && !deliveries.dropped_records();
        let missing = || {
            let error = KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut);
            (!is_complete).then(|| unwritten(settings, client, "the side topics", error))
        };
        let Some(failed) = failed.or_else(missing) else { return Ok(()) };
        self.producer = None;
        Err(failed)
    }
}

/// The failure of a client. A fatal error of the client is the cause of any other: it drops all records.
fn unwritten(settings: &Settings, client: &Client, what: &str, error: KafkaError) -> Failure {
    let fatal = client.client().fatal_error().map(|(code, _)| code);
    // No transactional producer needs this permission.
    let needed = if fatal == Some(RDKafkaErrorCode::ClusterAuthorizationFailed) {
        ", which requires the IdempotentWrite permission on the cluster before Kafka 2.8"
    } else {
        ""
    };
    let doing = format!("writing to {what} outside of transactions{needed}");
    failure_with_permission(settings, &doing, &fatal.map_or(error, KafkaError::MessageProduction))
}
