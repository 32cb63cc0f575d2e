//! Working memory that does not grow: what does not fit goes to temporary files.
//!
//! Rows have a fixed size. A [`Tape`] keeps them in the order they came in, a [`Sorter`] brings them into
//! order by runs that are merged. Files are unlinked as soon as they are open: they are gone with the
//! process, however it ends, and so there is nothing to clean up.

mod pages;
mod row;
mod sorter;
mod tape;

use std::cell::Cell;
use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytesize::ByteSize;

use super::error::AuditError;
pub(super) use pages::Pages;
pub(super) use row::{Parts, Row};
pub(super) use sorter::{Sorted, Sorter};
pub(super) use tape::{Backward, Cursor, Tape};

/// Into how many units the memory is cut; what is alive together takes less than all of them.
const UNITS: usize = 16;
/// Most runs that are read together, as long as their buffers fit into one unit.
const FAN_IN: usize = 64;
/// What a record takes in all temporary files that are alive together, bytes.
const RECORD: u64 = 150;
const BUFFERS: std::ops::RangeInclusive<usize> = 1 << 10..=256 << 10;

/// Where rows go that do not fit into memory, and how much memory there is.
#[derive(Debug, Clone)]
pub struct Scratch {
    dir: Rc<PathBuf>,
    memory: usize,
    written: Rc<Cell<u64>>,
}

impl Scratch {
    /// Temporary files in `dir`, which must exist; at most `memory` bytes in use, at least 64 KiB.
    #[must_use]
    pub fn new(dir: &Path, memory: usize) -> Self {
        Self { dir: Rc::new(dir.to_owned()), memory: memory.max(64 << 10), written: Rc::default() }
    }

    /// The folder of the temporary files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes written to temporary files so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.get()
    }

    /// Refuses, when so many records in one partition may take more than what is free: better now than after hours.
    pub(super) fn has_room(&self, records: u64) -> Result<(), AuditError> {
        // A file system that does not tell is tried.
        let free = fs2::available_space(&*self.dir).unwrap_or(u64::MAX);
        match self.needs(records) {
            needed if needed > free => Err(AuditError::NoRoom {
                dir: self.dir.to_path_buf(),
                free: ByteSize(free),
                needed: ByteSize(needed),
                records,
            }),
            _ => Ok(()),
        }
    }

    /// Most bytes of temporary files for so many records of a partition. Up to a unit stays in memory whatever it is.
    fn needs(&self, records: u64) -> u64 {
        let all = records.saturating_mul(RECORD);
        if all <= self.unit() as u64 { 0 } else { all }
    }

    /// A sixteenth of the memory, bytes.
    pub(super) fn unit(&self) -> usize {
        self.memory / UNITS
    }

    /// Bytes of a buffer for reading or writing in sequence.
    fn buffer(&self) -> usize {
        (self.unit() / FAN_IN).clamp(*BUFFERS.start(), *BUFFERS.end())
    }

    /// How many runs are read together.
    fn fan_in(&self) -> usize {
        (self.unit() / self.buffer()).max(2)
    }

    fn count(&self, bytes: usize) {
        self.written.set(self.written.get() + bytes as u64);
    }

    /// A file that only this process can see, and only as long as it is open.
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
    fn an_audit_that_cannot_fit_is_refused_before_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), 1 << 20);
        assert!(scratch.has_room(1_000).is_ok());
        assert_eq!((scratch.needs(400), scratch.needs(500)), (0, 75_000), "few stay in memory");
        let told = scratch.has_room(1 << 50).unwrap_err().to_string();
        assert!(told.starts_with(&dir.path().display().to_string()), "{told}");
        assert!(told.contains("150.0 PiB") && told.contains("--temp-dir"), "{told}");
        let gone = Scratch::new(&dir.path().join("gone"), 1 << 20);
        assert!(gone.has_room(1 << 50).is_ok(), "opening a file there says what is wrong");
    }
}
