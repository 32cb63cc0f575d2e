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

pub(super) use pages::Pages;
pub(super) use row::{Parts, Row};
pub(super) use sorter::{Sorted, Sorter};
pub(super) use tape::{Backward, Cursor, Tape};

/// Into how many units the memory is cut; what is alive together takes less than all of them.
const UNITS: usize = 16;
/// Most runs that are read together, as long as their buffers fit into one unit.
const FAN_IN: usize = 64;
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
