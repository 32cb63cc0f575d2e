//! `dedupd state`: the local state of a stopped instance.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Exit;
use crate::config::AsTyped;

/// Flags of `state`.
#[derive(Debug, Clone, Args)]
pub struct StateArgs {
    /// The subcommand of `state`.
    #[command(subcommand)]
    pub command: StateCommand,
}

/// The subcommands of `state`.
#[derive(Debug, Clone, Subcommand)]
pub enum StateCommand {
    /// Show the contents of each window, or look up an id
    #[command(after_help = Exit::listed_below(INSPECT_HELP, INSPECT_CODES))]
    Inspect(InspectArgs),
    /// Write the whole state to a file
    #[command(after_help = Exit::listed_below(EXPORT_HELP, EXPORT_CODES))]
    Export(ExportArgs),
    /// Write a portable Bloom filter of all ids, or ask one for an id
    #[command(after_help = Exit::listed_below(FILTER_HELP, FILTER_CODES))]
    Filter(FilterArgs),
    /// Fill an empty state directory from an exported file
    #[command(after_help = Exit::listed_below(IMPORT_HELP, IMPORT_CODES))]
    Import(ImportArgs),
    /// Delete the local state; the next start restores it from the state topic
    #[command(after_help = Exit::listed_below(RESET_HELP, RESET_CODES))]
    Reset(ResetArgs),
}

/// Location and configuration of the local state.
#[derive(Debug, Clone, Args)]
pub struct LocalArgs {
    /// Configuration file of the service, TOML
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of the local state [default: ./dedupd-state]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
    /// How long an id is stored exactly, as in 90m, 24h or 7days [default: 24h]
    #[arg(long, value_name = "DURATION")]
    exact: Option<String>,
}

impl LocalArgs {
    /// The keys that the flags set, for [`crate::config::load_local`].
    pub fn overrides(&self) -> AsTyped {
        AsTyped::default().with("window.exact", &self.exact).with("state.dir", &self.state_dir)
    }
}

/// Flags of `state inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// Look up this id; repeat for the parts of an id of several parts, in the order of identity.from
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub id: Vec<String>,
    /// Look up the id among the records of this partition only
    #[arg(long, value_name = "NUMBER", requires = "id")]
    pub partition: Option<u32>,
    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Location of the state.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Flags of `state export`.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// The file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Location of the state.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Flags of `state filter`.
#[derive(Debug, Clone, Args)]
pub struct FilterArgs {
    /// The file of the filter, which must not exist unless it is asked
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Ask the file for this id; repeat for the parts of an id of several parts, in the order of identity.from
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub contains: Vec<String>,
    /// Expected share of ids that were not seen and that the filter contains all the same
    #[arg(long, default_value_t = 1e-6, value_parser = super::plan::rate, conflicts_with = "contains", value_name = "RATE")]
    pub false_positive_rate: f64,
    /// Location of the state.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Flags of `state import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The exported file
    #[arg(long, value_name = "FILE")]
    pub from: PathBuf,
    /// Location of the state.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Flags of `state reset`.
#[derive(Debug, Clone, Args)]
pub struct ResetArgs {
    /// Delete without confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Location of the state.
    #[command(flatten)]
    pub local: LocalArgs,
}

pub(super) const HELP: &str = "\
The instance must be stopped; for a running instance, use GET /state over HTTP. Of the configuration,
only the keys of [state], [window], [[kinds]], [identity] and [http] and schemas.frame are used, from
file, environment and flags. Ids are looked up only in state of the configured identity rule.

Examples:
  dedupd state inspect --config /etc/dedupd.toml
  dedupd state inspect --config /etc/dedupd.toml --id 01234567-89ab-cdef-0123-456789abcdef
  dedupd state export --state-dir ./dedupd-state --to events.state
  dedupd state import --state-dir ./other-state --from events.state
  dedupd state reset --config /etc/dedupd.toml";

const INSPECT_HELP: &str = "\
The state directory is not changed: the command reads a copy in the directory TMPDIR. This needs as
much disk space there as the state.

Examples:
  dedupd state inspect --config /etc/dedupd.toml
  dedupd state inspect --config /etc/dedupd.toml --json
  dedupd state inspect --config /etc/dedupd.toml --id order-17 --id eu --partition 3

Environment: see `dedupd run --help`.";
const INSPECT_CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage, Exit::State];

const EXPORT_HELP: &str = "\
The state directory is not changed: the command reads a copy in the directory TMPDIR. The format is
described in docs/state-format.md. Ids beyond window.exact are not in the file, because the state has
only filters of them.

Examples:
  dedupd state export --config /etc/dedupd.toml --to events.state";
const EXPORT_CODES: &[Exit] = &[Exit::Done, Exit::Usage, Exit::State];

const FILTER_HELP: &str = "\
For programs that ask \"seen before?\" elsewhere: the file is a Bloom filter of Apache DataSketches, which
has libraries for Java and C++. Its items are the identities, 16 bytes each (docs/state-format.md). Ids beyond
window.exact are not in it. With --contains, the answer is the exit code too.

Examples:
  dedupd state filter --config /etc/dedupd.toml --file events.filter
  dedupd state filter --config /etc/dedupd.toml --file events.filter --contains order-17";
const FILTER_CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage, Exit::State];

const IMPORT_HELP: &str = "\
The whole file is verified before the directory is changed. The instance with this state.dir then uses
the imported state; an instance of another group, topic or dedupe.scope quarantines it at its start.

Example:
  dedupd state import --config /etc/dedupd.toml --from events.state";
const IMPORT_CODES: &[Exit] = &[Exit::Done, Exit::Usage, Exit::State];

const RESET_HELP: &str = "\
The state topic is not changed: the next start restores the state from it, which takes time but loses
no data. Quarantined databases are deleted as well.

Examples:
  dedupd state reset --config /etc/dedupd.toml
  dedupd state reset --state-dir ./dedupd-state --yes";
const RESET_CODES: &[Exit] = &[Exit::Done, Exit::No, Exit::Usage, Exit::State];
