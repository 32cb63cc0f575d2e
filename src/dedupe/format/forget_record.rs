//! The forget record: forgotten identities, stored in the state topic between the blocks.
//!
//! A block in the state topic is never rewritten, so forgetting appends a record: a restore reads the block with
//! the owner first, then the forget record.
//!
//! Layout, little endian: `DDF2`, hash kind (1 byte) and key id (8), partition (4), raw
//! offset from which on it applies (8), count (4), then for each owner its offset (8) and its identity (16),
//! and the CRC32C of all preceding bytes (4).

use super::block::{BlockError, CRC_BYTES, hash_code, hash_of, take, verified_content};
use crate::dedupe::coordinates::{Offset, PartitionId};
use crate::dedupe::identity::{HashKind, Identity};

const MAGIC: [u8; 4] = *b"DDF2";
const HEADER_BYTES: usize = 4 + 1 + 8 + 4 + 8 + 4;
const ENTRY_BYTES: usize = 8 + 16;

/// Forgotten owners of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgetRecord {
    /// Which hash made the identities.
    pub hash: HashKind,
    /// Partition of the raw topic.
    pub partition: PartitionId,
    /// The next raw offset to process when it was written. Records from this offset on do not find the owners.
    pub at: Offset,
    /// The owners and their identities.
    pub owners: Vec<(Offset, Identity)>,
}

impl ForgetRecord {
    /// Raw offsets of the records that owned the forgotten identities, in stored order.
    #[must_use]
    pub fn offsets(&self) -> Vec<Offset> {
        self.owners.iter().map(|(owner, _)| *owner).collect()
    }

    /// The forgotten identities, in stored order.
    #[must_use]
    pub fn identities(&self) -> Vec<Identity> {
        self.owners.iter().map(|(_, identity)| *identity).collect()
    }

    /// Whether these bytes are a forget record rather than a block.
    #[must_use]
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The encoded record: 33 bytes and 24 bytes per owner.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + CRC_BYTES + self.owners.len() * ENTRY_BYTES);
        let (kind, key_id) = hash_code(self.hash);
        out.extend_from_slice(&MAGIC);
        out.push(kind);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.owners.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (offset, identity) in &self.owners {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&identity.0);
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a record and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let content = verified_content(bytes, MAGIC)?;
        let [kind] = take(content, 4)?;
        let count = u32::from_le_bytes(take(content, 25)?) as usize;
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
            at: u64::from_le_bytes(take(content, 17)?),
            owners: owners.collect::<Result<_, BlockError>>()?,
        })
    }
}
