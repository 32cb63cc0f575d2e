//! `dedupd run` and `dedupd check`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::config::{
    AsTyped, Property, TypedDedupe, TypedGroup, TypedHttp, TypedIdentity, TypedKafka, TypedState,
    TypedTopics, TypedWindow,
};

/// Flags of `run` and `check`. Each one overrides the key it stands for.
#[derive(Debug, Clone, Args)]
pub struct ServiceArgs {
    /// Configuration file, TOML; not needed when flags and environment say enough
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Brokers to begin with, as host:port, separated by commas
    #[arg(long, value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Topic to read
    #[arg(long, value_name = "TOPIC")]
    raw: Option<String>,
    /// Topic to write
    #[arg(long, value_name = "TOPIC")]
    clean: Option<String>,
    /// Topic of the state [default: the clean topic's name with .dedupd]
    #[arg(long, value_name = "TOPIC")]
    state: Option<String>,
    /// Where the id stands: key, header:NAME, json:/pointer or value; repeatable
    #[arg(long, value_name = "WHERE")]
    id: Vec<String>,
    /// Consumer group [default: dedupd.RAW.CLEAN]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this instance, the same after a restart [default: the host name]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Threads, each a member of the group [default: 1]
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// Directory of the local state [default: ./dedupd-state]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// Address of metrics, health and status page [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// What is done with duplicates: drop, shadow (only mark them) or bypass (do nothing) [default: drop]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// How long an id is remembered, as in 90m, 24h or 7days [default: 24h]
    #[arg(long, value_name = "DURATION")]
    exact: Option<String>,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = super::property)]
    properties: Vec<Property>,
    /// Form of the log: text for people, or json
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORM", hide_possible_values = true)]
    log_format: LogFormat,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl ServiceArgs {
    /// The configuration file, if one was named.
    pub fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Form of the log.
    pub fn log_format(&self) -> LogFormat {
        self.log_format
    }

    /// What the flags set, for [`crate::config::load`].
    pub fn overrides(&self) -> AsTyped {
        AsTyped {
            kafka: TypedKafka {
                bootstrap_servers: self.bootstrap_servers.clone(),
                properties: self.properties.iter().cloned().collect(),
            },
            topics: TypedTopics {
                raw: self.raw.clone(),
                clean: self.clean.clone(),
                state: self.state.clone(),
                ..TypedTopics::default()
            },
            group: TypedGroup {
                id: self.group.clone(),
                instance: self.instance.clone(),
                workers: self.workers.clone(),
                ..TypedGroup::default()
            },
            identity: TypedIdentity {
                from: Some(self.id.clone()).filter(|sources| !sources.is_empty()),
                ..TypedIdentity::default()
            },
            dedupe: TypedDedupe { mode: self.mode.clone() },
            window: TypedWindow { exact: self.exact.clone(), ..TypedWindow::default() },
            state: TypedState { dir: self.state_dir.clone(), ..TypedState::default() },
            http: TypedHttp { listen: self.listen.clone(), ..TypedHttp::default() },
            ..AsTyped::default()
        }
    }
}

pub(super) const RUN_HELP: &str = "\
Examples:
  dedupd run --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd run --config /etc/dedupd.toml --workers 4 --log-format json
  DEDUPD_KAFKA__PROPERTIES__SASL_PASSWORD=... dedupd run --config /etc/dedupd.toml

Environment:
  Every key of the configuration file, as DEDUPD_SECTION__KEY with two underscores between:
  DEDUPD_TOPICS__RAW sets topics.raw, DEDUPD_WINDOW__EXACT sets window.exact.
  Below DEDUPD_KAFKA__PROPERTIES__, underscores stand for dots: SECURITY_PROTOCOL is
  security.protocol. Lists are written as in TOML. An empty variable counts as not set.
  Later wins: default, file, environment, flag. Secrets belong into a file or the
  environment: other users of the machine can see a command line. NAME.file, or NAME_FILE in the
  environment, names a file with the value of the property NAME.

Exit codes:
  0  done, or stopped as told by SIGTERM or SIGINT
  1  failed
  2  the command line or the configuration is wrong
  3  a check at the start failed: a topic or a right is missing, a topic has the wrong shape,
     or the brokers refuse the connection
  4  the local state cannot be used: the disk, or the hash does not fit
  5  another process uses the same group and instance name
  6  Kafka refused something that only an operator can mend";

pub(super) const CHECK_HELP: &str = "\
Prints the configuration in force, without secrets, and then what it found.

Examples:
  dedupd check --config /etc/dedupd.toml
  dedupd check --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id key

Exit codes: 0 all is well, 2 the configuration is wrong, 3 a topic or a right is missing, a topic
has the wrong shape, or the brokers refuse the connection, 6 Kafka refused. Environment: see `dedupd run --help`.";
