//! The operations on files whose order decides what a power loss leaves. Tests replace them to simulate one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Operations on files. Bytes written and files created are durable only after the matching sync; a deletion may be
/// durable at once.
pub(super) trait Disk: Send + Sync {
    /// Writes bytes at a position of a file of owners, which is created if it does not exist.
    fn write(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes of such a file durable, but not its directory entry.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes everything durable that sled has written to its file.
    fn sync_sled(&self, file: &File) -> io::Result<()>;

    /// Deletes such a file.
    fn delete(&self, path: &Path) -> io::Result<()>;
}

pub(super) struct FileSystem;

impl Disk for FileSystem {
    fn write(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(path)?.write_all_at(bytes, at)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_sled(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

#[cfg(test)]
mod tests;
