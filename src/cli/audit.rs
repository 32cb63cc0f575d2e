//! `dedupd audit`.

use std::path::PathBuf;

use clap::Args;
use dedupd_audit::{LEAST_MEMORY, Moment, Range};

use super::Exit;
use crate::config::{AsTyped, Property, parse_bytes};

/// The scope that exists in audits only. Other ones are those of the configuration.
const TOPICS: &str = "topics";

/// Flags of `audit`. With the configuration file or the environment of the service, it audits the guarantee of
/// exactly that configuration.
// The flags that `run` also has are declared again: their help texts differ, and a shared group would list them first.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// Configuration file of the service, TOML
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, value_name = "LIST")]
    bootstrap_servers: Option<String>,
    /// Raw topic, read by dedupd; repeat for several, which `dedupd rekey` has merged (the same as --scope topics)
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    raw: Vec<String>,
    /// Clean topic, written by dedupd
    #[arg(long, value_name = "TOPIC")]
    clean: Option<String>,
    /// Source of the id: key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, or several with ' | '; repeat for an id of
    /// several parts
    #[arg(long, value_name = "SOURCE")]
    id: Vec<String>,
    /// URL of the schema registry, for avro: and protobuf: paths
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,
    /// Window: how long an id was stored, as in 90m, 24h or 7days [default: 24h]
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
    /// Where an id counts once: topic (in all partitions together), partition (in each), or topics (in all raw topics that
    /// `dedupd rekey` has read; the partitions of clean do not correspond to theirs) [default: topic]
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,
    /// Start of the audited range: a time in RFC 3339, or a duration before now, as in 90m
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    from: Option<Moment>,
    /// End of the audited range, up to the first record with this time; same format as --from
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    to: Option<Moment>,
    /// Count differences that retention or compaction explains separately, not as findings
    #[arg(long)]
    pub allow_gone: bool,
    /// Count a dropped record as a finding (exit code 1) if it is not equal to the one with its id in the clean topic, in what
    /// identity.compare names (the value by default)
    #[arg(long)]
    pub require_equal: bool,
    /// File with the ids that were forgotten (dedupd forget), whose records may be missing or be there several times. A line is a
    /// JSON array of the parts of an id, as the log has it, or the text of an id of one part
    #[arg(long, value_name = "FILE")]
    pub forgotten: Option<PathBuf>,
    /// Maximum number of findings of each kind to list with partition and offset
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub samples: usize,
    /// Maximum memory, at least 32MiB; the rest goes to temporary files
    #[arg(long, default_value = "256MiB", value_parser = memory, value_name = "BYTES")]
    pub memory: u64,
    /// Directory for temporary files, on a disk [default: TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    pub temp_dir: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = Property::parse)]
    properties: Vec<Property>,
}

impl AuditArgs {
    /// The range to audit, with `now_ms` in epoch milliseconds. The error is text to print.
    pub fn range(&self, now_ms: i64) -> Result<Range, String> {
        let ms = |moment: Option<Moment>| moment.map(|moment| moment.ms(now_ms));
        let range = Range { from_ms: ms(self.from), to_ms: ms(self.to) };
        match (range.from_ms, range.to_ms) {
            (Some(from), Some(to)) if from >= to => {
                Err("--from is not before --to; swap them, or leave one out".to_owned())
            }
            _ => Ok(range),
        }
    }

    /// The source topics of `rekey`, if this clean topic is compared with those. The error is text to print.
    pub fn source_topics(&self, clean: &str) -> Result<Option<&[String]>, String> {
        let is_repeated =
            |(at, topic): (usize, &String)| self.raw.iter().take(at).any(|other| other == topic);
        match self.scope.as_deref() {
            Some(TOPICS) if self.raw.is_empty() => Err(format!(
                "--scope {TOPICS} requires the topics that `dedupd rekey` reads; name each of them with --raw"
            )),
            Some(other) if other != TOPICS && self.raw.len() > 1 => Err(format!(
                "several --raw cannot be compared with --scope {other}; leave --scope out, or give one --raw"
            )),
            scope if scope != Some(TOPICS) && self.raw.len() < 2 => Ok(None),
            _ if self.raw.iter().enumerate().any(is_repeated) => {
                Err("a --raw topic is given twice; give each once".to_owned())
            }
            _ if self.raw.iter().any(|topic| topic == clean) => {
                Err(format!("{clean} is the clean topic and a --raw topic; use two topics"))
            }
            _ => Ok(Some(&self.raw)),
        }
    }

    /// The keys that the flags set, for [`crate::config::load`].
    pub fn overrides(&self) -> AsTyped {
        AsTyped::default()
            .with("kafka.bootstrap_servers", &self.bootstrap_servers)
            .with_properties(&self.properties)
            .with("topics.raw", self.raw.first())
            .with("topics.clean", &self.clean)
            .with("identity.from", &self.id)
            .with("schemas.registry", &self.schema_registry)
            .with("window.exact", &self.window)
            .with("dedupe.scope", self.scope.as_ref().filter(|scope| *scope != TOPICS))
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes < LEAST_MEMORY {
        return Err("is too small: an audit needs at least 32MiB".to_owned());
    }
    Ok(bytes)
}

pub(super) const HELP: &str = "\
Compares the two topics as a read_committed reader sees them, and counts records that are lost,
duplicated, reordered, altered, or in the clean topic but not in the raw topic. Stop the producers of
the raw topic first: records that dedupd has not processed yet count as lost.

With --scope topic, an id must be in the clean topic once, in the partition of one of its raw
records; which of them is not checked. An id may be kept for up to 1/28 longer than the window, and
a copy within that time may be in the clean topic or not. With --scope partition, each partition is
compared on its own.

With several --raw, or --scope topics, the raw topics are those that `dedupd rekey` has read, and an id
must be in the clean topic once, wherever its records are. Each clean record must name its raw record in
the last header dedupd.source and equal that one; order and partitions are not checked. Records without
an id must be there at least once, with identity.on_missing=source exactly once.

Each raw record that was dropped for another one with its id is compared with the one that the clean
topic holds, in what identity.compare names: the whole value by default. The report has the numbers of
equal and unequal ones, and of those that cannot be compared, because the other one is not there any more
or lacks what is compared. The first five unequal pairs are listed with their coordinates and with parts of
their values. They change the exit code, to 1, with --require-equal only. With
identity.on_conflict=dead_letter they are in the dead-letter topic, and not lost.

With --from, the raw topic is read from two windows before the range, to collect the earlier ids, and
with --scope topic up to one window after it, with --scope topics to its end. Results that depend on a record outside the range are
counted on a separate line. With --scope partition, partitions that fit into --memory together are
read at the same time, a larger one alone. Temporary files take about 240 bytes per record of the
largest partition, with --scope topic or topics about 330 bytes per record of all topics of a side.

What is not in the topics: list ids that were forgotten with --forgotten, and audit with --from what
followed a later start (group.start) or a rewind (group.on_rewind). [[kinds]] are read from --config.
A forwarded duplicate of an evicted id (window.overflow) counts as duplicated. A record that the broker
rejected (state.on_poison), or a false positive of a filter (window.false_positive_rate), counts as lost.

Examples:
  dedupd audit --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd audit --bootstrap-servers localhost:9092 --raw orders --raw payments --clean events.clean --id json:/id
  dedupd audit --config /etc/dedupd.toml --json --require-equal
  dedupd audit --config /etc/dedupd.toml --from 6h --to 1h --memory 1GiB --temp-dir /var/tmp

Environment: see `dedupd run --help`.";
pub(super) const CODES: &[Exit] =
    &[Exit::Done, Exit::No, Exit::Usage, Exit::StartUp, Exit::State, Exit::Operator, Exit::Unreachable];
