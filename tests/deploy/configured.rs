//! The configuration that dedupd makes from the arguments, the file and the environment of a deployment.

use std::path::{Path, PathBuf};

use dedupd::cli::{Command, parse_from};
use dedupd::config::{AsTyped, Config, ConfigSources, FileText, Rekeying};

/// The effective configuration of `dedupd run` with these arguments (without the program's name), this file as
/// `--config`, and these environment variables.
pub fn configuration(
    arguments: &[String],
    file: &(String, String),
    environment: &[(String, String)],
) -> Config {
    let Command::Run(args) = command(arguments) else { panic!("{arguments:?} does not run the service") };
    let sources = sources(args.config.as_deref(), args.overrides(), file, environment);
    Config::from_sources(&sources).unwrap_or_else(|error| panic!("{error}"))
}

/// The same for `dedupd rekey`.
pub fn rekeying(arguments: &[String], file: &(String, String), environment: &[(String, String)]) -> Rekeying {
    let Command::Rekey(args) = command(arguments) else { panic!("{arguments:?} does not run rekey") };
    let sources = sources(args.config.as_deref(), args.overrides(), file, environment);
    Rekeying::from_sources(&sources).unwrap_or_else(|error| panic!("{error}"))
}

fn command(arguments: &[String]) -> Command {
    let line = std::iter::once("dedupd").chain(arguments.iter().map(String::as_str));
    parse_from(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

fn sources(
    config: Option<&Path>,
    flags: AsTyped,
    (path, text): &(String, String),
    environment: &[(String, String)],
) -> ConfigSources {
    let path = PathBuf::from(path);
    assert_eq!(config, Some(path.as_path()));
    let file = Some(FileText { path, text: text.clone() });
    ConfigSources { file, environment: environment.to_vec(), flags, host: "host".to_owned() }
}
