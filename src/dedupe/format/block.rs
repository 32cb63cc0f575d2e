//! The block: packed identities of one kind with their owners. It is the unit of the journal and of the export file.
//!
//! Layout, little endian (version 3):
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic and version, `DDB3` |
//! | 1 | hash kind: 0 = XXH3-128, 1 = `SipHash` 128 |
//! | 8 | hash key id (0 for XXH3) |
//! | 2 | kind |
//! | 4 | number of the rule of the digests; 0: there are none |
//! | 8 | a time, epoch milliseconds, from which the first time is a distance |
//! | 4 | count of identities |
//! | varints | the owners in runs of one partition: see [`places`] |
//! | count × 4, with a rule | digests of the owners' contents; 0: none |
//! | count × 16 | identities, in the order of their owners |
//! | 4 | CRC32C of all preceding bytes |

mod places;

use crate::dedupe::coordinates::{Coordinates, Offset, PartitionId};
use crate::dedupe::identity::{Digest, HashKind, Identity, KindId};
use places::{push_places, read_places};

const MAGIC: [u8; 4] = *b"DDB3";
const HEADER_BYTES: usize = 4 + 1 + 8 + 2 + 4 + 8 + 4;
const DIGEST_BYTES: usize = 4;
pub(super) const CRC_BYTES: usize = 4;

/// A record that is the owner of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Its place in raw.
    pub at: Coordinates,
    /// The stream time of its partition at its arrival, epoch milliseconds; 0 while unknown.
    pub time_ms: i64,
    /// The 16 bytes that stand for its id.
    pub identity: Identity,
    /// What stands for its content.
    pub digest: Digest,
}

impl Owner {
    /// The last partition, the last offset, and the latest time that an owner can have: a store has no room for more.
    pub const LAST_PARTITION: PartitionId = (1 << 24) - 1;
    /// See [`Self::LAST_PARTITION`].
    pub const LAST_OFFSET: Offset = (1 << 56) - 1;
    /// See [`Self::LAST_PARTITION`]; epoch milliseconds.
    pub const LATEST_MS: i64 = (1 << 47) - 1;

    /// Whether an owner can have this place and time.
    #[inline]
    pub fn is_possible(at: Coordinates, time_ms: i64) -> bool {
        at.partition <= Self::LAST_PARTITION
            && at.offset <= Self::LAST_OFFSET
            && (0..=Self::LATEST_MS).contains(&time_ms)
    }
}

/// Identities of one kind, with their owners in the order of their arrival in each partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The hash of the identities.
    pub hash: HashKind,
    /// The kind of the records.
    pub kind: KindId,
    /// The owners; those of one partition should be consecutive, and their offsets ascend.
    pub owners: Vec<Owner>,
}

/// Why bytes are not a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Too short, or shorter than its header requires.
    #[error("block is truncated: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes present.
        have: usize,
        /// Bytes that the header requires.
        need: usize,
    },
    /// The first four bytes are not those of a block that this version can read.
    #[error("not a record of this version of dedupd: it starts with {0:02x?}")]
    Magic([u8; 4]),
    /// The checksum does not match the content.
    #[error("block checksum mismatch: stored {found:08x}, computed {computed:08x}")]
    Checksum {
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// The checksum matches but a field has an impossible value.
    #[error("block is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl Block {
    /// Bytes of an encoded block without its owners.
    pub const MOST_BYTES_BESIDE_IDS: u64 = (HEADER_BYTES + CRC_BYTES) as u64;
    /// Most bytes of an owner: partition and count of its run (5 each), offset and time (10 each), the digest, and the identity.
    pub const MOST_BYTES_OF_ID: u64 = 50;

    /// The block as stored in a journal (docs/state-format.md): typically 23 bytes for an owner.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + CRC_BYTES + self.owners.len() * 24);
        let (kind, key_id) = hash_code(self.hash);
        let rule = Digest::rule_of(self.owners.iter().map(|owner| owner.digest));
        let base_ms = self.owners.first().map_or(0, |owner| owner.time_ms);
        out.extend_from_slice(&MAGIC);
        out.push(kind);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&self.kind.number().to_le_bytes());
        out.extend_from_slice(&rule.to_le_bytes());
        out.extend_from_slice(&base_ms.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.owners.len()).unwrap_or(u32::MAX).to_le_bytes());
        push_places(&mut out, &self.owners, base_ms);
        for owner in self.owners.iter().filter(|_| rule != 0) {
            out.extend_from_slice(&owner.digest.in_group(rule).to_le_bytes());
        }
        for owner in &self.owners {
            out.extend_from_slice(&owner.identity.0);
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a block and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let content = verified_content(bytes, MAGIC)?;
        let [kind] = take(content, 4)?;
        let hash = hash_of(kind, u64::from_le_bytes(take(content, 5)?))?;
        let kind = KindId::numbered(u16::from_le_bytes(take(content, 13)?));
        let rule = u32::from_le_bytes(take(content, 15)?);
        let base_ms = i64::from_le_bytes(take(content, 19)?);
        let count = u32::from_le_bytes(take(content, 27)?) as usize;
        let [digests, identities] =
            [if rule == 0 { 0 } else { DIGEST_BYTES }, 16].map(|it| count.saturating_mul(it));
        let need = HEADER_BYTES.saturating_add(digests).saturating_add(identities);
        let truncated = BlockError::Truncated { have: content.len(), need };
        let rest = content.get(HEADER_BYTES..).ok_or_else(|| truncated.clone())?;
        let (rest, identities) = split_end(rest, identities).ok_or_else(|| truncated.clone())?;
        let (places, digests) = split_end(rest, digests).ok_or(truncated)?;
        let mut owners = Vec::with_capacity(count);
        let mut identities = identities.as_chunks::<16>().0.iter();
        let mut digests = digests.as_chunks::<DIGEST_BYTES>().0.iter();
        read_places(places, base_ms, |at: Coordinates, time_ms| {
            let identity =
                identities.next().ok_or(BlockError::Inconsistent("more owners than identities"))?;
            let digest = Digest::stored(rule, digests.next().map_or(0, |it| u32::from_le_bytes(*it)));
            owners.push(Owner { at, time_ms, identity: Identity(*identity), digest });
            Ok(())
        })?;
        if identities.next().is_some() {
            return Err(BlockError::Inconsistent("fewer owners than identities"));
        }
        Ok(Self { hash, kind, owners })
    }
}

/// Splits before the last `count` bytes.
fn split_end(bytes: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(bytes.len().checked_sub(count)?)
}

/// The persistent form of a hash: its kind and the id of its key.
pub(super) fn hash_code(hash: HashKind) -> (u8, u64) {
    match hash {
        HashKind::Xxh3 => (0, 0),
        HashKind::SipHash { key_id } => (1, key_id),
    }
}

pub(super) fn hash_of(kind: u8, key_id: u64) -> Result<HashKind, BlockError> {
    match kind {
        0 => Ok(HashKind::Xxh3),
        1 => Ok(HashKind::SipHash { key_id }),
        _ => Err(BlockError::Inconsistent("unknown hash kind")),
    }
}

/// The content of an encoded record: all but the CRC32C at its end, which is verified. It starts with `magic`.
pub(super) fn verified_content(bytes: &[u8], magic: [u8; 4]) -> Result<&[u8], BlockError> {
    let (content, crc) = bytes.split_at(bytes.len().saturating_sub(CRC_BYTES));
    let stored = u32::from_le_bytes(take(crc, 0)?);
    let start = take(content, 0)?;
    if start != magic {
        return Err(BlockError::Magic(start));
    }
    let computed = crc32c::crc32c(content);
    if stored != computed {
        return Err(BlockError::Checksum { found: stored, computed });
    }
    Ok(content)
}

/// The `N` bytes at position `at`.
pub(super) fn take<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BlockError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(BlockError::Truncated { have: bytes.len(), need: at + N })
}
