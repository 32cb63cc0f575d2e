//! The entries of a state directory: the current database, quarantined ones, and the remains of commands.
//!
//! `db-<n>` is the current database, `quarantine-<n>` a quarantined one. A new database always gets a new number: a
//! hung thread of the engine may still write to the old path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{OpenError, lock};

/// A database that is being built from an exported file.
pub(super) const UNFINISHED: &str = "import-unfinished";
const DATABASE: &str = "db-";
const QUARANTINE: &str = "quarantine-";
/// A database that is being deleted.
const RESET: &str = "reset-";
/// How many quarantined databases are kept. Older ones are deleted; see also [`limit_quarantined`].
const KEPT: usize = 2;
/// File in a database that marks it as unusable. Contains the reason.
const CONDEMNED: &str = "CONDEMNED";

/// Path of the database with this number.
pub(super) fn database(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{DATABASE}{number}"))
}

/// Returns the current database, if any. Changes nothing.
pub(super) fn current(dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    Ok(numbered(dir, DATABASE)?.last().map(|number| database(dir, *number)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    pub path: PathBuf,
    /// The reason, as one clause: "it belongs to …", "the engine panicked: …".
    pub reason: String,
}

/// The current database, if any, and the number of the next one.
pub(super) struct Generations {
    dir: PathBuf,
    current: Option<u64>,
    next: u64,
}

impl Generations {
    /// Lists the databases in the state directory and deletes outdated ones.
    pub(super) fn find(dir: &Path) -> Result<Self, OpenError> {
        let (mut databases, quarantined) = (numbered(dir, DATABASE)?, numbered(dir, QUARANTINE)?);
        let current = databases.pop();
        // A lower number is a directory that a hung thread recreated after the quarantine.
        for old in databases {
            remove(&database(dir, old));
        }
        let highest = current.max(quarantined.last().copied()).unwrap_or(0);
        Ok(Self { dir: dir.to_path_buf(), current, next: highest + 1 })
    }

    /// Path of the database to open. It may not exist yet.
    pub(super) fn path(&self) -> PathBuf {
        database(&self.dir, self.current.unwrap_or(self.next))
    }

    /// Quarantines the current database, so that [`Generations::path`] returns a new one.
    pub(super) fn quarantine(&mut self, reason: &str) -> Result<Option<Quarantine>, OpenError> {
        let from = self.path();
        let Some(number) = self.current.take() else { return Ok(None) };
        let quarantined = |number: u64| self.dir.join(format!("{QUARANTINE}{number}"));
        let path = quarantined(number);
        fs::rename(&from, &path).map_err(|e| OpenError::io("rename", &from, &e))?;
        drop(fs::write(path.join("REASON"), reason));
        let kept = numbered(&self.dir, QUARANTINE)?;
        kept.iter().rev().skip(KEPT).for_each(|old| remove(&quarantined(*old)));
        Ok(Some(Quarantine { path, reason: reason.to_owned() }))
    }
}

/// Deletes quarantined databases, the oldest first, while those of the state directory together have more than `most` bytes. Returns the bytes
/// that are left.
pub fn limit_quarantined(dir: &Path, most: u64) -> Result<u64, OpenError> {
    let contents = DirectoryContents::of(dir)?;
    let mut left: u64 = contents.ours.iter().map(|entry| entry.bytes).sum();
    for number in numbered(dir, QUARANTINE)? {
        let path = dir.join(format!("{QUARANTINE}{number}"));
        let Some(entry) = contents.ours.iter().find(|entry| left > most && entry.path == path) else { break };
        remove(&path);
        if path.exists() {
            break;
        }
        left = left.saturating_sub(entry.bytes);
        tracing::info!(path = %path.display(), bytes = entry.bytes,
            "quarantined local state deleted, because its space is needed");
    }
    Ok(left)
}

/// Deletes all quarantined databases. Returns whether there is one less.
pub(super) fn delete_quarantined(dir: &Path) -> bool {
    let count = || numbered(dir, QUARANTINE).map_or(0, |quarantined| quarantined.len());
    let before = count();
    limit_quarantined(dir, 0).is_ok() && count() < before
}

/// Removes half-written snapshots. A kill during an open leaves one behind. sled 0.34 treats it as complete and then
/// fails every time.
pub(super) fn remove_half_snapshots(database: &Path) -> io::Result<()> {
    for entry in fs::read_dir(database)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Marks a database as unusable, so that the next open quarantines it. Best effort: the disk may be what failed, and
/// an open verifies the database anyway.
pub(super) fn condemn(database: &Path, reason: &str) {
    drop(fs::write(database.join(CONDEMNED), reason));
}

/// Why the database is marked as unusable, if it is.
pub(super) fn condemned(database: &Path) -> Option<String> {
    fs::read_to_string(database.join(CONDEMNED)).ok()
}

/// The numbers of the entries with this prefix, ascending.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<u64>, OpenError> {
    let names = entries(dir)?.into_iter().map(|path| name(&path));
    let mut numbers: Vec<_> = names.filter_map(|name| number(&name, prefix)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let paths = fs::read_dir(dir).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    paths.map_err(|e| OpenError::io("read the directory", dir, &e))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn number(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn remove(path: &Path) {
    if let Err(cause) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %cause, "cannot delete an old database; delete it manually");
    }
}

/// One entry of a state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Path of the entry.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The entries of a state directory, without the lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryContents {
    dir: PathBuf,
    /// Entries that the store created: current, quarantined and unfinished databases.
    pub ours: Vec<DirectoryEntry>,
    /// All other entries. Never changed.
    pub others: Vec<PathBuf>,
}

impl DirectoryContents {
    /// Lists a state directory. A directory that does not exist is empty.
    pub fn of(dir: &Path) -> Result<Self, OpenError> {
        let mut contents = Self { dir: dir.to_path_buf(), ours: Vec::new(), others: Vec::new() };
        let paths = if dir.exists() { entries(dir)? } else { Vec::new() };
        for path in paths {
            let name = name(&path);
            let is_numbered = |prefix: &str| number(&name, prefix).is_some();
            if name == lock::FILE {
                continue;
            }
            if path.is_dir()
                && (name == UNFINISHED || [DATABASE, QUARANTINE, RESET].into_iter().any(is_numbered))
            {
                let bytes = file_bytes(&path).map_err(|e| OpenError::io("read the directory", &path, &e))?;
                contents.ours.push(DirectoryEntry { path, bytes });
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
        let ours = self.ours.iter().map(|entry| &entry.path).filter(|path| name(path) != UNFINISHED);
        match ours.chain(&self.others).next() {
            None => Ok(()),
            Some(path) => Err(OpenError::Occupied { dir: self.dir.clone(), what: name(path) }),
        }
    }

    /// Deletes the store's entries. The caller has locked the directory. Databases are renamed first, so that no
    /// start opens a partly deleted one.
    pub fn delete(&self) -> Result<(), OpenError> {
        // In reverse order: what a killed reset left behind would prevent the renaming.
        for DirectoryEntry { path, .. } in self.ours.iter().rev() {
            let mut target = path.clone();
            if let Some(number) = number(&name(path), DATABASE) {
                target = self.dir.join(format!("{RESET}{number}"));
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

/// Bytes of all files below a directory.
pub(super) fn file_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => file_bytes(&entry.path())?,
            Ok(metadata) => metadata.len(),
            // The engine deletes files in the background.
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_increase_and_only_the_last_two_quarantined_databases_are_kept() {
        let root = tempfile::tempdir().unwrap();
        for round in 1..=4 {
            let path = Generations::find(root.path()).unwrap().path();
            assert_eq!(path, root.path().join(format!("db-{round}")));
            fs::create_dir(&path).unwrap();
            let mut generations = Generations::find(root.path()).unwrap();
            let quarantine = generations.quarantine("a test").unwrap().unwrap();
            assert_eq!(fs::read_to_string(quarantine.path.join("REASON")).unwrap(), "a test");
            assert_eq!(generations.path(), root.path().join(format!("db-{}", round + 1)));
        }
        assert_eq!(numbered(root.path(), QUARANTINE).unwrap(), [3, 4]);
    }

    #[test]
    fn quarantined_databases_count_and_the_oldest_is_deleted_first() {
        let root = tempfile::tempdir().unwrap();
        let left = || {
            let mut names: Vec<_> = entries(root.path()).unwrap().iter().map(|path| name(path)).collect();
            names.sort();
            names
        };
        for name in ["quarantine-9", "quarantine-10", "db-11"] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("db"), [7; 1_000]).unwrap();
        }
        assert_eq!(limit_quarantined(root.path(), 3_000).unwrap(), 3_000);
        assert_eq!(left().len(), 3);
        assert_eq!(limit_quarantined(root.path(), 2_999).unwrap(), 2_000);
        assert_eq!(left(), ["db-11", "quarantine-10"]);
        assert_eq!(limit_quarantined(root.path(), 10).unwrap(), 1_000);
        assert_eq!(left(), ["db-11"]);
    }

    #[test]
    fn only_half_written_snapshots_are_removed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["snap.01", "snap.02.generating", "db", "x.generating"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        remove_half_snapshots(root.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["db", "snap.01", "x.generating"]);
    }
}
