//! `dedupd audit`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::audit::{LEAST_MEMORY, Moment, Range};
use crate::config::{AsTyped, Property, TypedIdentity, TypedKafka, TypedTopics, TypedWindow, parse_bytes};

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
    /// Judge records from this time on: RFC 3339, or a duration back from now, as in 90m
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Moment>,
    /// Judge records up to the first one with this time, given like --from
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Moment>,
    /// Count apart what retention or compaction explains, instead of as findings
    #[arg(long)]
    allow_gone: bool,
    /// Most findings of each kind that are told by their coordinates
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    samples: usize,
    /// Most memory to use, at least 32MiB; what does not fit goes to temporary files
    #[arg(long, default_value = "256MiB", value_parser = memory, value_name = "BYTES")]
    memory: u64,
    /// Folder of the temporary files, on a disk [default: TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,
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

    /// The range to judge, with `now_ms` in ms since the epoch. The error is text to print.
    pub fn range(&self, now_ms: i64) -> Result<Range, String> {
        let ms = |moment: Option<Moment>| moment.map(|moment| moment.ms(now_ms));
        let range = Range { from_ms: ms(self.from), to_ms: ms(self.to) };
        match (range.from_ms, range.to_ms) {
            (Some(from), Some(to)) if from >= to => {
                Err("--from is not before --to: exchange them, or leave one out".to_owned())
            }
            _ => Ok(range),
        }
    }

    /// Whether what retention or compaction explains is no finding.
    pub fn allow_gone(&self) -> bool {
        self.allow_gone
    }

    /// Most findings of each kind that are told.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Most memory to use, bytes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// The folder of temporary files, if one was named.
    pub fn temp_dir(&self) -> Option<&Path> {
        self.temp_dir.as_deref()
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

fn moment(text: &str) -> Result<Moment, String> {
    Moment::parse(text)
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes < LEAST_MEMORY {
        return Err("is too little: an audit needs 32MiB".to_owned());
    }
    Ok(bytes)
}

pub(super) const HELP: &str = "\
Compares what a read_committed reader sees, partition by partition, and counts records that are
lost, duplicated, reordered, altered, or in clean without being in raw. Stop the writers of raw
first, or what is still on its way counts as lost.

With --from, raw is read from two windows before it, to know the ids. What a record before the range
decides is counted on a line of its own. Partitions are read one after the other; temporary files take
about 150 bytes for each record of the largest one.

What the audit cannot know: an id that was taken back (POST /forget) or evicted (window.overflow)
counts as duplicated when its copy was forwarded; a record that the broker refused (state.on_poison)
or a filter took for a copy (window.false_positive_rate) counts as lost.

Examples:
  dedupd audit --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd audit --config /etc/dedupd.toml --json
  dedupd audit --config /etc/dedupd.toml --from 6h --to 1h --memory 1GiB --temp-dir /var/tmp

Exit codes: 0 all is well, 1 something was found, 2 the command line or the configuration is
wrong, 4 temporary files failed, 6 Kafka refused. Environment: see `dedupd run --help`.";
