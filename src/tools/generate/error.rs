//! Why generating load failed.

use std::io;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::kafka::connection::error_text;

/// Why generating load failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// No broker responds.
    #[error("no broker of {servers} responds: {why}; check the address, the network and that Kafka runs")]
    Unreachable {
        /// The bootstrap servers.
        servers: String,
        /// The last error of the client.
        why: String,
    },
    /// A broker is reachable, but the connection fails.
    #[error("no connection to {servers}: {what}")]
    NotConnected {
        /// The bootstrap servers.
        servers: String,
        /// What is wrong, and what to do.
        what: String,
    },
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
    /// The client rejects its properties.
    #[error("{0}")]
    Settings(String),
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

impl GenerateError {
    #[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
    pub(super) fn settings(error: KafkaError) -> Self {
        Self::Settings(error_text(&error))
    }
}
