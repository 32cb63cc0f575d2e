//! The forget record: identities that are forgotten, in an entry of the journal.
//!
//! It applies to all owners of these identities in the entries before its own: a block is never rewritten.
//!
//! Layout, little endian: `DDF3`, hash kind (1 byte) and key id (8), count (4), then the identities (16 each), and the CRC32C of all preceding
//! bytes (4).

use super::block::{BlockError, CRC_BYTES, hash_code, hash_of, take, verified_content};
use crate::dedupe::identity::{HashKind, Identity};

const MAGIC: [u8; 4] = *b"DDF3";
const HEADER_BYTES: usize = 4 + 1 + 8 + 4;

/// Forgotten identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgetRecord {
    /// Which hash made the identities.
    pub hash: HashKind,
    /// The identities.
    pub identities: Vec<Identity>,
}

impl ForgetRecord {
    /// Whether these bytes are a forget record rather than a block.
    pub fn is_here(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The encoded record: 21 bytes and 16 bytes per identity.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + CRC_BYTES + self.identities.len() * 16);
        let (kind, key_id) = hash_code(self.hash);
        out.extend_from_slice(&MAGIC);
        out.push(kind);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.identities.len()).unwrap_or(u32::MAX).to_le_bytes());
        for identity in &self.identities {
            out.extend_from_slice(&identity.0);
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a record and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let content = verified_content(bytes, MAGIC)?;
        let [kind] = take(content, 4)?;
        let count = u32::from_le_bytes(take(content, 13)?) as usize;
        let (identities, rest) = content.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<16>();
        if identities.len() != count || !rest.is_empty() {
            let need = HEADER_BYTES + count.saturating_mul(16);
            return Err(BlockError::Truncated { have: content.len(), need });
        }
        Ok(Self {
            hash: hash_of(kind, u64::from_le_bytes(take(content, 5)?))?,
            identities: identities.iter().map(|identity| Identity(*identity)).collect(),
        })
    }
}
