//! `dedupd generate`.

use clap::Args;

use super::Exit;
use crate::config::{Property, parse_bytes};

/// Flags of `generate`.
#[derive(Debug, Clone, Args)]
pub struct GenerateArgs {
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, value_parser = super::servers, value_name = "LIST")]
    pub bootstrap_servers: String,
    /// Topic to write
    #[arg(long, value_parser = topic, value_name = "TOPIC")]
    pub topic: String,
    /// Number of records, including duplicates [default: until Ctrl-C]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    pub records: Option<u64>,
    /// Records per second [default: as fast as the broker accepts them]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub rate: Option<u32>,
    /// Size of a value, as in 200 or 4KiB; with the default --keys at least 140
    #[arg(long, default_value = "200", value_parser = bytes::<usize>, value_name = "BYTES")]
    pub size: usize,
    /// Share of records that are duplicates, from 0 to below 1
    #[arg(long, default_value_t = 0.1, value_parser = super::share, value_name = "SHARE")]
    pub duplicates: f64,
    /// Number of different record keys; a key always goes to the same partition
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    pub keys: u64,
    /// Create the topic with this number of partitions if it does not exist
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub partitions: Option<u32>,
    /// Seed of the random generator; the same seed writes the same records [default: random]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Produce duplicates as in production, by closing connections before the broker's response
    #[arg(long)]
    pub cut_acks: bool,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = Property::parse)]
    pub properties: Vec<Property>,
}

/// A number of bytes, parsed from `200` or `4KiB`.
pub(super) fn bytes<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let bytes = parse_bytes(text).map_err(|what| format!("the size {what}; write 200 or 4KiB"))?;
    N::try_from(bytes).map_err(|_| "the size is too large".to_owned())
}

/// The name of a topic that may be written.
fn topic(text: &str) -> Result<String, String> {
    match super::topic(text)? {
        internal if internal.starts_with("__") => {
            Err("begins with \"__\", as the topics of Kafka itself do; write another topic".to_owned())
        }
        name => Ok(name),
    }
}

pub(super) const HELP: &str = "\
Each value is a JSON object with a UUID under \"id\". One duplicate in four has a field more, attempt:
a conflict, unless identity.compare names other fields. With --cut-acks the duplicates are real: the
broker has written the batch, its response is lost, and a producer without idempotence retries.

Examples:
  dedupd generate --bootstrap-servers localhost:9092 --topic events.raw --records 1000000
  dedupd generate --bootstrap-servers localhost:9092 --topic events.raw --rate 5000 --cut-acks";
pub(super) const CODES: &[Exit] =
    &[Exit::Done, Exit::Usage, Exit::StartUp, Exit::Operator, Exit::Failed, Exit::Unreachable];
