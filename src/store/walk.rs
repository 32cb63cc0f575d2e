//! Through the stored blocks of a partition in order, and to the bytes of each.

use std::io;

use sled::IVec;

use super::engine::{Engine, Removal};
use super::entry::Entry;
use super::error::remedy;
use super::keys;
use super::segments::Readers;
use super::tail::{Place, range};
use crate::dedupe::{BlockView, Coordinates, Offset, PartitionId};
use crate::ports::StoreError;

/// A stored block.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub partition: PartitionId,
    /// Its first offset, and so its key.
    pub first: Offset,
    /// One past the last offset it covers.
    pub next: Offset,
    /// How many identities it holds.
    pub identities: u64,
    pub content: Content,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone)]
pub(super) enum Content {
    /// In the index's engine: the block waits.
    Here(IVec),
    /// In a file: it is settled.
    Filed(Entry),
}

impl Found {
    fn filed(partition: PartitionId, first: Offset, entry: Entry) -> Self {
        let Entry { next, identities, .. } = entry;
        Self { partition, first, next, identities, content: Content::Filed(entry) }
    }

    /// In which tree it is.
    pub(super) fn place(&self) -> Place {
        match self.content {
            Content::Here(_) => Place::Waiting,
            Content::Filed(_) => Place::Settled,
        }
    }

    /// Its removal.
    pub(super) fn removal(&self) -> Removal {
        let entry = match self.content {
            Content::Here(_) => None,
            Content::Filed(entry) => Some(entry),
        };
        let key = keys::block(self.partition, self.first);
        Removal { place: self.place(), key, identities: self.identities, entry }
    }
}

/// A walk from either end.
pub(super) struct Walk<'a> {
    engine: &'a Engine,
    place: Place,
    partition: PartitionId,
    entries: sled::Iter,
}

impl Walk<'_> {
    /// The next block by rising offset.
    pub(super) fn next(&mut self) -> Result<Option<Found>, StoreError> {
        let entry = self.engine.call("read", || self.entries.next().transpose())?;
        entry.map(|(key, value)| self.engine.found(self.place, self.partition, &key, value)).transpose()
    }

    /// The next block by falling offset.
    pub(super) fn next_back(&mut self) -> Result<Option<Found>, StoreError> {
        let entry = self.engine.call("read", || self.entries.next_back().transpose())?;
        entry.map(|(key, value)| self.engine.found(self.place, self.partition, &key, value)).transpose()
    }
}

impl Engine {
    /// The blocks of a partition in one place.
    pub(super) fn walk(&self, place: Place, partition: PartitionId) -> Walk<'_> {
        Walk { engine: self, place, partition, entries: self.tree(place).range(range(partition)) }
    }

    /// The same, from the first block that begins at or beyond `from`.
    pub(super) fn walk_from(&self, place: Place, partition: PartitionId, from: Offset) -> Walk<'_> {
        let wanted = keys::block(partition, from)..=keys::block(partition, Offset::MAX);
        Walk { engine: self, place, partition, entries: self.tree(place).range(wanted) }
    }

    /// What a key and its value say of a block.
    pub(super) fn found(
        &self,
        place: Place,
        partition: PartitionId,
        key: &[u8],
        value: IVec,
    ) -> Result<Found, StoreError> {
        let first = keys::first(key);
        match place {
            Place::Waiting => {
                let view = self.trusted(partition, &value)?;
                let (next, identities) = (view.header.next, view.count() as u64);
                Ok(Found { partition, first, next, identities, content: Content::Here(value) })
            }
            Place::Settled => {
                let entry = Entry::decode(&value).ok_or_else(|| {
                    self.damaged("read", &format!("the entry of partition {partition} at {first} is damaged"))
                })?;
                Ok(Found::filed(partition, first, entry))
            }
        }
    }

    /// The block that an owner would be in.
    pub(super) fn block_of(&self, owner: Coordinates) -> Result<Option<Found>, StoreError> {
        if let Some(failure) = self.failed.get() {
            return Err(failure.clone());
        }
        let Coordinates { partition, offset } = owner;
        let places: &[Place] = match self.tails().get(&partition) {
            Some(tail) if tail.pieces.first().is_none_or(|waits| offset < waits.first) => {
                let settled = tail.files.block_of(offset);
                return Ok(settled.map(|(first, entry)| Found::filed(partition, first, entry)));
            }
            Some(_) => &[Place::Waiting],
            None => &[Place::Waiting, Place::Settled],
        };
        for place in places {
            let wanted = keys::block(partition, 0)..=keys::block(partition, offset);
            let tree = self.tree(*place);
            if let Some((key, value)) = self.call("read", || tree.range(wanted).next_back().transpose())? {
                return self.found(*place, partition, &key, value).map(Some);
            }
        }
        Ok(None)
    }

    /// The bytes of a block; those from a file are verified.
    pub(super) fn bytes(&self, found: &Found, readers: &mut Readers) -> Result<IVec, StoreError> {
        let Found { partition, first, .. } = *found;
        let entry = match &found.content {
            Content::Here(bytes) => return Ok(bytes.clone()),
            Content::Filed(entry) => entry,
        };
        let read = readers.read(&self.segments, entry);
        let cause = match &read {
            Ok(bytes) => entry.verified((partition, first), bytes).err(),
            Err(cause) if !is_short(cause) => return Err(self.refused("read", entry.file, cause)),
            Err(cause) => Some(cause.to_string()),
        };
        match (read, cause) {
            (Ok(bytes), None) => Ok(IVec::from(bytes)),
            (_, cause) => self.unreadable(found, entry, &cause.unwrap_or_default()),
        }
    }

    /// A block cannot be had where the index said. Who has lost the partition meanwhile may find the file
    /// gone; for the holder it is damage.
    fn unreadable(&self, found: &Found, entry: &Entry, cause: &str) -> Result<IVec, StoreError> {
        let Found { partition, first, .. } = *found;
        let still = self.call("read", || self.settled.get(keys::block(partition, first)))?;
        if still.as_deref().and_then(Entry::decode).as_ref() != Some(entry) {
            return Err(StoreError::Taken(partition));
        }
        let (file, at) = (entry.file, entry.at);
        let what = format!("block of partition {partition} at {first}, in file {file} at {at}: {cause}");
        Err(self.damaged("read", &what))
    }

    /// Parses a block that was verified when it was read, at opening, or written by us; sled itself checks
    /// what it reads from disk.
    pub(super) fn trusted<'a>(
        &self,
        partition: PartitionId,
        bytes: &'a [u8],
    ) -> Result<BlockView<'a>, StoreError> {
        BlockView::trusted(bytes).map_err(|cause| self.bad_block(partition, 0, &cause))
    }

    /// The file system refused something about a file of blocks.
    pub(super) fn refused(&self, what: &str, file: u32, cause: &io::Error) -> StoreError {
        let path = self.segments.path(file);
        StoreError::Io(format!("{what} {}: {cause}; {}", path.display(), remedy(cause)))
    }
}

fn is_short(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}
