//! Finds what is wrong: compares copies and unmatched clean records with the expected records, step by step.

use std::io;

use super::compare::{Gone, Scope};
use super::entry::{ByOffset, Copy, Link, Marks, Placed, RecordRow, Taken, Unmatched};
use super::expected::{RawCounts, Rules};
use super::expected_records::{ExpectedRecord, ExpectedRecords};
use super::findings::{Findings, Kind, Step};
use super::increasing::{Copies, Members};
use super::record::{Differing, Fingerprint};
use super::spill::{Cursor, Scratch, Sorted, Sorter, SpillFile};
use crate::dedupe::Offset;

/// A copy whose raw record repeats an earlier id, with its chain.
type Repeat = Link<Placed>;

/// The evaluation of one partition.
pub(super) struct Evaluation<'a> {
    pub scratch: &'a Scratch,
    pub scope: Scope,
    pub rules: &'a Rules,
    pub raw: RawCounts,
    /// First offset of the range in raw.
    pub begin: Offset,
    /// Until then a record that seems new may repeat a deleted one, ms of stream time.
    pub uncertain_until_ms: Option<i64>,
    pub findings: Findings,
    pub gone: u64,
    /// Clean records whose verdict depends on records before the range.
    pub outside: u64,
    /// Lost and phantom records, to be searched in other partitions.
    pub unmatched: &'a mut Sorter<Unmatched>,
}

impl Evaluation<'_> {
    fn add(&mut self, step: Step, kind: Kind, copy: &Copy, fields: Differing) {
        self.findings.add(
            (step, copy.clean_offset, 0),
            kind,
            (Some(copy.raw_offset), Some(copy.clean_offset)),
            fields,
        );
    }

    fn allows_gone(&self) -> bool {
        self.scope.gone != Gone::Nothing
    }

    /// Evaluates the clean records that have a raw record. All but one of those that share a raw record are
    /// duplicates. Returns the raw records taken, and the copies of ids that may have expired from the window.
    pub fn copies(
        &mut self,
        copies: &Copies,
        members: &Members,
    ) -> io::Result<(SpillFile<Taken>, Sorter<Repeat>)> {
        let mut taken = SpillFile::new(self.scratch);
        let mut repeats = Sorter::new(self.scratch, self.scratch.unit());
        let mut marked = copies.marked(members);
        if copies.increasing {
            while let Some((copy, in_order)) = marked.next()? {
                let placed = Placed { copy, in_order };
                self.kept(&placed, copy.fields.is_none(), &mut repeats)?;
                taken.push(&placed.taken())?;
            }
            return Ok((taken, repeats));
        }
        let mut by_raw_offset = Sorter::new(self.scratch, 3 * self.scratch.unit());
        while let Some((copy, in_order)) = marked.next()? {
            by_raw_offset.push(Placed { copy, in_order })?;
        }
        let mut by_raw_offset = by_raw_offset.sorted()?;
        while let Some(kept) = by_raw_offset.next()? {
            let mut unchanged = kept.copy.fields.is_none();
            while let Some(other) =
                by_raw_offset.next_if(|other| other.copy.raw_offset == kept.copy.raw_offset)?
            {
                unchanged |= other.copy.fields.is_none();
                self.add(Step::Copies, Kind::Duplicated, &other.copy, Differing::default());
            }
            self.kept(&kept, unchanged, &mut repeats)?;
            taken.push(&kept.taken())?;
        }
        Ok((taken, repeats))
    }

    /// Evaluates the copy that counts for its raw record; `unchanged`: whether any copy of that is unchanged.
    fn kept(&mut self, placed: &Placed, unchanged: bool, repeats: &mut Sorter<Repeat>) -> io::Result<()> {
        let copy = &placed.copy;
        let outside = copy.marks.is_outside();
        self.outside += u64::from(outside);
        if placed.in_order && copy.marks.has(Marks::REPEAT) {
            repeats.push(Link { chain: copy.chain, of: *placed })?;
        }
        if !unchanged && outside {
            return Ok(());
        }
        if !unchanged && self.allows_gone() {
            self.gone += 1;
            return Ok(());
        }
        if !unchanged {
            self.add(Step::Copies, Kind::Altered, copy, copy.fields);
        }
        if placed.in_order {
            return Ok(());
        }
        if self.allows_gone() && self.raw.holes {
            self.gone += 1;
        } else {
            self.add(Step::Copies, Kind::OutOfOrder, copy, Differing::default());
        }
        Ok(())
    }

    /// Finds duplicates of ids that were seen again after the window: a record that follows such a record
    /// within the window must not be in clean.
    pub fn repeats_within_window(
        &mut self,
        repeats: Sorter<Repeat>,
        chains: &SpillFile<RecordRow>,
    ) -> io::Result<()> {
        let mut repeats = repeats.sorted()?;
        let mut cursor = chains.cursor(0, u64::MAX);
        while let Some(Link { chain, .. }) = repeats.peek() {
            let Some(first) = cursor.at(chains, chain.start)? else { break };
            let mut owner_ms = Some(first.time_ms).filter(|_| !first.marks.has(Marks::OUTSIDE));
            cursor.seek(chain.start);
            while let Some(Link { of: repeat, .. }) = repeats.next_if(|link| link.chain == chain)? {
                let Some(time_ms) = arrival(&mut cursor, chains, repeat.copy.raw_offset)? else { break };
                if owner_ms.is_some_and(|owner_ms| self.rules.within_window(owner_ms, time_ms)) {
                    let (raw, clean) = (repeat.copy.raw_offset, repeat.copy.clean_offset);
                    let key = (Step::Repeats, first.offset, raw);
                    self.findings.add(key, Kind::Duplicated, (Some(raw), Some(clean)), Differing::default());
                } else {
                    owner_ms = Some(time_ms);
                }
            }
        }
        Ok(())
    }

    /// Evaluates clean records without a raw record, and lost records. An unmatched clean record counts as
    /// altered if a lost record at the same position resembles it.
    pub fn unmatched_and_lost(
        &mut self,
        mut unmatched: Sorted<ByOffset>,
        (copies, members): (&Copies, &Members),
        expected: &mut ExpectedRecords<'_>,
    ) -> io::Result<()> {
        let mut before_first = self.scope.gone == Gone::Allowed { clean_trimmed: true };
        let mut marked = copies.marked(members);
        let (mut ahead, mut here) = (marked.next()?, self.begin);
        while let Some(ByOffset(record)) = unmatched.next()? {
            if self.is_explained(&record) {
                continue;
            }
            while let Some((copy, in_order)) = ahead.filter(|(copy, _)| copy.clean_offset < record.offset) {
                if in_order {
                    here = here.max(copy.raw_offset + 1);
                }
                ahead = marked.next()?;
            }
            self.pass(expected, here, &mut before_first)?;
            if let Some(entry) = expected.resembling(&record.content)? {
                here = entry.offset + 1;
                let fields = entry.content.differing(&record.content);
                self.add_clean(Kind::Altered, Some(entry.offset), &record, fields);
            } else {
                self.add_clean(Kind::Phantom, None, &record, Differing::default());
                self.add_unmatched(record.fingerprint, false)?;
            }
        }
        self.pass(expected, Offset::MAX, &mut before_first)
    }

    /// Whether a record that is not in raw is older than the range, or may have been deleted from raw.
    fn is_explained(&mut self, record: &RecordRow) -> bool {
        let older = self.rules.from_ms.is_some_and(|from_ms| record.content.timestamp_ms() < from_ms);
        self.outside += u64::from(older);
        self.gone += u64::from(!older && self.allows_gone());
        older || self.allows_gone()
    }

    fn add_clean(&mut self, kind: Kind, raw: Option<Offset>, clean: &RecordRow, fields: Differing) {
        self.findings.add((Step::Unmatched, clean.offset, 0), kind, (raw, Some(clean.offset)), fields);
    }

    fn add_unmatched(&mut self, fingerprint: Fingerprint, lost: bool) -> io::Result<()> {
        self.unmatched.push(Unmatched { fingerprint, partition: self.scope.partition, lost })
    }

    /// Evaluates the expected records before `end`: no clean record can match them any more.
    fn pass(
        &mut self,
        expected: &mut ExpectedRecords<'_>,
        end: Offset,
        before_first: &mut bool,
    ) -> io::Result<()> {
        while let Some(record) = expected.pass(end)? {
            *before_first &= !record.in_order;
            self.loss(&record, *before_first)?;
        }
        Ok(())
    }

    fn loss(&mut self, record: &ExpectedRecord, before_first: bool) -> io::Result<()> {
        let Some(entry) = record.missing() else { return Ok(()) };
        let uncertain = self.uncertain_until_ms.is_some_and(|until_ms| entry.time_ms <= until_ms);
        if before_first || (uncertain && self.allows_gone()) {
            self.gone += 1;
            return Ok(());
        }
        let key = (Step::Losses, record.raw_offset, 0);
        self.findings.add(key, Kind::Lost, (Some(record.raw_offset), None), Differing::default());
        self.add_unmatched(entry.fingerprint, true)
    }
}

/// When a record of a chain arrived, ms of stream time; `raw_offset` increases from call to call.
fn arrival(
    cursor: &mut Cursor<RecordRow>,
    chains: &SpillFile<RecordRow>,
    raw_offset: Offset,
) -> io::Result<Option<i64>> {
    while let Some(entry) = cursor.next(chains)? {
        if entry.offset == raw_offset {
            return Ok(Some(entry.time_ms));
        }
    }
    Ok(None)
}
