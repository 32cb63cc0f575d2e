//! What a failed call of the producer means.

use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer, PurgeConfig};

use super::{ActiveProducer, Client, KafkaSink, SERVED_WAIT};
use crate::clock;
use crate::kafka::error::failure_with_permission;
use crate::ports::{Failure, OutputTopic, Remedy};
use crate::units::duration_text;

/// Longest wait for the delivery report of the record that has failed a transaction: the client sends it right after the call fails.
const REPORT_WAIT: Duration = Duration::from_secs(2);

impl KafkaSink {
    /// The failure of a call. When a rejected record has failed the transaction, any call may be the first to report that, and with another
    /// topic: the delivery reports contain the cause.
    pub(super) fn fail(&self, doing: &str, error: &KafkaError) -> Failure {
        let doing = format!("{doing} (transactional id {})", self.settings.transactional_id);
        let failed = failure_with_permission(&self.settings, &doing, error);
        match &self.producer {
            Some(ActiveProducer { client, .. }) if failed.remedy == Remedy::Abort => {
                self.reported_failure(client).unwrap_or(failed)
            }
            _ => failed,
        }
    }

    /// The failed delivery of a transaction that has to be aborted.
    fn reported_failure(&self, client: &Client) -> Option<Failure> {
        self.first_failure(client).or_else(|| {
            drop_queued(client, REPORT_WAIT);
            self.first_failure(client)
        })
    }

    /// The failure for records that were never sent because the transaction had failed before.
    pub(super) fn unsent(&self, client: &Client) -> Failure {
        let purged = KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue);
        self.fail("writing to the clean and state topics", &root_cause(client, purged))
    }

    /// Fails if a late request could end the next transaction.
    pub(super) fn check_endings(&self, client: &Client) -> Result<(), Failure> {
        if client.context().endings.are_final() {
            return Ok(());
        }
        Err(Failure::new(
            Remedy::Renew,
            format!(
                "a connection was lost in the last transaction (transactional id {}): a request that the client has repeated could \
                 arrive late and end the next transaction; replacing the producer and continuing from the committed offset",
                self.settings.transactional_id
            ),
        ))
    }

    pub(super) fn first_failure(&self, client: &Client) -> Option<Failure> {
        let name = |topic: Option<OutputTopic>| self.settings.topic_of(topic.unwrap_or(OutputTopic::Clean));
        client.context().failure(name, &self.diverted)
    }
}

/// Drops the records that are not sent, and waits until all others are reported.
pub(super) fn drop_queued(client: &Client, wait: Duration) {
    let deadline = clock::monotonic() + wait;
    while client.in_flight_count() > 0 && clock::monotonic() < deadline {
        // The client puts records back into its queue that were sent behind a rejected one.
        client.purge(PurgeConfig::default().queue());
        std::thread::sleep(SERVED_WAIT);
    }
}

/// The error that failed the transaction, when `seen` is only a consequence of it. After a transaction has failed, records
/// are rejected or dropped with a code that does not contain the reason. Calls that are not allowed in that state return
/// the reason; beginning another transaction is one of them, and has no effect.
pub(super) fn root_cause(client: &Client, seen: KafkaError) -> KafkaError {
    use RDKafkaErrorCode as C;
    let is_consequence =
        matches!(seen, KafkaError::MessageProduction(C::State | C::Fatal | C::PurgeQueue | C::PurgeInflight));
    if !is_consequence {
        return seen;
    }
    match client.begin_transaction() {
        Err(cause) if cause.rdkafka_error_code() != Some(C::State) => cause,
        _ => seen,
    }
}

pub(super) fn undelivered(count: i32, wait: Duration) -> Failure {
    Failure::new(
        Remedy::Renew,
        format!(
            "{count} records were not acknowledged within {}; replacing the producer and continuing from the \
             committed offset; check the brokers when this repeats, and their socket.request.max.bytes: a broker closes the connection \
             of a larger request without a response",
            duration_text(wait)
        ),
    )
}
