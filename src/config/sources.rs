//! Loads, merges and validates the sources of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::as_typed::AsTyped;
use super::error::ConfigError;
use super::forms::ADDRESS;
use super::keys::Config;
use super::layers::Layer;
use super::local::Local;
use super::problem::Problems;
use super::reading::ConfigReading;
use super::rekeying::Rekeying;
use super::section::{Form, Section};

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
pub struct ConfigSources {
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
    with_files_read(&gather(file, flags)?)
}

/// [`load`], with the texts of the list `key` as a user wrote them, for a reader with a parser of its own.
pub fn load_with_texts(
    file: Option<&Path>,
    flags: AsTyped,
    key: &str,
) -> Result<(Config, Vec<String>), ConfigError> {
    let sources = gather(file, flags)?;
    let config = with_files_read(&sources)?;
    let entry = merged(&sources)?.entries.remove(key);
    Ok((config, entry.map_or_else(Vec::new, |entry| entry.texts)))
}

fn with_files_read(sources: &ConfigSources) -> Result<Config, ConfigError> {
    let mut config = Config::from_sources(sources)?;
    config.kafka.properties = config.kafka.properties.with_files_read().map_err(ConfigError::Invalid)?;
    Ok(config)
}

/// [`load`] for commands that only read the local state.
pub fn load_local(file: Option<&Path>, flags: AsTyped) -> Result<Local, ConfigError> {
    Local::from_sources(&gather(file, flags)?)
}

/// `http.listen`, for a command that only connects to it. Problems of other keys do not count: the instance runs with flags and
/// variables that this process may not have.
pub fn load_listen(file: Option<&Path>, flags: AsTyped) -> Result<SocketAddr, ConfigError> {
    let key = "http.listen";
    let sources = gather(file, flags)?;
    let mut merged = merged(&sources)?;
    merged.problems.retain(|problem| problem.key == key);
    validated_layer(&merged, &sources.host, |reading| ADDRESS.read(key, reading))
}

/// [`load`] for `rekey`.
pub fn load_rekeying(file: Option<&Path>, flags: AsTyped) -> Result<Rekeying, ConfigError> {
    let mut config = Rekeying::from_sources(&gather(file, flags)?)?;
    config.kafka.properties = config.kafka.properties.with_files_read().map_err(ConfigError::Invalid)?;
    Ok(config)
}

fn gather(file: Option<&Path>, flags: AsTyped) -> Result<ConfigSources, ConfigError> {
    let file = file.map(read).transpose()?;
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    Ok(ConfigSources { file, environment, flags, host: text(gethostname::gethostname()) })
}

fn read(path: &Path) -> Result<FileText, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(FileText { path: path.to_owned(), text }),
        Err(cause) => Err(ConfigError::Unreadable { path: path.to_owned(), cause }),
    }
}

impl Config {
    /// Merges the sources and validates the result. The error contains all problems.
    pub fn from_sources(sources: &ConfigSources) -> Result<Self, ConfigError> {
        validated(sources, |reading| Self::read("", reading))
    }
}

impl Local {
    /// Merges the sources and validates the keys of the local state. The error contains all problems of these keys.
    pub fn from_sources(sources: &ConfigSources) -> Result<Self, ConfigError> {
        validated(sources, Self::read)
    }
}

impl Rekeying {
    /// Merges the sources and validates the keys that `rekey` uses. The error contains all problems of these keys.
    pub fn from_sources(sources: &ConfigSources) -> Result<Self, ConfigError> {
        validated(sources, Self::read)
    }
}

fn validated<T>(
    sources: &ConfigSources,
    read: impl FnOnce(&mut ConfigReading<'_>) -> Option<T>,
) -> Result<T, ConfigError> {
    validated_layer(&merged(sources)?, &sources.host, read)
}

fn validated_layer<T>(
    merged: &Layer,
    host: &str,
    read: impl FnOnce(&mut ConfigReading<'_>) -> Option<T>,
) -> Result<T, ConfigError> {
    let mut reading = ConfigReading::new(merged, host);
    let valid = read(&mut reading);
    let problems: Vec<_> = merged.problems.iter().cloned().chain(reading.problems).collect();
    match valid {
        Some(valid) if problems.is_empty() => Ok(valid),
        _ => Err(ConfigError::Invalid(Problems(problems))),
    }
}

/// The layers from the lowest precedence to the highest.
fn merged(sources: &ConfigSources) -> Result<Layer, ConfigError> {
    let mut merged = Layer::defaults();
    if let Some(FileText { path, text }) = &sources.file {
        let syntax = |message| ConfigError::Syntax { path: path.clone(), message };
        merged.extend(Layer::from_toml(path, text).map_err(syntax)?);
    }
    merged.extend(Layer::from_environment(&sources.environment));
    merged.extend(Layer::from_flags(&sources.flags));
    Ok(merged)
}
