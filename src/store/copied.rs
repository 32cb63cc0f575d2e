//! Opens a copy of a database, so that the original is not changed.
//!
//! The engine writes when it opens a database: it makes a snapshot, zeroes torn segments and shortens the file. With
//! a copy, a damaged database stays as it is and can be examined.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::{condemned, current, file_bytes};
use super::open::open_any;
use super::owners::SledStore;
use super::{Binding, OpenError};

/// A verified copy of the database of a stopped instance. The copy is deleted when this value is dropped.
#[derive(Debug)]
pub struct Copied {
    /// The copy. Changes to it are lost.
    pub store: SledStore,
    /// What the state belongs to.
    pub binding: Binding,
    /// Path of the database that was copied.
    pub database: PathBuf,
    /// Bytes that its files use.
    pub disk_bytes: u64,
    scratch: Scratch,
}

impl Copied {
    /// Closes the copy and deletes it. Prefer this to dropping it: closing an engine that has failed may never
    /// return, and this method has a deadline.
    pub fn close(self) {
        let Self { store, scratch, .. } = self;
        // Whether the copy could be flushed does not matter.
        drop(store.close());
        drop(scratch);
    }
}

/// Copies the database in `dir`, which the caller has locked, to a directory below `scratch` and opens the copy.
/// Nothing in `dir` is changed. Returns an error if the database is damaged, has no binding, or makes no progress for
/// `deadline` while it is opened. `cache_bytes` limits the engine's cache.
pub fn open_copy(
    dir: &Path,
    scratch: &Path,
    cache_bytes: u64,
    deadline: Duration,
) -> Result<Copied, OpenError> {
    let database = current(dir)?.ok_or_else(|| OpenError::Absent { dir: dir.to_path_buf() })?;
    let damaged = |cause: String| OpenError::Damaged { database: database.clone(), cause };
    if let Some(cause) = condemned(&database) {
        return Err(damaged(cause));
    }
    let read = |e: io::Error| OpenError::io("read the directory", &database, &e);
    let disk_bytes = file_bytes(&database).map_err(read)?;
    let scratch = Scratch::create_in(scratch)?;
    let copy = scratch.0.join("db");
    let copying = |e: io::Error| unusable("copy the database to", &copy, &e);
    copy_all(&database, &copy).map_err(copying)?;
    let store = open_any(&copy, cache_bytes, deadline).map_err(|failure| failure.or(&copy, damaged))?;
    let binding = store.binding().clone();
    Ok(Copied { store, binding, database, disk_bytes, scratch })
}

/// An error of the directory for the copy.
fn unusable(attempt: &'static str, path: &Path, cause: &io::Error) -> OpenError {
    let remedy = "set TMPDIR to a directory in which this user can write, with space for a copy of the state";
    OpenError::Io { attempt, path: path.to_path_buf(), cause: cause.to_string(), remedy }
}

/// A temporary directory, deleted when dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn create_in(parent: &Path) -> Result<Self, OpenError> {
        // A killed process with the same process id may have left its directory behind.
        let name = |attempt: u32| format!("dedupd-copy-{}-{attempt}", std::process::id());
        let create = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let mut attempt = 0;
        loop {
            let path = parent.join(name(attempt));
            match create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                Err(e) => return Err(unusable("create the directory", &path, &e)),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %cause, "cannot delete the temporary copy of the state; delete it manually");
        }
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
