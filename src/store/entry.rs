//! What the index says of a settled block: where it lies, and what can be told without reading it.
//!
//! Layout, little endian: file (4 bytes), place in it (8), length (4), the block's checksum (4), the offset
//! after the last it covers (8), number of identities (8).

use super::tail::BLOCK_BYTES;
use crate::dedupe::{Block, BlockView, Offset, PartitionId};

/// One settled block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of its file.
    pub file: u32,
    /// Where it begins there.
    pub at: u64,
    /// Its length.
    pub bytes: u32,
    /// Its own checksum: tells it from another block that was once written there.
    pub crc: u32,
    /// One past the last offset it covers.
    pub next: Offset,
    /// How many identities it holds.
    pub identities: u64,
}

impl Entry {
    /// The stored form.
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

    /// Reads the stored form back; `None` when it is none.
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

    /// The block as it was read for this entry, checked to be the one that was written.
    pub(super) fn verified<'a>(
        &self,
        (partition, first): (PartitionId, Offset),
        bytes: &'a [u8],
    ) -> Result<BlockView<'a>, String> {
        let view = BlockView::verified(bytes).map_err(|e| e.to_string())?;
        let header = &view.header;
        let found =
            (header.partition, header.first, header.next, view.count() as u64, Block::checksum(bytes));
        if found == (partition, first, self.next, self.identities, self.crc) {
            return Ok(view);
        }
        Err("it is another block".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_and_nothing_shorter_or_longer_does() {
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
