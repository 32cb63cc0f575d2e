//! The files of runs and of slices. They are appended to, read at any position, and deleted as a whole.
//!
//! Each file belongs to one window, so only the window's holder changes it. When a window moves on, its oldest
//! files become empty and are deleted without copying anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::mem;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::disk::Disk;
use super::files::Files;
use crate::locked::Locked;

/// Name of the directory of these files in a database.
pub(super) const DIR: &str = "owners";

/// All these files of one database, by number.
pub(super) struct Segments {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    /// Number of the next file. Numbers are never reused.
    next: AtomicU32,
    /// Files written since the last sync.
    unsynced: Mutex<BTreeSet<u32>>,
    /// Files created since the last sync of the directory. Locked during that sync: a file whose sync another thread has begun
    /// is not durable yet.
    unlisted: Mutex<BTreeSet<u32>>,
    /// Files without live owners. They are deleted once the engine has synced its index: after a power loss, the older
    /// index must still find them.
    retired: Mutex<Vec<u32>>,
}

impl Segments {
    /// Opens the directory of the files and creates it if it does not exist.
    pub(super) fn open(database: &Path, disk: Arc<dyn Disk>) -> io::Result<Self> {
        let dir = database.join(DIR);
        if !dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
            // A synced file is durable only in a directory that is.
            database.parent().map_or(Ok(()), |parent| disk.sync_directory(parent))?;
            disk.sync_directory(database)?;
        }
        let highest = numbers(&dir)?.into_iter().max().unwrap_or(0);
        Ok(Self {
            dir,
            disk,
            next: AtomicU32::new(highest + 1),
            unsynced: Mutex::default(),
            unlisted: Mutex::default(),
            retired: Mutex::default(),
        })
    }

    /// Returns the number of a new file, which [`Segments::write`] creates.
    pub(super) fn allocate(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Path of a file.
    pub(super) fn path(&self, file: u32) -> PathBuf {
        self.dir.join(file.to_string())
    }

    /// Writes bytes at a position of a file.
    pub(super) fn write(&self, file: u32, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.unsynced.locked().insert(file);
        self.disk.write(&self.path(file), at, bytes)?;
        if at == 0 {
            self.unlisted.locked().insert(file);
        }
        Ok(())
    }

    /// An error if the disk has less than twice this space: what is written to other files meanwhile has to fit, too.
    pub(super) fn has_room(&self, bytes: u64) -> io::Result<()> {
        // Where that is not known, a write fails later.
        let Ok(disk) = rustix::fs::statvfs(&self.dir) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let lacks = || format!("it takes up to {bytes} bytes, and only {free} bytes are free");
        if free / 2 < bytes { Err(io::Error::new(io::ErrorKind::StorageFull, lacks())) } else { Ok(()) }
    }

    /// Makes everything durable that was written to a file.
    pub(super) fn sync_file(&self, file: u32) -> io::Result<()> {
        self.sync_bytes(file)?;
        self.sync_entry(file)
    }

    /// Makes the bytes of a file durable.
    pub(super) fn sync_bytes(&self, file: u32) -> io::Result<()> {
        self.unsynced.locked().remove(&file);
        self.disk.sync_file(&self.path(file))
    }

    /// Makes the entry of a file in the directory durable.
    pub(super) fn sync_entry(&self, file: u32) -> io::Result<()> {
        let mut unlisted = self.unlisted.locked();
        if unlisted.contains(&file) {
            self.disk.sync_directory(&self.dir)?;
            unlisted.clear();
        }
        Ok(())
    }

    /// Syncs all files written since the last sync. Files deleted in the meantime are skipped.
    pub(super) fn sync(&self) -> io::Result<()> {
        let unsynced = mem::take(&mut *self.unsynced.locked());
        for file in unsynced {
            match self.disk.sync_file(&self.path(file)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                synced => synced?,
            }
        }
        let mut unlisted = self.unlisted.locked();
        self.disk.sync_directory(&self.dir)?;
        unlisted.clear();
        Ok(())
    }

    /// Marks files as having no live owner.
    pub(super) fn retire(&self, files: Vec<u32>) {
        if !files.is_empty() {
            self.retired.locked().extend(files);
        }
    }

    /// Takes the list of retired files.
    pub(super) fn take_retired(&self) -> Vec<u32> {
        mem::take(&mut *self.retired.locked())
    }

    /// Deletes a file. Succeeds if it does not exist. The index without it must be durable.
    pub(super) fn delete(&self, file: u32) -> io::Result<()> {
        self.unsynced.locked().remove(&file);
        match self.disk.delete(&self.path(file)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes the files that no window and no slice uses, which a crash left behind, and sets the lengths of the others: a crash or
    /// a full disk may have left bytes that no entry refers to.
    ///
    /// The index and this directory must be durable: the older index of a power loss still refers to the deleted files.
    pub(super) fn begin<'a>(
        &self,
        windows: impl Iterator<Item = &'a mut Files>,
        slices: Vec<u32>,
    ) -> io::Result<()> {
        let mut used = BTreeSet::from_iter(slices);
        for files in windows {
            for file in files.numbers() {
                files.set_size(file, fs::metadata(self.path(file))?.len());
                used.insert(file);
            }
        }
        let unused = numbers(&self.dir)?.into_iter().filter(|file| !used.contains(file));
        unused.into_iter().try_for_each(|file| self.delete(file))
    }
}

/// Files that are kept open: opening one costs more than reading an owner.
#[derive(Default)]
pub(super) struct Readers {
    /// By number. When there are too many, the lowest number is closed: it has the oldest owners of its window, and most
    /// duplicates arrive soon after their owner.
    files: BTreeMap<u32, File>,
    /// Most files; at least one is kept open.
    pub most: usize,
}

impl Readers {
    /// Asks the system to read a part of a file into its page cache, and does not wait for it. A hint, so errors have no effect.
    pub(super) fn read_ahead(&mut self, segments: &Segments, number: u32, part: Range<u64>) {
        #[cfg(target_os = "linux")]
        if let Ok(file) = opened(&mut self.files, self.most, segments, number) {
            let length = NonZeroU64::new(part.end.saturating_sub(part.start));
            rustix::fs::fadvise(file, part.start, length, rustix::fs::Advice::WillNeed).ok();
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (segments, number, part);
    }

    /// Fills a buffer from a position of a file.
    pub(super) fn fill(
        &mut self,
        segments: &Segments,
        file: u32,
        at: u64,
        bytes: &mut [u8],
    ) -> io::Result<()> {
        opened(&mut self.files, self.most, segments, file)?.read_exact_at(bytes, at)
    }

    pub(super) fn close(&mut self) {
        self.files.clear();
    }
}

/// The file of a number, which is opened if it is not; at most `most` are open.
fn opened<'a>(
    files: &'a mut BTreeMap<u32, File>,
    most: usize,
    segments: &Segments,
    number: u32,
) -> io::Result<&'a File> {
    if !files.contains_key(&number) {
        let file = File::open(segments.path(number))?;
        while files.len() >= most.max(1) {
            files.pop_first();
        }
        files.insert(number, file);
    }
    files.get(&number).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The numbers of the files. Other entries of the directory are ignored.
fn numbers(dir: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}
