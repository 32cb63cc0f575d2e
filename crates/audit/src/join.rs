//! Joins raw and clean, sorted by fingerprint.
//!
//! If exactly one expected record of a partition has a fingerprint, all clean records of the partition with that fingerprint
//! are its copies. If several raw records share a fingerprint, [`super::choice`] assigns their clean records later.

use std::collections::BTreeMap;
use std::io;

use super::PartitionId;
use super::dropped::Repeated;
use super::entry::{Ambiguous, Chain, Copy, Marks, Record, Round};
use super::expected::{MissingId, RawCounts, Rules};
use super::instances::Instances;
use super::owners::{Claim, TopicRules};
use super::record::Fingerprint;
use super::spill::{Scratch, Sorted, Sorter, Table};

/// How many raw records are compared with a clean record that names none of them.
const SEARCH_LIMIT: usize = 1024;

/// The result of the join.
#[derive(Debug)]
pub(super) struct Joined<'a> {
    scratch: &'a Scratch,
    rules: &'a Rules,
    topic: Option<&'a TopicRules>,
    is_rekeyed: bool,
    /// Clean records that have at least one candidate raw record, by place in clean.
    pub copies: Sorter<Copy>,
    /// The rounds in which copies have to be assigned.
    pub rounds: Vec<Round>,
    /// Clean records with several candidates.
    pub ambiguous: Table<Ambiguous>,
    /// Clean records without a raw record, by place.
    pub unmatched: Sorter<Record>,
    /// A superset of the expected records without a copy, by place. In topic scope those of ids with several raw records are
    /// not among them.
    pub unseen: Sorter<Record>,
    /// Expected records that share a fingerprint with others, by fingerprint, then by place, or behind `rekey` by headers.
    pub chains: Table<Record>,
    /// Owners that are not in raw any more, of ids with several raw records. Only topic scope has them.
    pub claims: Sorter<Claim>,
    /// All raw records of ids that several have, or whose clean record has lost its raw record.
    pub repeated: Repeated,
    pub counts: BTreeMap<PartitionId, RawCounts>,
    /// The expected records of the fingerprint that is joined, by partition.
    slots: Vec<Slot>,
}

/// The expected records of one fingerprint in one partition.
#[derive(Debug, Clone, Copy)]
struct Slot {
    partition: PartitionId,
    first: Record,
    chain: Chain,
    /// Whether the records are in the chains, although there may be only one.
    is_chained: bool,
    /// Whether the partition of clean has a record with the fingerprint.
    is_seen: bool,
}

impl<'a> Joined<'a> {
    /// Joins both sides to their end.
    pub fn new(
        scratch: &'a Scratch,
        rules: &'a Rules,
        topic: Option<&'a TopicRules>,
        counts: BTreeMap<PartitionId, RawCounts>,
        mut records: Sorted<Record>,
    ) -> io::Result<Self> {
        let mut joined = Self {
            scratch,
            rules,
            topic,
            is_rekeyed: topic.is_some_and(|topic| topic.is_rekeyed),
            copies: Sorter::new(scratch, 6, Copy::by_clean_place),
            rounds: Vec::new(),
            ambiguous: Table::new(scratch),
            unmatched: Sorter::new(scratch, 2, Record::by_place),
            unseen: Sorter::new(scratch, 2, Record::by_place),
            chains: Table::new(scratch),
            claims: Sorter::new(scratch, 2, Claim::by_time),
            repeated: Repeated::new(scratch),
            counts,
            slots: Vec::new(),
        };
        while let Some(Record { fingerprint, marks, .. }) = records.peek() {
            joined.slots.clear();
            let group = joined.chains.len();
            if joined.topic.is_some() && marks.has(Marks::ID) {
                joined.raw_of_topic(fingerprint, &mut records)?;
            } else {
                joined.raw_of_partitions(fingerprint, &mut records)?;
            }
            joined.clean(fingerprint, group, &mut records)?;
        }
        joined.rounds.sort_unstable();
        Ok(joined)
    }

    /// Adds the raw records with this fingerprint, which are next. Each partition is on its own.
    fn raw_of_partitions(
        &mut self,
        fingerprint: Fingerprint,
        records: &mut Sorted<Record>,
    ) -> io::Result<()> {
        while let Some(record) = records.next_if(|record| record.is_raw_of(fingerprint))? {
            self.repeated.add(&record, self.number(&record), records.peek())?;
            let first = self.slot(self.number(&record)).map(|slot| slot.first);
            if let Some(entry) = self.expect(first.as_ref(), &record) {
                self.enter(&entry)?;
            }
        }
        Ok(())
    }

    /// Adds the raw records with this id, which are next. They are one group, whatever their partition.
    fn raw_of_topic(&mut self, fingerprint: Fingerprint, records: &mut Sorted<Record>) -> io::Result<()> {
        let Some(only) = records.next_if(|record| record.is_raw_of(fingerprint))? else { return Ok(()) };
        self.repeated.add(&only, self.number(&only), records.peek())?;
        if records.peek().is_none_or(|next| !next.is_raw_of(fingerprint)) {
            return self.expect(None, &only).map_or(Ok(()), |entry| self.enter(&entry));
        }
        let mut all = Table::new(self.scratch);
        let mut instances = Instances::new(&only, self.is_rekeyed);
        all.push(only)?;
        while let Some(record) = records.next_if(|record| record.is_raw_of(fingerprint))? {
            self.repeated.add(&record, self.number(&record), records.peek())?;
            instances.add(&record);
            all.push(record)?;
        }
        for number in 0..all.len() {
            let Some(record) = all.get(number)? else { break };
            let slot = self.slot(self.number(&record)).copied();
            let here = slot.as_ref().map(|slot| (&slot.first, slot.chain.len));
            let counts = self.counts.entry(record.partition).or_default();
            let Some(entry) = instances.expect(here, &record, self.rules, counts) else { continue };
            self.chain(&entry)?;
            // A forced record is due whatever the others are.
            if entry.marks.has(Marks::FORCED) {
                self.may_be_unseen(&entry)?;
            }
        }
        Ok(())
    }

    /// The partition in which a record is matched. Behind `rekey` it is the same one for all: any raw record may be in any
    /// partition of clean.
    fn number(&self, record: &Record) -> PartitionId {
        if self.is_rekeyed { 0 } else { record.partition }
    }

    /// The slot of this partition, which is the last one.
    fn slot(&mut self, partition: PartitionId) -> Option<&mut Slot> {
        self.slots.last_mut().filter(|slot| slot.partition == partition)
    }

    /// Adds an expected record. It is in the chains only if it is not alone in its partition.
    fn enter(&mut self, entry: &Record) -> io::Result<()> {
        let Some(slot) = self.slot(self.number(entry)) else {
            self.open_slot(entry, false);
            return Ok(());
        };
        slot.chain.len += 1;
        if slot.chain.len == 2 {
            slot.is_chained = true;
            let first = slot.first;
            self.link(&first)?;
        }
        self.link(entry)
    }

    /// Adds an expected record to the chains.
    fn chain(&mut self, entry: &Record) -> io::Result<()> {
        match self.slot(self.number(entry)) {
            Some(slot) => slot.chain.len += 1,
            None => self.open_slot(entry, true),
        }
        self.chains.push(*entry)
    }

    fn open_slot(&mut self, first: &Record, is_chained: bool) {
        let chain = Chain { start: self.chains.len(), len: 1 };
        self.slots.push(Slot {
            partition: self.number(first),
            first: *first,
            chain,
            is_chained,
            is_seen: false,
        });
    }

    fn link(&mut self, entry: &Record) -> io::Result<()> {
        self.chains.push(*entry)?;
        self.may_be_unseen(entry)
    }

    /// A record before the range is never lost.
    fn may_be_unseen(&mut self, entry: &Record) -> io::Result<()> {
        if entry.marks.has(Marks::BEFORE) { Ok(()) } else { self.unseen.push(*entry) }
    }

    /// Adds the clean records with this fingerprint, which are next. `group` is the first row of its chains, if it has one.
    fn clean(
        &mut self,
        fingerprint: Fingerprint,
        group: u64,
        records: &mut Sorted<Record>,
    ) -> io::Result<()> {
        let mut slots = std::mem::take(&mut self.slots);
        let mut next = slots.iter_mut().peekable();
        // Whether all slots are explained by a clean record whose raw record was deleted, in whatever partition it is.
        let mut is_explained = false;
        while let Some(partition) =
            records.peek().filter(|r| r.fingerprint == fingerprint).map(|r| self.number(&r))
        {
            while next.next_if(|slot| slot.partition < partition).is_some() {}
            let is_rekeyed = self.is_rekeyed;
            let is_here = |record: &Record| {
                record.fingerprint == fingerprint && (is_rekeyed || record.partition == partition)
            };
            let Some(slot) = next.next_if(|slot| slot.partition == partition) else {
                while let Some(record) = self.next_clean(records, is_here)? {
                    self.unmatched.push(record)?;
                    let deleted = record.marks.has(Marks::ID) && self.topic.is_some_and(|t| t.allows_gone);
                    is_explained |= deleted;
                }
                continue;
            };
            slot.is_seen = true;
            let slot = *slot;
            if slot.chain.len == 1 {
                let row = if slot.is_chained { slot.chain.start } else { 0 };
                while let Some(record) = self.next_clean(records, is_here)? {
                    self.copies.push(Copy::unique(&record, &slot.first, row))?;
                }
            } else if is_rekeyed {
                while let Some(record) = self.next_clean(records, is_here)? {
                    self.named(slot.chain, &record)?;
                }
            } else {
                let mut clean = Table::new(self.scratch);
                while let Some(record) = self.next_clean(records, is_here)? {
                    clean.push(record)?;
                }
                self.several(slot.chain, &mut clean)?;
            }
        }
        slots
            .iter()
            .filter(|slot| !slot.is_seen)
            .try_for_each(|slot| self.unseen_slot(slot, is_explained))?;
        if is_explained && self.chains.len() > group {
            self.claims.push(Claim::anywhere(group, fingerprint))?;
        }
        self.slots = slots;
        Ok(())
    }

    /// The next record, if it is one of these.
    fn next_clean(
        &mut self,
        records: &mut Sorted<Record>,
        is_wanted: impl Fn(&Record) -> bool,
    ) -> io::Result<Option<Record>> {
        let record = records.next_if(is_wanted)?;
        if let Some(record) = &record {
            self.repeated.add_clean(record, self.number(record))?;
        }
        Ok(record)
    }

    /// Adds a clean record behind `rekey`: its headers name one of the raw records, which are sorted by them. If they name none, it
    /// is compared with one that is equal but for the headers, or with the first.
    fn named(&mut self, chain: Chain, record: &Record) -> io::Result<()> {
        let headers = record.content.headers();
        let rows = chain.start..chain.end();
        let mut row = self.chains.first_not(rows.clone(), |entry| entry.content.headers() < headers)?;
        let named = self.chains.get(row)?.filter(|_| rows.contains(&row));
        if named.is_none_or(|entry| entry.content.headers() != headers) {
            row = chain.start;
            for other in rows.take(SEARCH_LIMIT) {
                let entry = self.chains.get(other)?;
                if entry.is_some_and(|entry| entry.content.is_same_but_headers(&record.content)) {
                    row = other;
                    break;
                }
            }
        }
        let Some(entry) = self.chains.get(row)? else { return Ok(()) };
        self.copies.push(Copy::unique(record, &entry, row))
    }

    /// Adds the record of a slot without a clean record, unless it is in the chains.
    fn unseen_slot(&mut self, slot: &Slot, is_explained: bool) -> io::Result<()> {
        // A forced record is due whatever the others are.
        let is_explained = is_explained && !slot.first.marks.has(Marks::FORCED);
        match (slot.is_chained, is_explained) {
            (true, _) => Ok(()),
            (false, true) => self.repeated.add_only(&slot.first),
            (false, false) => self.may_be_unseen(&slot.first),
        }
    }

    /// Adds the clean records of a chain. If clean has as many records of one content as raw, they are paired
    /// one by one.
    fn several(&mut self, chain: Chain, clean: &mut Table<Record>) -> io::Result<()> {
        for number in 0..clean.len() {
            let Some(record) = clean.get(number)? else { break };
            let round = if record.marks.has(Marks::ID) { Round::ID } else { Round::CONTENT };
            let mut copy = Copy::unassigned(record.place(), round, chain.start, self.ambiguous.len());
            let row = chain.start + number;
            match self.chains.get(row)? {
                Some(entry) if round == Round::CONTENT && clean.len() == chain.len => {
                    // In topic scope an id may have equal records on both sides of these, so they limit where it is matched.
                    copy.round = if self.topic.is_some() { Round::UNIQUE } else { Round::ID };
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

    /// The expected record that the next raw record of a fingerprint adds, if any; by increasing offset. `first` is the first
    /// expected record of the fingerprint in this partition.
    fn expect(&mut self, first: Option<&Record>, record: &Record) -> Option<Record> {
        let counts = self.counts.entry(record.partition).or_default();
        let may_be_due = record.marks.has(Marks::DUE);
        let before = record.marks.has(Marks::BEFORE);
        if !record.marks.has(Marks::ID) {
            let due = self.rules.missing_id != MissingId::Withheld || record.marks.has(Marks::FORCED);
            return due.then(|| record.expected(may_be_due, Marks::default()));
        }
        // A record with an id may be due wherever it is in the range, and only there.
        let one = u64::from(may_be_due);
        let Some(first) = first else {
            counts.ids += one;
            let marks = if before { Marks::OUTSIDE } else { Marks::default() };
            return Some(record.expected(may_be_due, marks));
        };
        if before {
            None
        } else if record.marks.has(Marks::FORCED) {
            counts.forced += one;
            Some(record.expected(may_be_due, Marks::default()))
        } else if first.marks.has(Marks::OUTSIDE) {
            counts.decided_outside += one;
            Some(record.expected(false, Marks(Marks::REPEAT.0 | Marks::OUTSIDE.0)))
        } else if self.rules.within_window(first.time_ms, record.time_ms) {
            counts.duplicates += one;
            None
        } else {
            counts.beyond_window += one;
            Some(record.expected(false, Marks::REPEAT))
        }
    }
}
