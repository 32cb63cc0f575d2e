//! `dedupd run` and `dedupd check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Exit;
use crate::config::{AsTyped, Property};

/// Flags of `run` and `check`. Each one overrides its configuration key.
#[derive(Debug, Clone, Args)]
pub struct ServiceArgs {
    /// Configuration file, TOML; optional when flags and environment set all required keys
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Topic to read
    #[arg(long, value_name = "TOPIC")]
    raw: Option<String>,
    /// Topic to write
    #[arg(long, value_name = "TOPIC")]
    clean: Option<String>,
    /// State topic [default: CLEAN.dedupd]
    #[arg(long, value_name = "TOPIC")]
    state: Option<String>,
    /// Create the clean and the state topic if they do not exist (topics.create)
    #[arg(long)]
    create: bool,
    /// Source of the id: key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, or several with ' | '; repeat for an id of
    /// several parts
    #[arg(long, value_name = "SOURCE")]
    id: Vec<String>,
    /// URL of the schema registry, for avro: and protobuf: paths
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,
    /// Consumer group [default: dedupd.RAW.CLEAN]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this instance; must stay the same across restarts [default: the host name]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Number of worker threads, each a member of the group; above 1 only with --scope partition [default: 1]
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// Directory of the local state [default: ./dedupd-state]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Listen address of metrics, health and status page [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Handling of duplicates: drop, shadow (only mark them) or bypass (no check) [default: drop]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Where copies are found: topic (in all partitions) or partition (in the same one) [default: topic]
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,
    /// How long an id is stored exactly, as in 90m, 24h or 7days [default: 24h]
    #[arg(long, value_name = "DURATION")]
    exact: Option<String>,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = Property::parse)]
    properties: Vec<Property>,
    /// Log format: text or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT", hide_possible_values = true)]
    pub log_format: LogFormat,
}

/// Flags of `check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Those of `run`.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Also print the effective configuration, without secrets; the findings are comments then
    #[arg(long)]
    pub print: bool,
}

/// The log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl ServiceArgs {
    /// The keys that the flags set, for [`crate::config::load`].
    pub fn overrides(&self) -> AsTyped {
        AsTyped::default()
            .with("kafka.bootstrap_servers", &self.bootstrap_servers)
            .with_properties(&self.properties)
            .with("topics.raw", &self.raw)
            .with("topics.clean", &self.clean)
            .with("topics.state", &self.state)
            .with("topics.create", self.create.then_some("true"))
            .with("group.id", &self.group)
            .with("group.instance", &self.instance)
            .with("group.workers", &self.workers)
            .with("identity.from", &self.id)
            .with("schemas.registry", &self.schema_registry)
            .with("dedupe.mode", &self.mode)
            .with("dedupe.scope", &self.scope)
            .with("window.exact", &self.exact)
            .with("state.dir", &self.state_dir)
            .with("http.listen", &self.listen)
    }
}

pub(super) const RUN_HELP: &str = "\
Examples:
  dedupd run --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd run --config /etc/dedupd.toml --scope partition --workers 4 --log-format json
  DEDUPD_KAFKA__PROPERTIES__SASL_PASSWORD=... dedupd run --config /etc/dedupd.toml

Environment:
  Each key of the configuration file can be set as DEDUPD_SECTION__KEY, with two underscores
  between section and key: DEDUPD_TOPICS__RAW sets topics.raw, DEDUPD_WINDOW__EXACT sets
  window.exact. After DEDUPD_KAFKA__PROPERTIES__, underscores stand for dots: SECURITY_PROTOCOL
  is security.protocol. Lists are written as in TOML. An empty variable counts as not set.
  The order of precedence is default, file, environment, flag; the last one set wins.
  Set secrets in a file or the environment: other users of the machine can see the command line.
  The property NAME.file, or NAME_FILE in the environment, is the path of a file that contains
  the value of the property NAME.";
pub(super) const RUN_CODES: &[Exit] =
    &[Exit::Done, Exit::Usage, Exit::StartUp, Exit::State, Exit::Fenced, Exit::Operator, Exit::Failed];

pub(super) const CHECK_HELP: &str = "\
Goes through a start without its writes, also beside a running instance: what `run` would refuse
is refused with the same message and code. Prints the verdict, what a start would create, restore
and leave to others, the scope that a sample of the raw topic recommends, and what only a start shows.
Fails also when no record of the sample has an id.

Examples:
  dedupd check --config /etc/dedupd.toml
  dedupd check --config /etc/dedupd.toml --print     # also the effective configuration
  dedupd check --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id key

Environment: see `dedupd run --help`.";
pub(super) const CHECK_CODES: &[Exit] =
    &[Exit::Done, Exit::Usage, Exit::StartUp, Exit::State, Exit::Operator, Exit::Failed, Exit::Unreachable];
