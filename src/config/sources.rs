//! Loads, merges and validates the sources of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::as_typed::AsTyped;
use super::error::ConfigError;
use super::forms::{ADDRESS, PropertyMap};
use super::keys::{Config, KafkaConfig};
use super::layers::Layer;
use super::local::Local;
use super::problem::Problems;
use super::reading::ConfigReading;
use super::rekeying::Rekeying;
use super::section::{ConfigSection, Form};
use super::small_files::read_small_text;

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
    validated_with_files(sources, |reading| Config::read("", reading), |config| &mut config.kafka)
}

/// Validates the sources, and reads the files of `NAME.file` properties. The error contains the problems of both.
fn validated_with_files<T>(
    sources: &ConfigSources,
    read: impl FnOnce(&mut ConfigReading<'_>) -> Option<T>,
    kafka: fn(&mut T) -> &mut KafkaConfig,
) -> Result<T, ConfigError> {
    let merged = merged(sources)?;
    let validated = validated_layer(&merged, &sources.host, read);
    let properties = ConfigReading::new(&merged, &sources.host).valid("kafka.properties", &PropertyMap);
    match (validated, properties.unwrap_or_default().with_files_read()) {
        (Ok(mut valid), Ok(properties)) => {
            kafka(&mut valid).properties = properties;
            Ok(valid)
        }
        (Err(ConfigError::Invalid(Problems(mut problems))), Err(Problems(of_files))) => {
            problems.extend(of_files);
            Err(ConfigError::Invalid(Problems(problems)))
        }
        (Err(error), _) => Err(error),
        (Ok(_), Err(problems)) => Err(ConfigError::Invalid(problems)),
    }
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
    validated_with_files(&gather(file, flags)?, Rekeying::read, |config| &mut config.kafka)
}

fn gather(file: Option<&Path>, flags: AsTyped) -> Result<ConfigSources, ConfigError> {
    let file = file.map(read).transpose()?;
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(ConfigSources { file, environment, flags, host })
}

fn read(path: &Path) -> Result<FileText, ConfigError> {
    match read_small_text(path) {
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
