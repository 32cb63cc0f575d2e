//! Why an audit could not be made. Not what it found.

use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::spill::Scratch;
use crate::dedupe::PartitionId;
use crate::kafka::connection::said;

/// Why an audit could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
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
    #[error("{0}")]
    Settings(String),
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
    /// Bytes of a log are not what was written. The client would leave their records out.
    #[error(
        "topic {topic}, partition {partition} holds a damaged batch ({why}); kafka-dump-log.sh shows it; let a replica lead \
         that is not damaged, then audit again"
    )]
    Damaged {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// What the client said.
        why: String,
    },
    /// Temporary files cannot be written or read.
    #[error(
        "a temporary file in {} failed after {written} had been written: {why}; {} (about 150 bytes for each record of \
         the largest partition are needed), or name another folder with --temp-dir",
        dir.display(),
        if why.kind() == io::ErrorKind::StorageFull { "the disk is full: free space there" } else { "mend that" }
    )]
    Spill {
        /// The folder.
        dir: PathBuf,
        /// How much was written before.
        written: ByteSize,
        /// What the system said.
        why: io::Error,
    },
    /// The temporary files may become larger than what is free for them.
    #[error(
        "{} has {free} free, and the temporary files of this audit may take {needed} (about 150 bytes for each record of \
         the largest partition, {records} by its offsets); free space there, name another folder with --temp-dir, or \
         audit a range with --from and --to",
        dir.display()
    )]
    NoRoom {
        /// The folder.
        dir: PathBuf,
        /// How much is free there.
        free: ByteSize,
        /// How much they may take.
        needed: ByteSize,
        /// Records of the largest partition, at most.
        records: u64,
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
    pub(super) fn settings(error: &KafkaError) -> Self {
        Self::Settings(said(error))
    }

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
