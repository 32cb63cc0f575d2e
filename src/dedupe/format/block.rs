//! The block: packed identities with their owners. It is the unit of the state topic and of the export file.
//!
//! Layout, little endian (version 1):
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic and version, `DDB1` |
//! | 1 | hash kind: 0 = XXH3-128, 1 = `SipHash` 128 |
//! | 8 | hash key id (0 for XXH3) |
//! | 4 | window id: kind and partition |
//! | 8 | first offset covered |
//! | 8 | next offset, one past the last covered |
//! | 8 | stream time at the first record, epoch milliseconds |
//! | 8 | stream time at the last record, epoch milliseconds |
//! | 4 | count of identities |
//! | count × varint | offset deltas (LEB128): the first from `first`, each further one from its predecessor |
//! | count × 16 | identities, in the order of their owners |
//! | 4 | CRC32C of all preceding bytes |
//!
mod deltas;

use std::mem;
use std::ops::Range;

use crate::dedupe::coordinates::Offset;
use crate::dedupe::identity::{HashKind, Identity, WindowId};
use deltas::{Deltas, push_varint, varint_bytes};

const MAGIC: [u8; 4] = *b"DDB1";
const HEADER_BYTES: usize = 4 + 1 + 8 + 4 + 8 + 8 + 8 + 8 + 4;
pub(super) const CRC_BYTES: usize = 4;

/// The identities of one kind in one contiguous range of raw offsets of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The hash of the identities.
    pub hash: HashKind,
    /// The window that the identities belong to.
    pub window: WindowId,
    /// First raw offset covered by the block (not necessarily an owner).
    pub first: Offset,
    /// One past the last raw offset covered by the block.
    pub next: Offset,
    /// Stream time when the first covered record arrived, epoch milliseconds.
    pub time_first_ms: i64,
    /// Stream time when the last covered record arrived, epoch milliseconds.
    pub time_last_ms: i64,
    /// Owners and their identities, in ascending offset order, each in `first..next`.
    pub entries: Vec<(Offset, Identity)>,
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
    /// Bytes of an encoded block without its entries.
    pub const MOST_BYTES_BESIDE_IDS: u64 = (HEADER_BYTES + CRC_BYTES) as u64;
    /// Most bytes of an entry: a varint of up to 10 bytes, and the identity.
    pub const MOST_BYTES_OF_ID: u64 = 26;

    /// A block without entries. Both of its times are `time_ms`.
    #[must_use]
    pub fn empty(hash: HashKind, window: WindowId, covered: Range<Offset>, time_ms: i64) -> Self {
        Self {
            hash,
            window,
            first: covered.start,
            next: covered.end,
            time_first_ms: time_ms,
            time_last_ms: time_ms,
            entries: Vec::new(),
        }
    }

    /// Bytes of the encoded block: at most 61 + 26 × entries, typically 17 per entry.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let mut previous = self.first;
        let delta = |owner: Offset| owner.saturating_sub(mem::replace(&mut previous, owner));
        let deltas = self.entries.iter().map(|(owner, _)| *owner).map(delta);
        HEADER_BYTES + CRC_BYTES + deltas.map(Self::entry_bytes).sum::<usize>()
    }

    /// Bytes of an entry whose owner follows its predecessor at this distance.
    #[must_use]
    pub fn entry_bytes(delta: u64) -> usize {
        varint_bytes(delta) + 16
    }

    /// The block as stored in the state topic (docs/state-format.md).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_bytes());
        let (kind, key_id) = hash_code(self.hash);
        out.extend_from_slice(&MAGIC);
        out.push(kind);
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&self.window.number().to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&self.time_first_ms.to_le_bytes());
        out.extend_from_slice(&self.time_last_ms.to_le_bytes());
        out.extend_from_slice(&u32::try_from(self.entries.len()).unwrap_or(u32::MAX).to_le_bytes());
        let mut previous = self.first;
        for (offset, _) in &self.entries {
            push_varint(&mut out, offset.saturating_sub(previous));
            previous = *offset;
        }
        for (_, identity) in &self.entries {
            out.extend_from_slice(&identity.0);
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Byte position of the identities in an encoded block of `bytes` bytes with `count` identities; `None` when no such
    /// block can exist.
    fn identities_at(bytes: usize, count: usize) -> Option<usize> {
        let at = bytes.checked_sub(CRC_BYTES)?.checked_sub(count.checked_mul(16)?)?;
        (at >= HEADER_BYTES + count).then_some(at)
    }

    /// Decodes a whole block and verifies its checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        BlockView::verified(bytes)?.to_block()
    }
}

/// A block read in place: the header is parsed, the entries are not copied.
#[derive(Debug)]
pub struct BlockView<'a> {
    /// The header's fields; `entries` is empty.
    pub header: Block,
    encoded: &'a [u8],
    count: usize,
    deltas: &'a [u8],
    identities: &'a [u8],
}

impl<'a> BlockView<'a> {
    /// Parses and verifies the checksum: for bytes from disk or network.
    pub fn verified(bytes: &'a [u8]) -> Result<Self, BlockError> {
        verified_content(bytes, MAGIC)?;
        Self::parse(bytes)
    }

    /// Parses without computing the checksum: for bytes that were verified when they entered memory.
    pub fn trusted(bytes: &'a [u8]) -> Result<Self, BlockError> {
        Self::parse(bytes)
    }

    fn parse(encoded: &'a [u8]) -> Result<Self, BlockError> {
        let content = encoded.get(..encoded.len().saturating_sub(CRC_BYTES)).unwrap_or_default();
        let magic = take(content, 0)?;
        if magic != MAGIC {
            return Err(BlockError::Magic(magic));
        }
        let [kind] = take(content, 4)?;
        let key_id = u64::from_le_bytes(take(content, 5)?);
        let header = Block {
            hash: hash_of(kind, key_id)?,
            window: WindowId::numbered(u32::from_le_bytes(take(content, 13)?)),
            first: u64::from_le_bytes(take(content, 17)?),
            next: u64::from_le_bytes(take(content, 25)?),
            time_first_ms: i64::from_le_bytes(take(content, 33)?),
            time_last_ms: i64::from_le_bytes(take(content, 41)?),
            entries: Vec::new(),
        };
        let count = u32::from_le_bytes(take(content, 49)?) as usize;
        let (deltas, identities) = Block::identities_at(encoded.len(), count)
            .and_then(|at| Some((content.get(HEADER_BYTES..at)?, content.get(at..)?)))
            .ok_or(BlockError::Truncated {
                have: content.len(),
                need: HEADER_BYTES + count.saturating_mul(17),
            })?;
        if header.first > header.next {
            return Err(BlockError::Inconsistent("first offset beyond next offset"));
        }
        Ok(Self { header, encoded, count, deltas, identities })
    }

    /// The encoded block, including header and checksum.
    #[must_use]
    pub fn encoded(&self) -> &'a [u8] {
        self.encoded
    }

    /// Number of identities in the block.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// A copy with its entries.
    pub fn to_block(&self) -> Result<Block, BlockError> {
        let mut entries = Vec::with_capacity(self.count);
        self.for_each(|offset, identity| entries.push((offset, identity)))?;
        Ok(Block { entries, ..self.header })
    }

    /// Visits every owner and identity in ascending offset order.
    pub fn for_each(&self, mut visit: impl FnMut(Offset, Identity)) -> Result<(), BlockError> {
        let mut walk = Deltas::new(self.deltas, self.header.first);
        for identity in self.identities.as_chunks::<16>().0 {
            let offset = walk.step()?;
            if offset >= self.header.next {
                return Err(BlockError::Inconsistent("owner beyond the covered range"));
            }
            visit(offset, Identity(*identity));
        }
        if walk.is_done() { Ok(()) } else { Err(BlockError::Inconsistent("more deltas than identities")) }
    }
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
