//! The places and times of the owners in a block, as varints (LEB128).
//!
//! A run of owners of one partition: the partition, the count of owners, and for each of them the distance of its offset from that of the one
//! before it in the run (the first: from 0) and the distance of its time from that of the owner before it in the block, which may be negative
//! (zigzag).

use super::{BlockError, Owner};
use crate::dedupe::coordinates::Coordinates;

/// Appends the places and times of owners.
pub(super) fn push_places(out: &mut Vec<u8>, owners: &[Owner], base_ms: i64) {
    let mut time_ms = base_ms;
    let is_run = |one: &Owner, other: &Owner| {
        one.at.partition == other.at.partition && one.at.offset <= other.at.offset
    };
    for run in owners.chunk_by(is_run) {
        push_varint(out, u64::from(run.first().map_or(0, |owner| owner.at.partition)));
        push_varint(out, run.len() as u64);
        let mut offset = 0;
        for owner in run {
            push_varint(out, owner.at.offset - offset);
            push_varint(out, zigzag(owner.time_ms.wrapping_sub(time_ms)));
            (offset, time_ms) = (owner.at.offset, owner.time_ms);
        }
    }
}

/// Visits the places and times. Fails at one that no owner has: no store would take it.
pub(super) fn read_places(
    mut bytes: &[u8],
    base_ms: i64,
    mut visit: impl FnMut(Coordinates, i64) -> Result<(), BlockError>,
) -> Result<(), BlockError> {
    let mut time_ms = base_ms;
    while !bytes.is_empty() {
        let partition = u32::try_from(take_varint(&mut bytes)?);
        let partition = partition.map_err(|_| BlockError::Inconsistent("a partition beyond 32 bits"))?;
        let (count, mut offset) = (take_varint(&mut bytes)?, 0_u64);
        for _ in 0..count {
            let distance = take_varint(&mut bytes)?;
            offset = offset.checked_add(distance).ok_or(BlockError::Inconsistent("offset overflow"))?;
            time_ms = time_ms.wrapping_add(unzigzag(take_varint(&mut bytes)?));
            let at = Coordinates { partition, offset };
            if !Owner::is_possible(at, time_ms) {
                return Err(BlockError::Inconsistent("an owner with an impossible place or time"));
            }
            visit(at, time_ms)?;
        }
    }
    Ok(())
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value.to_le_bytes()[0] & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[inline]
fn take_varint(bytes: &mut &[u8]) -> Result<u64, BlockError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else {
            return Err(BlockError::Inconsistent("fewer places than identities"));
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BlockError::Inconsistent("a number longer than 64 bits"))
}
