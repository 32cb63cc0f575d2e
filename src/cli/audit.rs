//! `dedupd audit`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::{AsTyped, Property, TypedIdentity, TypedKafka, TypedTopics, TypedWindow};

/// Flags of `audit`. With a configuration file, or the service's environment, it audits exactly
/// what the service promises.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// Configuration file of the service, TOML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Brokers to begin with, as host:port, separated by commas
    #[arg(long, value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Topic that was read
    #[arg(long, value_name = "TOPIC")]
    raw: Option<String>,
    /// Topic that was written
    #[arg(long, value_name = "TOPIC")]
    clean: Option<String>,
    /// Where the id stands: key, header:NAME, json:/pointer or value; repeatable
    #[arg(long, value_name = "WHERE")]
    id: Vec<String>,
    /// How long an id was remembered, as in 90m, 24h or 7days [default: 24h]
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = super::property)]
    properties: Vec<Property>,
}

impl AuditArgs {
    /// The configuration file, if one was named.
    pub fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Whether the result is printed as JSON.
    pub fn json(&self) -> bool {
        self.json
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
                ..TypedTopics::default()
            },
            identity: TypedIdentity {
                from: Some(self.id.clone()).filter(|sources| !sources.is_empty()),
                ..TypedIdentity::default()
            },
            window: TypedWindow { exact: self.window.clone(), ..TypedWindow::default() },
            ..AsTyped::default()
        }
    }
}

pub(super) const HELP: &str = "\
Compares what a read_committed reader sees, partition by partition, and counts records that are
lost, duplicated, reordered, altered, or in clean without being in raw. Stop the writers of raw
first, or what is still on its way counts as lost.

Examples:
  dedupd audit --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd audit --config /etc/dedupd.toml --json

Exit codes: 0 all is well, 1 something was found, 2 the command line or the configuration is
wrong, 6 Kafka refused. Environment: see `dedupd run --help`.";
