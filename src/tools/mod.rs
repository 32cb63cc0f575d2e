//! The commands of the command line, each in its own folder, and their dispatch.

pub mod audit;
mod check;
pub mod demo;
mod explain;
mod forget;
pub mod generate;
pub mod health;
pub mod plan;
pub mod rekey;
pub mod state;
mod trial;

use std::io::Write as _;

use crate::app::{ExitError, LogOrigin, begin_log, begin_log_quietly, log_end, run};
use crate::cli::{CheckArgs, Command, Exit, write_man_pages};
use crate::config::{Config, Properties, Property, load};

/// Runs a command, and logs why it failed as the last line of standard error.
pub fn complete(command: Command) -> Exit {
    let format = command.log_format();
    self::command(command).unwrap_or_else(|ended| {
        log_end(&ended, format);
        ended.exit
    })
}

/// Runs a command. `Ok` has the exit code of a command that completed.
fn command(command: Command) -> Result<Exit, ExitError> {
    match command {
        Command::Run(args) => {
            let config = load(args.config.as_deref(), args.overrides())?;
            let log = begin_log(args.log_format, origin(&config));
            run(config, log)?;
        }
        Command::Check(CheckArgs { service: args, print }) => {
            let config = load(args.config.as_deref(), args.overrides())?;
            begin_log(args.log_format, origin(&config));
            check::command(config, print)?;
        }
        Command::Explain(args) => {
            let config = load(args.service.config.as_deref(), args.service.overrides())?;
            return explain::command(&config, &args);
        }
        Command::Forget(args) => return forget::command(&args),
        Command::Rekey(args) => rekey::command(&args)?,
        Command::Demo(args) => {
            begin_log_quietly();
            return demo::run(&args);
        }
        Command::Try(args) => {
            begin_log_quietly();
            return trial::command(&args);
        }
        Command::Generate(args) => println!("{}", generate::command(&args)?),
        Command::Plan(args) => print!("{}", plan::command(&args)?),
        Command::State(args) => return state::command(&args.command),
        Command::Health(args) => return health::command(&args),
        Command::Completions(args) => {
            let written = std::io::stdout().write_all(&args.script());
            written.map_err(|error| failed("the script cannot be written to stdout", &error))?;
        }
        Command::Man(args) => {
            let what = format!("the man pages cannot be written to {}", args.to.display());
            write_man_pages(&args.to).map_err(|error| failed(&what, &error))?;
        }
        Command::Audit(args) => {
            let report = audit::command(&args)?;
            if args.json {
                println!("{}", report.to_json());
            } else {
                println!("{report}");
            }
            return Ok(if report.is_clean() { Exit::Done } else { Exit::No });
        }
    }
    Ok(Exit::Done)
}

fn origin(config: &Config) -> LogOrigin {
    LogOrigin { instance: config.group.instance.clone(), group: config.group.id.clone() }
}

/// Prints a result as text, or as one JSON object.
fn print<T: serde::Serialize + std::fmt::Display>(what: &T, json: bool) -> Result<(), ExitError> {
    if json {
        let text = serde_json::to_string(what).map_err(|e| {
            ExitError::failed(format!("the result cannot be written as JSON: {e}; please report this bug"))
        })?;
        println!("{text}");
    } else {
        print!("{what}");
    }
    Ok(())
}

fn failed(what: &str, error: &std::io::Error) -> ExitError {
    ExitError::new(Exit::State, format!("{what}: {error}"))
}

/// The properties of the command line, with the values of `NAME.file` read.
fn properties(given: &[Property]) -> Result<Vec<(String, String)>, ExitError> {
    let given: Properties = given.iter().cloned().collect();
    let read = given.with_files_read().map_err(|problems| ExitError::usage(problems.to_string()))?;
    Ok(read.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}
