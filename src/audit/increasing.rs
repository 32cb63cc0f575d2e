//! The longest increasing subsequence of the raw offsets of the clean records, in bounded memory.
//!
//! The records outside it are the minimum that must have moved. So one record out of place is one finding, and
//! not one for each record that it passed. Patience sorting with predecessor links, O(n log n) (Fredman 1975).
//! The links are followed from the last to the first and always point to earlier rows, so they are in a spill
//! file that is read backward. The piles are in pages; only those in use are in memory.

use std::io;

use super::entry::Copy;
use super::spill::{Backward, Cursor, Pages, Scratch, Sorted, Sorter, SpillFile};

/// No predecessor.
const NONE: u64 = u64::MAX;

/// Clean records that have a raw record, by increasing clean offset.
#[derive(Debug)]
pub(super) struct Copies {
    file: SpillFile<Copy>,
    last: Option<u64>,
    /// Whether all raw offsets are strictly increasing.
    pub increasing: bool,
}

impl Copies {
    fn new(scratch: &Scratch) -> Self {
        Self { file: SpillFile::new(scratch), last: None, increasing: true }
    }

    /// Collects all of `sorted`.
    pub fn of(scratch: &Scratch, sorted: &mut Sorted<Copy>) -> io::Result<Self> {
        let mut copies = Self::new(scratch);
        while let Some(copy) = sorted.next()? {
            copies.push(&copy)?;
        }
        Ok(copies)
    }

    /// Merges in `others`.
    pub fn and(self, scratch: &Scratch, others: Sorter<Copy>) -> io::Result<Self> {
        let mut others = others.sorted()?;
        let mut both = Self::new(scratch);
        let mut cursor = self.file.cursor(0, NONE);
        while let Some(copy) = cursor.next(&self.file)? {
            while let Some(other) = others.next_if(|other| other.clean_offset < copy.clean_offset)? {
                both.push(&other)?;
            }
            both.push(&copy)?;
        }
        while let Some(other) = others.next()? {
            both.push(&other)?;
        }
        Ok(both)
    }

    fn push(&mut self, copy: &Copy) -> io::Result<()> {
        self.increasing &= self.last.is_none_or(|last| last < copy.raw_offset);
        self.last = Some(copy.raw_offset);
        self.file.push(copy)
    }

    /// Reads all copies, each with whether it belongs to the longest increasing subsequence.
    pub fn marked<'a>(&'a self, members: &'a Members) -> Marked<'a> {
        Marked { copies: self, cursor: self.file.cursor(0, NONE), members, walk: members.walk(), row: 0 }
    }

    /// Finds the longest strictly increasing subsequence; of several, the one that patience sorting finds.
    pub fn longest_increasing(&self, scratch: &Scratch) -> io::Result<Members> {
        if self.increasing {
            return Ok(Members(None));
        }
        let mut piles = Pages::new(scratch);
        let mut before: SpillFile<u64> = SpillFile::new(scratch);
        let mut cursor = self.file.cursor(0, NONE);
        let mut row = 0;
        while let Some(copy) = cursor.next(&self.file)? {
            let length = lower_bound(&mut piles, copy.raw_offset)?;
            let shorter = match length.checked_sub(1) {
                Some(shorter) => piles.at(shorter)?,
                None => None,
            };
            before.push(&shorter.map_or(NONE, |(_, row)| row))?;
            piles.set(length, (copy.raw_offset, row))?;
            row += 1;
        }
        let mut members = SpillFile::new(scratch);
        let mut links = before.backward();
        let mut at = match piles.len().checked_sub(1) {
            Some(last) => piles.at(last)?.map(|(_, row)| row),
            None => None,
        };
        while let Some(member) = at {
            members.push(&member)?;
            at = links.at(&before, member)?.filter(|link| *link != NONE);
        }
        Ok(Members(Some(members)))
    }
}

/// The number of piles that end below a raw offset.
fn lower_bound(piles: &mut Pages, raw_offset: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, piles.len());
    // It is nearly always the last pile.
    let mut look = high.saturating_sub(1);
    while low < high {
        if piles.at(look)?.is_some_and(|(end, _)| end < raw_offset) {
            low = look + 1;
        } else {
            high = look;
        }
        look = low + (high - low) / 2;
    }
    Ok(low)
}

/// The rows of the longest increasing subsequence, last first; `None` if it has all rows.
#[derive(Debug)]
pub(super) struct Members(Option<SpillFile<u64>>);

impl Members {
    fn walk(&self) -> Option<Walk> {
        self.0.as_ref().map(|file| Walk { rows: file.backward(), next: None, begun: false })
    }
}

#[derive(Debug)]
struct Walk {
    rows: Backward<u64>,
    next: Option<u64>,
    begun: bool,
}

/// Copies in clean order, each with whether it belongs to the longest increasing subsequence.
#[derive(Debug)]
pub(super) struct Marked<'a> {
    copies: &'a Copies,
    cursor: Cursor<Copy>,
    members: &'a Members,
    walk: Option<Walk>,
    row: u64,
}

impl Marked<'_> {
    /// The next copy, and whether it belongs to the longest increasing subsequence.
    pub fn next(&mut self) -> io::Result<Option<(Copy, bool)>> {
        let Some(copy) = self.cursor.next(&self.copies.file)? else { return Ok(None) };
        let row = self.row;
        self.row += 1;
        let (Some(walk), Some(rows)) = (&mut self.walk, &self.members.0) else {
            return Ok(Some((copy, true)));
        };
        if !walk.begun {
            walk.begun = true;
            walk.next = walk.rows.next(rows)?;
        }
        let is_member = walk.next == Some(row);
        if is_member {
            walk.next = walk.rows.next(rows)?;
        }
        Ok(Some((copy, is_member)))
    }
}
