//! Kafka errors classified by remedy.
//!
//! The client's contract (librdkafka INTRODUCTION.md, "Transactional Producer") has three flags: retriable, requires abort,
//! fatal. An error without any flag counts as fatal. The flags alone are not enough: `Fenced` may be flagged "requires
//! abort", `Flush` and `MessageProduction` have no flags, and `UnsupportedFeature` is flagged retriable. So the error code
//! decides first, then the flags. An error that is still unknown replaces the producer, which is always safe.
//!
//! TLS and SASL failures have no remedy of their own: after the start they count as outages. A broker that stops in the
//! middle of a handshake causes the same errors, and a broker's expired certificate is replaced eventually.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::client_config::Settings;
use super::connection::error_text;
use super::rights;
use crate::ports::{Failure, RejectedRecords, Remedy, SEARCHING};

/// Converts a client error to a failure. `doing` follows "while" in the text and names the topic or group.
pub fn failure(doing: &str, error: &KafkaError) -> Failure {
    let remedy = remedy(error);
    let advice = match remedy {
        Remedy::Retry => "retrying",
        Remedy::Abort => "aborting the transaction and re-reading its records",
        Remedy::Renew => "replacing the producer and continuing from the committed offset",
        Remedy::Fenced => {
            "another producer uses this transactional id, or the transaction timed out: replacing the producer once"
        }
        Remedy::Rejoin => {
            "another process uses this group.instance, or a response of the broker was lost: rejoining"
        }
        Remedy::Stop => advice(code_of(error)),
    };
    Failure::new(remedy, format!("{} while {doing}; {advice}", error_text(error)))
}

/// The same as [`failure`], with the missing permission when the error code identifies it.
pub(super) fn failure_with_permission(settings: &Settings, doing: &str, error: &KafkaError) -> Failure {
    match code_of(error).and_then(|code| rights::missing_for_code(settings, code)) {
        Some(missing) => {
            Failure::new(remedy(error), format!("{} while {doing}; {missing}", error_text(error)))
        }
        None => failure(doing, error),
    }
}

/// A failure because the broker rejected particular records.
pub fn rejected(topic: &str, code: RDKafkaErrorCode, records: RejectedRecords) -> Failure {
    let RejectedRecords { partition, first, last, .. } = records;
    let what = format!(
        "raw partition {partition}, offsets {first} to {last}: {}{SEARCHING}",
        rejection(topic, code)
    );
    Failure { rejected: Some(records), ..Failure::new(Remedy::Abort, what) }
}

/// Why a record is rejected, with the setting that decides.
pub fn rejection(topic: &str, code: RDKafkaErrorCode) -> String {
    use RDKafkaErrorCode as C;
    let decides = match code {
        C::MessageSizeTooLarge | C::MessageBatchTooLarge | C::InvalidMessageSize => {
            "it is larger, compressed, than max.message.bytes of that topic (by default message.max.bytes of the broker), or \
             uncompressed than 1 GB"
        }
        C::InvalidTimestamp => {
            "its timestamp is beyond message.timestamp.before.max.ms or message.timestamp.after.max.ms of that topic"
        }
        C::InvalidRecord | C::InvalidDifferentRecord => {
            "it, or another record of its batch, has no key and that topic has cleanup.policy=compact, or has a timestamp beyond \
             message.timestamp.before.max.ms or message.timestamp.after.max.ms of that topic"
        }
        _ => "a policy of the broker decides",
    };
    format!("topic {topic} does not accept the record: {code}; {decides}")
}

/// A rejected record of the state topic: nothing can be committed, because every transaction writes its state there.
pub fn rejected_state(topic: &str, code: RDKafkaErrorCode) -> Failure {
    Failure::new(
        Remedy::Stop,
        format!(
            "the broker rejected a state record for topic {topic}: {code}; state records are sized by the topic's \
             max.message.bytes at the start, so restart if that was lowered; the topic must not reject records for their \
             timestamp (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        ),
    )
}

/// Whether a delivery error is about the record itself, not about the cluster.
pub fn is_record_error(code: RDKafkaErrorCode) -> bool {
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
            | C::InvalidDifferentRecord
    )
}

/// Whether an error reports damaged bytes in a log. The client skips them and continues.
pub(super) fn is_damage(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as C;
    matches!(code, C::BadMessage | C::BadCompression | C::NotImplemented)
}

/// The code of an error. The client's own method returns none for admin requests.
fn code_of(error: &KafkaError) -> Option<RDKafkaErrorCode> {
    if let KafkaError::AdminOp(code) = error { Some(*code) } else { error.rdkafka_error_code() }
}

/// Whether a broker rejects the topic that an admin request describes. It would reject it again.
fn is_rejected_topic(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as C;
    matches!(
        code,
        C::InvalidTopic
            | C::PolicyViolation
            | C::InvalidConfig
            | C::InvalidReplicationFactor
            | C::InvalidReplicaAssignment
            | C::InvalidPartitions
    )
}

fn remedy(error: &KafkaError) -> Remedy {
    let code = code_of(error);
    if matches!(error, KafkaError::AdminOp(code) if is_rejected_topic(*code)) {
        return Remedy::Stop;
    }
    // Another read would return the same damaged bytes.
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
        // The client rejected the record before it entered the queue. A commit would succeed without the record. (A full
        // queue is retried by the caller that has the record.)
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
            "a permission on a topic was removed; run dedupd check, which names it with the command that grants it"
        }
        Some(C::GroupAuthorizationFailed) => "grant READ on the consumer group to this principal",
        Some(C::TransactionalIdAuthorizationFailed) => {
            "grant WRITE on the transactional ids prefixed with the group name to this principal"
        }
        Some(C::InvalidTransactionTimeout) => {
            "lower batch.transaction_timeout or raise the broker's transaction.max.timeout.ms"
        }
        Some(C::UnsupportedFeature | C::UnsupportedVersion) => {
            "the broker is older than Apache Kafka 2.5, or this is the port of a controller, which serves no clients: \
             correct the port in kafka.bootstrap_servers"
        }
        Some(code) if is_damage(code) => {
            "its log is damaged; see kafka-dump-log.sh, and elect a replica that is not damaged as leader"
        }
        Some(code) if is_rejected_topic(code) => {
            "choose what the brokers accept, or create the topic as they require it"
        }
        _ => "an operator must resolve this",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_request_that_the_broker_rejects_is_not_retried() {
        use RDKafkaErrorCode as C;
        for (code, expected) in [
            (C::InvalidTopic, Remedy::Stop),
            (C::PolicyViolation, Remedy::Stop),
            (C::InvalidConfig, Remedy::Stop),
            (C::InvalidReplicationFactor, Remedy::Stop),
            (C::InvalidReplicaAssignment, Remedy::Stop),
            (C::InvalidPartitions, Remedy::Stop),
            (C::ClusterAuthorizationFailed, Remedy::Stop),
            (C::UnsupportedVersion, Remedy::Stop),
            (C::OperationTimedOut, Remedy::Retry),
            (C::RequestTimedOut, Remedy::Retry),
            (C::NotController, Remedy::Retry),
            (C::BrokerTransportFailure, Remedy::Retry),
            (C::ThrottlingQuotaExceeded, Remedy::Retry),
        ] {
            assert_eq!(failure("creating topic t", &KafkaError::AdminOp(code)).remedy, expected, "{code}");
        }
        // The same code about records.
        assert_ne!(remedy(&KafkaError::MessageProduction(C::PolicyViolation)), Remedy::Stop);
    }

    #[test]
    fn a_command_that_does_not_retry_does_not_announce_it() {
        let error = KafkaError::MetadataFetch(RDKafkaErrorCode::BrokerTransportFailure);
        let failed = failure("reading topic t", &error);
        assert!(failed.what.ends_with(" while reading topic t; retrying"), "{failed}");
        assert!(failed.unretried().ends_with(" while reading topic t"), "{}", failed.unretried());
    }
}
