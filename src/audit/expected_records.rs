//! The expected records of a partition in raw order, those in clean and those missing. Only the part that an
//! unmatched clean record may be compared with is in memory.

use std::collections::VecDeque;
use std::io;

use super::entry::{ByOffset, Marks, RecordRow, Taken};
use super::record::Content;
use super::spill::{Cursor, Sorted, SpillFile};
use crate::dedupe::Offset;

/// How many expected records are searched for the original of an altered record.
const SEARCH_LIMIT: usize = 1024;

/// An expected record.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedRecord {
    pub place: Offset,
    /// Clean has a copy of it.
    pub seen: bool,
    /// One of the copies is in order.
    pub in_order: bool,
    /// The record; always present if clean has no copy of it.
    pub entry: Option<RecordRow>,
}

impl ExpectedRecord {
    /// The record, if it is due and not in clean.
    pub fn is_missing(&self) -> Option<&RecordRow> {
        self.entry.as_ref().filter(|entry| !self.seen && entry.marks.has(Marks::DUE))
    }
}

/// Expected records by raw offset, read once from front to back.
#[derive(Debug)]
pub(super) struct ExpectedRecords<'a> {
    taken: &'a SpillFile<Taken>,
    cursor: Cursor<Taken>,
    next_taken: Option<Taken>,
    unseen: Sorted<ByOffset>,
    window: VecDeque<ExpectedRecord>,
}

impl<'a> ExpectedRecords<'a> {
    /// `taken`: the places of clean records, each once. `unseen`: at least all expected records not among them.
    pub fn new(taken: &'a SpillFile<Taken>, unseen: Sorted<ByOffset>) -> io::Result<Self> {
        let mut cursor = taken.cursor(0, u64::MAX);
        let next_taken = cursor.next(taken)?;
        Ok(Self { taken, cursor, next_taken, unseen, window: VecDeque::new() })
    }

    /// Removes and returns the next record before `end`.
    pub fn pass(&mut self, end: Offset) -> io::Result<Option<ExpectedRecord>> {
        if self.window.is_empty() {
            self.read()?;
        }
        match self.window.front() {
            Some(line) if line.place < end => Ok(self.window.pop_front()),
            _ => Ok(None),
        }
    }

    /// The first missing record ahead that resembles this one, and that no record in clean precedes. It counts
    /// as seen from then on.
    pub fn resembling(&mut self, content: &Content) -> io::Result<Option<RecordRow>> {
        for ahead in 0..SEARCH_LIMIT {
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
        self.window.push_back(ExpectedRecord { place, seen: taken.is_some(), in_order, entry });
        Ok(())
    }
}
