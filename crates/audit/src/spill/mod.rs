//! Bounded working memory: rows that do not fit go to temporary files.
//!
//! Rows have a fixed size. A [`Table`] stores them by number; a [`Sorter`] sorts them by merging sorted runs. Files are unlinked as soon as they are open: the operating system deletes them when the process
//! ends, however it ends, so nothing has to be cleaned up.

mod row;
mod sorter;
mod table;

use std::cell::Cell;
use std::fs::{File, OpenOptions, metadata, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytesize::ByteSize;

use super::Scope;
use super::error::AuditError;
pub(super) use row::{Row, encode_fields};
pub(super) use sorter::{Key, Sorted, Sorter};
pub(super) use table::Table;

/// Number of units that the memory is divided into. A table takes one, a sorter its own number and one for its
/// runs; what is in use at one time takes fewer than all of them.
const UNITS: usize = 32;
/// Memory of a page, bytes.
const PAGE_BYTES: usize = 4 << 10;
/// Space of a record in all temporary files that exist at one time, bytes: where each id occurs twice in raw and once in clean.
const BYTES_PER_RECORD: u64 = 240;
/// The same in topic scope, where records with an id that occurs several times are sorted once more.
const BYTES_PER_RECORD_OF_TOPIC: u64 = 330;
/// Memory with which a sorter of 20 units holds a record without a file, bytes. The record itself takes less than half of it.
const MEMORY_PER_RECORD: u64 = 216;
/// Minimum memory, bytes.
const LEAST: usize = 64 << 10;

/// The memory limit, and the directory for rows that exceed it.
#[derive(Debug, Clone)]
pub struct Scratch {
    dir: Rc<PathBuf>,
    memory: usize,
    written: Rc<Cell<u64>>,
}

impl Scratch {
    /// Uses at most `memory` bytes, or 1 MiB if that is more; temporary files go to `dir`, which must exist.
    #[must_use]
    pub fn new(dir: &Path, memory: usize) -> Self {
        Self { dir: Rc::new(dir.to_owned()), memory: memory.max(LEAST), written: Rc::default() }
    }

    /// The directory of the temporary files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes written to temporary files so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// How many of these partitions, by their numbers of raw and clean records, can be read at the same time without temporary
    /// files; at least one. Half of the memory is for reading a group, the other half for comparing one of its partitions.
    pub fn group(&self, records: impl IntoIterator<Item = u64>) -> usize {
        let mut left = self.memory / 2;
        let fits = |records| {
            let rest = left.checked_sub(Self::share(records));
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        records.into_iter().map(fits).take_while(|fits| *fits).count().max(1)
    }

    /// The part of the memory for reading one partition of a group, with so many records.
    pub(super) fn for_reading(&self, records: u64) -> Self {
        Self { memory: Self::share(records), ..self.clone() }
    }

    /// The part of the memory for comparing a partition of a group.
    pub(super) fn for_comparing(&self) -> Self {
        Self { memory: (self.memory / 2).max(LEAST), ..self.clone() }
    }

    fn share(records: u64) -> usize {
        usize::try_from(records.saturating_mul(MEMORY_PER_RECORD)).unwrap_or(usize::MAX).max(LEAST)
    }

    /// Fails if the directory does not exist or is read-only. Whether it is needed may be known only after hours.
    pub(super) fn is_usable(&self) -> Result<(), AuditError> {
        use io::ErrorKind as E;
        let failed = |why| AuditError::NoDirectory { dir: self.dir.to_path_buf(), why };
        if !metadata(&*self.dir).map_err(failed)?.is_dir() {
            return Err(failed(E::NotADirectory.into()));
        }
        match self.file() {
            Err(why) if matches!(why.kind(), E::PermissionDenied | E::ReadOnlyFilesystem) => Err(failed(why)),
            _ => Ok(()),
        }
    }

    /// Fails if `records` records that are compared together may need more space than is free. A check before the start
    /// avoids a failure after hours.
    pub(super) fn has_room(&self, scope: Scope, records: u64) -> Result<(), AuditError> {
        // If the file system does not report its free space, the audit starts anyway.
        let free = rustix::fs::statvfs(&*self.dir).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        match self.needs(scope, records) {
            needed if needed > free => Err(AuditError::NoRoom {
                dir: self.dir.to_path_buf(),
                free: ByteSize(free),
                needed: ByteSize(needed),
                records,
            }),
            _ => Ok(()),
        }
    }

    /// Maximum bytes of temporary files for `records` records. Up to one unit always stays in memory.
    fn needs(&self, scope: Scope, records: u64) -> u64 {
        let all = records.saturating_mul(match scope {
            Scope::Topic | Scope::Topics => BYTES_PER_RECORD_OF_TOPIC,
            Scope::Partition => BYTES_PER_RECORD,
        });
        if all <= self.unit() as u64 { 0 } else { all }
    }

    /// The memory of one unit, bytes.
    fn unit(&self) -> usize {
        self.memory / UNITS
    }

    /// Maximum number of pages of a table in memory.
    fn pages(&self) -> usize {
        (self.unit() / PAGE_BYTES).max(4)
    }

    /// Number of runs merged at once. Each has one page in use; the pages of others are not evicted for that.
    fn fan_in(&self) -> usize {
        self.pages() / 2
    }

    fn count(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes as u64);
    }

    /// A new file that only this process can access, and that exists only while it is open.
    fn file(&self) -> io::Result<File> {
        let path = self.dir.join(format!("dedupd-audit-{:032x}", fastrand::u128(..)));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        remove_file(&path)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_that_may_exceed_the_free_space_fails_before_it_starts() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 1 << 20);
        assert!(scratch.has_room(Scope::Topic, 1_000).is_ok());
        assert_eq!(
            [120, 500].map(|records| scratch.needs(Scope::Partition, records)),
            [0, 120_000],
            "few records stay in memory"
        );
        let message = scratch.has_room(Scope::Partition, 1 << 50).unwrap_err().to_string();
        assert!(message.starts_with(&dir.path().display().to_string()), "{message}");
        assert!(message.contains("240.0 PiB") && message.contains("--temp-dir"), "{message}");
        let gone = Scratch::new(&dir.path().join("gone"), 1 << 20);
        assert!(gone.has_room(Scope::Partition, 1 << 50).is_ok(), "opening a file there reports the error");
        let message = gone.is_usable().unwrap_err().to_string();
        assert!(message.contains("/gone cannot be used: No such file"), "{message}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = Scratch::new(&file, 1 << 20).is_usable().unwrap_err().to_string();
        assert!(message.contains("/file cannot be used: not a directory"), "{message}");
        assert!(scratch.is_usable().is_ok());
    }

    #[test]
    fn a_group_has_as_many_partitions_as_fit_into_memory_and_at_least_one() {
        let scratch = Scratch::new(Path::new("/tmp"), 1 << 20);
        assert_eq!(scratch.group([]), 1);
        assert_eq!(scratch.group([1 << 40, 0]), 1, "one that does not fit is alone");
        assert_eq!(scratch.group([u64::MAX]), 1);
        assert_eq!(scratch.group([0; 100]), 8, "each takes 64 KiB");
        assert_eq!(scratch.group([1_000, 1_000, 1 << 40, 0]), 2, "only consecutive ones are in a group");
        assert_eq!([2_000, 0].map(|records| scratch.for_reading(records).memory), [2_000 * 216, 64 << 10]);
    }
}
