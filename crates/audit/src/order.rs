//! The longest increasing subsequence of the raw offsets of the clean records.
//!
//! The partitions are taken one after the other, in raw and in clean. A clean record is only matched to raw records of its
//! partition, so the subsequence is those of all partitions, one after the other.
//!
//! The records outside it are the minimum that must have moved. So one record out of place is one finding, and
//! not one for each record that it passed. Patience sorting with predecessor links, O(n log n) (Fredman 1975).

use std::io;

use super::entry::{Copy, Place, Round};
use super::spill::{Scratch, Table, encode_fields};
use super::{Offset, PartitionId};

/// No predecessor.
const NONE: u64 = u64::MAX;

/// The end of the best subsequence of one length: the one with the lowest end.
#[derive(Debug, Clone, Copy)]
struct Pile {
    partition: PartitionId,
    end: Offset,
    /// Row of the end.
    row: u64,
}

encode_fields!(Pile { partition: PartitionId, end: Offset, row: u64 });

impl Pile {
    fn end(&self) -> Place {
        (self.partition, self.end)
    }
}

/// Sets `in_order` of the copies in a longest strictly increasing subsequence, and only of those. Considers the
/// copies that were assigned before `round`.
pub(super) fn mark_order(scratch: &Scratch, copies: &mut Table<Copy>, round: Round) -> io::Result<()> {
    let mut piles: Table<Pile> = Table::new(scratch);
    let mut before: Table<u64> = Table::new(scratch);
    for row in 0..copies.len() {
        let Some(copy) = copies.get(row)? else { break };
        if copy.round >= round {
            before.push(NONE)?;
            continue;
        }
        let length = count_below(&mut piles, copy.raw_place())?;
        before.push(last_of(&mut piles, length)?)?;
        piles.set(length, Pile { partition: copy.partition, end: copy.raw_offset, row })?;
    }
    let length = piles.len();
    let mut member = last_of(&mut piles, length)?;
    for row in (0..copies.len()).rev() {
        let is_member = row == member;
        if is_member {
            member = before.get(row)?.unwrap_or(NONE);
        }
        if let Some(copy) = copies.get(row)?.filter(|copy| copy.in_order != is_member) {
            copies.set(row, Copy { in_order: is_member, ..copy })?;
        }
    }
    Ok(())
}

/// Row of the last member of the best subsequence with this length.
fn last_of(piles: &mut Table<Pile>, length: u64) -> io::Result<u64> {
    let Some(pile) = length.checked_sub(1) else { return Ok(NONE) };
    Ok(piles.get(pile)?.map_or(NONE, |pile| pile.row))
}

/// The number of piles that end before a raw record.
fn count_below(piles: &mut Table<Pile>, raw: Place) -> io::Result<u64> {
    let end = piles.len();
    // It is nearly always the last pile.
    match piles.get(end.saturating_sub(1))? {
        Some(last) if last.end() >= raw => piles.first_not(0..end - 1, |pile| pile.end() < raw),
        _ => Ok(end),
    }
}
