//! The offset deltas of a block: the rank of an owner among the owners.

use super::BlockError;
use crate::dedupe::coordinates::Offset;

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

    #[inline]
    pub(super) fn step(&mut self) -> Result<Offset, BlockError> {
        match self.bytes.split_first() {
            Some((delta, rest)) if *delta < 0x80 => {
                self.bytes = rest;
                self.advance(u64::from(*delta))
            }
            _ => self.step_far(),
        }
    }

    fn advance(&mut self, delta: u64) -> Result<Offset, BlockError> {
        self.offset = self.offset.checked_add(delta).ok_or(BlockError::Inconsistent("offset overflow"))?;
        Ok(self.offset)
    }

    /// A delta of any length.
    fn step_far(&mut self) -> Result<Offset, BlockError> {
        let mut delta = 0u64;
        for shift in (0..64).step_by(7) {
            let Some((byte, rest)) = self.bytes.split_first() else {
                return Err(BlockError::Inconsistent("fewer deltas than identities"));
            };
            self.bytes = rest;
            delta |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return self.advance(delta);
            }
        }
        Err(BlockError::Inconsistent("offset delta longer than 64 bits"))
    }
}

/// Bytes that [`push_varint`] appends.
pub(super) fn varint_bytes(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}

pub(super) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value.to_le_bytes()[0] & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
