//! `dedupd plan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Exit;
use super::generate::bytes;
use crate::config::{Frame, Property, parse_duration};

/// Maximum of `--sample`.
const MAX_SAMPLE: u64 = 1_000_000_000_000;

/// Flags of `plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Records per second in the raw topic, all partitions together [default: measured with --raw]
    #[arg(long, value_parser = positive, required_unless_present = "raw", value_name = "COUNT")]
    pub events: Option<f64>,
    /// Share of records that are duplicates, from 0 to below 1 [default: 0, or measured with --raw]
    #[arg(long, value_parser = super::share, value_name = "SHARE")]
    pub duplicates: Option<f64>,
    /// Measure rate, duplicates and partitions on this live topic, without changing anything
    #[arg(long, value_parser = super::topic, requires = "bootstrap_servers", requires = "id", value_name = "TOPIC")]
    pub raw: Option<String>,
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, requires = "raw", value_parser = super::servers, value_name = "LIST")]
    pub bootstrap_servers: Option<String>,
    /// Source of the id: key, value, header:NAME, json:/pointer, avro:/path or protobuf:/path, or several with ' | '; repeat for an id of
    /// several parts
    #[arg(long, requires = "raw", value_name = "SOURCE")]
    pub id: Vec<String>,
    /// URL of the schema registry, for avro: and protobuf: paths
    #[arg(long, requires = "raw", value_name = "URL")]
    pub schema_registry: Option<String>,
    /// Frame of documents: confluent, glue, apicurio, apicurio-content or single-object (schemas.frame)
    #[arg(long, requires = "raw", value_parser = super::frame, value_name = "FRAME")]
    pub schema_frame: Option<Frame>,
    /// File or directory with the schemas of keys and values (schemas.value, schemas.key)
    #[arg(long, requires = "raw", value_name = "PATH")]
    pub schema_files: Option<PathBuf>,
    /// Number of its newest records to read, all partitions together
    #[arg(long, requires = "raw", default_value_t = 200_000, value_parser = whole::<u64>(1, MAX_SAMPLE), value_name = "COUNT")]
    pub sample: u64,
    /// Read all of its records instead, as for the ages of copies; of many ids, only a part is followed
    #[arg(long, requires = "raw", conflicts_with = "sample")]
    pub full: bool,
    /// What of two records with one id is compared, as --id, or off; repeatable [default: the value, unless it is a part of the id]
    #[arg(long, requires = "raw", value_name = "SOURCE")]
    pub compare: Vec<String>,
    /// Header whose records are forwarded whatever their id, so that they are no copies (identity.force_header)
    #[arg(long, requires = "raw", value_name = "NAME")]
    pub force_header: Option<String>,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', requires = "raw", value_name = "NAME=VALUE", value_parser = Property::parse)]
    pub properties: Vec<Property>,
    /// Form of the ids: uuid, or text for anything else
    #[arg(long, value_enum, default_value_t = IdForm::Uuid, value_name = "KIND", hide_possible_values = true)]
    pub ids: IdForm,
    /// How long an id is stored exactly, as in 90m, 24h or 7days [default: 24h, or more if --raw recommends more and --bloom is not given]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub exact: Option<Duration>,
    /// How long an id is stored in all, after --exact in filters only [default: as --exact]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub bloom: Option<Duration>,
    /// False-positive rate of a look-up in these filters
    #[arg(long, default_value_t = 1e-9, value_parser = rate, value_name = "RATE")]
    pub false_positive_rate: f64,
    /// Partitions of the raw topic [default: 1, or those of --raw]
    #[arg(long, value_parser = whole::<u32>(1, 1_000_000), value_name = "COUNT")]
    pub partitions: Option<u32>,
    /// Behaviour at --max-ids: shrink makes the window shorter, evict overwrites the oldest ids
    #[arg(long, value_enum, default_value_t = WhenFull::Shrink, value_name = "POLICY", hide_possible_values = true)]
    pub overflow: WhenFull,
    /// Number of slots of all tables together, with --overflow evict (window.max_ids)
    #[arg(long, value_parser = whole::<u64>(1, 1 << 38), value_name = "COUNT")]
    pub max_ids: Option<u64>,
    /// Also print the window that fits into this much memory, as in 4GiB
    #[arg(long, value_parser = bytes::<u64>, value_name = "BYTES")]
    pub memory: Option<u64>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print the keys to set, as TOML for the configuration file
    #[arg(long, conflicts_with = "json")]
    pub toml: bool,
}

/// The behaviour when the window is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WhenFull {
    /// The window becomes shorter.
    Shrink,
    /// The oldest ids are overwritten.
    Evict,
}

/// The form of the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IdForm {
    /// UUIDs.
    Uuid,
    /// Anything else.
    Text,
}

fn duration(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_hours(100 * 365 * 24);
    let span =
        parse_duration(text).map_err(|what| format!("the duration {what}; write 90m, 24h or 7days"))?;
    if span < Duration::from_secs(1) || span > longest {
        return Err("expected a duration from 1s to 100years".to_owned());
    }
    Ok(span)
}

/// A parser of whole numbers within these limits. The parser of clap fails with the texts of Rust's number types.
fn whole<N: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number: u64| N::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1e-6..=1e12).contains(number));
    number.ok_or_else(|| "expected a number of records per second, as in 5000 or 0.5".to_owned())
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-10..=0.5).contains(rate));
    rate.ok_or_else(|| "expected a rate from 1e-10 to 0.5, as in 1e-9".to_owned())
}

pub(super) const HELP: &str = "\
Predicts the size of a window in memory, on disk and in the state topic, before it is deployed. The
prediction assumes even traffic; for a topic with busy hours, plan with the rate of those hours.

With --raw it also measures how old copies are, recommends window.exact with its costs, and reports
copies whose content differs from that of the first record with their id.

Examples:
  dedupd plan --events 5000 --exact 24h --partitions 12
  dedupd plan --events 5000 --exact 24h --bloom 30days --partitions 12 --json
  dedupd plan --events 5000 --exact 1h --memory 4GiB
  dedupd plan --events 5000 --exact 24h --partitions 12 --toml
  dedupd plan --bootstrap-servers localhost:9092 --raw events.raw --id json:/id --exact 24h
  dedupd plan --bootstrap-servers localhost:9092 --raw events.raw --id json:/id --full
  dedupd plan --events 5000 --exact 1h --overflow evict --max-ids 25000000";
pub(super) const CODES: &[Exit] =
    &[Exit::Done, Exit::Usage, Exit::StartUp, Exit::Operator, Exit::Unreachable];

#[cfg(test)]
mod tests {
    use super::super::parse_from;

    #[test]
    fn whole_numbers_out_of_range_are_refused_with_the_limits() {
        let sample = ["dedupd", "plan", "--raw", "r", "--bootstrap-servers", "b:1", "--id", "key"];
        let parse = |flag, number| parse_from(sample.into_iter().chain([flag, number]));
        for (flag, most, above) in [
            ("--partitions", "1000000", "1000001"),
            ("--sample", "1000000000000", "1000000000001"),
            ("--max-ids", "274877906944", "274877906945"),
        ] {
            for number in ["1", most] {
                assert!(parse(flag, number).is_ok(), "{flag} {number}");
            }
            for number in ["0", above, "99999999999999999999", "many", "1.5", "-1", ""] {
                let error = parse(flag, number).map(drop).unwrap_err();
                // A negative number could be a flag.
                let expected = format!("must be a whole number from 1 to {most}");
                assert!(error.contains(&expected) || number == "-1", "{flag} {number}: {error}");
            }
        }
    }
}
