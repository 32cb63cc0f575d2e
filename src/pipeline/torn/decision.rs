//! Determines the outcome of the last transaction of a journal from what its logs show.
//!
//! A transaction writes to several logs: an entry to the journal, records to the clean log of each of its partitions, and the offsets of all of
//! them to the group's offsets, which are one log. Normally either all show it or none does. After a broker failure a marker can be missing in
//! some of them (see [`super`]). What was left open there has been aborted before this decision, so each log shows the transaction or never
//! will. *Shown* means visible to `read_committed` readers, *hidden* means not visible.
//!
//! If no log shows it, it was aborted. If any does, it was committed, and **the clean logs decide** for their partitions, because their
//! readers may have read the records: a partition whose clean log shows it, or that wrote none, is *completed*, and one whose clean log hides
//! it is *rewound*: its records are processed again from its first offset on.
//!
//! | entry | offsets | clean logs | decision |
//! |---|---|---|---|
//! | shown | shown | all shown | agreed |
//! | shown | hidden | all shown | commit the offsets again |
//! | shown | any | some hidden | another entry undoes the sections of those, and has the targets of the others |
//! | hidden | any | some shown, or offsets shown | write the entry again; sections whose clean log hides it are undone in it |
//! | hidden | hidden | all hidden | agreed |
//!
//! A repair is one transaction for all partitions of the entry, and its entry has a section with the target of each. So if it is torn itself,
//! it leaves a case of the same table, and if it is interrupted, the evidence is unchanged. The rows hold for one transaction: a producer begins the
//! next one only when it has seen all markers of the last ([`crate::pipeline::commit::markers`]).
//!
//! The checkpoint that names the entry with the highest number is the truth; an older one speaks only for its own offset. A clean topic may be
//! compacted: a record that no reader finds is no evidence ([`CleanVisibility::Gone`]). Then entry and offsets decide if they agree; otherwise
//! an operator has to ([`TornDecision::Undecidable`]).

use std::collections::BTreeMap;

use crate::dedupe::{
    Checkpoint, Entry, EntryEnd, EntryName, JournalRecord, LastEntry, Offset, PartitionId, Section,
};
use crate::pipeline::torn::last_entries::{CleanVisibility, LastEntries};

/// What the group has committed for a partition of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    /// The committed offset, when the group has one.
    pub committed: Option<Offset>,
    /// The metadata of the committed offset, if dedupd wrote it.
    pub checkpoint: Option<Checkpoint>,
}

impl Position {
    /// Whether another program has set the committed offset.
    pub fn is_set_elsewhere(&self) -> bool {
        self.committed.is_some() && self.checkpoint.is_none()
    }

    fn last_entry(&self) -> Option<LastEntry> {
        self.checkpoint.as_ref()?.last_entry
    }
}

/// The evidence that decides about the last transaction of a journal.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// The partitions of the journal.
    pub positions: &'a BTreeMap<PartitionId, Position>,
    /// First offset that the journal holds.
    pub journal_low: Offset,
    /// The journal, starting at or before the entry that the newest checkpoint names.
    pub entries: &'a LastEntries,
    /// What the clean log of a partition shows, by the end of what a transaction wrote to it.
    pub clean: &'a BTreeMap<(PartitionId, Offset), CleanVisibility>,
    /// Only the newest checkpoint says whether an entry was committed.
    pub newest_only: bool,
}

/// The transaction that makes the logs agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repair {
    /// The entry that it writes; `None` if only the offsets are to be committed.
    pub writes: Option<Vec<JournalRecord>>,
    /// The end of that entry, or of the one that is committed. Each section ends at the offset to commit.
    pub end: EntryEnd,
    /// The partitions that are rewound.
    pub rewound: Vec<PartitionId>,
    /// The entry that is repaired.
    pub of: EntryName,
}

impl Repair {
    /// Without all partitions but one, for tests.
    pub fn of_one(mut self) -> Self {
        self.end.sections.truncate(1);
        self
    }

    /// The entry that the checkpoints name.
    pub fn name(&self) -> EntryName {
        self.end.name()
    }
}

/// What to do before the committed offsets can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TornDecision {
    /// Nothing: the logs agree.
    Agreed,
    /// Make them agree.
    Repair(Repair),
    /// The entry named by the committed offset of a partition is not in the journal, and its content cannot be recovered.
    Missing(PartitionId, LastEntry),
    /// The logs disagree about this transaction, and what would decide has been deleted.
    Undecidable(Lack, Section),
}

/// What was deleted before the outcome of a transaction was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Compaction has removed its last record from the clean log.
    Record,
    /// Retention has deleted the first records of its entry.
    Records,
}

impl TornDecision {
    /// The text of the log field `decision`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Repair(repair) if !repair.rewound.is_empty() => "process records again",
            Self::Repair(Repair { writes: Some(_), .. }) => "write the entry again",
            Self::Repair(_) => "commit the offsets again",
            Self::Missing(..) => "a committed entry is missing",
            Self::Undecidable(..) => "none",
        }
    }
}

/// Whether the group's offsets show a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offsets {
    Shown,
    Hidden,
    /// The group has no offset of its partitions that dedupd wrote.
    Unknowable,
}

/// Decides by the table at the top of this module.
pub(crate) fn decide(evidence: &Evidence<'_>) -> TornDecision {
    if let Some(entry) = evidence.hidden_but_in_clean() {
        return evidence.write_again(entry);
    }
    let last = evidence.entries.shown.last();
    let newest = evidence.newest();
    if let Some((id, named)) = newest
        && last.is_none_or(|last| last.end.number < named.entry.number)
    {
        return evidence.named_but_hidden(id, named);
    }
    last.map_or(TornDecision::Agreed, |last| evidence.shown(last))
}

/// The checkpoint that names the last entry.
pub(super) fn newest_of(positions: &BTreeMap<PartitionId, Position>) -> Option<&Checkpoint> {
    Checkpoint::newest(positions.values().filter_map(|position| position.checkpoint.as_ref()))
}

/// Whether the group has not lost its offsets: the newest checkpoint does not say that others follow.
pub(super) fn keeps_offsets(positions: &BTreeMap<PartitionId, Position>) -> bool {
    newest_of(positions).is_some_and(|checkpoint| !checkpoint.others_follow)
}

impl Evidence<'_> {
    fn clean(&self, section: &Section) -> CleanVisibility {
        let end = section.clean_end.and_then(|end| self.clean.get(&(section.partition, end)));
        end.copied().unwrap_or(CleanVisibility::Unknowable)
    }

    fn has_clean(&self, entry: &Entry, visibility: CleanVisibility) -> bool {
        entry.end.sections.iter().any(|section| self.clean(section) == visibility)
    }

    /// The last aborted attempt whose records the clean log shows: of the transaction that was committed, or a copy of its entry. Below the newest
    /// entry that a checkpoint names, it is a copy by a member that repeated a finished repair: written again, it would follow later entries.
    fn hidden_but_in_clean(&self) -> Option<&Entry> {
        let named = self.newest().map_or(0, |(_, last)| last.entry.number);
        let is_newest = |entry: &&Entry| self.entries.is_newest(entry) && entry.end.number >= named;
        let hidden = self.entries.hidden.iter().filter(is_newest);
        hidden.rev().find(|entry| self.has_clean(entry, CleanVisibility::Yes))
    }

    /// The name with the highest number in the checkpoints.
    fn newest(&self) -> Option<(PartitionId, LastEntry)> {
        let named = self.positions.iter().filter_map(|(id, position)| Some((*id, position.last_entry()?)));
        let by_number = |(_, last): &(PartitionId, LastEntry)| last.entry.number;
        if self.newest_only { named.max_by_key(by_number) } else { named.min_by_key(by_number) }
    }

    fn offsets(&self, entry: &Entry) -> Offsets {
        let name = entry.end.name();
        let own = entry.end.sections.iter().filter_map(|of| self.positions.get(&of.partition));
        // The offsets of a group expire together: while another partition has one, those of this partition are hidden.
        let counts = |it: &&Position| {
            it.checkpoint.is_some() || it.committed.is_none() && keeps_offsets(self.positions)
        };
        let named: Vec<_> = own.filter(counts).map(Position::last_entry).collect();
        let shows = |last: &Option<LastEntry>| {
            last.is_some_and(|last| last.entry == name || last.entry.number > name.number)
        };
        match named.iter().any(shows) {
            true => Offsets::Shown,
            false if named.is_empty() => Offsets::Unknowable,
            false => Offsets::Hidden,
        }
    }

    /// Whether a partition of a committed transaction is completed. `None` when nothing shows it. Where compaction has removed the record, an operator
    /// decides by the offset.
    fn is_completed(&self, section: &Section) -> Option<bool> {
        match self.clean(section) {
            CleanVisibility::Yes | CleanVisibility::Unknowable => Some(true),
            CleanVisibility::No => Some(false),
            CleanVisibility::Gone => {
                let position = self.positions.get(&section.partition).filter(|it| it.is_set_elsewhere());
                position.and_then(|it| it.committed).map(|offset| offset >= section.next)
            }
        }
    }

    /// The last committed entry of the journal, which no checkpoint exceeds.
    fn shown(&self, entry: &Entry) -> TornDecision {
        let is_rewound = |section: &&Section| self.is_completed(section) == Some(false);
        let rewound: Vec<PartitionId> =
            entry.end.sections.iter().filter(is_rewound).map(|section| section.partition).collect();
        let offsets = self.offsets(entry);
        if rewound.is_empty() && offsets != Offsets::Hidden {
            return TornDecision::Agreed;
        }
        if let Some(gone) = entry.end.sections.iter().find(|it| self.is_completed(it).is_none()) {
            return TornDecision::Undecidable(Lack::Record, gone.clone());
        }
        let of = entry.end.name();
        if rewound.is_empty() {
            return TornDecision::Repair(Repair { writes: None, end: entry.end.clone(), rewound, of });
        }
        let target = |section: &Section| {
            if rewound.contains(&section.partition) {
                return self.undone(section);
            }
            Section { first: section.next, time_first_ms: section.time_last_ms, ..section.clone() }
        };
        let sections = entry.end.sections.iter().map(target);
        let sections =
            sections.map(|it| Section { clean_end: None, reset_kinds: Vec::new(), ..it }).collect();
        let end = EntryEnd::of(entry.end.number + 1, [].into_iter(), sections);
        TornDecision::Repair(Repair { writes: Some(Vec::new()), end, rewound, of })
    }

    /// The section that rewinds a partition. What was committed before the transaction stays committed.
    fn undone(&self, section: &Section) -> Section {
        let own = self.positions.get(&section.partition).filter(|it| it.checkpoint.is_some());
        let first = own.and_then(|it| it.committed).map_or(section.first, |own| own.min(section.first));
        Section { first, ..section.clone() }.undone()
    }

    /// A committed transaction whose entry is aborted.
    fn write_again(&self, entry: &Entry) -> TornDecision {
        let mut rewound = Vec::new();
        let mut sections = Vec::new();
        for section in &entry.end.sections {
            match self.is_completed(section) {
                None => return TornDecision::Undecidable(Lack::Record, section.clone()),
                Some(false) => {
                    rewound.push(section.partition);
                    sections.push(self.undone(section));
                }
                Some(true) => sections.push(section.clone()),
            }
        }
        let mut lost = sections.iter().filter(|section| {
            let position = self.positions.get(&section.partition);
            section.first < section.next && !position.is_some_and(Position::is_set_elsewhere)
        });
        if let Some(lost) = lost.next().cloned().filter(|_| !entry.is_whole) {
            return TornDecision::Undecidable(Lack::Records, lost);
        }
        // Of the owners of an undone section none counts.
        let records = entry.records.clone();
        let end = EntryEnd::of(entry.end.number, records.iter().map(|record| &*record.bytes), sections);
        TornDecision::Repair(Repair { writes: Some(records), end, rewound, of: entry.end.name() })
    }

    /// A checkpoint names an entry beyond all committed ones.
    fn named_but_hidden(&self, id: PartitionId, named: LastEntry) -> TornDecision {
        let is_cut = named.from.is_some_and(|from| from < self.journal_low);
        let checkpoint = self.positions.get(&id).and_then(|position| position.checkpoint.as_ref());
        // A member that had lost the journal may have written the same entry and aborted it. Where retention has deleted the
        // committed entry, the aborted one must not be mistaken for it. A checkpoint that continues behind the entry was written by a
        // later transaction, perhaps of the member that has aborted the same entry before.
        let is_other = |entry: &Entry| {
            let is_ended = checkpoint.zip(named.from).is_some_and(|(it, from)| it.state_next > from);
            is_cut && (is_ended || checkpoint.is_some_and(|it| it.writer != entry.key.writer))
        };
        let is_named = |entry: &&Entry| entry.end.name() == named.entry && !is_other(entry);
        match self.entries.hidden.iter().rfind(is_named) {
            Some(entry) => self.write_again(entry),
            // Retention has deleted it, or may have: the checkpoint was written with the name that the local state has.
            None if is_cut || named.from.is_none() => TornDecision::Agreed,
            None => TornDecision::Missing(id, named),
        }
    }
}

#[cfg(test)]
mod tests;
