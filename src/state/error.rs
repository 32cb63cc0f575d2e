//! Why a state could not be looked at or moved.

use std::io;
use std::path::{Path, PathBuf};

use crate::ports::StoreError;
use crate::store::OpenError;

/// A command about the local state failed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Reading or writing the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file that was to be written or read.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// No such filter.
    #[error("{0}")]
    NoFilter(String),
}

impl StateError {
    pub(super) fn file(path: &Path, what: &str) -> Self {
        Self::File { path: path.to_path_buf(), what: what.to_owned() }
    }

    pub(super) fn io(path: &Path, attempt: &str, cause: &io::Error) -> Self {
        Self::file(path, &format!("cannot {attempt}: {cause}; check the path, its rights and the space left"))
    }
}
