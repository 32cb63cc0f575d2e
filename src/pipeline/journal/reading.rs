//! How far a journal is read, for restores, and what its records lead to.

use crate::dedupe::{Block, BlockError, Entry, EntryReader, JournalId, JournalRecord, Offset, StateKey};
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::StateLog;

/// How far a journal is read, for restores.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The next offset; `None` while it is not open.
    next: Option<Offset>,
    /// The entries before it are read.
    border: Offset,
    entries: EntryReader,
    /// Number of the last entry that was read.
    number: Option<u64>,
    /// No entry before the offset at which it was opened has a higher number; `None` while that is not known.
    stored: Option<u64>,
    /// The restore lacks something that the log has reported, and that it reports only once.
    is_outdated: bool,
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

/// Where the entries of a journal do not follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lacking {
    /// Number of the last entry before that place.
    pub last: u64,
    /// Number of the first entry behind it, or of the one that lacks records.
    pub next: u64,
    /// Offset of that entry, if it is one that the journal had before: a copy. Otherwise committed records are missing.
    pub again_at: Option<Offset>,
}

impl Lacking {
    /// An entry that cannot follow the ones before.
    pub(crate) fn records_of(number: u64) -> Self {
        Self { last: number, next: number, again_at: None }
    }

    /// What is wrong, as the predicate of a sentence about the topic.
    pub(crate) fn what(&self) -> String {
        let Self { last, next, again_at } = self;
        match again_at {
            Some(at) => format!("has entry {next} again at offset {at}, behind entry {last}"),
            None => format!("lacks records of committed entries between {last} and {next}"),
        }
    }
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
            Some(last) => {
                let again_at = Some(entry.at).filter(|_| number <= last);
                Ok(Taken::Lacks(Lacking { last, next: number, again_at }))
            }
            None => Ok(Taken::Entry(Box::new(entry))),
        }
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Opens each journal that a restore has to read, at the first offset that is needed, and closes the others. A journal is not read while
    /// its restore is paused. Returns whether any is open.
    pub(crate) fn open_journals(&mut self) -> Result<bool, WorkerError> {
        let mut is_any = false;
        for journal in self.journals.iter_mut() {
            let needed = journal.restoring_mut().filter(|it| !it.is_paused());
            // No entry before the local state has a higher number than its last one.
            let needed = needed.map(|it| (it.needed, Some(it.applied()).filter(|applied| *applied > 0)));
            is_any |= needed.is_some();
            match needed {
                None if journal.reading.next.is_some() => {
                    self.log.close(journal.id)?;
                    journal.reading = Reading::default();
                }
                Some((first, stored)) if !journal.reading.is_read() => {
                    // Opened where the entries that were read end, it continues behind the last of them.
                    let number = journal.reading.number.filter(|_| journal.reading.border == first);
                    self.log.open(journal.id, first)?;
                    journal.reading = Reading {
                        next: Some(first),
                        border: first,
                        number,
                        stored,
                        is_outdated: false,
                        ..Reading::default()
                    };
                }
                _ => {}
            }
        }
        Ok(is_any)
    }

    /// Makes the next [`Self::open_journals`] open a journal again.
    pub(crate) fn reopen_journal(&mut self, journal: JournalId) {
        self.journals.get_mut(journal).into_iter().for_each(|it| it.reading.is_outdated = true);
    }

    /// Closes a journal that is not used here any more.
    pub(crate) fn close_journal(&mut self, journal: JournalId) -> Result<(), WorkerError> {
        match self.journals.get_mut(journal).map(|it| std::mem::take(&mut it.reading)) {
            Some(reading) if reading.next.is_some() => Ok(self.log.close(journal)?),
            _ => Ok(()),
        }
    }

    /// The end of a journal is reported at `next`. Returns the offset up to which whole entries are read; `None` when it has to be opened again.
    pub(crate) fn end_of_entries(&mut self, journal: JournalId, next: Offset) -> Option<Offset> {
        let reading = &self.journals.get(journal)?.reading;
        reading.is_read().then(|| reading.entries.first_pending().map_or(next, |first| first.min(next)))
    }

    /// Takes a record that was read from a journal.
    pub(crate) fn take_record(
        &mut self,
        journal: JournalId,
        offset: Offset,
        key: Option<StateKey>,
        bytes: Vec<u8>,
    ) -> Result<Taken, WorkerError> {
        let rules = ReadRules {
            numbers: self.options.keeps(Safeguard::EntryNumbers),
            whole: self.options.keeps(Safeguard::WholeEntries),
        };
        let Some(reading) = self.journals.get_mut(journal).map(|it| &mut it.reading) else {
            return Ok(Taken::Nothing);
        };
        if !reading.is_read() {
            return Ok(Taken::Nothing);
        }
        let place = || format!("topic {} partition {journal} offset {offset}", self.options.state);
        let Some(key) = key else {
            let unusable = Block::decode(&bytes).err();
            return Err(unusable
                .map_or_else(|| Fatal::foreign(&place()), |error| Fatal::unusable(&place(), &error))
                .into());
        };
        self.options.same_pair(&key)?;
        self.options.same_scope(key.is_topic_wide, || format!("{} was written", place()))?;
        let taken = reading.take(JournalRecord { offset, key, bytes }, rules);
        taken.map_err(|error| Fatal::unusable(&place(), &error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::{EntryEnd, ForgetRecord, HashKind, Identity};

    const ALL: ReadRules = ReadRules { numbers: true, whole: true };

    fn block(first: Offset) -> Vec<u8> {
        ForgetRecord { hash: HashKind::Xxh3, identities: vec![Identity([u8::try_from(first).unwrap(); 16])] }
            .encode()
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
                Taken::Lacks(Lacking { last, next, again_at }) => {
                    assert_eq!(again_at, Some(offset).filter(|_| next <= last));
                    taken.push(Err((last, next)));
                }
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
        assert_eq!(
            taken(&[end_of(6, &[]), end_of(7, &[]), end_of(6, &[])], ALL),
            [Ok(6), Ok(7), Err((7, 6))]
        );
        let texts = [Some(9), None].map(|again_at| Lacking { last: 6, next: 6, again_at }.what());
        assert_eq!(texts[0], "has entry 6 again at offset 9, behind entry 6");
        assert_eq!(texts[1], "lacks records of committed entries between 6 and 6");
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
