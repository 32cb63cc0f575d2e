//! Why no load could be written.

use std::io;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::kafka::connection::said;

/// Why no load could be written.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Nobody answers.
    #[error("no broker of {servers} answers: {why}; check the address, the network and that Kafka runs")]
    Unreachable {
        /// The brokers asked.
        servers: String,
        /// What the client said last.
        why: String,
    },
    /// A broker is there, and a connection is not.
    #[error("no connection to {servers}: {what}")]
    NotConnected {
        /// The brokers asked.
        servers: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The topic is not there.
    #[error("topic {topic} does not exist on {servers}; give the number of partitions to have it created")]
    MissingTopic {
        /// The topic.
        topic: String,
        /// The brokers asked.
        servers: String,
    },
    /// The topic could not be created.
    #[error("topic {topic} could not be created: {why}; create it by other means, or grant CREATE on it")]
    NotCreated {
        /// The topic.
        topic: String,
        /// What the broker said.
        why: RDKafkaErrorCode,
    },
    /// The client does not accept its properties.
    #[error("{0}")]
    Settings(String),
    /// Records were not written.
    #[error(
        "{failed} records were not written to topic {topic}, the first because of: {why}; check the rights on the \
         topic, its max.message.bytes, and that its brokers run"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// How many.
        failed: u64,
        /// What the client said of the first.
        why: String,
    },
    /// Answers can be cut only on this machine.
    #[error(
        "broker {host} is not on the loopback interface, so its answers cannot be cut; use a broker that \
         advertises localhost or 127.0.0.1, or generate without cutting"
    )]
    NotLocal {
        /// What the broker advertises.
        host: String,
    },
    /// Answers can be cut only where they can be read.
    #[error(
        "answers cannot be cut with security.protocol={protocol}; use a plain-text listener on this machine"
    )]
    Encrypted {
        /// The protocol asked for.
        protocol: String,
    },
    /// No ports or threads for the proxy.
    #[error("the proxy that cuts answers could not start: {0}; raise the limits on open files and threads")]
    Proxy(#[source] io::Error),
}

impl GenerateError {
    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    pub(super) fn settings(error: KafkaError) -> Self {
        Self::Settings(said(&error))
    }
}
