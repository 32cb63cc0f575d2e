//! The record of identities that were taken back, as it stands in the state topic among the blocks.
//!
//! A block is never rewritten there, so forgetting is one more record: whoever restores reads the block
//! with the owner first, and this behind it.
//!
//! Layout, little endian: `DDF1`, hash kind (1 byte) and key id (8), partition (4), number (8), raw
//! offset at which it holds (8), count (4), then for each owner its offset (8) and its identity (16),
//! and CRC32C of all before (4).

use super::block::{BlockError, hash_code, hash_of, take};
use super::{HashKind, Identity, Offset, PartitionId};

const MAGIC: [u8; 4] = *b"DDF1";
const HEADER_BYTES: usize = 4 + 1 + 8 + 4 + 8 + 8 + 4;
const ENTRY_BYTES: usize = 8 + 16;
const CRC_BYTES: usize = 4;

/// Owners of one partition that are no longer to be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// Which hash made the identities.
    pub hash: HashKind,
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// How many such records the partition has had, this one included.
    pub number: u64,
    /// The next raw offset to process when it was written: records from there on find nothing.
    pub at: Offset,
    /// The owners, and the identities that they owned.
    pub owners: Vec<(Offset, Identity)>,
}

impl Forgotten {
    /// The owners' offsets.
    #[must_use]
    pub fn offsets(&self) -> Vec<Offset> {
        self.owners.iter().map(|(owner, _)| *owner).collect()
    }

    /// Whether these bytes are such a record rather than a block.
    #[must_use]
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The bytes of the record: 41 and 24 for each owner.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + CRC_BYTES + self.owners.len() * ENTRY_BYTES);
        let (kind, key_id) = hash_code(self.hash);
        out.extend_from_slice(&MAGIC);
        out.push(kind);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.owners.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (offset, identity) in &self.owners {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&identity.0);
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Reads the record back, checksum verified.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let (content, crc) = bytes.split_at(bytes.len().saturating_sub(CRC_BYTES));
        let magic = take(content, 0)?;
        if magic != MAGIC {
            return Err(BlockError::Magic(magic));
        }
        let (found, computed) = (u32::from_le_bytes(take(crc, 0)?), crc32c::crc32c(content));
        if found != computed {
            return Err(BlockError::Checksum { found, computed });
        }
        let [kind] = take(content, 4)?;
        let count = u32::from_le_bytes(take(content, 33)?) as usize;
        let (entries, rest) = content.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<ENTRY_BYTES>();
        if entries.len() != count || !rest.is_empty() {
            let need = HEADER_BYTES + count.saturating_mul(ENTRY_BYTES);
            return Err(BlockError::Truncated { have: content.len(), need });
        }
        let owners =
            entries.iter().map(|entry| Ok((u64::from_le_bytes(take(entry, 0)?), Identity(take(entry, 8)?))));
        Ok(Self {
            hash: hash_of(kind, u64::from_le_bytes(take(content, 5)?))?,
            partition: u32::from_le_bytes(take(content, 13)?),
            number: u64::from_le_bytes(take(content, 17)?),
            at: u64::from_le_bytes(take(content, 25)?),
            owners: owners.collect::<Result<_, BlockError>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_notices_every_flipped_bit_and_truncation() {
        let record = Forgotten {
            hash: HashKind::SipHash { key_id: 0xfeed },
            partition: 3,
            number: 9,
            at: 1_000,
            owners: vec![(7, Identity([1; 16])), (999, Identity([0xfe; 16]))],
        };
        let bytes = record.encode();
        assert_eq!(Forgotten::decode(&bytes), Ok(record.clone()));
        assert!(Forgotten::is_here(&bytes));
        let none = Forgotten { owners: Vec::new(), hash: HashKind::Xxh3, ..record };
        assert_eq!(Forgotten::decode(&none.encode()), Ok(none));
        for at in 0..bytes.len() {
            assert!(Forgotten::decode(&bytes[..at]).is_err(), "truncated to {at}");
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert!(Forgotten::decode(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
