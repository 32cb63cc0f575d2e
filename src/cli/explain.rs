//! `dedupd explain`.

use clap::Args;

use super::{Exit, ServiceArgs};

/// Flags of `explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The record of the raw topic, as PARTITION@OFFSET
    #[arg(value_name = "PARTITION@OFFSET")]
    pub at: String,
    /// Those of `run`.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub(super) const HELP: &str = "\
Reads a record of the raw topic and the owner of its id, the record that had it first, and prints rule,
identity, what a lookup finds, and where the two records differ. The owner is asked from the instance at
http.listen, with the token of http.token_file, if it has the same raw topic, group and identity rule, or
read from state.dir if that instance is stopped. The verdict is today's: the window has moved since the
record was processed.

Examples:
  dedupd explain 3@17 --config dedupd.toml";
pub(super) const CODES: &[Exit] =
    &[Exit::Done, Exit::No, Exit::Usage, Exit::StartUp, Exit::State, Exit::Unreachable];
