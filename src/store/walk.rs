//! Iterates over the stored blocks of a window and reads their bytes.

use std::io;

use sled::IVec;

use super::engine::{Engine, Removal};
use super::entry::Entry;
use super::error::remedy;
use super::keys;
use super::segments::Readers;
use super::tail::{Place, range};
use crate::dedupe::{BlockView, Offset, WindowId};
use crate::ports::StoreError;

/// A stored block.
#[derive(Debug, Clone)]
pub(super) struct StoredBlock {
    pub window: WindowId,
    /// Its first offset, which is also its key.
    pub first: Offset,
    /// One past the last offset it covers.
    pub next: Offset,
    /// Number of identities in it.
    pub identities: u64,
    pub content: Content,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// In the index's engine: a waiting block.
    Inline(IVec),
    /// In a file: a settled block.
    InFile(Entry),
}

impl StoredBlock {
    fn in_file(window: WindowId, first: Offset, entry: Entry) -> Self {
        let Entry { next, identities, .. } = entry;
        Self { window, first, next, identities, content: Content::InFile(entry) }
    }

    /// The tree that holds it.
    pub(super) fn place(&self) -> Place {
        match self.content {
            Content::Inline(_) => Place::Waiting,
            Content::InFile(_) => Place::Settled,
        }
    }

    /// The operation that removes it.
    pub(super) fn removal(&self) -> Removal {
        let entry = match self.content {
            Content::Inline(_) => None,
            Content::InFile(entry) => Some(entry),
        };
        let key = keys::block(self.window, self.first);
        Removal { place: self.place(), key, identities: self.identities, entry }
    }
}

/// An iterator from either end.
pub(super) struct BlockIter<'a> {
    engine: &'a Engine,
    place: Place,
    window: WindowId,
    entries: sled::Iter,
}

impl BlockIter<'_> {
    /// The next block by ascending offset.
    pub(super) fn next(&mut self) -> Result<Option<StoredBlock>, StoreError> {
        let entry = self.engine.call("read", || self.entries.next().transpose())?;
        entry.map(|(key, value)| self.engine.found(self.place, self.window, &key, value)).transpose()
    }

    /// The next block by descending offset.
    pub(super) fn next_back(&mut self) -> Result<Option<StoredBlock>, StoreError> {
        let entry = self.engine.call("read", || self.entries.next_back().transpose())?;
        entry.map(|(key, value)| self.engine.found(self.place, self.window, &key, value)).transpose()
    }
}

impl Engine {
    /// Iterates over the blocks of a window in one place.
    pub(super) fn blocks(&self, place: Place, window: WindowId) -> BlockIter<'_> {
        BlockIter { engine: self, place, window, entries: self.tree(place).range(range(window)) }
    }

    /// The same, from the first block that starts at or beyond `from`.
    pub(super) fn blocks_from(&self, place: Place, window: WindowId, from: Offset) -> BlockIter<'_> {
        let keys_range = keys::block(window, from)..=keys::block(window, Offset::MAX);
        BlockIter { engine: self, place, window, entries: self.tree(place).range(keys_range) }
    }

    /// Decodes a key and its value into a stored block.
    pub(super) fn found(
        &self,
        place: Place,
        window: WindowId,
        key: &[u8],
        value: IVec,
    ) -> Result<StoredBlock, StoreError> {
        let first = keys::first(key);
        match place {
            Place::Waiting => {
                let view = self.trusted(window, &value)?;
                let (next, identities) = (view.header.next, view.count() as u64);
                Ok(StoredBlock { window, first, next, identities, content: Content::Inline(value) })
            }
            Place::Settled => {
                let entry = Entry::decode(&value).ok_or_else(|| {
                    self.damaged("read", &format!("the entry of partition {window} at {first} is damaged"))
                })?;
                Ok(StoredBlock::in_file(window, first, entry))
            }
        }
    }

    /// The block that would contain an owner.
    pub(super) fn block_of(
        &self,
        window: WindowId,
        offset: Offset,
    ) -> Result<Option<StoredBlock>, StoreError> {
        if let Some(failure) = self.failed.get() {
            return Err(failure.clone());
        }
        let places: &[Place] = match self.tails().get(&window) {
            Some(tail) if tail.waiting_blocks.first().is_none_or(|waits| offset < waits.first) => {
                let settled = tail.files.block_of(offset);
                return Ok(settled.map(|(first, entry)| StoredBlock::in_file(window, first, entry)));
            }
            Some(_) => &[Place::Waiting],
            None => &[Place::Waiting, Place::Settled],
        };
        for place in places {
            let keys_range = keys::block(window, 0)..=keys::block(window, offset);
            let tree = self.tree(*place);
            if let Some((key, value)) =
                self.call("read", || tree.range(keys_range).next_back().transpose())?
            {
                return self.found(*place, window, &key, value).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads the bytes of a block. Bytes read from a file are verified.
    pub(super) fn bytes(&self, found: &StoredBlock, readers: &mut Readers) -> Result<IVec, StoreError> {
        let StoredBlock { window, first, .. } = *found;
        let entry = match &found.content {
            Content::Inline(bytes) => return Ok(bytes.clone()),
            Content::InFile(entry) => entry,
        };
        let read = readers.read(&self.segments, entry);
        let cause = match &read {
            Ok(bytes) => entry.verified((window, first), bytes).err(),
            Err(cause) if !is_missing_data(cause) => return Err(self.file_error("read", entry.file, cause)),
            Err(cause) => Some(cause.to_string()),
        };
        match (read, cause) {
            (Ok(bytes), None) => Ok(IVec::from(bytes)),
            (_, cause) => self.unreadable(found, entry, &cause.unwrap_or_default()),
        }
    }

    /// Handles a block that is missing or damaged at the indexed position. If the index has changed, another worker
    /// has taken the window and may have deleted the file. Otherwise it is damage.
    fn unreadable(&self, found: &StoredBlock, entry: &Entry, cause: &str) -> Result<IVec, StoreError> {
        let StoredBlock { window, first, .. } = *found;
        let still = self.call("read", || self.settled.get(keys::block(window, first)))?;
        if still.as_deref().and_then(Entry::decode).as_ref() != Some(entry) {
            return Err(StoreError::LeaseLost(window));
        }
        let (file, at) = (entry.file, entry.at);
        let what = format!("block of partition {window} at {first}, in file {file} at {at}: {cause}");
        Err(self.damaged("read", &what))
    }

    /// Parses a block that was verified when it was read or when the store was opened, or that this process wrote.
    /// sled itself checks what it reads from disk.
    pub(super) fn trusted<'a>(&self, window: WindowId, bytes: &'a [u8]) -> Result<BlockView<'a>, StoreError> {
        BlockView::trusted(bytes).map_err(|cause| self.bad_block(window, 0, &cause))
    }

    /// An error of the file system on a block file.
    pub(super) fn file_error(&self, what: &str, file: u32, cause: &io::Error) -> StoreError {
        let path = self.segments.path(file);
        StoreError::Io(format!("{what} {}: {cause}; {}", path.display(), remedy(cause)))
    }
}

fn is_missing_data(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}
