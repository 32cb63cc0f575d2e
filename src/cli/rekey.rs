//! `dedupd rekey`.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, LogFormat};
use crate::config::{AsTyped, Property};

/// Flags of `rekey`. Each one overrides its configuration key.
// The flags that `run` also has are declared again: their help texts differ, and a shared group would list them first.
#[derive(Debug, Clone, Args)]
pub struct RekeyArgs {
    /// Configuration file, TOML; optional when flags and environment set all required keys
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Topic to read, or a regular expression that begins with ^; repeat for several topics
    #[arg(long, value_name = "TOPIC")]
    from: Vec<String>,
    /// Topic to write, which is the raw topic of `dedupd run`
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// How the partition follows from the id: murmur2 (as the Java client) or consistent (as librdkafka)
    /// [default: murmur2]
    #[arg(long, value_name = "PARTITIONER")]
    partitioner: Option<String>,
    /// Source of the id: key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, or several with ' | '; repeat for an id of
    /// several parts
    #[arg(long, value_name = "SOURCE")]
    id: Vec<String>,
    /// URL of the schema registry, for avro: and protobuf: paths
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,
    /// Consumer group [default: dedupd.rekey.TO]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this instance; must stay the same across restarts [default: the host name]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Listen address of metrics and health [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = Property::parse)]
    properties: Vec<Property>,
    /// Log format: text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT", hide_possible_values = true)]
    pub log_format: LogFormat,
}

impl RekeyArgs {
    /// The keys that the flags set, for [`crate::config::Rekeying::from_sources`].
    pub fn overrides(&self) -> AsTyped {
        AsTyped::default()
            .with("kafka.bootstrap_servers", &self.bootstrap_servers)
            .with_properties(&self.properties)
            .with("rekey.from", &self.from)
            .with("rekey.to", &self.to)
            .with("rekey.group", &self.group)
            .with("rekey.partitioner", &self.partitioner)
            .with("identity.from", &self.id)
            .with("schemas.registry", &self.schema_registry)
            .with("group.instance", &self.instance)
            .with("http.listen", &self.listen)
    }
}

pub(super) const HELP: &str = "\
For `dedupd run` in partition scope, which finds copies of a record in the same partition only: this
stage before it writes every record of one or many topics to the partition that follows from its id.
Each record stays as it is and gets a header dedupd.source=TOPIC/PARTITION@OFFSET#TOPICID.EPOCH. A crash
repeats records, and `dedupd run` drops them. Several instances share the source topics through the group.

Of the configuration, only the keys of [kafka], [rekey] and [schemas], topics.create, identity.from,
http.listen, and instance, static_membership, session_timeout and on_gap of [group] are used. A group
without committed offsets starts at the earliest offsets.

Examples:
  dedupd rekey --bootstrap-servers localhost:9092 --from orders --from payments --to events.raw --id json:/id
  dedupd rekey --bootstrap-servers localhost:9092 --from '^shop\\.' --to events.raw --id key
  dedupd run --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id \\
      --scope partition --listen 127.0.0.1:9465

Environment: see `dedupd run --help`.";
pub(super) const CODES: &[Exit] =
    &[Exit::Done, Exit::Usage, Exit::StartUp, Exit::Fenced, Exit::Operator, Exit::Failed];
