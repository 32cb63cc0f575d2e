//! Errors of the commands that inspect, export and import state.

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
    /// A read or write of the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An exported or imported file cannot be used.
    #[error("{}: {what}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        what: String,
    },
}

impl StateError {
    pub(super) fn file(path: &Path, what: &str) -> Self {
        Self::File { path: path.to_path_buf(), what: what.to_owned() }
    }

    pub(super) fn io(path: &Path, attempt: &str, cause: &io::Error) -> Self {
        Self::file(
            path,
            &format!("cannot {attempt}: {cause}; check the path, its permissions and the free space"),
        )
    }
}
