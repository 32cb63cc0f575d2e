//! Which raw record a clean record is that has several to choose from.
//!
//! Where several raw records share an id (the later ones older than the window, or forced) or a content
//! (records without an id), any assignment that explains all of them is right, and a wrong one would turn one
//! loss into many findings. So the records without choice come first, as anchors; the others are placed
//! between them, in order: first those that share an id, then, between all of these, those that share a
//! content.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use super::entry::{Chain, Choosing, Copy, Filed, Link, Marks};
use super::rise::{Copies, Marked};
use super::spill::{Cursor, Scratch, Sorted, Sorter, Tape};
use crate::dedupe::Offset;

/// How many candidates are looked at before a record counts as none of them.
const REACH: usize = 1024;

/// Gives places to clean records with a choice, between those that are placed already.
pub(super) struct Choice<'a> {
    scratch: &'a Scratch,
    chains: &'a Tape<Filed>,
    jumper: Cursor<Filed>,
    /// The records that were given a place.
    pub placed: Sorter<Copy>,
    /// Places that were given in the first round.
    taken: Sorter<Link<Offset>>,
    /// Records that found none in the first round.
    rest: Sorter<Link<Choosing>>,
}

impl<'a> Choice<'a> {
    pub fn new(scratch: &'a Scratch, chains: &'a Tape<Filed>) -> Self {
        let unit = scratch.unit();
        Self {
            scratch,
            chains,
            jumper: chains.jumper(),
            placed: Sorter::new(scratch, unit),
            taken: Sorter::new(scratch, unit),
            rest: Sorter::new(scratch, unit),
        }
    }

    /// First everything that fits where it stands, then the rest.
    pub fn all(mut self, choosing: &mut Sorted<Choosing>, singles: &Copies) -> io::Result<Sorter<Copy>> {
        let members = singles.longest_rise(self.scratch)?;
        let mut anchors = Anchors::new(singles.marked(&members))?;
        let mut low = 0;
        while let Some(record) = choosing.next()? {
            let mut gap = anchors.around(record.at)?;
            gap.start = gap.start.max(low);
            if let Some(entry) = self.fitting(&record, gap)? {
                low = entry.offset + 1;
                self.taken.push(Link { chain: record.chain, of: entry.offset })?;
                self.place(&record, &entry)?;
            } else {
                self.rest.push(Link { chain: record.chain, of: record })?;
            }
        }
        self.elsewhere()
    }

    fn place(&mut self, record: &Choosing, entry: &Filed) -> io::Result<()> {
        self.placed.push(Copy::new(record.at, &record.content, entry, record.chain))
    }

    fn link(&mut self, row: u64) -> io::Result<Option<Filed>> {
        self.jumper.at(self.chains, row)
    }

    /// The first record of the chain that lies in the gap and has this content. Those that others took
    /// lie before the gap.
    fn fitting(&mut self, record: &Choosing, gap: Range<Offset>) -> io::Result<Option<Filed>> {
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
        for row in (from..end).take(REACH) {
            match self.link(row)? {
                Some(entry) if entry.offset >= gap.end => break,
                Some(entry) if entry.content == record.content => return Ok(Some(entry)),
                _ => {}
            }
        }
        Ok(None)
    }

    /// The records that are left, chain by chain.
    fn elsewhere(mut self) -> io::Result<Sorter<Copy>> {
        let rest = std::mem::replace(&mut self.rest, Sorter::new(self.scratch, 0));
        let taken = std::mem::replace(&mut self.taken, Sorter::new(self.scratch, 0));
        let (mut rest, mut taken) = (rest.sorted()?, taken.sorted()?);
        while let Some(chain) = rest.peek().map(|link| link.chain) {
            let mut left = Left { next: chain.start, chain, found: VecDeque::new() };
            while let Some(Link { of: record, .. }) = rest.next_if(|link| link.chain == chain)? {
                left.fill(&mut self, &mut taken)?;
                if let Some(entry) = self.chosen(&record, &mut left)? {
                    self.place(&record, &entry)?;
                }
            }
        }
        Ok(self.placed)
    }

    /// In this order: an untaken due record with this content (it moved), any with this content (a repeat),
    /// an untaken due one (it changed), the first (a repeat).
    fn chosen(&mut self, record: &Choosing, left: &mut Left) -> io::Result<Option<Filed>> {
        let same = |entry: &Filed| entry.content == record.content;
        if let Some(at) = left.found.iter().position(same) {
            return Ok(left.found.remove(at));
        }
        let chain = record.chain;
        for row in (chain.start..chain.start + chain.len).take(REACH) {
            if let Some(entry) = self.link(row)?.filter(same) {
                return Ok(Some(entry));
            }
        }
        match left.found.pop_front() {
            Some(entry) => Ok(Some(entry)),
            None => self.link(chain.start),
        }
    }
}

/// The first due records of a chain that nobody took.
struct Left {
    chain: Chain,
    /// Number of the first row not looked at.
    next: u64,
    found: VecDeque<Filed>,
}

impl Left {
    /// Looks for more, as many as are within reach.
    fn fill(&mut self, choice: &mut Choice<'_>, taken: &mut Sorted<Link<Offset>>) -> io::Result<()> {
        let end = self.chain.start + self.chain.len;
        while self.found.len() < REACH && self.next < end {
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

/// Copies that stand in order, read along with other records.
struct Anchors<'a> {
    marked: Marked<'a>,
    /// One past the place of the last one.
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

    /// The places between the anchors around a clean offset; offsets rise from call to call.
    fn around(&mut self, at: Offset) -> io::Result<Range<Offset>> {
        while let Some(copy) = self.ahead.filter(|copy| copy.at < at) {
            self.start = copy.place + 1;
            self.advance()?;
        }
        Ok(self.start..self.ahead.map_or(Offset::MAX, |copy| copy.place))
    }
}
