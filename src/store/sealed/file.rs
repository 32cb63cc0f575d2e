//! Sealed slices on disk: how a slice file is written and read.
//!
//! A slice file is written once and never changed. Like a block file it is durable before anything refers to it, and a file that
//! nothing refers to is deleted at the next start.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::dedupe::{Coordinates, Identity, IndexKey, Slice, SliceBuilder, SliceError};
use crate::ports::StoreError;

/// Receives the owners of a slice.
pub type OfferOwner<'a> = &'a mut dyn FnMut(Identity, Coordinates);

/// A slice: its filter in memory, and its open file.
#[derive(Debug)]
pub struct StoredSlice {
    slice: Slice,
    file: File,
    /// The path, for errors.
    path: String,
}

impl StoredSlice {
    /// Writes a slice with `write` (position in the file, bytes). Each call of `scan` must offer all owners of the slice with positions
    /// in a range; others may be offered too. The file
    /// is not durable yet.
    pub fn write(
        mut builder: SliceBuilder,
        mut scan: impl FnMut(RangeInclusive<u64>, OfferOwner<'_>) -> Result<(), StoreError>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut at = 0;
        let mut append = |bytes: &[u8]| {
            let written = write(at, bytes);
            at += bytes.len() as u64;
            written
        };
        let refused = |e: SliceError| StoreError::Corrupt(format!("cannot build a slice file: {e}"));
        while builder.needs_pass() {
            scan(builder.positions(), &mut |identity, owner| builder.offer(identity, owner))?;
            builder.end_pass(&mut append, refused)?;
        }
        builder.finish(append)
    }

    /// Opens a slice file: reads and verifies its footer and its filter, not its pages.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path_text = path.display().to_string();
        let unreadable = |e| StoreError::Io(format!("open the slice file {path_text}: {e}"));
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let damaged = |e| damaged(&path_text, &e);
        let slice = Slice::read(length, |at, bytes| read(&file, &path_text, at, bytes), damaged)?;
        Ok(Self { slice, file, path: path_text })
    }

    /// What the slice contains.
    #[must_use]
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The owners of an identity. Reads the page in which it can be, if the filter contains it.
    pub fn owners_of(&self, key: &IndexKey) -> Result<Vec<Coordinates>, StoreError> {
        let read = |at, bytes: &mut [u8]| read(&self.file, &self.path, at, bytes);
        self.slice.owners_of(key, read, |e| damaged(&self.path, &e))
    }
}

fn read(file: &File, path: &str, at: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
    file.read_exact_at(bytes, at).map_err(|e| StoreError::Io(format!("read the slice file {path}: {e}")))
}

fn damaged(path: &str, cause: &SliceError) -> StoreError {
    StoreError::Corrupt(format!("slice file {path}: {cause}"))
}
