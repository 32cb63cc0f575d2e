//! Lists and deletes the contents of a state directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::blocks::file_bytes;
use super::lock;

/// A database that is being built from an exported file.
pub(super) const UNFINISHED: &str = "import-unfinished";
/// Prefixes of the store's entries, apart from [`UNFINISHED`]. A number follows.
const PREFIXES: [&str; 3] = ["db-", "quarantine-", RESET];
/// A database that is being deleted.
const RESET: &str = "reset-";

/// One entry of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path of the entry.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The entries of a state directory, without the lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    dir: PathBuf,
    /// Entries that the store created: current, quarantined and unfinished databases.
    pub ours: Vec<Entry>,
    /// All other entries. Never changed.
    pub others: Vec<PathBuf>,
}

impl Contents {
    /// Lists a state directory. A directory that does not exist is empty.
    pub fn of(dir: &Path) -> Result<Self, OpenError> {
        let mut contents = Self { dir: dir.to_path_buf(), ours: Vec::new(), others: Vec::new() };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(contents),
            Err(e) => return Err(OpenError::io("read the directory", dir, &e)),
        };
        for entry in entries {
            let path = entry.map_err(|e| OpenError::io("read the directory", dir, &e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let numbered =
                |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|n| n.parse::<u64>().is_ok());
            if name == lock::FILE {
                continue;
            }
            if path.is_dir() && (name == UNFINISHED || PREFIXES.iter().any(numbered)) {
                let bytes = file_bytes(&path).map_err(|e| OpenError::io("read the directory", &path, &e))?;
                contents.ours.push(Entry { path, bytes });
            } else {
                contents.others.push(path);
            }
        }
        contents.ours.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        contents.others.sort_unstable();
        Ok(contents)
    }

    /// Returns an error if the directory contains anything other than an unfinished import.
    pub fn must_be_empty(&self) -> Result<(), OpenError> {
        let unfinished = self.dir.join(UNFINISHED);
        let ours = self.ours.iter().map(|entry| &entry.path).filter(|path| **path != unfinished);
        match ours.chain(&self.others).next() {
            None => Ok(()),
            Some(path) => Err(OpenError::Occupied {
                dir: self.dir.clone(),
                what: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            }),
        }
    }

    /// Deletes the store's entries. The caller has locked the directory. Databases are renamed first, so that no
    /// start opens a partly deleted one.
    pub fn delete(&self) -> Result<(), OpenError> {
        for Entry { path, .. } in &self.ours {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let target = match name.strip_prefix("db-") {
                Some(number) => self.dir.join(format!("{RESET}{number}")),
                None => path.clone(),
            };
            if target != *path {
                // Left behind by a reset that was killed. The rename would fail if it stayed.
                if target.exists() {
                    fs::remove_dir_all(&target).map_err(|e| OpenError::io("delete", &target, &e))?;
                }
                fs::rename(path, &target).map_err(|e| OpenError::io("rename", path, &e))?;
            }
            match fs::remove_dir_all(&target) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::io("delete", &target, &e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
