//! Creating, initialising and replacing the producer, and what it settles for producers that ended.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;

use super::{ActiveProducer, Client, KafkaSink};
use crate::clock;
use crate::dedupe::Offset;
use crate::kafka::aside::SideTopic;
use crate::kafka::client_config::Settings;
use crate::kafka::delivery::Deliveries;
use crate::kafka::endings::Endings;
use crate::kafka::error::failure_with_permission;
use crate::kafka::log_context::log_in_detail;
use crate::kafka::settle;
use crate::kafka::topic::TopicHandle;
use crate::ports::{CommitPosition, Failure, LogId, ProducerLife, Remedy};

/// Interval at which an initialisation is checked for a failure: the client reports one only when the call times out.
const INIT_WAIT: Duration = Duration::from_millis(20);

/// A transactional producer that is connected to a broker of the cluster, if one responds within `wait`.
///
/// The first response replaces the connection to the bootstrap server by one to the same broker under its number. A request
/// for the transaction coordinator that is sent before the second connection is lost, and the client repeats it after 500 ms.
fn client(settings: &Settings, transactional_id: &str, wait: Duration) -> Result<Client, KafkaError> {
    let mut config = settings.reporting(settings.producer(transactional_id));
    // The lines that show whether a request may have been repeated. A producer without transactions does not need them.
    log_in_detail(&mut config, Endings::CONTEXTS);
    let client: Client =
        dedupd_tokens::create(&config, Deliveries::new(settings.queue_bytes())).map(Arc::new)?;
    let reaches = |_| client.client().fetch_metadata(Some(&settings.clean), wait / 2).is_ok();
    if !(0..2).all(reaches) {
        tracing::debug!(transactional_id, "no broker is reachable yet");
    }
    Ok(client)
}

/// A producer with the transactional id of another worker. Its initialisation ends the open transaction of that id.
fn other_producer(settings: &Settings, writer: &str, wait: Duration) -> Result<Client, KafkaError> {
    let client = client(settings, writer, wait)?;
    client.init_transactions(wait)?;
    Ok(client)
}

/// Initialises a producer. A failure that the client retries is returned after `wait`. With `is_replaceable`, it is
/// returned at once if a new client would not wait for it.
fn initialise(client: &Client, wait: Duration, is_replaceable: bool) -> Result<(), KafkaError> {
    let deadline = clock::monotonic() + wait;
    loop {
        match client.init_transactions(INIT_WAIT) {
            Err(error)
                if is_retried(&error)
                    && clock::monotonic() < deadline
                    && !(is_replaceable && is_ending_transaction(&error)) => {}
            result => return result,
        }
    }
}

/// Whether the client continues to initialise the producer.
fn is_retried(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.is_retriable())
}

/// Whether the broker is still ending the open transaction of a predecessor.
fn is_ending_transaction(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::ConcurrentTransactions)
}

/// Escalates the failure of a settling transaction: it is still open in its producer, and nothing else would abort it.
fn escalated_to_renew(failed: Failure) -> Failure {
    failed.escalated(&[Remedy::Retry, Remedy::Abort], Remedy::Renew)
}

impl ActiveProducer {
    fn load_side_partitions(&mut self, wait: Duration) -> Result<(), KafkaError> {
        let client = self.client.client();
        let mut sides = [&mut self.dead_letter, &mut self.duplicates].into_iter().flatten();
        sides.try_for_each(|side| side.load_partitions(client, wait))
    }
}

impl KafkaSink {
    fn connect(&self, wait: Duration) -> Result<ActiveProducer, KafkaError> {
        let client = client(&self.settings, &self.settings.transactional_id, wait)?;
        let side = |name: &str| SideTopic::open(client.client(), name);
        Ok(ActiveProducer {
            clean: TopicHandle::open(client.client(), &self.settings.clean)?,
            // Its records are hashes.
            state: TopicHandle::uncompressed(client.client(), &self.settings.state)?,
            dead_letter: self.settings.dead_letter.as_deref().map(side).transpose()?,
            duplicates: self.settings.duplicates.as_deref().map(side).transpose()?,
            client,
        })
    }
}

impl ProducerLife for KafkaSink {
    fn prepare(&mut self, wait: Duration) -> Result<(), Failure> {
        if self.ready {
            return Ok(());
        }
        let mut is_replaceable = self.producer.is_none();
        loop {
            let mut producing = match self.producer.take() {
                Some(producing) => producing,
                None => self.connect(wait).map_err(|e| self.fail("creating the producer", &e))?,
            };
            if let Err(error) = producing.load_side_partitions(wait) {
                self.producer = Some(producing);
                return Err(self.fail("reading the partitions of the side topics", &error));
            }
            match initialise(&producing.client, wait, is_replaceable) {
                Ok(()) => {
                    self.ready = true;
                    self.producer = Some(producing);
                    return Ok(());
                }
                // This client would send its next request after 500 ms. A new one sends it at once, and only after this one
                // is closed: a late request of this one would fence the new one.
                Err(error) if is_replaceable && is_ending_transaction(&error) => {
                    is_replaceable = false;
                    drop(producing);
                }
                Err(error) => {
                    let failed = self.fail("initialising transactions", &error);
                    // Only a retriable failure allows another call on the same producer.
                    if failed.remedy == Remedy::Retry {
                        self.producer = Some(producing);
                    }
                    return Err(failed);
                }
            }
        }
    }

    fn fence(&mut self, writer: &str, wait: Duration) -> Result<(), Failure> {
        let doing = format!("ending the open transaction of transactional id {writer}");
        let fail = |e| failure_with_permission(&self.settings, &doing, &e);
        other_producer(&self.settings, writer, wait).map(drop).map_err(fail)
    }

    fn purge(
        &mut self,
        writer: &str,
        logs: &[LogId],
        position: &CommitPosition,
        wait: Duration,
    ) -> Result<(), Failure> {
        let doing = format!("aborting the leftovers of transactional id {writer}");
        let fail = |e| failure_with_permission(&self.settings, &doing, &e);
        // Our own transactional id needs our own producer, because a second producer would fence it.
        if writer == self.settings.transactional_id {
            let client = self.client()?;
            self.check_endings(client)?;
            let purged = settle::purge(&self.settings, client, writer, logs, position, wait);
            return purged.map_err(fail).map_err(escalated_to_renew);
        }
        let client = other_producer(&self.settings, writer, wait).map_err(fail)?;
        settle::purge(&self.settings, &client, writer, logs, position, wait).map_err(fail)
    }

    fn copy_aside(&mut self, log: LogId, offsets: &[Offset], wait: Duration) -> Result<(), Failure> {
        self.outside.copy(&self.settings, log, offsets, wait)
    }

    fn write_outside(&mut self, log: LogId) {
        self.outside.logs.insert(log);
    }

    fn discard(&mut self) {
        self.outside.discard();
        self.ready = false;
        self.producer = None;
    }
}
