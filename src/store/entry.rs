//! The index entry of a settled block: its location, and what can be read without the block.
//!
//! Layout, little endian: file number (4 bytes), position in the file (8), length (4), the block's checksum (4), the
//! offset after the last covered one (8), number of identities (8).

use super::tail::BLOCK_BYTES;
use crate::dedupe::{Block, BlockView, Offset, WindowId};

/// Index entry of one settled block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the file.
    pub file: u32,
    /// Byte position in the file.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// The block's checksum. Distinguishes it from another block that was written at the same position before.
    pub crc: u32,
    /// One past the last offset it covers.
    pub next: Offset,
    /// Number of identities in it.
    pub identities: u64,
}

impl Entry {
    /// Encodes the stored form.
    pub(super) fn encode(&self) -> Vec<u8> {
        [
            &self.file.to_le_bytes()[..],
            &self.at.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.crc.to_le_bytes(),
            &self.next.to_le_bytes(),
            &self.identities.to_le_bytes(),
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
            file: u32::from_le_bytes(*file),
            at: u64::from_le_bytes(*at),
            bytes: u32::from_le_bytes(*length),
            crc: u32::from_le_bytes(*crc),
            next: u64::from_le_bytes(*next),
            identities: u64::from_le_bytes(bytes.try_into().ok()?),
        };
        (entry.bytes as usize <= BLOCK_BYTES).then_some(entry)
    }

    /// Parses and verifies the bytes that were read for this entry: they must be the block that was written.
    pub(super) fn verified<'a>(
        &self,
        (window, first): (WindowId, Offset),
        bytes: &'a [u8],
    ) -> Result<BlockView<'a>, String> {
        let view = BlockView::verified(bytes).map_err(|e| e.to_string())?;
        let header = &view.header;
        let found = (header.window, header.first, header.next, view.count() as u64, Block::checksum(bytes));
        if found == (window, first, self.next, self.identities, self.crc) {
            return Ok(view);
        }
        Err("the bytes are those of another block".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_decoded_only_at_its_exact_length() {
        let entry = Entry { file: 1, at: 2 << 40, bytes: 3, crc: 4, next: 5, identities: 6 };
        let mut bytes = entry.encode();
        assert_eq!(Entry::decode(&bytes), Some(entry));
        assert_eq!(Entry::decode(&bytes[1..]), None);
        let too_long = Entry { bytes: u32::MAX, ..entry };
        assert_eq!(Entry::decode(&too_long.encode()), None, "no block is that long");
        bytes.push(0);
        assert_eq!(Entry::decode(&bytes), None);
    }
}
