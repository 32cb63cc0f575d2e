//! The last entries of a journal.

use std::collections::BTreeSet;

use crate::dedupe::{Entry, EntryReader, JournalRecord, Offset, PartitionId, Section};
use crate::ports::StateItem;

/// Whether the clean log shows the records that a transaction wrote for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CleanVisibility {
    /// They are visible to `read_committed` readers.
    Yes,
    /// They are in the log, but aborted.
    No,
    /// The log holds their offsets, and compaction has removed the record that decides.
    Gone,
    /// The transaction wrote no clean records, or the log no longer holds their offsets.
    Unknowable,
}

/// The entries at the end of a journal.
#[derive(Debug, Default)]
pub(crate) struct LastEntries {
    /// Those that are committed, in the order of the journal.
    pub shown: Vec<Entry>,
    /// Those that are aborted, in the order of the journal.
    pub hidden: Vec<Entry>,
}

impl LastEntries {
    /// The entries in the records of a journal: `everything` has all of them, `committed` the offsets of those that are committed. An entry
    /// that has no end record was never committed.
    pub fn new(everything: Vec<StateItem>, committed: &BTreeSet<Offset>) -> Self {
        let (mut last, mut reader) = (Self::default(), EntryReader::default());
        for item in everything {
            let StateItem::Record { offset, key: Some(key), value: bytes, .. } = item else { continue };
            // The restore reports a record that cannot be decoded with its offset.
            let Ok(Some(entry)) = reader.push(JournalRecord { offset, key, bytes }) else { continue };
            let entries = if committed.contains(&entry.at) { &mut last.shown } else { &mut last.hidden };
            entries.push(entry);
        }
        last
    }

    /// Whether an aborted entry is newer than every committed one, and no copy of one: a member that had lost the journal may have written that.
    pub fn is_newest(&self, hidden: &Entry) -> bool {
        self.shown.last().is_none_or(|last| hidden.at > last.at && hidden.end.number > last.end.number)
    }

    /// The entries of the transactions that can be the last one: the last committed one, and the aborted ones after it. There can be several
    /// of the latter, because a member that has lost the journal may write until it detects the loss.
    pub fn last(&self) -> impl Iterator<Item = &Entry> {
        let newest = self.hidden.iter().filter(|entry| self.is_newest(entry));
        self.shown.last().into_iter().chain(newest)
    }

    /// The sections of a partition in these entries.
    pub fn last_of(&self, partition: PartitionId) -> impl Iterator<Item = &Section> {
        self.last().filter_map(move |entry| entry.end.section(partition))
    }
}
