//! What the index holds of a block: where its bytes are, and what can be read without them.
//!
//! A filed block (its bytes are in a file) has an entry in sled. Layout, little endian: file number (4 bytes), position in the file (8), length
//! (4), the block's checksum (4), the offset after the last covered one (8), number of identities (8).

use super::parts::BLOCK_BYTES;
use crate::dedupe::{Block, BlockView, Offset, WindowId};

/// Index entry of one block. Its first offset is the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockEntry {
    /// One past the last offset it covers.
    pub next: Offset,
    /// Length in bytes.
    pub bytes: u32,
    /// Number of identities in it.
    pub identities: u32,
    pub place: BlockPlace,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockPlace {
    /// In a block file, permanently.
    File(Location),
    /// In sled, at the end of the window, until it is merged with others.
    Waiting {
        /// Stream time at its first record, in epoch milliseconds.
        time_ms: i64,
    },
}

/// Position of a filed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    /// Number of the file.
    pub file: u32,
    /// Byte position in the file.
    pub at: u64,
    /// The block's checksum. Distinguishes it from another block that was written at the same position before.
    pub crc: u32,
}

/// A block in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundBlock {
    pub window: WindowId,
    pub first: Offset,
    pub entry: BlockEntry,
}

impl BlockEntry {
    /// The entry of a block at this place.
    pub(super) fn of(view: &BlockView<'_>, place: BlockPlace) -> Self {
        Self {
            next: view.header.next,
            bytes: u32::try_from(view.encoded().len()).unwrap_or(u32::MAX),
            identities: u32::try_from(view.count()).unwrap_or(u32::MAX),
            place,
        }
    }

    /// Where a filed block is.
    pub(super) fn location(&self) -> Option<Location> {
        match self.place {
            BlockPlace::File(location) => Some(location),
            BlockPlace::Waiting { .. } => None,
        }
    }

    /// Encodes the stored form of a filed block.
    pub(super) fn encode(&self, location: Location) -> Vec<u8> {
        [
            &location.file.to_le_bytes()[..],
            &location.at.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &location.crc.to_le_bytes(),
            &self.next.to_le_bytes(),
            &u64::from(self.identities).to_le_bytes(),
        ]
        .concat()
    }

    /// Decodes the stored form. `None` if it is invalid.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (file, bytes) = bytes.split_first_chunk()?;
        let (at, bytes) = bytes.split_first_chunk()?;
        let (length, bytes) = bytes.split_first_chunk()?;
        let (crc, bytes) = bytes.split_first_chunk()?;
        let (next, bytes) = bytes.split_first_chunk()?;
        let entry = Self {
            next: u64::from_le_bytes(*next),
            bytes: u32::from_le_bytes(*length),
            identities: u32::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()?,
            place: BlockPlace::File(Location {
                file: u32::from_le_bytes(*file),
                at: u64::from_le_bytes(*at),
                crc: u32::from_le_bytes(*crc),
            }),
        };
        (entry.bytes as usize <= BLOCK_BYTES).then_some(entry)
    }
}

impl FoundBlock {
    /// Whether a block is the one that was stored.
    pub(super) fn is(&self, view: &BlockView<'_>) -> bool {
        let crc = Block::checksum(view.encoded());
        let is_right_crc = self.entry.location().is_none_or(|location| location.crc == crc);
        let Block { window, first, .. } = view.header;
        (window, first) == (self.window, self.first)
            && BlockEntry::of(view, self.entry.place) == self.entry
            && is_right_crc
    }

    /// Verifies bytes that were read from a file: they must be the block that was written.
    pub(super) fn verify(&self, bytes: &[u8]) -> Result<(), String> {
        let view = BlockView::verified(bytes).map_err(|e| e.to_string())?;
        if self.is(&view) { Ok(()) } else { Err("the bytes are those of another block".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_decoded_only_at_its_exact_length() {
        let location = Location { file: 1, at: 2 << 40, crc: 4 };
        let entry = BlockEntry { next: 5, bytes: 3, identities: 6, place: BlockPlace::File(location) };
        let mut bytes = entry.encode(location);
        assert_eq!(BlockEntry::decode(&bytes), Some(entry));
        assert_eq!(BlockEntry::decode(&bytes[1..]), None);
        let too_long = BlockEntry { bytes: u32::MAX, ..entry };
        assert_eq!(BlockEntry::decode(&too_long.encode(location)), None, "no block is that long");
        bytes.push(0);
        assert_eq!(BlockEntry::decode(&bytes), None);
    }
}
