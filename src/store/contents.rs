//! What a state directory holds, and how to be rid of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::blocks::file_bytes;
use super::lock;

/// A database that is being made of an exported file.
pub(super) const UNFINISHED: &str = "import-unfinished";
/// Beginnings of the names of what is ours, apart from [`UNFINISHED`]; a number follows.
const OURS: [&str; 3] = ["db-", "quarantine-", RESET];
/// A database on its way out.
const RESET: &str = "reset-";

/// One entry of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The entries of a state directory, the lock file left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    dir: PathBuf,
    /// What the store has made: databases in use, set aside, half made.
    pub ours: Vec<Entry>,
    /// Everything else; never touched.
    pub others: Vec<PathBuf>,
}

impl Contents {
    /// Looks into a state directory. One that does not exist is empty.
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
            if path.is_dir() && (name == UNFINISHED || OURS.iter().any(numbered)) {
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

    /// Refuses a directory that holds anything but a half-made database.
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

    /// Deletes what is ours. The caller has locked the directory. Databases are renamed first, so that
    /// no start finds half of one.
    pub fn delete(&self) -> Result<(), OpenError> {
        for Entry { path, .. } in &self.ours {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let doomed = match name.strip_prefix("db-") {
                Some(number) => self.dir.join(format!("{RESET}{number}")),
                None => path.clone(),
            };
            if doomed != *path {
                // Left by a reset that was killed; it may stand in the way of the new one.
                if doomed.exists() {
                    fs::remove_dir_all(&doomed).map_err(|e| OpenError::io("delete", &doomed, &e))?;
                }
                fs::rename(path, &doomed).map_err(|e| OpenError::io("rename", path, &e))?;
            }
            match fs::remove_dir_all(&doomed) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::io("delete", &doomed, &e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
