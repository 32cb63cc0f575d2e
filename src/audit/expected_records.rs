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
    pub raw_offset: Offset,
    /// Clean has a copy of it.
    pub seen: bool,
    /// One of the copies is in order.
    pub in_order: bool,
    /// The record; always present if clean has no copy of it.
    pub entry: Option<RecordRow>,
}

impl ExpectedRecord {
    /// The record, if it is due and not in clean.
    pub fn missing(&self) -> Option<&RecordRow> {
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
    read_ahead: VecDeque<ExpectedRecord>,
}

impl<'a> ExpectedRecords<'a> {
    /// `taken`: the raw offsets of copies, each once. `unseen`: at least all expected records not among them.
    pub fn new(taken: &'a SpillFile<Taken>, unseen: Sorted<ByOffset>) -> io::Result<Self> {
        let mut cursor = taken.cursor(0, u64::MAX);
        let next_taken = cursor.next(taken)?;
        Ok(Self { taken, cursor, next_taken, unseen, read_ahead: VecDeque::new() })
    }

    /// Removes and returns the next record before `end`.
    pub fn pass(&mut self, end: Offset) -> io::Result<Option<ExpectedRecord>> {
        if self.read_ahead.is_empty() {
            self.read()?;
        }
        match self.read_ahead.front() {
            Some(record) if record.raw_offset < end => Ok(self.read_ahead.pop_front()),
            _ => Ok(None),
        }
    }

    /// The first missing record ahead that resembles this one, and that no record in clean precedes. It counts
    /// as seen from then on.
    pub fn resembling(&mut self, content: &Content) -> io::Result<Option<RecordRow>> {
        for ahead in 0..SEARCH_LIMIT {
            if ahead == self.read_ahead.len() {
                self.read()?;
            }
            let Some(record) = self.read_ahead.get_mut(ahead).filter(|record| !record.seen) else { break };
            if let Some(entry) = record.missing().copied().filter(|entry| entry.content.resembles(content)) {
                record.seen = true;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn read(&mut self) -> io::Result<()> {
        let unseen = self.unseen.peek().map(|row| row.0);
        let raw_offset = [unseen.map(|entry| entry.offset), self.next_taken.map(|taken| taken.raw_offset)];
        let Some(raw_offset) = raw_offset.into_iter().flatten().min() else { return Ok(()) };
        let taken = self.next_taken.filter(|taken| taken.raw_offset == raw_offset);
        let entry = unseen.filter(|entry| entry.offset == raw_offset);
        if taken.is_some() {
            self.next_taken = self.cursor.next(self.taken)?;
        }
        if entry.is_some() {
            self.unseen.next()?;
        }
        let in_order = taken.is_some_and(|taken| taken.in_order);
        self.read_ahead.push_back(ExpectedRecord { raw_offset, seen: taken.is_some(), in_order, entry });
        Ok(())
    }
}
