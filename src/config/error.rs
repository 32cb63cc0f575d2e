//! Why there is no configuration.

use std::path::PathBuf;

use super::problem::Problems;

/// Why there is no configuration. Every case is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration file {} cannot be read: {cause}; check the path given to --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The file is not TOML. The offending line itself is left out: it may hold a secret.
    #[error("configuration file {} is not TOML: {message}; mend the line named", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        message: String,
    },
    /// Keys or values are wrong.
    #[error("{0}")]
    Invalid(Problems),
}
