//! The command line as typed by the user.
//!
//! Contains only types, texts and their conversion to the configuration as typed. The commands themselves are
//! implemented elsewhere.
#![expect(clippy::doc_markdown, reason = "these doc comments are help texts, printed as they stand")]

mod audit;
mod demo;
mod exit;
mod explain;
mod forget;
mod generate;
mod health;
mod plan;
mod rekey;
mod service;
mod shell;
mod state;
mod trial;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

pub(crate) use audit::AuditArgs;
pub(crate) use demo::DemoArgs;
pub use exit::Exit;
pub use explain::ExplainArgs;
pub use forget::ForgetArgs;
pub(crate) use generate::GenerateArgs;
pub use health::HealthArgs;
pub(crate) use plan::{IdForm, PlanArgs, WhenFull};
pub use rekey::RekeyArgs;
pub use service::{CheckArgs, LogFormat, ServiceArgs};
pub(crate) use shell::{CompletionsArgs, ManArgs, write_man_pages};
pub use state::StateCommand;
pub(crate) use state::{ExportArgs, FilterArgs, ImportArgs, InspectArgs, LocalArgs, ResetArgs, StateArgs};
pub(crate) use trial::TryArgs;

use crate::config::{Frame, TopicName, parse_servers};

/// Reads a Kafka topic, drops every record whose id was seen before, and writes the rest unchanged
/// to another topic, exactly once
#[derive(Debug, Parser)]
#[command(name = "dedupd", version, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the service until SIGTERM, SIGINT or SIGHUP
    #[command(after_help = Exit::listed_below(service::RUN_HELP, service::RUN_CODES))]
    Run(ServiceArgs),
    /// Write the records of several topics or partitions to one topic, in the partition of their id
    #[command(after_help = Exit::listed_below(rekey::HELP, rekey::CODES))]
    Rekey(RekeyArgs),
    /// Check the configuration and the live topics without changing anything
    #[command(after_help = Exit::listed_below(service::CHECK_HELP, service::CHECK_CODES))]
    Check(CheckArgs),
    /// Run a demonstration: an embedded broker, traffic with real duplicates, and an audit at the end
    #[command(after_help = Exit::listed_below(demo::HELP, demo::CODES))]
    Demo(DemoArgs),
    /// Try dedupd on a Kafka: topics of its own, real duplicates, two kills, and an audit at the end
    #[command(after_help = Exit::listed_below(trial::HELP, trial::CODES))]
    Try(TryArgs),
    /// Write test records to a topic, some of them twice
    #[command(after_help = Exit::listed_below(generate::HELP, generate::CODES))]
    Generate(GenerateArgs),
    /// Read the raw and the clean topic, and verify that nothing is lost, duplicated, reordered or altered
    #[command(after_help = Exit::listed_below(audit::HELP, audit::CODES))]
    Audit(AuditArgs),
    /// Explain what a lookup finds for one record of the raw topic, and how the record with the same id differs
    #[command(after_help = Exit::listed_below(explain::HELP, explain::CODES))]
    Explain(ExplainArgs),
    /// Have the running instance forget an id, so that the next record with it is forwarded
    #[command(after_help = Exit::listed_below(forget::HELP, forget::CODES))]
    Forget(ForgetArgs),
    /// Predict the memory, disk and state topic that a window needs, before it is deployed
    #[command(after_help = Exit::listed_below(plan::HELP, plan::CODES))]
    Plan(PlanArgs),
    /// Inspect, export, import or reset the local state of a stopped instance
    #[command(after_help = state::HELP)]
    State(StateArgs),
    /// Check that an instance on this host is ready, for the health check of a container
    #[command(after_help = Exit::listed_below(health::HELP, health::CODES))]
    Health(HealthArgs),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = shell::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Write the man pages to a directory
    #[command(after_help = shell::MAN_HELP)]
    Man(ManArgs),
}

const EXAMPLES: &str = "\
Examples:
  dedupd demo
  dedupd try --bootstrap-servers localhost:9092
  dedupd run --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd check --config dedupd.toml
  dedupd audit --config dedupd.toml --json
  dedupd plan --events 5000 --exact 24h --partitions 12
  dedupd state inspect --config dedupd.toml

`dedupd run --help` lists the environment variables and the exit codes.";

impl Command {
    /// The format of the log, and of the message with which the command fails.
    pub fn log_format(&self) -> LogFormat {
        match self {
            Self::Run(args) => args.log_format,
            Self::Check(args) => args.service.log_format,
            Self::Rekey(args) => args.log_format,
            _ => LogFormat::Text,
        }
    }
}

/// Parses the command line of this process. After `--help` it prints the help and exits with code 0; after an
/// error it prints the error and exits with [`Exit::Usage`].
pub fn parse() -> Command {
    CommandLine::try_parse().unwrap_or_else(|error| without_secret(error).exit()).command
}

/// Parses a command line whose first word is the program name. The error is text to print.
pub fn parse_from<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Command, String> {
    CommandLine::try_parse_from(words)
        .map(|line| line.command)
        .map_err(|error| without_secret(error).to_string())
}

/// Removes the value of `-X` from an error: it may be a secret in which only the `=` is missing.
fn without_secret(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && flag.starts_with("-X ")
    {
        error.insert(ContextKind::InvalidValue, ContextValue::String("(not shown)".to_owned()));
    }
    error
}

/// Bootstrap brokers, as the configuration reads them.
fn servers(text: &str) -> Result<String, String> {
    parse_servers(text).map_err(|fault| format!("it {}; {}", fault.what, fault.remedy))
}

/// A frame, as the configuration reads it.
fn frame(text: &str) -> Result<Frame, String> {
    let words: Vec<&str> = Frame::ALL.iter().map(|frame| frame.as_str()).collect();
    let found = Frame::ALL.into_iter().find(|frame| frame.as_str() == text);
    found.ok_or_else(|| format!("expected one of {}", words.join(", ")))
}

/// The name of a topic that Kafka accepts.
fn topic(text: &str) -> Result<String, String> {
    let name = TopicName::parse(text).map_err(|what| format!("the name {what}"))?;
    Ok(name.as_str().to_owned())
}

/// A share of duplicates: from 0 (none) to below 1; 0.2 is every fifth record.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to below 1, as in 0.2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_clap_definition_is_valid() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn debug_output_hides_a_secret_of_the_command_line() {
        let words = ["dedupd", "run", "-X", "sasl.password=hunter2"];
        let command = parse_from(words).unwrap();
        assert!(!format!("{command:?}").contains("hunter2"));
    }

    #[test]
    fn a_share_is_below_one() {
        assert_eq!(share("0"), Ok(0.0));
        assert_eq!(share("0.999"), Ok(0.999));
        for text in ["1", "-0.1", "NaN", "20%", ""] {
            assert!(share(text).is_err(), "{text:?} was accepted");
        }
    }
}
