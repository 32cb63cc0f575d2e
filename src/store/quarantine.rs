//! Numbered databases in the state directory, and the quarantine of unusable ones.
//!
//! `db-<n>` is the current database, `quarantine-<n>` a quarantined one. A new database always gets a new number: a
//! hung thread of the engine may still write to the old path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::OpenError;

/// How many quarantined databases are kept. Older ones are deleted.
const KEPT: usize = 2;
/// File in a database that marks it as unusable. Contains the reason.
const CONDEMNED: &str = "CONDEMNED";

/// A quarantined database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// Its current path.
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

/// Returns the current database, if any. Changes nothing.
pub(super) fn current(dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    Ok(numbered(dir, "db-")?.into_iter().max().map(|number| dir.join(format!("db-{number}"))))
}

impl Generations {
    /// Lists the databases in the state directory and deletes outdated ones.
    pub(super) fn find(dir: &Path) -> Result<Self, OpenError> {
        let databases = numbered(dir, "db-")?;
        let quarantined = numbered(dir, "quarantine-")?;
        let highest = databases.iter().chain(&quarantined).max().copied().unwrap_or(0);
        let current = databases.iter().max().copied();
        // A lower number is a directory that a hung thread recreated after the quarantine.
        for old in databases.iter().filter(|old| Some(**old) != current) {
            remove(&dir.join(format!("db-{old}")));
        }
        Ok(Self { dir: dir.to_path_buf(), current, next: highest + 1 })
    }

    /// Path of the database to open. It may not exist yet.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(format!("db-{}", self.current.unwrap_or(self.next)))
    }

    /// Quarantines the current database, so that [`Generations::path`] returns a new one.
    pub(super) fn quarantine(&mut self, reason: &str) -> Result<Option<Quarantine>, OpenError> {
        let Some(number) = self.current else { return Ok(None) };
        let from = self.path();
        let path = self.dir.join(format!("quarantine-{number}"));
        fs::rename(&from, &path).map_err(|e| OpenError::io("rename", &from, &e))?;
        drop(fs::write(path.join("REASON"), reason));
        self.current = None;
        self.next = self.next.max(number + 1);
        let mut kept = numbered(&self.dir, "quarantine-")?;
        kept.sort_unstable();
        for old in kept.iter().rev().skip(KEPT) {
            remove(&self.dir.join(format!("quarantine-{old}")));
        }
        Ok(Some(Quarantine { path, reason: reason.to_owned() }))
    }
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

fn numbered(dir: &Path, prefix: &str) -> Result<Vec<u64>, OpenError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| OpenError::io("read the directory", dir, &e))? {
        let entry = entry.map_err(|e| OpenError::io("read the directory", dir, &e))?;
        let name = entry.file_name();
        numbers.extend(name.to_string_lossy().strip_prefix(prefix).and_then(|n| n.parse::<u64>().ok()));
    }
    Ok(numbers)
}

fn remove(path: &Path) {
    if let Err(cause) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %cause, "cannot delete an old database; delete it manually");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_increase_and_only_the_last_two_quarantined_databases_are_kept() {
        let root = tempfile::tempdir().unwrap();
        for round in 1..=4 {
            let mut generations = Generations::find(root.path()).unwrap();
            let path = generations.path();
            assert_eq!(path, root.path().join(format!("db-{round}")));
            fs::create_dir(&path).unwrap();
            generations.current = Some(round);
            let quarantine = generations.quarantine("a test").unwrap().unwrap();
            assert_eq!(fs::read_to_string(quarantine.path.join("REASON")).unwrap(), "a test");
            assert_eq!(generations.path(), root.path().join(format!("db-{}", round + 1)));
        }
        let mut kept = numbered(root.path(), "quarantine-").unwrap();
        kept.sort_unstable();
        assert_eq!(kept, [3, 4]);
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
