//! Why generating load failed.

use std::io;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

/// Why generating load failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A request failed: no broker responds, or the connection fails.
    #[error("the brokers do not respond: {0}; check the address, the network and that Kafka runs")]
    Kafka(#[from] KafkaError),
    /// The topic does not exist.
    #[error("topic {topic} does not exist on {servers}; set --partitions to create it")]
    MissingTopic {
        /// The topic.
        topic: String,
        /// The bootstrap servers.
        servers: String,
    },
    /// The topic could not be created.
    #[error("topic {topic} could not be created: {why}; {}", remedy_of_topic(*why))]
    NotCreated {
        /// The topic.
        topic: String,
        /// The error code of the broker.
        why: RDKafkaErrorCode,
    },
    /// The client rejects its properties. The error contains a value, which may be a secret.
    #[error("the Kafka client does not accept its properties")]
    Settings(#[source] KafkaError),
    /// Records were not written.
    #[error(
        "{failed} of {records} records were not written to topic {topic}, the first because of: {why}; {}",
        remedy(why)
    )]
    Refused {
        /// The topic.
        topic: String,
        /// Number of records not written.
        failed: u64,
        /// Number of records to write.
        records: u64,
        /// The error of the first one.
        why: KafkaError,
    },
    /// Responses can only be dropped for brokers on this machine.
    #[error(
        "broker {host} is not on the loopback interface, so its responses cannot be dropped; use a broker that \
         advertises localhost or 127.0.0.1, or generate without --cut-acks"
    )]
    NotLocal {
        /// The host that the broker advertises.
        host: String,
    },
    /// Encrypted responses cannot be dropped selectively.
    #[error(
        "responses cannot be dropped with security.protocol={protocol}; use a plain-text listener on this machine"
    )]
    Encrypted {
        /// The configured protocol.
        protocol: String,
    },
    /// The proxy got no port or thread.
    #[error(
        "the proxy that drops responses could not start: {0}; raise the limits on open files and threads"
    )]
    Proxy(#[source] io::Error),
}

/// What to do about a topic that was not created.
fn remedy_of_topic(why: RDKafkaErrorCode) -> &'static str {
    use RDKafkaErrorCode as C;
    match why {
        C::TopicAuthorizationFailed | C::ClusterAuthorizationFailed => {
            "grant CREATE on it, or create it with another tool"
        }
        C::InvalidPartitions | C::PolicyViolation => {
            "give fewer --partitions, or create it as the policy of the brokers requires"
        }
        _ => "check that its brokers run, or create it with another tool",
    }
}

/// What to do about a record that was not written.
fn remedy(why: &KafkaError) -> &'static str {
    use RDKafkaErrorCode as C;
    match why.rdkafka_error_code() {
        Some(C::TopicAuthorizationFailed | C::ClusterAuthorizationFailed) => "grant WRITE on it",
        Some(C::MessageSizeTooLarge | C::MessageBatchTooLarge | C::InvalidMessageSize) => {
            "give a smaller --size, or raise max.message.bytes of the topic and -X message.max.bytes of this client"
        }
        _ => "check that its brokers run, and the settings of the topic",
    }
}
