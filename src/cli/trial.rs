//! `dedupd try`.

use clap::Args;

use super::Exit;
use crate::config::Property;

/// Flags of `try`.
#[derive(Debug, Clone, Args)]
pub struct TryArgs {
    /// Bootstrap brokers as host:port, separated by commas
    #[arg(long, value_parser = super::servers, value_name = "LIST")]
    pub bootstrap_servers: String,
    /// Number of records to write
    #[arg(long, default_value_t = 120_000, value_parser = clap::value_parser!(u64).range(1_000..), value_name = "COUNT")]
    pub records: u64,
    /// Records per second
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub rate: u32,
    /// Partitions of each topic
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000), value_name = "COUNT")]
    pub partitions: u32,
    /// Set a librdkafka property, as in security.protocol=sasl_ssl; repeatable
    #[arg(short = 'X', value_name = "NAME=VALUE", value_parser = Property::parse)]
    pub properties: Vec<Property>,
}

pub(super) const HELP: &str = "\
Makes three topics with random names, writes records of which some are there twice, runs `dedupd run`
on them, kills it twice with SIGKILL, the second time with the loss of its local state, audits the
result and removes the topics. Touches nothing else. If the audit finds a difference, topics and
state are kept and named.

On brokers of this machine the duplicates are real: connections are closed before the broker's
acknowledgement, and a producer without idempotence retries. On other brokers, and with TLS,
records are only written twice on purpose, and the output states it.

Needs the permissions of `dedupd run`, and to create and delete topics and to delete groups whose
names begin with dedupd-try-.

Example:
  dedupd try --bootstrap-servers localhost:9092";
pub(super) const CODES: &[Exit] = &[
    Exit::Done,
    Exit::No,
    Exit::Usage,
    Exit::StartUp,
    Exit::State,
    Exit::Operator,
    Exit::Failed,
    Exit::Unreachable,
];
