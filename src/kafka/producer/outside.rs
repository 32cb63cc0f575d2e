//! Side records that are written outside of transactions.
//!
//! While another program has a transaction open in a side partition, nothing shows whether the marker of a transaction behind
//! it is written. Records without a transaction have no marker. They are durable before the transaction that processes their raw
//! records commits, so none is lost; one whose transaction is aborted is written again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dedupd_tokens as tokens;
use rdkafka::error::KafkaError;
use rdkafka::producer::Producer;

use super::Client;
use crate::kafka::client_config::Settings;
use crate::kafka::delivery::Deliveries;
use crate::kafka::native;
use crate::kafka::topic::TopicHandle;
use crate::ports::{Failure, LogId, OutputTopic, Remedy};

/// The side partitions that are written outside of transactions, and the producer for them.
#[derive(Default)]
pub(super) struct Outside {
    /// Only added to, until the process ends: the other program probably opens its next transaction.
    logs: BTreeSet<LogId>,
    producer: Option<Producing>,
}

/// The topics are declared first because they must be dropped first.
struct Producing {
    topics: BTreeMap<OutputTopic, TopicHandle>,
    client: Client,
}

impl Outside {
    pub(super) fn add(&mut self, log: LogId) {
        self.logs.insert(log);
    }

    pub(super) fn contains(&self, log: LogId) -> bool {
        self.logs.contains(&log)
    }

    /// The client, and the topic of one of the logs. Creates the client when there is none.
    pub(super) fn target(
        &mut self,
        settings: &Settings,
        topic: OutputTopic,
    ) -> Result<(&Client, &TopicHandle), KafkaError> {
        let producing = if let Some(producing) = self.producer.take() {
            producing
        } else {
            let client = tokens::create(&settings.copier(), Deliveries::default()).map(Arc::new)?;
            Producing { topics: BTreeMap::new(), client }
        };
        let Producing { topics, client } = self.producer.insert(producing);
        let topic = match topics.entry(topic) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(TopicHandle::open(client.client(), settings.topic_of(topic))?),
        };
        Ok((client, topic))
    }

    /// Drops the client after a transaction that did not commit: a record that it could not write can make it unusable, and nothing shows
    /// that later. The records are written again.
    pub(super) fn discard(&mut self) {
        self.producer = None;
    }

    /// Waits until all records are acknowledged. After a failure the next record is sent by a new client, because this one may
    /// not be usable any more.
    pub(super) fn drain(&mut self, settings: &Settings, wait: Duration) -> Result<(), Failure> {
        let Some(Producing { client, .. }) = &self.producer else { return Ok(()) };
        let is_flushed = native::flush(client.client(), wait);
        let failed =
            client.context().failure(|topic| settings.topic_of(topic.unwrap_or(OutputTopic::DeadLetter)));
        let failed =
            failed.or_else(|| (!is_flushed || client.context().dropped_records()).then(unacknowledged));
        let Some(failed) = failed else { return Ok(()) };
        self.producer = None;
        Err(failed)
    }
}

fn unacknowledged() -> Failure {
    let what = "records that are written to a side topic outside of transactions were not acknowledged; aborting and \
                continuing from the committed offset; check the brokers when this repeats";
    Failure::new(Remedy::Abort, what.to_owned())
}
