//! Claims about the configuration: every impossible combination is refused in words that help, all
//! at once, and nothing that is printed holds a secret.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::path::PathBuf;

mod insight;
mod kinds;
mod layers;
mod printed;
mod refusals;
mod rekeying;
mod secret_files;
mod security;

use dedupd::config::{AsTyped, Config, ConfigError, ConfigSources, FileText};

/// The least that makes a configuration.
const LEAST: &str = r#"
kafka.bootstrap_servers = "localhost:9092"
topics.raw = "raw"
topics.clean = "clean"
identity.from = "json:/id"
"#;

fn sources(toml: &str, environment: &[(&str, &str)]) -> ConfigSources {
    ConfigSources {
        file: Some(FileText { path: PathBuf::from("d.toml"), text: toml.to_owned() }),
        environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        flags: AsTyped::default(),
        host: "host-1".to_owned(),
    }
}

fn with(more: &str) -> String {
    format!("{LEAST}\n{more}")
}

fn good(more: &str) -> Config {
    Config::from_sources(&sources(&with(more), &[])).unwrap()
}

fn problems_of(sources: &ConfigSources) -> Vec<String> {
    match Config::from_sources(sources) {
        Err(ConfigError::Invalid(problems)) => problems.0.iter().map(ToString::to_string).collect(),
        other => panic!("expected problems, got {other:?}"),
    }
}

fn problems(more: &str) -> Vec<String> {
    problems_of(&sources(&with(more), &[]))
}
