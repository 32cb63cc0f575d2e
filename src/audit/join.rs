//! Merge join of raw and clean, both sorted by fingerprint.
//!
//! If exactly one expected record has a fingerprint, all clean records with that fingerprint are its copies.
//! If several raw records share a fingerprint, [`super::choice`] assigns their clean records later.

use std::io;

use super::entry::{Ambiguous, ByOffset, Chain, Copy, Marks, RecordRow};
use super::expected::{MissingId, RawCounts, Rules};
use super::spill::{Scratch, Sorted, Sorter, SpillFile};

/// The result of the join.
#[derive(Debug)]
pub(super) struct Joined {
    scratch: Scratch,
    /// Clean records with exactly one candidate raw record.
    pub singles: Sorter<Copy>,
    /// Clean records whose id several raw records share: all but the first came after the window, or are
    /// forced, and need not be in clean.
    pub of_ids: Sorter<Ambiguous>,
    /// Clean records whose content several raw records without id share; each of those is due.
    pub of_contents: Sorter<Ambiguous>,
    /// If clean has as many records of one content as raw, they are paired one by one.
    pub pairs: Sorter<Copy>,
    /// Clean records without a raw record, by clean offset.
    pub unmatched_clean: Sorter<ByOffset>,
    /// A superset of the expected records without a copy, by raw offset.
    pub unseen: Sorter<ByOffset>,
    /// Expected records that share a fingerprint with others, by fingerprint, then by raw offset.
    pub chains: SpillFile<RecordRow>,
    pub counts: RawCounts,
}

impl Joined {
    pub fn new(scratch: &Scratch, counts: RawCounts) -> Self {
        let unit = scratch.unit();
        Self {
            singles: Sorter::new(scratch, 3 * unit),
            of_ids: Sorter::new(scratch, unit),
            of_contents: Sorter::new(scratch, unit),
            pairs: Sorter::new(scratch, unit),
            unmatched_clean: Sorter::new(scratch, unit),
            unseen: Sorter::new(scratch, unit),
            chains: SpillFile::new(scratch),
            scratch: scratch.clone(),
            counts,
        }
    }

    /// Joins both sides to their end.
    pub fn join(
        &mut self,
        rules: &Rules,
        raw: &mut Sorted<RecordRow>,
        clean: &mut Sorted<RecordRow>,
    ) -> io::Result<()> {
        while let Some(fingerprint) =
            [raw.peek(), clean.peek()].into_iter().flatten().map(|row| row.fingerprint).min()
        {
            let mut group = Group::default();
            while let Some(record) = raw.next_if(|record| record.fingerprint == fingerprint)? {
                if let Some(entry) = group.expect(rules, &record, &mut self.counts) {
                    self.enter(&mut group, entry)?;
                }
            }
            match (group.first, group.chain) {
                (None, _) => {
                    while let Some(record) = clean.next_if(|record| record.fingerprint == fingerprint)? {
                        self.unmatched_clean.push(ByOffset(record))?;
                    }
                }
                (Some(entry), None) => self.single(&entry, clean)?,
                (Some(entry), Some(chain)) => self.several(&entry, chain, clean)?,
            }
        }
        Ok(())
    }

    /// Adds an expected record to the group.
    fn enter(&mut self, group: &mut Group, entry: RecordRow) -> io::Result<()> {
        let Some(first) = group.first else {
            group.first = Some(entry);
            return Ok(());
        };
        if group.chain.is_none() {
            group.chain = Some(Chain { start: self.chains.len(), len: 1 });
            self.link(&first)?;
        }
        if let Some(chain) = &mut group.chain {
            chain.len += 1;
        }
        self.link(&entry)
    }

    fn link(&mut self, entry: &RecordRow) -> io::Result<()> {
        self.chains.push(entry)?;
        self.may_be_unseen(entry)
    }

    /// A record before the range is never lost.
    fn may_be_unseen(&mut self, entry: &RecordRow) -> io::Result<()> {
        if entry.marks.has(Marks::BEFORE) { Ok(()) } else { self.unseen.push(ByOffset(*entry)) }
    }

    fn single(&mut self, entry: &RecordRow, clean: &mut Sorted<RecordRow>) -> io::Result<()> {
        let mut seen = false;
        while let Some(record) = clean.next_if(|record| record.fingerprint == entry.fingerprint)? {
            self.singles.push(Copy::new(record.offset, &record.content, entry, Chain::NONE))?;
            seen = true;
        }
        if seen { Ok(()) } else { self.may_be_unseen(entry) }
    }

    fn several(&mut self, first: &RecordRow, chain: Chain, clean: &mut Sorted<RecordRow>) -> io::Result<()> {
        let mut group = SpillFile::new(&self.scratch);
        while let Some(record) = clean.next_if(|record| record.fingerprint == first.fingerprint)? {
            let ambiguous = Ambiguous { clean_offset: record.offset, chain, content: record.content };
            if first.marks.has(Marks::ID) {
                self.of_ids.push(ambiguous)?;
            } else {
                group.push(&ambiguous)?;
            }
        }
        let (mut ambiguous, mut chained) = (group.cursor(0, u64::MAX), self.chains.random_access());
        chained.seek(chain.start);
        while let Some(record) = ambiguous.next(&group)? {
            if group.len() != chain.len {
                self.of_contents.push(record)?;
            } else if let Some(entry) = chained.next(&self.chains)? {
                self.pairs.push(Copy::new(record.clean_offset, &record.content, &entry, chain))?;
            }
        }
        Ok(())
    }
}

/// The expected records with one fingerprint.
#[derive(Debug, Default)]
struct Group {
    first: Option<RecordRow>,
    /// Their rows, if there are several.
    chain: Option<Chain>,
}

impl Group {
    /// The expected record that the next raw record of this fingerprint adds, if any; by increasing offset.
    fn expect(&self, rules: &Rules, record: &RecordRow, counts: &mut RawCounts) -> Option<RecordRow> {
        let enter = |due: bool, marks: Marks| {
            let kept = record.marks.without(Marks::DUE).with(Marks::DUE, due);
            Some(RecordRow { marks: kept.with(marks, true), ..*record })
        };
        let may_be_due = record.marks.has(Marks::DUE);
        let before = record.marks.has(Marks::BEFORE);
        if !record.marks.has(Marks::ID) {
            let due = rules.missing_id == MissingId::Forwarded;
            return if due { enter(may_be_due, Marks::default()) } else { None };
        }
        let Some(first) = &self.first else {
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
        } else if rules.within_window(first.time_ms, record.time_ms) {
            counts.duplicates += 1;
            None
        } else {
            counts.beyond_window += 1;
            enter(false, Marks::REPEAT)
        }
    }
}
