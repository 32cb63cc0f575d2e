//! Why an audit could not be made. Not what it found.

use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::spill::Scratch;
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
    /// Temporary files cannot be written or read.
    #[error(
        "a temporary file in {} failed after {written} had been written: {why}; free space there (about 150 bytes \
         for each record of the largest partition), or name another folder with --temp-dir",
        dir.display()
    )]
    Spill {
        /// The folder.
        dir: PathBuf,
        /// How much was written before.
        written: ByteSize,
        /// What the system said.
        why: io::Error,
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

impl AuditError {
    pub(super) fn spill(scratch: &Scratch, why: io::Error) -> Self {
        Self::Spill { dir: scratch.dir().to_owned(), written: ByteSize(scratch.written()), why }
    }
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
