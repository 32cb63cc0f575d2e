//! Sealed slices on disk: how a slice file is written and read.
//!
//! A slice file is written once and never changed. Like a block file it is durable before anything refers to it, and a file that
//! nothing refers to is deleted at the next start.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::dedupe::{
    Coordinates, Identity, IndexKey, PAGE_BYTES, Slice, SliceBuilder, SliceError, SliceFooter,
};
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
    /// Writes a slice with `write` (position in the file, bytes). Each call of `scan` must offer all owners of the slice. The file
    /// is not durable yet.
    pub fn write(
        mut builder: SliceBuilder,
        mut scan: impl FnMut(OfferOwner<'_>) -> Result<(), StoreError>,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let (mut at, mut bytes) = (0, Vec::new());
        let mut append = |bytes: &mut Vec<u8>| {
            let written = write(at, bytes);
            at += bytes.len() as u64;
            bytes.clear();
            written.map_err(|e| StoreError::Io(format!("write a slice file: {e}")))
        };
        let refused = |e: SliceError| StoreError::Corrupt(format!("cannot build a slice file: {e}"));
        while builder.needs_pass() {
            scan(&mut |identity, owner| builder.offer(identity, owner))?;
            builder.end_pass(&mut bytes).map_err(refused)?;
            append(&mut bytes)?;
        }
        builder.finish(&mut bytes);
        append(&mut bytes)
    }

    /// Opens a slice file: reads and verifies its footer and its filter, not its pages.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path_text = path.display().to_string();
        let file =
            File::open(path).map_err(|e| StoreError::Io(format!("open the slice file {path_text}: {e}")))?;
        let reader = PartReader { file: &file, path: &path_text };
        let slice = reader.slice()?;
        Ok(Self { slice, file, path: path_text })
    }

    /// What the slice contains.
    #[must_use]
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// The owners of an identity. Reads the page in which it can be, if the filter contains it.
    pub fn owners_of(&self, key: &IndexKey) -> Result<Vec<Coordinates>, StoreError> {
        if !self.slice.may_contain(key) {
            return Ok(Vec::new());
        }
        let reader = PartReader { file: &self.file, path: &self.path };
        let mut owners = Vec::new();
        for page in self.slice.pages_of(key) {
            let mut bytes = [0; PAGE_BYTES];
            reader.read((page * PAGE_BYTES) as u64, &mut bytes)?;
            owners.extend(self.slice.owners_in(&bytes, key).map_err(|e| reader.damaged(&e))?);
        }
        Ok(owners)
    }
}

/// Reads parts of a slice file.
struct PartReader<'a> {
    file: &'a File,
    path: &'a str,
}

impl PartReader<'_> {
    fn slice(&self) -> Result<Slice, StoreError> {
        let length = self.file.metadata().map_err(|e| self.unreadable(&e))?.len();
        let short = || self.damaged(&SliceError::Truncated("the file"));
        let mut end = [0; SliceFooter::END_BYTES];
        self.read(length.checked_sub(end.len() as u64).ok_or_else(short)?, &mut end)?;
        let footer = SliceFooter::length(&end).map_err(|e| self.damaged(&e))? + end.len();
        let footer_at = length.checked_sub(footer as u64).ok_or_else(short)?;
        let mut bytes = vec![0; footer];
        self.read(footer_at, &mut bytes)?;
        let mut slice = Slice::new(SliceFooter::decode(&bytes).map_err(|e| self.damaged(&e))?);
        let mut at = (slice.footer().fences.len() * PAGE_BYTES) as u64;
        for entry in slice.footer().shards.clone() {
            let next = at + u64::from(entry.bytes);
            if next > footer_at {
                return Err(short());
            }
            bytes.resize(entry.bytes as usize, 0);
            self.read(at, &mut bytes)?;
            slice.push_shard(&bytes, entry).map_err(|e| self.damaged(&e))?;
            at = next;
        }
        if at == footer_at { Ok(slice) } else { Err(short()) }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_exact_at(bytes, at).map_err(|e| self.unreadable(&e))
    }

    fn unreadable(&self, cause: &io::Error) -> StoreError {
        StoreError::Io(format!("read the slice file {}: {cause}", self.path))
    }

    fn damaged(&self, cause: &SliceError) -> StoreError {
        StoreError::Corrupt(format!("slice file {}: {cause}", self.path))
    }
}
