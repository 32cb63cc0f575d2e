//! Assigns a raw record to each ambiguous clean record: one whose fingerprint several raw records share.
//!
//! Several raw records may share an id (the later ones came after the window, or are forced) or a content
//! (records without an id). Any assignment that explains all of them is correct; a wrong one would turn one
//! loss into many findings. So the unambiguous records are the anchors, and the others are placed between
//! them, in order: first those that share an id, then, between all of these, those that share a content.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::entry::{Ambiguous, Chain, Copy, Link, Marks, Place, Record, Round};
use super::order::mark_order;
use super::record::Content;
use super::spill::{Scratch, Sorter, Table};
use super::{Offset, PartitionId};

/// How many candidates are checked before a record counts as none of them.
const SEARCH_LIMIT: usize = 1024;

/// A raw record with its row among the chains.
type Candidate = (u64, Record);

/// After every record.
const END: Place = (PartitionId::MAX, Offset::MAX);

/// Assigns raw records to ambiguous clean records, between those that are already matched.
pub(super) struct Choice<'a> {
    pub scratch: &'a Scratch,
    pub copies: &'a mut Table<Copy>,
    pub chains: &'a mut Table<Record>,
    pub ambiguous: &'a mut Table<Ambiguous>,
}

impl Choice<'_> {
    /// Assigns the copies of a round: those that fit between their anchors first, then the rest.
    pub fn assign_all(&mut self, round: Round) -> io::Result<()> {
        mark_order(self.scratch, self.copies, round)?;
        let mut rest = Sorter::new(self.scratch, 2, Link::by_chain);
        let mut gap = (0, 0)..END;
        // The row of the anchor at the end of the gap.
        let mut anchor = None;
        for row in 0..self.copies.len() {
            if anchor.is_none_or(|anchor| anchor < row) {
                (anchor, gap.end) = self.next_anchor(row)?;
            }
            let Some(copy) = self.copies.get(row)? else { break };
            if anchor == Some(row) {
                gap.start = gap.start.max(after(copy.raw_place()));
            } else if copy.round == round && !copy.is_assigned() {
                if let Some(raw) = self.assign_between(row, &copy, &gap)? {
                    gap.start = after(raw);
                } else {
                    rest.push(Link { chain: copy.chain, copy: row })?;
                }
            }
        }
        self.assign_elsewhere(rest)
    }

    /// The row and the place in raw of the first anchor from this row on.
    fn next_anchor(&mut self, from: u64) -> io::Result<(Option<u64>, Place)> {
        for row in from..self.copies.len() {
            if let Some(copy) = self.copies.get(row)?.filter(|copy| copy.in_order) {
                return Ok((Some(row), copy.raw_place()));
            }
        }
        Ok((Some(u64::MAX), END))
    }

    /// Assigns a record in the gap that has this content, if there is one, and returns its place. Records
    /// that are already taken are before the gap.
    fn assign_between(&mut self, row: u64, copy: &Copy, gap: &Range<Place>) -> io::Result<Option<Place>> {
        let Some(Ambiguous { chain, content }) = self.ambiguous.get(copy.row)? else { return Ok(None) };
        let from = self.chains.first_not(chain.start..chain.end(), |entry| entry.place() < gap.start)?;
        let candidates = from..chain.end();
        let found = self.find(candidates, |entry| entry.place() < gap.end, &content)?;
        if let Some((at, entry)) = found {
            self.assign(row, copy, (at, entry), &content)?;
            let marks = entry.marks.with(Marks::TAKEN, true);
            self.chains.set(at, Record { marks, ..entry })?;
        }
        Ok(found.map(|(_, entry)| entry.place()))
    }

    /// The first of the rows that has this content, within the search limit and as long as the condition holds.
    fn find(
        &mut self,
        rows: Range<u64>,
        condition: impl Fn(&Record) -> bool,
        content: &Content,
    ) -> io::Result<Option<Candidate>> {
        for row in rows.take(SEARCH_LIMIT) {
            let Some(entry) = self.chains.get(row)?.filter(&condition) else { break };
            if entry.content == *content {
                return Ok(Some((row, entry)));
            }
        }
        Ok(None)
    }

    fn assign(&mut self, row: u64, copy: &Copy, (at, entry): Candidate, content: &Content) -> io::Result<()> {
        let mut copy = *copy;
        copy.assign(&entry, at, content);
        self.copies.set(row, copy)
    }

    /// Assigns the remaining records, chain by chain.
    fn assign_elsewhere(&mut self, rest: Sorter<Link>) -> io::Result<()> {
        let mut rest = rest.sorted()?;
        let mut untaken = Untaken::default();
        while let Some(Link { copy: row, .. }) = rest.next()? {
            let Some(copy) = self.copies.get(row)? else { break };
            let Some(Ambiguous { chain, content }) = self.ambiguous.get(copy.row)? else { break };
            untaken.fill(chain, self.chains)?;
            if let Some(candidate) = self.chosen(chain, &content, &mut untaken.found)? {
                self.assign(row, &copy, candidate, &content)?;
            }
        }
        Ok(())
    }

    /// In this order: an untaken due record with this content (it moved), any with this content (a duplicate),
    /// an untaken due one (it changed), the first (a duplicate).
    fn chosen(
        &mut self,
        chain: Chain,
        content: &Content,
        untaken: &mut VecDeque<Candidate>,
    ) -> io::Result<Option<Candidate>> {
        if let Some(at) = untaken.iter().position(|(_, entry)| entry.content == *content) {
            return Ok(untaken.remove(at));
        }
        if let Some(candidate) = self.find(chain.start..chain.end(), |_| true, content)? {
            return Ok(Some(candidate));
        }
        match untaken.pop_front() {
            Some(candidate) => Ok(Some(candidate)),
            None => Ok(self.chains.get(chain.start)?.map(|entry| (chain.start, entry))),
        }
    }
}

/// The place after a raw record.
fn after((partition, offset): Place) -> Place {
    (partition, offset + 1)
}

/// The first due records of a chain that no clean record has taken.
#[derive(Debug, Default)]
struct Untaken {
    /// Row of the first record that is not yet read.
    next: u64,
    /// One past the last row of the chain.
    end: u64,
    found: VecDeque<Candidate>,
}

impl Untaken {
    /// Reads on in the chain until `found` has [`SEARCH_LIMIT`] records or the chain ends. Chains are passed by
    /// increasing start, each as often as needed.
    fn fill(&mut self, chain: Chain, chains: &mut Table<Record>) -> io::Result<()> {
        if self.end != chain.end() {
            *self = Self { next: chain.start, end: chain.end(), found: VecDeque::new() };
        }
        while self.found.len() < SEARCH_LIMIT && self.next < self.end {
            let Some(entry) = chains.get(self.next)? else { break };
            if entry.marks.has(Marks::DUE) && !entry.marks.has(Marks::TAKEN) {
                self.found.push_back((self.next, entry));
            }
            self.next += 1;
        }
        Ok(())
    }
}
