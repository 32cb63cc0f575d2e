//! Why the process ended, with its exit code.

use crate::cli::Exit;
use crate::config::ConfigError;
use crate::kafka::CheckError;
use crate::kafka::connection::NoConnection;
use crate::pipeline::Fatal;
use crate::ports::Failure;
use crate::store::OpenError;

/// An end with an error: exit code and message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExitError {
    pub exit: Exit,
    /// What failed, on what, why, and what to do.
    pub message: String,
}

impl ExitError {
    /// An end with this exit code.
    #[must_use]
    pub fn new(exit: Exit, message: String) -> Self {
        Self { exit, message }
    }

    /// An end with [`Exit::Usage`].
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message.into())
    }

    /// The end after a failure that an operator has to resolve.
    #[must_use]
    pub fn operator(failed: Failure) -> Self {
        Self::new(Exit::Operator, failed.what)
    }

    /// An end with [`Exit::Failed`], when no more precise code applies.
    #[must_use]
    pub fn failed(message: String) -> Self {
        Self::new(Exit::Failed, message)
    }
}

impl From<ConfigError> for ExitError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<Fatal> for ExitError {
    fn from(fatal: Fatal) -> Self {
        match fatal {
            Fatal::State(what) => Self::new(Exit::State, what),
            Fatal::Fenced(what) => Self::new(Exit::Fenced, what),
            Fatal::Operator(what) => Self::new(Exit::Operator, what),
        }
    }
}

impl From<CheckError> for ExitError {
    fn from(error: CheckError) -> Self {
        let exit = match error {
            CheckError::Configuration(_) => Exit::Usage,
            CheckError::Refused(_) | CheckError::Rejected(_) => Exit::StartUp,
            CheckError::Unreachable(_) => Exit::Unreachable,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<NoConnection> for ExitError {
    fn from(why: NoConnection) -> Self {
        let exit = match &why {
            NoConnection::Settings(_) => Exit::Usage,
            NoConnection::Unauthorized { .. } => Exit::StartUp,
            NoConnection::Explained { problem, .. } if problem.refused => Exit::StartUp,
            NoConnection::Explained { .. } | NoConnection::Unexplained { .. } => Exit::Unreachable,
        };
        Self::new(exit, why.to_string())
    }
}

impl From<OpenError> for ExitError {
    fn from(error: OpenError) -> Self {
        Self::new(Exit::State, error.to_string())
    }
}
