//! Assigns a raw record to each ambiguous clean record: one whose fingerprint several raw records share.
//!
//! Several raw records may share an id (the later ones came after the window, or are forced) or a content
//! (records without an id). Any assignment that explains all of them is correct; a wrong one would turn one
//! loss into many findings. So the unambiguous records are the anchors, and the others are placed between
//! them, in order: first those that share an id, then, between all of these, those that share a content.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::entry::{Ambiguous, Chain, Copy, Link, Marks, RecordRow};
use super::increasing::{Copies, Marked};
use super::spill::{Cursor, Scratch, Sorted, Sorter, SpillFile};
use crate::dedupe::Offset;

/// How many candidates are checked before a record counts as none of them.
const SEARCH_LIMIT: usize = 1024;

/// Assigns raw records to ambiguous clean records, between those that are already matched.
pub(super) struct Choice<'a> {
    scratch: &'a Scratch,
    chains: &'a SpillFile<RecordRow>,
    random_access: Cursor<RecordRow>,
    /// The records that are matched now.
    pub copies: Sorter<Copy>,
    /// Raw offsets assigned in the first round.
    taken: Sorter<Link<Offset>>,
    /// Records without a match after the first round.
    rest: Sorter<Link<Ambiguous>>,
}

impl<'a> Choice<'a> {
    pub fn new(scratch: &'a Scratch, chains: &'a SpillFile<RecordRow>) -> Self {
        let unit = scratch.unit();
        Self {
            scratch,
            chains,
            random_access: chains.random_access(),
            copies: Sorter::new(scratch, unit),
            taken: Sorter::new(scratch, unit),
            rest: Sorter::new(scratch, unit),
        }
    }

    /// Assigns the records that fit between their anchors first, then the rest.
    pub fn all(mut self, ambiguous: &mut Sorted<Ambiguous>, singles: &Copies) -> io::Result<Sorter<Copy>> {
        let members = singles.longest_increasing(self.scratch)?;
        let mut anchors = Anchors::new(singles.marked(&members))?;
        let mut low = 0;
        while let Some(record) = ambiguous.next()? {
            let mut gap = anchors.around(record.clean_offset)?;
            gap.start = gap.start.max(low);
            if let Some(entry) = self.fitting(&record, gap)? {
                low = entry.offset + 1;
                self.taken.push(Link { chain: record.chain, of: entry.offset })?;
                self.assign(&record, &entry)?;
            } else {
                self.rest.push(Link { chain: record.chain, of: record })?;
            }
        }
        self.elsewhere()
    }

    fn assign(&mut self, record: &Ambiguous, entry: &RecordRow) -> io::Result<()> {
        self.copies.push(Copy::new(record.clean_offset, &record.content, entry, record.chain))
    }

    fn link(&mut self, row: u64) -> io::Result<Option<RecordRow>> {
        self.random_access.at(self.chains, row)
    }

    /// The first record of the chain in the gap that has this content. Records that are already taken are
    /// before the gap.
    fn fitting(&mut self, record: &Ambiguous, gap: Range<Offset>) -> io::Result<Option<RecordRow>> {
        let end = record.chain.start + record.chain.len;
        let (mut from, mut to) = (record.chain.start, end);
        while from < to {
            let middle = from + (to - from) / 2;
            if self.link(middle)?.is_some_and(|entry| entry.offset < gap.start) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        for row in (from..end).take(SEARCH_LIMIT) {
            match self.link(row)? {
                Some(entry) if entry.offset >= gap.end => break,
                Some(entry) if entry.content == record.content => return Ok(Some(entry)),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Assigns the remaining records, chain by chain.
    fn elsewhere(mut self) -> io::Result<Sorter<Copy>> {
        let rest = std::mem::replace(&mut self.rest, Sorter::new(self.scratch, 0));
        let taken = std::mem::replace(&mut self.taken, Sorter::new(self.scratch, 0));
        let (mut rest, mut taken) = (rest.sorted()?, taken.sorted()?);
        while let Some(chain) = rest.peek().map(|link| link.chain) {
            let mut untaken = Untaken { next: chain.start, chain, found: VecDeque::new() };
            while let Some(Link { of: record, .. }) = rest.next_if(|link| link.chain == chain)? {
                untaken.fill(&mut self, &mut taken)?;
                if let Some(entry) = self.chosen(&record, &mut untaken)? {
                    self.assign(&record, &entry)?;
                }
            }
        }
        Ok(self.copies)
    }

    /// In this order: an untaken due record with this content (it moved), any with this content (a duplicate),
    /// an untaken due one (it changed), the first (a duplicate).
    fn chosen(&mut self, record: &Ambiguous, untaken: &mut Untaken) -> io::Result<Option<RecordRow>> {
        let same = |entry: &RecordRow| entry.content == record.content;
        if let Some(at) = untaken.found.iter().position(same) {
            return Ok(untaken.found.remove(at));
        }
        let chain = record.chain;
        for row in (chain.start..chain.start + chain.len).take(SEARCH_LIMIT) {
            if let Some(entry) = self.link(row)?.filter(same) {
                return Ok(Some(entry));
            }
        }
        match untaken.found.pop_front() {
            Some(entry) => Ok(Some(entry)),
            None => self.link(chain.start),
        }
    }
}

/// The first due records of a chain that no clean record has taken.
struct Untaken {
    chain: Chain,
    /// Number of the first row that is not yet read.
    next: u64,
    found: VecDeque<RecordRow>,
}

impl Untaken {
    /// Reads on until `found` has [`SEARCH_LIMIT`] records or the chain ends.
    fn fill(&mut self, choice: &mut Choice<'_>, taken: &mut Sorted<Link<Offset>>) -> io::Result<()> {
        let end = self.chain.start + self.chain.len;
        while self.found.len() < SEARCH_LIMIT && self.next < end {
            let Some(entry) = choice.link(self.next)? else { break };
            self.next += 1;
            let here = Link { chain: self.chain, of: entry.offset };
            while taken.next_if(|link| *link < here)?.is_some() {}
            if entry.marks.has(Marks::DUE) && taken.peek() != Some(here) {
                self.found.push_back(entry);
            }
        }
        Ok(())
    }
}

/// The copies that are in order, read in step with other records.
struct Anchors<'a> {
    marked: Marked<'a>,
    /// One past the raw offset of the last anchor.
    start: Offset,
    ahead: Option<Copy>,
}

impl<'a> Anchors<'a> {
    fn new(marked: Marked<'a>) -> io::Result<Self> {
        let mut anchors = Self { marked, start: 0, ahead: None };
        anchors.advance()?;
        Ok(anchors)
    }

    fn advance(&mut self) -> io::Result<()> {
        loop {
            self.ahead = match self.marked.next()? {
                Some((_, false)) => continue,
                Some((copy, true)) => Some(copy),
                None => None,
            };
            return Ok(());
        }
    }

    /// The raw offsets between the anchors around a clean offset, which increases from call to call.
    fn around(&mut self, clean_offset: Offset) -> io::Result<Range<Offset>> {
        while let Some(copy) = self.ahead.filter(|copy| copy.clean_offset < clean_offset) {
            self.start = copy.raw_offset + 1;
            self.advance()?;
        }
        Ok(self.start..self.ahead.map_or(Offset::MAX, |copy| copy.raw_offset))
    }
}
