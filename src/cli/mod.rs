//! The command line as typed by the user.
//!
//! Only types, texts and their conversion to the configuration as typed: what a command does lives
//! elsewhere.
#![expect(clippy::doc_markdown, reason = "these doc comments are help texts, printed as they stand")]

mod audit;
mod demo;
mod exit;
mod generate;
mod plan;
mod service;
mod state;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

pub use audit::AuditArgs;
pub use demo::DemoArgs;
pub use exit::Exit;
pub use generate::{Bytes, GenerateArgs};
pub use plan::{IdForm, PlanArgs, WhenFull};
pub use service::{LogFormat, ServiceArgs};
pub use state::{
    ExportArgs, FilterName, ImportArgs, InspectArgs, LocalArgs, ResetArgs, StateArgs, StateCommand,
};

use crate::config::Property;

/// Reads a Kafka topic, drops the records whose id it has seen before, and writes the rest
/// unchanged to another topic, exactly once
#[derive(Debug, Parser)]
#[command(name = "dedupd", version, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the service until it is told to stop
    #[command(after_help = service::RUN_HELP)]
    Run(ServiceArgs),
    /// Check the configuration and the live topics, and change nothing
    #[command(after_help = service::CHECK_HELP)]
    Check(ServiceArgs),
    /// See it work: a broker inside the process, traffic with real duplicates, and an audit at the end
    #[command(after_help = demo::HELP)]
    Demo(DemoArgs),
    /// Write test records to a topic, some of them twice
    #[command(after_help = generate::HELP)]
    Generate(GenerateArgs),
    /// Read raw and clean, and prove that nothing is lost, duplicated, reordered or altered
    #[command(after_help = audit::HELP)]
    Audit(AuditArgs),
    /// Tell what a window costs in memory, disk and state topic, before it is deployed
    #[command(after_help = plan::HELP)]
    Plan(PlanArgs),
    /// Inspect, export, import or reset the local state of a stopped instance
    #[command(after_help = state::HELP)]
    State(StateArgs),
}

const EXAMPLES: &str = "\
Examples:
  dedupd demo
  dedupd run --bootstrap-servers localhost:9092 --raw events.raw --clean events.clean --id json:/id
  dedupd check --config dedupd.toml
  dedupd audit --config dedupd.toml --json
  dedupd plan --events 5000 --exact 24h --partitions 12
  dedupd state inspect --config dedupd.toml

`dedupd run --help` lists the environment variables and the exit codes.";

/// Reads this process's command line. Prints help, or what is wrong, and exits where that ends it:
/// with 0 after help, with [`Exit::Usage`] after an error.
pub fn parse() -> Command {
    CommandLine::try_parse().unwrap_or_else(|error| discreet(error).exit()).command
}

/// Reads a command line whose first word is the program's name. The error is text to print.
pub fn parse_from<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Command, String> {
    CommandLine::try_parse_from(words).map(|line| line.command).map_err(|error| discreet(error).to_string())
}

/// The same error without what was given as a property: a secret, perhaps, of which only the `=` is missing.
fn discreet(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && flag.starts_with("-X ")
    {
        error.insert(ContextKind::InvalidValue, ContextValue::String("(not shown)".to_owned()));
    }
    error
}

fn property(text: &str) -> Result<Property, String> {
    Property::parse(text)
}

/// A share of duplicates: 0 is none, 0.2 is every fifth record, below 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to below 1, as in 0.2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_secret_on_the_command_line_is_not_in_the_debug_form() {
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
