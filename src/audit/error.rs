//! Why an audit could not be made. Not what it found.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::dedupe::PartitionId;

/// Why an audit could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Nobody answers.
    #[error(
        "no broker of {servers} answered within {seconds} s: {why}; check the address, the network and that \
         Kafka runs"
    )]
    Unreachable {
        /// The brokers asked.
        servers: String,
        /// How long was waited, s.
        seconds: u64,
        /// What the client said last.
        why: String,
    },
    /// A topic is not there.
    #[error("topic {topic} does not exist on {servers}; check its name, or create it")]
    MissingTopic {
        /// The topic.
        topic: String,
        /// The brokers asked.
        servers: String,
    },
    /// The broker does not let us read.
    #[error("the broker refused to let topic {topic} be read: {why}; {remedy}")]
    Refused {
        /// The topic.
        topic: String,
        /// What the broker said.
        why: RDKafkaErrorCode,
        /// What to do.
        remedy: &'static str,
    },
    /// The client does not accept its properties.
    #[error("the Kafka client cannot be made: {0}; correct the properties given to it")]
    Settings(KafkaError),
    /// Records disappeared while they were read.
    #[error(
        "records of topic {topic}, partition {partition} were deleted while they were read; audit again, with a \
         longer retention if this happens again"
    )]
    Deleted {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
    },
    /// The broker stopped answering in the middle.
    #[error(
        "topic {topic}, partition {partition} gave no record for {seconds} s although more are there: {why}; check \
         that all brokers run, then audit again"
    )]
    Silent {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// How long was waited, s.
        seconds: u64,
        /// What the client said last.
        why: String,
    },
}

/// What to do about a refusal; `None` when the error is none.
pub(super) fn remedy(code: RDKafkaErrorCode) -> Option<&'static str> {
    use RDKafkaErrorCode as C;
    match code {
        C::TopicAuthorizationFailed | C::ClusterAuthorizationFailed => {
            Some("grant READ and DESCRIBE on it to this principal")
        }
        C::SaslAuthenticationFailed | C::Authentication => {
            Some("check the user name, password and mechanism among the properties")
        }
        C::SSL => Some("check ssl.ca.location and the certificates among the properties"),
        C::UnsupportedVersion | C::UnsupportedFeature => Some("use Apache Kafka 2.5 or newer"),
        C::InvalidTopic => Some("check its name"),
        _ => None,
    }
}
