//! The offset deltas of a block.

use super::BlockError;
use crate::dedupe::coordinates::Offset;

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
