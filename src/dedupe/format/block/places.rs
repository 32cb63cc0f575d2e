//! The places and times of the owners in a block, as varints (LEB128).
//!
//! A run of owners of one partition: the partition, the count of owners, and for each of them the distance of its offset from that of the one
//! before it in the run (the first: from 0) and the distance of its time from that of the owner before it in the block, which may be negative
//! (zigzag).

use super::{BlockError, Owner};
use crate::dedupe::coordinates::Coordinates;
use crate::dedupe::varint;

/// Appends the places and times of owners.
pub(super) fn push_places(out: &mut Vec<u8>, owners: &[Owner], base_ms: i64) {
    let mut time_ms = base_ms;
    let is_run = |one: &Owner, other: &Owner| {
        one.at.partition == other.at.partition && one.at.offset <= other.at.offset
    };
    for run in owners.chunk_by(is_run) {
        varint::push(out, u64::from(run.first().map_or(0, |owner| owner.at.partition)));
        varint::push(out, run.len() as u64);
        let mut offset = 0;
        for owner in run {
            varint::push(out, owner.at.offset - offset);
            varint::push(out, varint::zigzag(owner.time_ms.wrapping_sub(time_ms)));
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
        let partition = u32::try_from(take(&mut bytes)?);
        let partition = partition.map_err(|_| BlockError::Inconsistent("a partition beyond 32 bits"))?;
        let (count, mut offset) = (take(&mut bytes)?, 0_u64);
        for _ in 0..count {
            let distance = take(&mut bytes)?;
            offset = offset.checked_add(distance).ok_or(BlockError::Inconsistent("offset overflow"))?;
            time_ms = time_ms.wrapping_add(varint::unzigzag(take(&mut bytes)?));
            let at = Coordinates { partition, offset };
            if !Owner::is_possible(at, time_ms) {
                return Err(BlockError::Inconsistent("an owner with an impossible place or time"));
            }
            visit(at, time_ms)?;
        }
    }
    Ok(())
}

fn take(bytes: &mut &[u8]) -> Result<u64, BlockError> {
    varint::take(bytes)
        .ok_or(BlockError::Inconsistent("places that end early, or a number longer than 64 bits"))
}
