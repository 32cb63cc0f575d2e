//! `dedupd health`.

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use crate::config::AsTyped;

/// The instance that is asked.
#[derive(Debug, Clone, Args)]
pub struct InstanceArgs {
    /// Configuration file of the instance, TOML
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen address of the instance [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

impl InstanceArgs {
    /// The keys that the flags set.
    pub fn overrides(&self) -> AsTyped {
        AsTyped::default().with("http.listen", &self.listen)
    }
}

/// Flags of `health`.
#[derive(Debug, Clone, Args)]
pub struct HealthArgs {
    /// The instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// Request /livez instead of /readyz: fail only when a restart would help
    #[arg(long)]
    pub live: bool,
}

pub(super) const HELP: &str = "\
Requests /readyz of an instance on this host, and prints the response. Without flags it uses the
environment of the instance, DEDUPD_HTTP__LISTEN. All other keys are ignored. This is the health check of the container image.
Use --live where an unhealthy container is restarted, as in Docker Swarm: an instance that waits for
a broker or loads its state is alive, but not ready.

Examples:
  dedupd health
  dedupd health --live --listen 127.0.0.1:9464";
pub(super) const CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage];
