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
    #[error("topic {topic} could not be created: {why}; create it with another tool, or grant CREATE on it")]
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
        "{failed} records were not written to topic {topic}, the first because of: {why}; check the permissions on the \
         topic, its max.message.bytes, and that its brokers run"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// Number of records not written.
        failed: u64,
        /// The error of the first one.
        why: String,
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
