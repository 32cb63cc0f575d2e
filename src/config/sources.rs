//! Loads, merges and validates the sources of the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;

use super::as_typed::AsTyped;
use super::error::ConfigError;
use super::layers::Layer;
use super::problem::{Problem, Problems};
use super::reading::Reading;
use super::validated::{self, Config, Local};

/// The contents of a configuration file. Not `Debug`, because it may contain secrets.
#[derive(Clone)]
pub struct FileText {
    /// Its path, for messages.
    pub path: PathBuf,
    /// Its text, TOML.
    pub text: String,
}

/// All sources of a configuration. In the order defaults, file, environment, flags, the last one set wins. Not
/// `Debug`, because it contains secrets.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file, if one was given.
    pub file: Option<FileText>,
    /// Environment variables; those that are not keys are ignored.
    pub environment: Vec<(String, String)>,
    /// The keys that the command line set.
    pub flags: AsTyped,
    /// The name of this host, the default of `group.instance`.
    pub host: String,
}

/// Reads the file, the environment and the host name, validates them, and reads the files of `NAME.file` properties.
pub fn load(file: Option<&Path>, flags: AsTyped) -> Result<Config, ConfigError> {
    let mut config = Config::from_sources(&gather(file, flags)?)?;
    config.kafka.properties = config.kafka.properties.with_files_read().map_err(ConfigError::Invalid)?;
    Ok(config)
}

/// [`load`] for commands that only read the local state.
pub fn load_local(file: Option<&Path>, flags: AsTyped) -> Result<Local, ConfigError> {
    Local::from_sources(&gather(file, flags)?)
}

fn gather(file: Option<&Path>, flags: AsTyped) -> Result<Sources, ConfigError> {
    let file = file.map(read).transpose()?;
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    Ok(Sources { file, environment, flags, host: text(gethostname::gethostname()) })
}

fn read(path: &Path) -> Result<FileText, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(FileText { path: path.to_owned(), text }),
        Err(cause) => Err(ConfigError::Unreadable { path: path.to_owned(), cause }),
    }
}

impl Config {
    /// Merges the sources and validates the result. The error contains all problems.
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        merged(sources, |typed, reading| validated::validate(typed, &sources.host, reading))
    }
}

impl Local {
    /// Merges the sources and validates the keys of the local state. The error contains all problems of these keys.
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        merged(sources, validated::local::validate)
    }
}

fn merged<T>(
    sources: &Sources,
    validate: impl FnOnce(&AsTyped, &mut Reading<'_>) -> Option<T>,
) -> Result<T, ConfigError> {
    let (typed, origins, problems) = merge(sources)?;
    let mut reading = Reading::new(&origins, problems);
    let valid = validate(&typed, &mut reading);
    match (valid, reading.into_problems()) {
        (Some(valid), problems) if problems.is_empty() => Ok(valid),
        (_, problems) => Err(ConfigError::Invalid(Problems(problems))),
    }
}

type Merged = (AsTyped, BTreeMap<String, String>, Vec<Problem>);

fn merge(sources: &Sources) -> Result<Merged, ConfigError> {
    let mut layers = vec![Layer::defaults()];
    if let Some(FileText { path, text }) = &sources.file {
        let syntax = |message| ConfigError::Syntax { path: path.clone(), message };
        layers.push(Layer::from_toml(path, text).map_err(syntax)?);
    }
    layers.push(Layer::from_environment(&sources.environment));
    layers.push(Layer::from_flags(&sources.flags));

    let (mut figment, mut origins, mut problems) = (Figment::new(), BTreeMap::new(), Vec::new());
    for layer in layers {
        figment = figment.merge(Serialized::defaults(layer.dict));
        origins.extend(layer.origins);
        problems.extend(layer.problems);
    }
    let typed = figment.extract().unwrap_or_else(|error| {
        problems.push(Problem {
            key: error.path.join("."),
            value: None,
            origin: None,
            what: "cannot be read".to_owned(),
            remedy: "write a string, a number or true/false".to_owned(),
        });
        AsTyped::defaults()
    });
    Ok((typed, origins, problems))
}
