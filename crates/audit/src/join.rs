//! Joins raw and clean, sorted by fingerprint.
//!
//! If exactly one expected record has a fingerprint, all clean records with that fingerprint are its copies.
//! If several raw records share a fingerprint, [`super::choice`] assigns their clean records later.

use std::io;

use super::entry::{Ambiguous, Chain, Copy, Marks, Record, Round};
use super::expected::{MissingId, RawCounts, Rules};
use super::record::Fingerprint;
use super::spill::{Scratch, Sorted, Sorter, Table};

/// The result of the join.
#[derive(Debug)]
pub(super) struct Joined<'a> {
    scratch: &'a Scratch,
    rules: &'a Rules,
    /// Clean records that have at least one candidate raw record, by clean offset.
    pub copies: Sorter<Copy>,
    /// The rounds in which copies have to be assigned.
    pub rounds: Vec<Round>,
    /// Clean records with several candidates.
    pub ambiguous: Table<Ambiguous>,
    /// Clean records without a raw record, by clean offset.
    pub unmatched: Sorter<Record>,
    /// A superset of the expected records without a copy, by raw offset.
    pub unseen: Sorter<Record>,
    /// Expected records that share a fingerprint with others, by fingerprint, then by raw offset.
    pub chains: Table<Record>,
    pub counts: RawCounts,
}

impl<'a> Joined<'a> {
    /// Joins both sides to their end.
    pub fn new(
        scratch: &'a Scratch,
        rules: &'a Rules,
        counts: RawCounts,
        mut records: Sorted<Record>,
    ) -> io::Result<Self> {
        let mut joined = Self {
            scratch,
            rules,
            copies: Sorter::new(scratch, 6, Copy::by_clean_offset),
            rounds: Vec::new(),
            ambiguous: Table::new(scratch),
            unmatched: Sorter::new(scratch, 2, Record::by_offset),
            unseen: Sorter::new(scratch, 2, Record::by_offset),
            chains: Table::new(scratch),
            counts,
        };
        while let Some(Record { fingerprint, .. }) = records.peek() {
            joined.group(fingerprint, &mut records)?;
        }
        joined.rounds.sort_unstable();
        Ok(joined)
    }

    /// Joins the records with this fingerprint, which are next.
    fn group(&mut self, fingerprint: Fingerprint, records: &mut Sorted<Record>) -> io::Result<()> {
        let is_raw = |record: &Record| record.fingerprint == fingerprint && !record.is_clean;
        let is_clean = |record: &Record| record.fingerprint == fingerprint;
        let mut chain = Chain { start: self.chains.len(), len: 0 };
        let mut first = None;
        while let Some(record) = records.next_if(is_raw)? {
            let Some(entry) = self.expect(first.as_ref(), &record) else { continue };
            chain.len += 1;
            match (first, chain.len) {
                (Some(first), 2) => {
                    self.link(&first)?;
                    self.link(&entry)?;
                }
                (Some(_), _) => self.link(&entry)?,
                (None, _) => first = Some(entry),
            }
        }
        match first {
            None => {
                while let Some(record) = records.next_if(is_clean)? {
                    self.unmatched.push(record)?;
                }
                Ok(())
            }
            Some(entry) if chain.len == 1 => {
                let mut seen = false;
                while let Some(record) = records.next_if(is_clean)? {
                    self.copies.push(Copy::unique(&record, &entry))?;
                    seen = true;
                }
                if seen { Ok(()) } else { self.may_be_unseen(&entry) }
            }
            Some(_) => {
                let mut clean = Table::new(self.scratch);
                while let Some(record) = records.next_if(is_clean)? {
                    clean.push(record)?;
                }
                self.several(chain, &mut clean)
            }
        }
    }

    fn link(&mut self, entry: &Record) -> io::Result<()> {
        self.chains.push(*entry)?;
        self.may_be_unseen(entry)
    }

    /// A record before the range is never lost.
    fn may_be_unseen(&mut self, entry: &Record) -> io::Result<()> {
        if entry.marks.has(Marks::BEFORE) { Ok(()) } else { self.unseen.push(*entry) }
    }

    /// Adds the clean records of a chain. If clean has as many records of one content as raw, they are paired
    /// one by one.
    fn several(&mut self, chain: Chain, clean: &mut Table<Record>) -> io::Result<()> {
        for number in 0..clean.len() {
            let Some(record) = clean.get(number)? else { break };
            let round = if record.marks.has(Marks::ID) { Round::ID } else { Round::CONTENT };
            let mut copy = Copy::unassigned(record.offset, round, chain.start, self.ambiguous.len());
            let row = chain.start + number;
            match self.chains.get(row)? {
                Some(entry) if round == Round::CONTENT && clean.len() == chain.len => {
                    copy.round = Round::ID;
                    copy.assign(&entry, row, &record.content);
                }
                _ => {
                    self.ambiguous.push(Ambiguous { chain, content: record.content })?;
                    if !self.rounds.contains(&round) {
                        self.rounds.push(round);
                    }
                }
            }
            self.copies.push(copy)?;
        }
        Ok(())
    }

    /// The expected record that the next raw record of a fingerprint adds, if any; by increasing offset.
    fn expect(&mut self, first: Option<&Record>, record: &Record) -> Option<Record> {
        let counts = &mut self.counts;
        let enter = |due: bool, marks: Marks| {
            let kept = record.marks.without(Marks::DUE).with(Marks::DUE, due);
            Some(Record { marks: kept.with(marks, true), ..*record })
        };
        let may_be_due = record.marks.has(Marks::DUE);
        let before = record.marks.has(Marks::BEFORE);
        if !record.marks.has(Marks::ID) {
            let due = self.rules.missing_id != MissingId::Withheld;
            return if due { enter(may_be_due, Marks::default()) } else { None };
        }
        let Some(first) = first else {
            counts.ids += u64::from(!before);
            return enter(may_be_due, if before { Marks::OUTSIDE } else { Marks::default() });
        };
        if before {
            None
        } else if record.marks.has(Marks::FORCED) {
            counts.forced += 1;
            enter(may_be_due, Marks::default())
        } else if first.marks.has(Marks::OUTSIDE) {
            counts.decided_outside += 1;
            enter(false, Marks(Marks::REPEAT.0 | Marks::OUTSIDE.0))
        } else if self.rules.within_window(first.time_ms, record.time_ms) {
            counts.duplicates += 1;
            None
        } else {
            counts.beyond_window += 1;
            enter(false, Marks::REPEAT)
        }
    }
}
