//! The configuration that dedupd makes from the arguments, the file and the environment of a deployment.

use std::path::PathBuf;

use dedupd::cli::{Command, parse_from};
use dedupd::config::{Config, ConfigSources, FileText};

/// The effective configuration of `dedupd run` with these arguments (without the program's name), this file as
/// `--config`, and these environment variables.
pub fn configuration(
    arguments: &[String],
    file: &(String, String),
    environment: &[(String, String)],
) -> Config {
    let line = std::iter::once("dedupd").chain(arguments.iter().map(String::as_str));
    let command = parse_from(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    let Command::Run(args) = command else { panic!("{arguments:?} does not run the service") };
    let (path, text) = file.clone();
    assert_eq!(args.config.as_ref().map(|path| path.display().to_string()), Some(path.clone()));
    let file = Some(FileText { path: PathBuf::from(path), text });
    let environment = environment.to_vec();
    let sources = ConfigSources { file, environment, flags: args.overrides(), host: "host".to_owned() };
    Config::from_sources(&sources).unwrap_or_else(|error| panic!("{error}"))
}
