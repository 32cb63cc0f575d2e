//! The expected records of a partition in raw order, those that are in clean and those that are not, with as
//! much of them in memory as one stray may have to be compared with.

use std::collections::VecDeque;
use std::io;

use super::entry::{Filed, Marks, Standing, Taken};
use super::record::Content;
use super::spill::{Cursor, Sorted, Tape};
use crate::dedupe::Offset;

/// How far a changed record is looked for among lost ones.
const REACH: usize = 1024;

/// An expected record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub place: Offset,
    /// Some clean record is it.
    pub seen: bool,
    /// One of them stands where it should.
    pub in_order: bool,
    /// The record, where it may be that none is.
    pub entry: Option<Filed>,
}

impl Line {
    /// Whether it is due and not there.
    pub fn is_missing(&self) -> Option<&Filed> {
        self.entry.as_ref().filter(|entry| !self.seen && entry.marks.has(Marks::DUE))
    }
}

/// Expected records by raw offset, read once.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    taken: &'a Tape<Taken>,
    cursor: Cursor<Taken>,
    next_taken: Option<Taken>,
    unseen: Sorted<Standing>,
    window: VecDeque<Line>,
}

impl<'a> Ledger<'a> {
    /// `taken` are the places of clean records, each once; `unseen` at least all that are not among them.
    pub fn new(taken: &'a Tape<Taken>, unseen: Sorted<Standing>) -> io::Result<Self> {
        let mut cursor = taken.cursor(0, u64::MAX);
        let next_taken = cursor.next(taken)?;
        Ok(Self { taken, cursor, next_taken, unseen, window: VecDeque::new() })
    }

    /// The next record before `end`, for good.
    pub fn pass(&mut self, end: Offset) -> io::Result<Option<Line>> {
        if self.window.is_empty() {
            self.read()?;
        }
        match self.window.front() {
            Some(line) if line.place < end => Ok(self.window.pop_front()),
            _ => Ok(None),
        }
    }

    /// The first of the missing records ahead that resembles this one, unless one that is there stands before
    /// it; it counts as seen from now on.
    pub fn resembling(&mut self, content: &Content) -> io::Result<Option<Filed>> {
        for ahead in 0..REACH {
            if ahead == self.window.len() {
                self.read()?;
            }
            let Some(line) = self.window.get_mut(ahead).filter(|line| !line.seen) else { break };
            if let Some(entry) = line.is_missing().copied().filter(|entry| entry.content.resembles(content)) {
                line.seen = true;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn read(&mut self) -> io::Result<()> {
        let unseen = self.unseen.peek().map(|standing| standing.0);
        let place = [unseen.map(|entry| entry.offset), self.next_taken.map(|taken| taken.place)];
        let Some(place) = place.into_iter().flatten().min() else { return Ok(()) };
        let taken = self.next_taken.filter(|taken| taken.place == place);
        let entry = unseen.filter(|entry| entry.offset == place);
        if taken.is_some() {
            self.next_taken = self.cursor.next(self.taken)?;
        }
        if entry.is_some() {
            self.unseen.next()?;
        }
        let in_order = taken.is_some_and(|taken| taken.in_order);
        self.window.push_back(Line { place, seen: taken.is_some(), in_order, entry });
        Ok(())
    }
}
