//! Why an audit failed. Findings are not errors.

use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::spill::Scratch;
use super::{Offset, PartitionId};

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// No broker responds.
    #[error("no broker of {servers} responds: {why}; check the address, the network and that Kafka runs")]
    Unreachable {
        /// The bootstrap servers.
        servers: String,
        /// The last error of the client.
        why: String,
        /// What the client reported in the last 45 s, the last text at the end.
        events: Vec<String>,
    },
    /// A broker rejects the connection.
    #[error("no connection to {servers}: {why}; {remedy}")]
    NotConnected {
        /// The bootstrap servers.
        servers: String,
        /// The last error of the client.
        why: String,
        /// What to do.
        remedy: &'static str,
        /// What the client reported in the last 45 s, the last text at the end.
        events: Vec<String>,
    },
    /// A topic does not exist.
    #[error("topic {topic} does not exist on {servers}; check its name, or create it")]
    MissingTopic {
        /// The topic.
        topic: String,
        /// The bootstrap servers.
        servers: String,
    },
    /// The broker rejects reads of the topic.
    #[error("the broker rejected reading topic {topic}: {why}; {remedy}")]
    Refused {
        /// The topic.
        topic: String,
        /// The error code of the broker.
        why: RDKafkaErrorCode,
        /// What to do.
        remedy: &'static str,
    },
    /// The client rejects its properties, or an id source is invalid.
    #[error("{0}")]
    Settings(String),
    /// The id of a record, or what is compared of it, cannot be read without its schema.
    #[error(
        "record {partition}@{offset} of topic {topic} cannot be decoded: {why}; make the schema available, then audit again"
    )]
    Schema {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The record.
        offset: Offset,
        /// Why the schema cannot be fetched or used.
        why: String,
    },
    /// Records were deleted while they were read.
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
    /// A batch in the log does not match its checksum. The client would skip its records.
    #[error(
        "topic {topic}, partition {partition} holds a damaged batch ({why}); kafka-dump-log.sh shows it; make an undamaged \
         replica the leader, then audit again"
    )]
    Damaged {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The error of the client.
        why: String,
    },
    /// Temporary files cannot be written or read.
    #[error(
        "a temporary file in {} failed after {written} had been written: {why}; {} (about 190 bytes for each record of \
         the largest partition are needed, in topic scope 270 for each record of the topic), or choose another directory with --temp-dir",
        dir.display(),
        if why.kind() == io::ErrorKind::StorageFull { "the disk is full: free space there" } else { "fix that" }
    )]
    Spill {
        /// The directory.
        dir: PathBuf,
        /// How much was written before.
        written: ByteSize,
        /// The error of the operating system.
        why: io::Error,
    },
    /// The directory that was given for temporary files cannot be used.
    #[error(
        "--temp-dir {} cannot be used: {why}; create the directory and make it writable, or choose another",
        dir.display()
    )]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
        /// The error of the operating system.
        why: io::Error,
    },
    /// The temporary files may need more space than is free.
    #[error(
        "{} has {free} free, and the temporary files of this audit may take {needed} (for the {records} records, by their \
         offsets, of the largest partition, in topic scope of the topic); free space there, choose another directory with --temp-dir, or \
         audit a range with --from and --to",
        dir.display()
    )]
    NoRoom {
        /// The directory.
        dir: PathBuf,
        /// How much is free there.
        free: ByteSize,
        /// How much the files may need.
        needed: ByteSize,
        /// Records that are compared together, at most: those of the largest partition, in topic scope those of the topic.
        records: u64,
    },
    /// The log was reported to end before the end of what is audited. What is behind that end would count as missing.
    #[error(
        "topic {topic}, partition {partition} was reported to end at offset {at}, before offset {end}, which its leader had \
         returned as the end, and no more arrived within {seconds} s: the leader does not serve the whole log yet, or an \
         unclean election has lost its end; audit again when all replicas are in sync (kafka-topics.sh --describe)"
    )]
    EndedEarly {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// Where the log was reported to end.
        at: Offset,
        /// The end of what is audited.
        end: Offset,
        /// How long the audit waited, seconds.
        seconds: u64,
    },
    /// The broker stopped responding while records remained.
    #[error(
        "topic {topic}, partition {partition} returned no record from offset {offset} on for {seconds} s although the log ends at {end}: \
         {why}; check that all brokers run, then audit again. If it ends there again, the client cannot read what is at that offset; \
         kafka-dump-log.sh --deep-iteration shows it"
    )]
    Silent {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The first offset that was not read.
        offset: Offset,
        /// One past the last offset to read.
        end: Offset,
        /// How long the audit waited, seconds.
        seconds: u64,
        /// The last error of the client.
        why: String,
    },
}

impl AuditError {
    /// The error of a client without the value of a property, which may hold a secret: under a mistyped name, or when it was
    /// set for the wrong property.
    pub(super) fn settings(error: &KafkaError) -> Self {
        Self::Settings(match error {
            KafkaError::ClientConfig(_, what, name, value) => {
                let quotes_value = !value.is_empty() && what.contains(value.as_str());
                let what = if quotes_value { "its value is not accepted" } else { what };
                format!("kafka.properties.{name}: {what}; correct it, or leave it out")
            }
            KafkaError::ClientCreation(what) => format!(
                "the Kafka client cannot be created: {what}; correct the properties under [kafka.properties]"
            ),
            other => other.to_string(),
        })
    }

    pub(super) fn spill(scratch: &Scratch, why: io::Error) -> Self {
        Self::Spill { dir: scratch.dir().to_owned(), written: ByteSize(scratch.written()), why }
    }
}
