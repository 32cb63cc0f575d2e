//! `dedupd demo`.

use std::net::SocketAddr;

use clap::Args;

use super::Exit;

/// Flags of `demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Run until Ctrl-C instead of for --seconds
    #[arg(long, conflicts_with = "seconds")]
    pub forever: bool,
    /// Duration of the traffic, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    pub seconds: u64,
    /// Records per second
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub rate: u32,
    /// Share of records that are duplicates, from 0 to below 1
    #[arg(long, default_value_t = 0.2, value_parser = super::share, value_name = "SHARE")]
    pub duplicates: f64,
    /// Address of the status page [default: 127.0.0.1:9464, or a free port if it is in use]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

pub(super) const HELP: &str = "\
Needs no installation: the broker is simulated inside the process and ends with it. When the time
is over, or at Ctrl-C, the traffic stops, the last records are processed, and raw and clean are
audited as far as the broker still has them. The traffic is slower than --rate if dedupd cannot
process that many.

Examples:
  dedupd demo
  dedupd demo --forever --rate 20000 --duplicates 0.5";
pub(super) const CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage, Exit::Failed];
