//! A look at a database that does not change it.
//!
//! The engine writes while it opens: it makes a snapshot, zeroes torn segments, shortens the file. So
//! a copy is opened, and damage stays for whoever has to look at it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::blocks::{SledStore, file_bytes};
use super::open::open_any;
use super::quarantine::{condemned, current};
use super::{Binding, OpenError};

/// A copy of a stopped instance's database, verified. It is deleted with this value.
#[derive(Debug)]
pub struct Copied {
    /// The copy. Changes to it are lost.
    pub store: SledStore,
    /// What the state belongs to.
    pub binding: Binding,
    /// The database that was copied.
    pub database: PathBuf,
    /// Bytes that its files take up.
    pub disk_bytes: u64,
    scratch: Scratch,
}

impl Copied {
    /// Closes the copy and deletes it. Better than dropping it: an engine that has failed may never
    /// come back from being closed, and here it has a deadline.
    pub fn close(self) {
        let Self { store, scratch, .. } = self;
        // What the copy could not write is of no interest.
        drop(store.close());
        drop(scratch);
    }
}

/// Copies the database in `dir`, which the caller has locked, below `scratch` and opens the copy;
/// nothing in `dir` is changed. One that shows no sign of life for `deadline`, is damaged or does not say
/// what it belongs to is an error. `cache_bytes` bounds the engine's cache.
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
    let scratch = Scratch::below(scratch)?;
    let copy = scratch.0.join("db");
    let copying = |e: io::Error| OpenError::io("copy the database to", &copy, &e);
    copy_all(&database, &copy).map_err(copying)?;
    let store = open_any(&copy, cache_bytes, deadline).map_err(|error| match error {
        OpenError::Damaged { cause, .. } => damaged(cause),
        other => other,
    })?;
    let binding = store.binding().map_err(|error| damaged(error.to_string()))?;
    Ok(Copied { store, binding, database, disk_bytes, scratch })
}

/// A directory of our own, deleted when dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn below(parent: &Path) -> Result<Self, OpenError> {
        // Another process of this number may have left its own behind when it was killed.
        let name = |attempt: u32| format!("dedupd-copy-{}-{attempt}", std::process::id());
        let create = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let mut attempt = 0;
        loop {
            let path = parent.join(name(attempt));
            match create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
                Err(e) => return Err(OpenError::io("create the directory", &path, &e)),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %cause, "cannot delete a copy of the state; delete it by hand");
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
