//! The files of the settled blocks: written at their end, read anywhere, deleted whole.
//!
//! Each belongs to one partition, so that the partition's holder alone changes it, and a window that rolls
//! on leaves its oldest files empty: they go without anything being copied.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::entry::Entry;
use crate::dedupe::{BlockParts, Identity, Offset};

/// Name of the directory in a database.
pub(super) const DIR: &str = "blocks";

/// All files of one database, by number.
pub(super) struct Segments {
    dir: PathBuf,
    /// The number of the next file. None is ever used again.
    next: AtomicU32,
    /// Written since they were last synced.
    unsynced: Mutex<BTreeSet<u32>>,
    /// Of no use any more, to be deleted when the engine has written that down: after a crash its
    /// older index must still find them.
    dead: Mutex<Vec<u32>>,
}

impl Segments {
    /// Looks into the directory, which is created where it is missing.
    pub(super) fn open(database: &Path) -> io::Result<Self> {
        let dir = database.join(DIR);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let highest = numbers(&dir)?.into_iter().max().unwrap_or(0);
        Ok(Self {
            dir,
            next: AtomicU32::new(highest + 1),
            unsynced: Mutex::default(),
            dead: Mutex::default(),
        })
    }

    /// The number of a new file, which [`Segments::write`] creates.
    pub(super) fn begin(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Where a file lies.
    pub(super) fn path(&self, file: u32) -> PathBuf {
        self.dir.join(file.to_string())
    }

    /// Bytes of a file.
    pub(super) fn size(&self, file: u32) -> io::Result<u64> {
        fs::metadata(self.path(file)).map(|metadata| metadata.len())
    }

    /// Writes at this place of a file.
    pub(super) fn write(&self, file: u32, at: u64, bytes: &[u8]) -> io::Result<()> {
        lock(&self.unsynced).insert(file);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(self.path(file))?.write_all_at(bytes, at)
    }

    /// Makes what was written durable. A file that is gone by now has nothing to keep.
    pub(super) fn sync(&self) -> io::Result<()> {
        let unsynced = mem::take(&mut *lock(&self.unsynced));
        for file in unsynced {
            match File::open(self.path(file)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => opened?.sync_all()?,
            }
        }
        File::open(&self.dir)?.sync_all()
    }

    /// A file has no live block any more.
    pub(super) fn retire(&self, file: u32) {
        lock(&self.dead).push(file);
    }

    /// The files that were retired so far.
    pub(super) fn take_dead(&self) -> Vec<u32> {
        mem::take(&mut *lock(&self.dead))
    }

    /// Deletes a file.
    pub(super) fn delete(&self, file: u32) -> io::Result<()> {
        lock(&self.unsynced).remove(&file);
        match fs::remove_file(self.path(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes what a crash left without an entry.
    pub(super) fn keep_only(&self, used: &BTreeSet<u32>) -> io::Result<()> {
        numbers(&self.dir)?
            .into_iter()
            .filter(|file| !used.contains(file))
            .try_for_each(|file| self.delete(file))
    }
}

/// The files that were read last, still open: opening one costs as much as reading a block.
#[derive(Default)]
pub(super) struct Readers {
    files: VecDeque<(u32, File)>,
    /// What was read last.
    bytes: Vec<u8>,
}

impl Readers {
    /// So many at most, because a file that was deleted takes its room until it is closed.
    const MOST: usize = 64;

    /// The bytes at an entry's place, unverified.
    pub(super) fn read(&mut self, segments: &Segments, entry: &Entry) -> io::Result<&[u8]> {
        self.part(segments, entry, 0..entry.bytes as usize)
    }

    /// What stands where the identity of an owner should be, in a block that begins at `first`. Only its own
    /// place is read, and nothing is verified: what is found counts if it is what was expected, which no damage
    /// makes of 16 other bytes.
    pub(super) fn glimpse(
        &mut self,
        segments: &Segments,
        entry: &Entry,
        (first, owner): (Offset, Offset),
    ) -> Option<Identity> {
        let parts = BlockParts::of(entry.bytes as usize, usize::try_from(entry.identities).ok()?)?;
        let deltas = self.part(segments, entry, parts.deltas.clone()).ok()?;
        let at = parts.identity_at(deltas, first, owner)?;
        let identity = self.part(segments, entry, at..at + 16).ok()?;
        identity.try_into().ok().map(Identity)
    }

    /// A part of the bytes at an entry's place, unverified.
    fn part(&mut self, segments: &Segments, entry: &Entry, part: Range<usize>) -> io::Result<&[u8]> {
        if self.bytes.len() < part.len() {
            self.bytes.resize(part.len(), 0);
        }
        let bytes = self.bytes.get_mut(..part.len()).unwrap_or_default();
        let at = entry.at + part.start as u64;
        if let Some((_, file)) = self.files.iter().find(|(number, _)| *number == entry.file) {
            file.read_exact_at(bytes, at)?;
            return Ok(bytes);
        }
        let file = File::open(segments.path(entry.file))?;
        file.read_exact_at(bytes, at)?;
        self.files.truncate(Self::MOST - 1);
        self.files.push_front((entry.file, file));
        Ok(bytes)
    }

    /// Closes all of them.
    pub(super) fn close(&mut self) {
        self.files.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of the files; anything else in the directory is not ours.
fn numbers(dir: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}
