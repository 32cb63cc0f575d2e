//! The offset deltas of a block: the rank of an owner among the owners.

use std::ops::Range;

use super::{BlockError, CRC_BYTES, HEADER_BYTES};
use crate::dedupe::coordinates::Offset;

/// Positions of the parts of an encoded block, for reading one identity from a block on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockParts {
    /// The offset deltas; the identities follow.
    pub deltas: Range<usize>,
}

impl BlockParts {
    /// The parts of a block of `bytes` bytes with `count` identities; `None` when no such block can exist.
    #[must_use]
    pub fn of(bytes: usize, count: usize) -> Option<Self> {
        let identities = bytes.checked_sub(CRC_BYTES)?.checked_sub(count.checked_mul(16)?)?;
        (identities >= HEADER_BYTES + count).then_some(Self { deltas: HEADER_BYTES..identities })
    }

    /// Byte position of the identity of the record at `owner`, in a block that begins at `first` and has these
    /// deltas; `None` when the record owns none. No checksum is verified, so the caller must compare the bytes at this
    /// position with the identity that it expects.
    #[must_use]
    pub fn identity_at(&self, deltas: &[u8], first: Offset, owner: Offset) -> Option<usize> {
        let rank = rank_of(owner, Deltas::new(deltas, first)).ok()??;
        Some(self.deltas.end + rank * 16)
    }
}

/// Number of owners before this one; `None` when `owner` is not an owner.
pub(super) fn rank_of(owner: Offset, mut deltas: Deltas<'_>) -> Result<Option<usize>, BlockError> {
    let mut rank = deltas.skip_below(owner);
    while !deltas.bytes.is_empty() {
        let offset = deltas.step()?;
        if offset >= owner {
            return Ok((offset == owner).then_some(rank));
        }
        rank += 1;
    }
    Ok(None)
}

/// An iteration over the deltas.
pub(super) struct Deltas<'a> {
    bytes: &'a [u8],
    offset: Offset,
}

impl<'a> Deltas<'a> {
    pub(super) fn new(bytes: &'a [u8], first: Offset) -> Self {
        Self { bytes, offset: first }
    }

    pub(super) fn is_done(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Skips groups of 64 one-byte deltas whose owners are all below `owner`; returns the number of deltas skipped.
    /// A sum over 64 bytes takes a few vector instructions, 64 calls of [`Deltas::step`] take hundreds.
    fn skip_below(&mut self, owner: Offset) -> usize {
        const GROUP: usize = 64;
        let mut skipped = 0;
        while let Some((group, rest)) = self.bytes.split_first_chunk::<GROUP>() {
            let longer = group.iter().fold(0, |seen, byte| seen | byte) & 0x80 != 0;
            let sum: u32 = group.iter().map(|byte| u32::from(*byte)).sum();
            let last = self.offset.saturating_add(u64::from(sum));
            if longer || last >= owner {
                break;
            }
            (self.bytes, self.offset) = (rest, last);
            skipped += GROUP;
        }
        skipped
    }

    /// The next owner.
    pub(super) fn step(&mut self) -> Result<Offset, BlockError> {
        let mut delta = 0u64;
        for shift in (0..64).step_by(7) {
            let Some((byte, rest)) = self.bytes.split_first() else {
                return Err(BlockError::Inconsistent("fewer deltas than identities"));
            };
            self.bytes = rest;
            delta |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                self.offset =
                    self.offset.checked_add(delta).ok_or(BlockError::Inconsistent("offset overflow"))?;
                return Ok(self.offset);
            }
        }
        Err(BlockError::Inconsistent("offset delta longer than 64 bits"))
    }
}

pub(super) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value.to_le_bytes()[0] & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
