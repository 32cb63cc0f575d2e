//! Errors of loading the configuration.

use std::path::PathBuf;

use super::problem::Problems;

/// The configuration cannot be loaded. Every case leads to exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration file {} cannot be read: {cause}; check the path given to --config", path.display())]
    Unreadable {
        /// Path given to `--config`.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The file is not valid TOML. The message does not quote the line: it may contain a secret.
    #[error("configuration file {} is not valid TOML: {message}; fix this line", path.display())]
    Syntax {
        /// Path given to `--config`.
        path: PathBuf,
        /// Line, column and reason.
        message: String,
    },
    /// Keys or values are invalid.
    #[error("{0}")]
    Invalid(Problems),
}
