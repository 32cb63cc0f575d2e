//! Finds what is wrong: compares copies and unmatched clean records with the expected records, step by step.

use std::collections::VecDeque;
use std::io;

use super::compare::{Gone, Outcome, PartitionOptions};
use super::dropped::{Fate, SameIds};
use super::entry::{Copy, Link, Marks, Record, Unmatched};
use super::expected::Rules;
use super::findings::{Findings, Kind, Step};
use super::record::{Content, Differing, Fingerprint};
use super::spill::{Sorted, Sorter, Table};
use super::{Offset, PartitionId};

/// How many expected records are searched for the original of an altered record.
const SEARCH_LIMIT: usize = 1024;

/// The evaluation of one partition.
pub(super) struct Evaluation<'a, 'u> {
    /// Its number in the rows.
    pub number: PartitionId,
    pub options: PartitionOptions,
    pub rules: &'a Rules,
    /// Whether `rekey` is between raw and clean.
    pub is_rekeyed: bool,
    /// Until then a record that seems new may repeat a deleted one, ms of stream time.
    pub uncertain_until_ms: Option<i64>,
    pub streams: &'a mut Streams<'u>,
    /// The next expected records by raw offset: the part that an unmatched clean record may be compared with.
    pub read_ahead: VecDeque<ExpectedRecord>,
    /// Whether no expected record before the next one has a copy in order, and the log start offset of clean is above 0.
    pub before_first: bool,
    /// Whether no expected record before the next one has a copy in order.
    pub at_start: bool,
    pub findings: Findings,
    /// All results but the findings.
    pub outcome: Outcome,
}

/// The rows of all partitions that are compared together. Each partition reads its own, one after the other.
pub(super) struct Streams<'u> {
    /// All copies, by place in raw.
    pub copies: Sorted<Copy>,
    /// At least all expected records without a copy, by place.
    pub unseen: Sorted<Record>,
    /// Clean records without a raw record, by place.
    pub unmatched_clean: Sorted<Record>,
    pub same_ids: SameIds,
    /// All copies, by place in clean.
    pub clean: Table<Copy>,
    /// The number of copies in `clean` that were read.
    pub row: u64,
    /// Lost and phantom records, to be searched in other partitions.
    pub unmatched: &'u mut Sorter<Unmatched>,
}

/// An expected record.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedRecord {
    raw_offset: Offset,
    /// Clean has a copy of it, or an altered one.
    seen: bool,
    /// One of the copies is in order.
    in_order: bool,
    /// The record; always present if clean has no copy of it.
    entry: Option<Record>,
}

impl ExpectedRecord {
    /// The record, if it is due and not in clean.
    fn missing(&self) -> Option<Record> {
        self.entry.filter(|entry| !self.seen && entry.marks.has(Marks::DUE))
    }
}

impl Evaluation<'_, '_> {
    fn add(&mut self, step: Step, kind: Kind, copy: &Copy, fields: Differing) {
        self.findings.add(
            (step, copy.clean_offset, 0),
            kind,
            Some(copy.raw_offset),
            Some(copy.clean_place()),
            fields,
        );
    }

    fn allows_gone(&self) -> bool {
        self.options.gone != Gone::Nothing
    }

    /// Reads the next expected record, and evaluates its copies: all but the first are duplicates. Returns
    /// whether there was one.
    fn read(&mut self) -> io::Result<bool> {
        let number = self.number;
        let copy = self.streams.copies.peek().filter(|copy| copy.raw_partition == number);
        let entry = self.streams.unseen.peek().filter(|entry| entry.partition == number);
        let next = [copy.map(|copy| copy.raw_offset), entry.map(|entry| entry.offset)];
        let Some(raw_offset) = next.into_iter().flatten().min() else { return Ok(false) };
        let place = (number, raw_offset);
        let entry = self.streams.unseen.next_if(|entry| entry.place() == place)?;
        let kept = self.streams.copies.next_if(|copy| copy.raw_place() == place)?;
        let mut fate = entry.filter(|entry| entry.marks.has(Marks::DUE)).map(|_| Fate::Missing);
        if let Some(kept) = &kept {
            let mut unchanged = kept.fields.is_none();
            let mut is_held = kept.fields.is_at_most_headers();
            while let Some(other) = self.streams.copies.next_if(|copy| copy.raw_place() == place)? {
                // Those of raw records that are deleted differ from the one that is left.
                let deleted = if unchanged || !other.fields.is_none() { &other } else { kept };
                unchanged |= other.fields.is_none();
                is_held |= other.fields.is_at_most_headers();
                if self.allows_gone() && self.is_of_another(deleted) {
                    self.outcome.gone += 1;
                } else if !self.may_repeat(other.marks) {
                    self.add(Step::Copies, Kind::Duplicated, &other, Differing::default());
                }
            }
            fate = Some(self.kept(kept, unchanged, is_held));
        }
        if let Some(fate) = fate {
            self.streams.same_ids.pass(place, fate)?;
        }
        let in_order = kept.is_some_and(|kept| kept.in_order);
        self.read_ahead.push_back(ExpectedRecord { raw_offset, seen: kept.is_some(), in_order, entry });
        Ok(true)
    }

    /// Whether a clean record is certainly of another raw record than the one that it is matched to, and not within one window of that.
    fn is_of_another(&self, copy: &Copy) -> bool {
        !copy.fields.is_at_most_headers() && !self.rules.within_window(0, copy.distance_ms)
    }

    /// Whether clean may hold a raw record several times: `rekey` writes it at least once, and dedupd forwards each of these
    /// writes if the record has no id or is forced.
    fn may_repeat(&self, marks: Marks) -> bool {
        self.is_rekeyed && (!marks.has(Marks::ID) || marks.has(Marks::FORCED))
    }

    /// Evaluates the copy that counts for its raw record; `unchanged`: whether any copy of that is unchanged, `is_held`: but for the
    /// headers. Returns what became of the raw record.
    fn kept(&mut self, copy: &Copy, unchanged: bool, is_held: bool) -> Fate {
        let outside = copy.marks.is_outside();
        self.outcome.outside += u64::from(outside);
        if !unchanged && (outside || self.allows_gone()) {
            self.outcome.gone += u64::from(!outside);
            if is_held {
                return Fate::Forwarded;
            }
            let is_dropped = copy.marks.has(Marks::ID) && !copy.marks.has(Marks::BEFORE);
            self.outcome.dropped.not_compared += u64::from(is_dropped);
            return Fate::OwnerGone;
        }
        if !unchanged {
            self.add(Step::Copies, Kind::Altered, copy, copy.fields);
        }
        if !copy.in_order && self.allows_gone() && self.outcome.raw.holes {
            self.outcome.gone += 1;
        } else if !copy.in_order {
            self.add(Step::Copies, Kind::OutOfOrder, copy, Differing::default());
        }
        if is_held { Fate::Forwarded } else { Fate::Altered }
    }

    /// Finds duplicates of ids that were seen again after the window: a record that follows such a record
    /// within the window must not be in clean. `repeats` are the copies in order that repeat an earlier id.
    pub fn repeats_within_window(
        &mut self,
        repeats: Sorter<Link>,
        chains: &mut Table<Record>,
    ) -> io::Result<()> {
        let mut repeats = repeats.sorted()?;
        while let Some(Link { chain, .. }) = repeats.peek() {
            let Some(first) = chains.get(chain)? else { break };
            let mut owner_ms = Some(first.time_ms).filter(|_| !first.marks.has(Marks::OUTSIDE));
            while let Some(link) = repeats.next_if(|link| link.chain == chain)? {
                let Some(copy) = self.streams.clean.get(link.copy)? else { break };
                let Some(record) = chains.get(copy.row)? else { break };
                let is_near = |ms| owner_ms.is_some_and(|owner_ms| self.rules.within_window(owner_ms, ms));
                if is_near(record.time_ms) {
                    let (raw, clean) = (copy.raw_offset, copy.clean_place());
                    let key = (Step::Repeats, first.offset, raw);
                    self.findings.add(key, Kind::Duplicated, Some(raw), Some(clean), Differing::default());
                } else {
                    self.findings.late_or_twice += u64::from(is_near(record.own_ms()));
                    owner_ms = Some(record.time_ms);
                }
            }
        }
        Ok(())
    }

    /// Evaluates copies, clean records without a raw record, and lost records. An unmatched clean record counts
    /// as altered if a lost record at the same position resembles it. `begin` is the first offset of the range
    /// in raw.
    pub fn all(&mut self, begin: Offset) -> io::Result<()> {
        let number = self.number;
        let mut here = begin;
        while let Some(record) = self.streams.unmatched_clean.next_if(|record| record.partition == number)? {
            if self.is_explained(&record) {
                continue;
            }
            here = here.max(self.after_copies_before(&record)?);
            self.pass(here)?;
            if let Some(entry) = self.resembling(&record.content)? {
                here = entry.offset + 1;
                let fields = entry.content.differing(&record.content);
                self.add_clean(Kind::Altered, Some(entry.offset), &record, fields);
            } else {
                self.add_clean(Kind::Phantom, None, &record, Differing::default());
                self.add_unmatched(record.fingerprint, false)?;
            }
        }
        self.pass(Offset::MAX)?;
        if self.at_start {
            self.findings.lost_at_start = 0;
        }
        let Streams { clean, row, .. } = &mut *self.streams;
        *row = clean.first_not(*row..clean.len(), |copy| copy.partition <= number)?;
        Ok(())
    }

    /// The raw offset after all copies in order that precede a clean record and were not read yet.
    fn after_copies_before(&mut self, record: &Record) -> io::Result<Offset> {
        let Streams { clean, row, .. } = &mut *self.streams;
        let mut after = 0;
        while let Some(copy) =
            clean.get(*row)?.filter(|copy| (copy.partition, copy.clean_offset) < record.place())
        {
            if copy.in_order {
                after = after.max(copy.raw_offset + 1);
            }
            *row += 1;
        }
        Ok(after)
    }

    /// Whether a record that is not in raw is older than the range, or may have been deleted from raw.
    fn is_explained(&mut self, record: &Record) -> bool {
        let older = self.rules.from_ms.is_some_and(|from_ms| record.content.timestamp_ms() < from_ms);
        self.outcome.outside += u64::from(older);
        self.outcome.gone += u64::from(!older && self.allows_gone());
        older || self.allows_gone()
    }

    fn add_clean(&mut self, kind: Kind, raw: Option<Offset>, clean: &Record, fields: Differing) {
        self.findings.add((Step::Unmatched, clean.offset, 0), kind, raw, Some(clean.place()), fields);
    }

    fn add_unmatched(&mut self, fingerprint: Fingerprint, lost: bool) -> io::Result<()> {
        self.streams.unmatched.push(Unmatched { fingerprint, partition: self.options.partition, lost })
    }

    /// The first missing record ahead that resembles this one, and that no record in clean precedes. It counts
    /// as seen from then on.
    fn resembling(&mut self, content: &Content) -> io::Result<Option<Record>> {
        for ahead in 0..SEARCH_LIMIT {
            if ahead == self.read_ahead.len() {
                self.read()?;
            }
            let Some(record) = self.read_ahead.get_mut(ahead).filter(|record| !record.seen) else { break };
            if let Some(entry) = record.missing().filter(|entry| entry.content.resembles(content)) {
                record.seen = true;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Evaluates the expected records before `end`: no clean record can match them any more.
    fn pass(&mut self, end: Offset) -> io::Result<()> {
        while !self.read_ahead.is_empty() || self.read()? {
            let Some(record) = self.read_ahead.pop_front_if(|record| record.raw_offset < end) else { break };
            self.before_first &= !record.in_order;
            self.at_start &= !record.in_order;
            self.loss(&record)?;
        }
        Ok(())
    }

    fn loss(&mut self, record: &ExpectedRecord) -> io::Result<()> {
        let Some(entry) = record.missing() else { return Ok(()) };
        let uncertain = self.uncertain_until_ms.is_some_and(|until_ms| entry.time_ms <= until_ms);
        if self.before_first || (uncertain && self.allows_gone()) {
            self.outcome.gone += 1;
            return Ok(());
        }
        self.findings.lost_at_start += u64::from(self.at_start);
        let key = (Step::Losses, record.raw_offset, 0);
        self.findings.add(key, Kind::Lost, Some(record.raw_offset), None, Differing::default());
        self.add_unmatched(entry.fingerprint, true)
    }
}
