//! Builds a database from imported owners. It is built under a name that no start opens, and is renamed to its final
//! name once it is complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::append::append;
use super::directory::{self, DirectoryContents, UNFINISHED};
use super::joining::MergeSpan;
use super::owners::SledStore;
use super::{Binding, OpenError, open};
use crate::dedupe::{OwnerRun, WindowId};
use crate::ports::{Head, StoreError};

/// A database that is being filled with imported owners.
#[derive(Debug)]
pub struct Adoption {
    dir: PathBuf,
    store: SledStore,
}

impl Adoption {
    /// Starts an import into `dir`, which the caller has locked. The directory must be empty except for its lock and
    /// the remains of an unfinished import. See [`open()`] for the other arguments.
    pub fn begin(
        dir: &Path,
        binding: &Binding,
        cache_bytes: u64,
        deadline: Duration,
    ) -> Result<Self, OpenError> {
        DirectoryContents::of(dir)?.must_be_empty()?;
        let unfinished = dir.join(UNFINISHED);
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(|e| OpenError::io("delete", &unfinished, &e))?;
        }
        let store = open(&unfinished, binding, cache_bytes, deadline)?.store;
        Ok(Self { dir: dir.to_path_buf(), store })
    }

    /// Appends owners to a window and sets its head.
    pub fn add(&mut self, window: WindowId, owners: &OwnerRun<'_>, head: &Head) -> Result<(), StoreError> {
        // As precise as they were exported: the lengths of the windows are not known here.
        self.store.with(window, |engine, index| append(engine, index, owners, head, MergeSpan::NONE))
    }

    /// Sets [`crate::ports::Store::missing_ms`] of a window. The next head that is added stores it.
    pub fn note_missing(&self, window: WindowId, missing_ms: i64) -> Result<(), StoreError> {
        self.store.with(window, |_, index| {
            index.missing_ms = missing_ms;
            Ok(())
        })
    }

    /// Makes the imported database the current one, durably. Returns its path.
    pub fn finish(self) -> Result<PathBuf, OpenError> {
        let (dir, from) = (self.dir, self.store.path().to_path_buf());
        let to = directory::database(&dir, 1);
        self.store
            .close()
            .map_err(|error| OpenError::Engine { path: from.clone(), cause: error.to_string() })?;
        fs::rename(&from, &to).map_err(|e| OpenError::io("rename", &from, &e))?;
        let unfinished = dir.join(UNFINISHED);
        fs::remove_dir(&unfinished).map_err(|e| OpenError::io("delete", &unfinished, &e))?;
        let synced = File::open(&dir).and_then(|dir| dir.sync_all());
        synced.map_err(|e| OpenError::io("sync the directory", &dir, &e))?;
        Ok(to)
    }

    /// Deletes the imported database. Files that cannot be deleted do not prevent the next import.
    pub fn undo(self) {
        let unfinished = self.dir.join(UNFINISHED);
        drop(self.store.close());
        drop(fs::remove_dir_all(unfinished));
    }
}
