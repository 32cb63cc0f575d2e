//! Kafka errors sorted by remedy.
//!
//! The client's contract (librdkafka INTRODUCTION.md, "Transactional Producer") has three flags:
//! retriable, requires abort, fatal; with none of them set the error counts as fatal. Flags alone are
//! not enough: `Fenced` may come as "requires abort", `Flush` and `MessageProduction` carry no flags,
//! and `UnsupportedFeature` is flagged retriable. So the code decides first, the flags second, and
//! what is still unknown costs a new producer, which is always safe.
//!
//! Failures of TLS and SASL have no remedy of their own: after the start they are outages. A broker that goes
//! down in the middle of a handshake reports them too, and one whose certificate has expired gets another.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::client_config::Settings;
use super::connection::said;
use super::rights;
use crate::ports::{Failure, Refused, Remedy};

/// Turns a client error into a failure. `doing` completes "while …", naming the topic or group.
pub fn failure(doing: &str, error: &KafkaError) -> Failure {
    let remedy = remedy(error);
    let advice = match remedy {
        Remedy::Retry => "trying again",
        Remedy::Abort => "aborting the transaction and reading its records again",
        Remedy::Renew => "replacing the producer and continuing from the committed offset",
        Remedy::Fenced => {
            "another producer uses this transactional id, or the transaction timed out: replacing the producer once"
        }
        Remedy::Rejoin => {
            "another process uses this group.instance, or an answer of the broker was lost: joining anew"
        }
        Remedy::Stop => advice(error.rdkafka_error_code()),
    };
    Failure { remedy, what: format!("{} while {doing}; {advice}", said(error)), refused: None }
}

/// The same as [`failure`], naming the right that is missing where the code tells which.
pub(super) fn failure_of(settings: &Settings, doing: &str, error: &KafkaError) -> Failure {
    match error.rdkafka_error_code().and_then(|code| rights::of_code(settings, code)) {
        Some(right) => Failure {
            what: format!("{} while {doing}; {right}", said(error)),
            remedy: remedy(error),
            refused: None,
        },
        None => failure(doing, error),
    }
}

/// A failure of records that the broker refused as such.
pub fn refused(topic: &str, code: RDKafkaErrorCode, records: Refused) -> Failure {
    let Refused { partition, first, last } = records;
    Failure {
        remedy: Remedy::Abort,
        what: format!(
            "topic {topic} refused records of raw partition {partition}, offsets {first} to {last}: {code}; \
             aborting the transaction and looking for the record that causes it"
        ),
        refused: Some(records),
    }
}

/// A record that a side topic refuses has nowhere to go; `otherwise` says how to do without that topic.
pub fn refused_aside(topic: &str, code: RDKafkaErrorCode, otherwise: &str) -> Failure {
    Failure {
        remedy: Remedy::Stop,
        what: format!(
            "topic {topic} refused a record: {code}; let it accept what the raw topic does (max.message.bytes, \
             message.timestamp.after.max.ms), or {otherwise}"
        ),
        refused: None,
    }
}

/// The state topic refuses a record: nothing can be committed, as each transaction has its state in it.
pub fn refused_state(topic: &str, code: RDKafkaErrorCode) -> Failure {
    Failure {
        remedy: Remedy::Stop,
        what: format!(
            "topic {topic} refused a state record: {code}; the size of state records follows the topic's max.message.bytes \
             at the start, so when that was lowered, start again; the topic must not refuse records for their timestamp \
             (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        ),
        refused: None,
    }
}

/// Whether a delivery error blames the record itself, not the cluster.
pub fn blames_the_record(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as C;
    matches!(
        code,
        C::MessageSizeTooLarge
            | C::MessageBatchTooLarge
            | C::InvalidMessage
            | C::InvalidMessageSize
            | C::InvalidTimestamp
            | C::UnsupportedForMessageFormat
            | C::PolicyViolation
            | C::InvalidRecord
    )
}

/// Whether an error says that bytes of the log are damaged. The client goes on behind them.
pub(super) fn is_damage(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as C;
    matches!(code, C::BadMessage | C::BadCompression | C::NotImplemented)
}

fn remedy(error: &KafkaError) -> Remedy {
    let code = error.rdkafka_error_code();
    // What is read again would be as damaged as before.
    if matches!(error, KafkaError::MessageConsumption(code) if is_damage(*code)) {
        return Remedy::Stop;
    }
    if let Some(remedy) = code.and_then(by_code) {
        return remedy;
    }
    match error {
        KafkaError::Transaction(e) if e.is_fatal() => Remedy::Renew,
        KafkaError::Transaction(e) if e.txn_requires_abort() => Remedy::Abort,
        KafkaError::Transaction(e) if e.is_retriable() => Remedy::Retry,
        // The client refused the record before it reached the queue. A commit would not notice that
        // the record is missing. (A full queue is waited for where the record is at hand.)
        KafkaError::MessageProduction(_) => Remedy::Abort,
        KafkaError::MetadataFetch(_)
        | KafkaError::OffsetFetch(_)
        | KafkaError::Global(_)
        | KafkaError::GroupListFetch(_)
        | KafkaError::AdminOp(_)
        | KafkaError::MessageConsumption(_)
        | KafkaError::Seek(_)
        | KafkaError::PauseResume(_) => Remedy::Retry,
        KafkaError::MessageConsumptionFatal(_)
        | KafkaError::ClientConfig(..)
        | KafkaError::ClientCreation(_)
        | KafkaError::Subscription(_) => Remedy::Stop,
        _ => Remedy::Renew,
    }
}

fn by_code(code: RDKafkaErrorCode) -> Option<Remedy> {
    use RDKafkaErrorCode as C;
    match code {
        C::Fenced | C::ProducerFenced | C::InvalidProducerEpoch => Some(Remedy::Fenced),
        C::FencedInstanceId => Some(Remedy::Rejoin),
        C::TopicAuthorizationFailed
        | C::GroupAuthorizationFailed
        | C::ClusterAuthorizationFailed
        | C::TransactionalIdAuthorizationFailed
        | C::UnsupportedFeature
        | C::UnsupportedVersion
        | C::InvalidTransactionTimeout
        | C::InvalidTopic => Some(Remedy::Stop),
        _ => None,
    }
}

fn advice(code: Option<RDKafkaErrorCode>) -> &'static str {
    use RDKafkaErrorCode as C;
    match code {
        Some(C::TopicAuthorizationFailed) => {
            "a right on a topic was taken away; run dedupd check, which names it with the command that grants it"
        }
        Some(C::GroupAuthorizationFailed) => "grant READ on the consumer group to this principal",
        Some(C::TransactionalIdAuthorizationFailed) => {
            "grant WRITE on the transactional ids prefixed with the group name to this principal"
        }
        Some(C::InvalidTransactionTimeout) => {
            "lower batch.transaction_timeout or raise the broker's transaction.max.timeout.ms"
        }
        Some(C::UnsupportedFeature | C::UnsupportedVersion) => {
            "the broker is too old: dedupd needs Apache Kafka 2.5 or newer"
        }
        Some(code) if is_damage(code) => {
            "its log is damaged; see kafka-dump-log.sh, and let a replica lead that is not"
        }
        _ => "an operator has to look at this",
    }
}
