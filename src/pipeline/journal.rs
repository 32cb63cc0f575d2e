//! The journals of a worker: what it has written to them, and how far they are read.

use std::collections::BTreeMap;

use crate::dedupe::{
    BlockError, BlockView, Entry, EntryReader, JournalRecord, Offset, PartitionId, StateKey,
};
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{StateLog, Store, StoreError};

/// A partition of the state topic, to which the transactions of some raw partitions add their entries.
#[derive(Debug, Default)]
pub struct Journal {
    /// Its end after the last commit, or as it was checked.
    pub end: JournalEnd,
    /// Whether it was checked since the producer was created: no transaction is open in it, and the other logs agree with its last entry.
    pub is_checked: bool,
    reading: Reading,
}

/// The end of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalEnd {
    /// Number of the last committed entry; 0 when there is none.
    pub last: u64,
    /// An offset at or behind that entry, and at or before the next one.
    pub next: Offset,
}

/// How far a journal is read, for restores.
#[derive(Debug, Default)]
struct Reading {
    /// The next offset; `None` while it is not open.
    next: Option<Offset>,
    /// The entries before it are read.
    border: Offset,
    entries: EntryReader,
    /// Number of the last entry that was read.
    number: Option<u64>,
    /// No entry before the offset at which it was opened has a higher number; `None` while that is not known.
    stored: Option<u64>,
    /// The end of the log was reported, and nothing was read since.
    is_at_end: bool,
    /// A restore lacks something that the log has reported, and that it reports only once.
    is_outdated: bool,
}

/// The journals, by their number.
#[derive(Debug, Default)]
pub struct Journals(BTreeMap<PartitionId, Journal>);

impl Journals {
    /// The end of a journal, if it was used or checked.
    #[must_use]
    pub fn end(&self, journal: PartitionId) -> JournalEnd {
        self.0.get(&journal).map(|journal| journal.end).unwrap_or_default()
    }

    /// See [`Journal::is_checked`].
    #[must_use]
    pub fn is_checked(&self, journal: PartitionId) -> bool {
        self.0.get(&journal).is_some_and(|journal| journal.is_checked)
    }

    /// A journal that may not have been used before.
    pub fn get_mut(&mut self, journal: PartitionId) -> &mut Journal {
        self.0.entry(journal).or_default()
    }

    /// The ends, each with the number of its journal.
    pub fn ends_mut(&mut self) -> impl Iterator<Item = (PartitionId, &mut JournalEnd)> {
        self.0.iter_mut().map(|(number, journal)| (*number, &mut journal.end))
    }

    /// Another worker may write to this journal, so it has to be checked again.
    pub fn uncheck(&mut self, journal: PartitionId) {
        self.0.get_mut(&journal).into_iter().for_each(|it| it.is_checked = false);
    }

    /// All journals have to be checked again.
    pub fn uncheck_all(&mut self) {
        self.0.values_mut().for_each(|journal| journal.is_checked = false);
    }
}

/// What the next record of a journal leads to.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It does not end an entry, or the journal is not read.
    Nothing,
    /// It ends this entry.
    Entry(Box<Entry>),
    /// Entries, or records of this one, are missing.
    Lacks(Lacking),
}

/// Where a journal lacks committed records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lacking {
    /// Number of the last entry before them.
    pub last: u64,
    /// Number of the first entry behind them, or of the one that lacks records.
    pub next: u64,
}

/// The rules by which entries follow each other.
#[derive(Debug, Clone, Copy)]
struct ReadRules {
    /// The numbers have no gaps.
    numbers: bool,
    /// No record is missing.
    whole: bool,
}

impl Reading {
    /// Whether what the log reports can be applied.
    fn is_read(&self) -> bool {
        self.next.is_some() && !self.is_outdated
    }

    fn take(&mut self, record: JournalRecord, rules: ReadRules) -> Result<Taken, BlockError> {
        if !self.is_read() || self.next.is_none_or(|next| record.offset < next) {
            return Ok(Taken::Nothing);
        }
        self.next = Some(record.offset + 1);
        self.is_at_end = false;
        let Some(entry) = self.entries.push(record)? else { return Ok(Taken::Nothing) };
        self.border = entry.at + 1;
        let number = entry.end.number;
        let follows = |last: u64| last + 1 == number || !rules.numbers;
        let lacks_behind = match self.number.replace(number) {
            Some(last) => Some(last).filter(|last| !follows(*last) || rules.whole && !entry.is_whole),
            // The first one may be cut by retention, and may be one that local state has.
            None => self.stored.filter(|last| number > *last && !follows(*last)),
        };
        match lacks_behind {
            Some(last) => Ok(Taken::Lacks(Lacking { last, next: number })),
            None => Ok(Taken::Entry(Box::new(entry))),
        }
    }
}

impl<W: WorkerPorts> Context<W> {
    /// The partitions of a journal that are being restored from it.
    pub(crate) fn restoring_from(&self, journal: PartitionId) -> Vec<PartitionId> {
        let is_of = |p: &Partition| self.options.journal_of(p.id) == journal;
        self.partitions.ids(|p| is_of(p) && matches!(p.phase(), Phase::Restoring(_)))
    }

    /// Opens each journal that a restore has to read, at the first offset that is needed, and closes the others. A journal is not read while
    /// one of its partitions searches for forgotten owners. Returns whether any is open.
    pub(crate) fn open_journals(&mut self) -> Result<bool, WorkerError> {
        let mut needed: BTreeMap<PartitionId, Option<Offset>> = self
            .journals
            .0
            .iter()
            .filter(|(_, it)| it.reading.next.is_some())
            .map(|(id, _)| (*id, None))
            .collect();
        let mut searched = Vec::new();
        for restoring in self.partitions.all_restoring_mut() {
            let journal = self.options.journal_of(restoring.state.id);
            let first = needed.entry(journal).or_default();
            *first = Some(first.map_or(restoring.needed, |first| first.min(restoring.needed)));
            searched.extend(restoring.forgetting.is_some().then_some(journal));
        }
        let mut is_any = false;
        for (journal, first) in needed {
            let reading = &mut self.journals.get_mut(journal).reading;
            let first = first.filter(|_| !searched.contains(&journal));
            is_any |= first.is_some();
            match first {
                None if reading.next.is_some() => {
                    self.log.close(journal)?;
                    *reading = Reading::default();
                }
                Some(first) if !reading.is_read() || reading.border > first => {
                    // Opened where the entries that were read end, it continues behind the last of them.
                    let number = reading.number.filter(|_| reading.border == first);
                    let stored = self.last_stored(journal, first)?;
                    self.log.open(journal, first)?;
                    let opened =
                        Reading { next: Some(first), border: first, number, stored, ..Reading::default() };
                    self.journals.get_mut(journal).reading = opened;
                }
                _ => {}
            }
        }
        Ok(is_any)
    }

    /// A number that no entry before this offset of a journal exceeds: the highest one in the local state of its partitions, if each of them
    /// names its last entry and has all of its entries before that offset.
    fn last_stored(&self, journal: PartitionId, first: Offset) -> Result<Option<u64>, StoreError> {
        let mut last = None;
        for id in self.known_partitions().filter(|id| self.options.journal_of(*id) == journal) {
            let head = self.store.head(id.into())?.filter(|head| head.state_next >= first);
            // Without a name there may have been entries: the group may have lost it, or owners up to it were removed.
            let Some(tail) = head.and_then(|head| head.confirmed_tail) else { return Ok(None) };
            last = last.max(Some(tail.entry.number));
        }
        Ok(last)
    }

    /// Makes the next [`Self::open_journals`] open a journal again.
    pub(crate) fn reopen_journal(&mut self, journal: PartitionId) {
        self.journals.get_mut(journal).reading.is_outdated = true;
    }

    /// A restore begins, or continues after a search. The log reports its end only once, so a journal whose end was reported is opened again.
    pub(crate) fn await_end(&mut self, partition: PartitionId) {
        let journal = self.options.journal_of(partition);
        if self.journals.get_mut(journal).reading.is_at_end {
            self.reopen_journal(journal);
        }
    }

    /// The end of a journal is reported at `next`. Returns the offset up to which whole entries are read; `None` when it has to be opened again.
    pub(crate) fn end_of_entries(&mut self, journal: PartitionId, next: Offset) -> Option<Offset> {
        let reading = &mut self.journals.get_mut(journal).reading;
        reading.is_at_end = true;
        reading.is_read().then(|| reading.entries.first_pending().map_or(next, |first| first.min(next)))
    }

    /// Takes a record that was read from a journal.
    pub(crate) fn take_record(
        &mut self,
        journal: PartitionId,
        offset: Offset,
        key: Option<StateKey>,
        bytes: Vec<u8>,
    ) -> Result<Taken, WorkerError> {
        let rules = ReadRules {
            numbers: self.options.keeps(Safeguard::EntryNumbers),
            whole: self.options.keeps(Safeguard::WholeEntries),
        };
        let reading = &mut self.journals.get_mut(journal).reading;
        if !reading.is_read() {
            return Ok(Taken::Nothing);
        }
        let place = || format!("topic {} partition {journal} offset {offset}", self.options.state);
        let Some(key) = key else {
            let unusable = BlockView::verified(&bytes).err();
            return Err(unusable
                .map_or_else(|| Fatal::foreign(&place()), |error| Fatal::unusable(&place(), &error))
                .into());
        };
        self.options.same_pair(&key)?;
        self.options.same_scope(key.is_topic_wide, || format!("{} was written", place()))?;
        let taken = reading.take(JournalRecord { offset, key, bytes }, rules);
        taken.map_err(|error| WorkerError::block(&place(), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{Block, EntryEnd, HashKind};

    const ALL: ReadRules = ReadRules { numbers: true, whole: true };

    fn block(first: Offset) -> Vec<u8> {
        Block::empty(HashKind::Xxh3, 0.into(), first..first + 1, 1).encode()
    }

    fn end_of(number: u64, records: &[Vec<u8>]) -> Vec<u8> {
        EntryEnd::of(number, records.iter().map(Vec::as_slice), Vec::new()).encode()
    }

    fn reading_at(next: Offset) -> Reading {
        Reading { next: Some(next), border: next, ..Reading::default() }
    }

    /// What these values lead to, at offsets from 10 on, when it is read from 10 on: the numbers of entries and gaps.
    fn taken(values: &[Vec<u8>], rules: ReadRules) -> Vec<Result<u64, (u64, u64)>> {
        taken_behind(None, values, rules)
    }

    /// The same behind local state whose last entry has this number.
    fn taken_behind(
        stored: Option<u64>,
        values: &[Vec<u8>],
        rules: ReadRules,
    ) -> Vec<Result<u64, (u64, u64)>> {
        let mut reading = Reading { stored, ..reading_at(10) };
        let mut taken = Vec::new();
        for (offset, bytes) in (10..).zip(values) {
            let record = JournalRecord { offset, key: StateKey::default(), bytes: bytes.clone() };
            match reading.take(record, rules).unwrap() {
                Taken::Nothing => {}
                Taken::Entry(entry) => taken.push(Ok(entry.end.number)),
                Taken::Lacks(Lacking { last, next }) => taken.push(Err((last, next))),
            }
        }
        taken
    }

    #[test]
    fn entries_with_ascending_numbers_are_read() {
        let log = [block(1), end_of(6, &[block(1)]), end_of(7, &[]), block(2), end_of(8, &[block(2)])];
        assert_eq!(taken(&log, ALL), [Ok(6), Ok(7), Ok(8)]);
    }

    #[test]
    fn an_entry_that_is_missing_is_a_gap() {
        assert_eq!(taken(&[end_of(6, &[]), end_of(8, &[])], ALL), [Ok(6), Err((6, 8))]);
        // An entry that is there twice was committed twice.
        assert_eq!(taken(&[end_of(6, &[]), end_of(6, &[])], ALL), [Ok(6), Err((6, 6))]);
        let rules = ReadRules { numbers: false, ..ALL };
        assert_eq!(taken(&[end_of(6, &[]), end_of(8, &[])], rules), [Ok(6), Ok(8)]);
    }

    #[test]
    fn an_entry_that_is_missing_behind_local_state_is_a_gap() {
        let behind = |number, rules| taken_behind(Some(5), &[end_of(number, &[])], rules);
        assert_eq!(behind(7, ALL), [Err((5, 7))]);
        assert_eq!(behind(6, ALL), [Ok(6)]);
        assert_eq!(behind(7, ReadRules { numbers: false, ..ALL }), [Ok(7)]);
        // The head may be older than its last entry: that is read once more.
        assert_eq!([4, 5].map(|number| behind(number, ALL)), [[Ok(4)], [Ok(5)]]);
        assert_eq!(taken_behind(Some(5), &[end_of(5, &[]), end_of(7, &[])], ALL), [Ok(5), Err((5, 7))]);
    }

    #[test]
    fn only_the_first_entry_may_lack_records() {
        let cut = |number| end_of(number, &[block(1)]);
        assert_eq!(taken(&[cut(6), end_of(7, &[])], ALL), [Ok(6), Ok(7)]);
        assert_eq!(taken(&[end_of(6, &[]), cut(7)], ALL), [Ok(6), Err((6, 7))]);
        let rules = ReadRules { whole: false, ..ALL };
        assert_eq!(taken(&[end_of(6, &[]), cut(7)], rules), [Ok(6), Ok(7)]);
    }

    #[test]
    fn what_is_read_already_or_not_read_is_ignored() {
        let end = |offset| JournalRecord { offset, key: StateKey::default(), bytes: end_of(6, &[]) };
        let mut reading = reading_at(10);
        assert!(matches!(reading.take(end(9), ALL), Ok(Taken::Nothing)));
        assert!(matches!(reading.take(end(10), ALL), Ok(Taken::Entry(_))));
        assert_eq!((reading.next, reading.border), (Some(11), 11));
        assert!(matches!(reading.take(end(10), ALL), Ok(Taken::Nothing)), "it was read");
        reading.is_outdated = true;
        assert!(matches!(reading.take(end(11), ALL), Ok(Taken::Nothing)), "it is opened again");
        reading = Reading::default();
        assert!(matches!(reading.take(end(11), ALL), Ok(Taken::Nothing)), "it is not read");
    }
}
