//! Raw and clean, both sorted by print, side by side: which records each id has here and there.
//!
//! An id that stands once among the expectations leaves its clean records no choice; they are copies at once.
//! Where several raw records share a print, [`super::choice`] decides later.

use std::io;

use super::entry::{Chain, Choosing, Copy, Filed, Marks, Standing};
use super::expected::{MissingId, RawCounts, Rules};
use super::spill::{Scratch, Sorted, Sorter, Tape};

/// What comes of the join.
#[derive(Debug)]
pub(super) struct Joined {
    scratch: Scratch,
    /// Clean records that can be one raw record only.
    pub singles: Sorter<Copy>,
    /// Clean records whose id several raw records have: all but the first are older than the window, or
    /// forced, and need not be in clean.
    pub of_ids: Sorter<Choosing>,
    /// Clean records whose content several raw records without id have; each of those is due.
    pub of_contents: Sorter<Choosing>,
    /// Where clean has as many records of one content as raw has, they pair up one by one.
    pub pairs: Sorter<Copy>,
    /// Clean records that no raw record explains, by clean offset.
    pub strays: Sorter<Standing>,
    /// Expected records that may have no copy, by raw offset: certainly all that have none.
    pub unseen: Sorter<Standing>,
    /// Expected records that share a print with others, by print, then by raw offset.
    pub chains: Tape<Filed>,
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
            strays: Sorter::new(scratch, unit),
            unseen: Sorter::new(scratch, unit),
            chains: Tape::new(scratch),
            scratch: scratch.clone(),
            counts,
        }
    }

    /// Takes all of both.
    pub fn join(
        &mut self,
        rules: &Rules,
        raw: &mut Sorted<Filed>,
        clean: &mut Sorted<Filed>,
    ) -> io::Result<()> {
        while let Some(print) =
            [raw.peek(), clean.peek()].into_iter().flatten().map(|filed| filed.print).min()
        {
            let mut group = Group::default();
            while let Some(record) = raw.next_if(|record| record.print == print)? {
                if let Some(entry) = group.expect(rules, &record, &mut self.counts) {
                    self.enter(&mut group, entry)?;
                }
            }
            match (group.first, group.chain) {
                (None, _) => {
                    while let Some(record) = clean.next_if(|record| record.print == print)? {
                        self.strays.push(Standing(record))?;
                    }
                }
                (Some(entry), None) => self.single(&entry, clean)?,
                (Some(entry), Some(chain)) => self.several(&entry, chain, clean)?,
            }
        }
        Ok(())
    }

    /// Takes one more expected record of the group.
    fn enter(&mut self, group: &mut Group, entry: Filed) -> io::Result<()> {
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

    fn link(&mut self, entry: &Filed) -> io::Result<()> {
        self.chains.push(entry)?;
        self.may_be_unseen(entry)
    }

    /// What stands before the range is not missed.
    fn may_be_unseen(&mut self, entry: &Filed) -> io::Result<()> {
        if entry.marks.has(Marks::BEFORE) { Ok(()) } else { self.unseen.push(Standing(*entry)) }
    }

    fn single(&mut self, entry: &Filed, clean: &mut Sorted<Filed>) -> io::Result<()> {
        let mut seen = false;
        while let Some(record) = clean.next_if(|record| record.print == entry.print)? {
            self.singles.push(Copy::new(record.offset, &record.content, entry, Chain::NONE))?;
            seen = true;
        }
        if seen { Ok(()) } else { self.may_be_unseen(entry) }
    }

    fn several(&mut self, first: &Filed, chain: Chain, clean: &mut Sorted<Filed>) -> io::Result<()> {
        let mut group = Tape::new(&self.scratch);
        while let Some(record) = clean.next_if(|record| record.print == first.print)? {
            let choosing = Choosing { at: record.offset, chain, content: record.content };
            if first.marks.has(Marks::ID) {
                self.of_ids.push(choosing)?;
            } else {
                group.push(&choosing)?;
            }
        }
        let (mut choosing, mut chained) = (group.cursor(0, u64::MAX), self.chains.jumper());
        chained.seek(chain.start);
        while let Some(record) = choosing.next(&group)? {
            if group.len() != chain.len {
                self.of_contents.push(record)?;
            } else if let Some(entry) = chained.next(&self.chains)? {
                self.pairs.push(Copy::new(record.at, &record.content, &entry, chain))?;
            }
        }
        Ok(())
    }
}

/// The records of one print.
#[derive(Debug, Default)]
struct Group {
    first: Option<Filed>,
    /// Where they are, when there are several.
    chain: Option<Chain>,
}

impl Group {
    /// What the next raw record of this print makes clean hold, if anything; by rising offset.
    fn expect(&self, rules: &Rules, record: &Filed, counts: &mut RawCounts) -> Option<Filed> {
        let enter = |due: bool, marks: Marks| {
            let kept = record.marks.without(Marks::DUE).with(Marks::DUE, due);
            Some(Filed { marks: kept.with(marks, true), ..*record })
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
            enter(false, Marks(Marks::AGAIN.0 | Marks::OUTSIDE.0))
        } else if rules.remembered(first.time_ms, record.time_ms) {
            counts.duplicates += 1;
            None
        } else {
            counts.beyond_window += 1;
            enter(false, Marks::AGAIN)
        }
    }
}
