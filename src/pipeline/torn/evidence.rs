//! What the logs of a journal's partitions show of its last transactions, and the decision that follows.

use std::collections::{BTreeMap, BTreeSet};

use crate::dedupe::{Checkpoint, Entry, JournalId, LastEntry, Offset, PartitionId};
use crate::pipeline::torn::decision::{Evidence, Position, TornDecision, decide, keeps_offsets, newest_of};
use crate::pipeline::torn::last_entries::{CleanVisibility, LastEntries};
use crate::ports::{CommitPosition, Committed, LogBounds};

/// Where processing of a raw partition resumes, whichever worker owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    /// Raw records below this offset are committed, and are not processed again.
    pub next: Offset,
    /// Whether the records from `next` on are certain to be processed again.
    pub is_final: bool,
}

/// What the clean logs show, by partition and the end of what a transaction wrote to it.
pub(super) type CleanShown = BTreeMap<(PartitionId, Offset), CleanVisibility>;

/// The committed offsets, the log bounds and the last transactions of a journal.
///
/// Large because it was read at one time, and each answer follows from several of the logs.
pub(super) struct JournalEvidence {
    /// Number of the journal.
    pub journal: JournalId,
    /// Its partitions.
    pub answers: BTreeMap<PartitionId, Committed>,
    positions: BTreeMap<PartitionId, Position>,
    /// The bounds of their clean logs.
    pub clean: BTreeMap<PartitionId, LogBounds>,
    /// The bounds of the journal.
    pub bounds: LogBounds,
    /// The offset from which `entries` are read.
    pub from: Offset,
    pub entries: LastEntries,
}

impl JournalEvidence {
    /// Without entries. Where no checkpoint names the last entry, the last `records` of the journal are to be read first.
    pub fn new(
        journal: JournalId,
        answers: BTreeMap<PartitionId, Committed>,
        clean: BTreeMap<PartitionId, LogBounds>,
        bounds: LogBounds,
        records: Offset,
    ) -> Self {
        let position = |answer: &Committed| Position {
            committed: answer.offset,
            checkpoint: Checkpoint::parse(&answer.metadata),
        };
        let positions = answers.iter().map(|(id, answer)| (*id, position(answer))).collect();
        let mut evidence =
            Self { journal, answers, positions, clean, bounds, from: 0, entries: LastEntries::default() };
        let newest = evidence.newest().map(|(checkpoint, last)| {
            let next = checkpoint.state_next.saturating_sub(1);
            last.from.map_or(next, |from| from.min(next))
        });
        let from = newest.unwrap_or(bounds.high.saturating_sub(records));
        evidence.from = from.clamp(bounds.low, bounds.stable.max(bounds.low));
        evidence
    }

    /// The checkpoint that names the last entry.
    fn newest(&self) -> Option<(&Checkpoint, LastEntry)> {
        newest_of(&self.positions).and_then(|checkpoint| Some((checkpoint, checkpoint.last_entry?)))
    }

    /// The last committed entry.
    pub fn last_entry(&self) -> Option<LastEntry> {
        let named = self.newest().map(|(_, last)| last);
        let shown = self.entries.shown.last();
        LastEntry::later(
            shown.map(|entry| LastEntry { entry: entry.end.name(), from: Some(entry.begin) }),
            named,
        )
    }

    /// A partition of the last entries that is not known here: raw has more than this process has seen.
    pub fn unknown_partition(&self) -> Option<PartitionId> {
        let sections = self.entries.last().flat_map(|entry| &entry.end.sections);
        sections.map(|section| section.partition).filter(|id| !self.answers.contains_key(id)).max()
    }

    /// Extends the range to be read, until it has each entry that decides from its first record on, or the journal starts. A checkpoint
    /// names an offset before them, unless another partition, whose checkpoint is lost, has added the last one. Where the group has lost the
    /// offset of one of the `needed` partitions, its last section is needed too. Returns false when nothing more is to be read.
    pub fn extend(&mut self, needed: &[PartitionId]) -> bool {
        // Aborted transactions and attempts at a repair may follow the last committed one, which decides too.
        let are_whole = !self.entries.shown.is_empty() && self.entries.last().all(|entry| entry.is_whole);
        let lacks = |id: &PartitionId| {
            self.answers.get(id).is_some_and(|answer| answer.offset.is_none()) && self.covered(*id).is_none()
        };
        let is_named = self.newest().is_some() && self.positions.values().all(|it| it.checkpoint.is_some());
        // While another partition has a checkpoint, the group has not lost its offsets: the partition is new.
        let is_complete = (are_whole || is_named) && (self.keeps_offsets() || !needed.iter().any(lacks));
        if self.from == self.bounds.low || is_complete {
            return false;
        }
        let read = self.bounds.high.saturating_sub(self.from).max(1);
        self.from = self.bounds.high.saturating_sub(2 * read).max(self.bounds.low);
        true
    }

    /// The committed position of a partition, if another program has set it: it has no metadata of ours. A repair of the logs leaves it
    /// unchanged.
    pub fn position_set_elsewhere(&self, id: PartitionId) -> Option<CommitPosition> {
        let answer = self.answers.get(&id)?;
        let next =
            answer.offset.filter(|_| self.positions.get(&id).is_some_and(Position::is_set_elsewhere))?;
        Some(CommitPosition { partition: id, next, metadata: answer.metadata.clone() })
    }

    /// Whether any partition has a checkpoint, and the group has not lost its offsets: they expire together.
    pub fn keeps_offsets(&self) -> bool {
        keeps_offsets(&self.positions)
    }

    /// The checkpoint of a partition.
    pub fn checkpoint(&self, id: PartitionId) -> Option<&Checkpoint> {
        self.positions.get(&id)?.checkpoint.as_ref()
    }

    /// The offsets of the journal that were read, and the entries that were found, for messages.
    pub fn summary(&self) -> String {
        let named = |entries: &[Entry]| {
            let entries = entries.iter().map(|entry| format!("{} at {}", entry.end.number, entry.at));
            let entries: Vec<String> = entries.collect();
            if entries.is_empty() { "none".to_owned() } else { entries.join(", ") }
        };
        format!(
            "offsets {} to {} hold committed entries {}, and aborted entries {}",
            self.from,
            self.bounds.high,
            named(&self.entries.shown),
            named(&self.entries.hidden)
        )
    }

    /// Whether the clean log of a partition holds the last record before this end.
    fn clean_holds(&self, id: PartitionId, end: Offset) -> bool {
        end > 0 && self.clean.get(&id).is_some_and(|log| log.holds(end - 1))
    }

    /// The ends in the clean logs that decide.
    pub fn clean_ends(&self) -> impl Iterator<Item = (PartitionId, Offset)> {
        let sections = self.entries.last().flat_map(|entry| &entry.end.sections);
        let ends = sections.filter_map(|section| Some((section.partition, section.clean_end?)));
        ends.filter(|(id, end)| self.clean_holds(*id, *end))
    }

    /// Whether a record is open in one of these logs. Readers of committed records do not find what was committed behind it, also where it
    /// belongs to another program, so the transaction would count as aborted there. Other partitions of the journal may have none.
    pub fn is_open(&self) -> bool {
        self.bounds.has_open_records() || self.clean.values().any(LogBounds::has_open_records)
    }

    /// What the clean logs show at these ends: the records that a reader of committed records finds, and those that only a reader of all records
    /// finds.
    pub fn sort(&self, [committed, aborted]: [&BTreeSet<(PartitionId, Offset)>; 2]) -> CleanShown {
        let of = |(id, end): (PartitionId, Offset)| match (id, end - 1) {
            at if committed.contains(&at) => CleanVisibility::Yes,
            at if aborted.contains(&at) => CleanVisibility::No,
            _ => CleanVisibility::Gone,
        };
        self.clean_ends().map(|at| (at, of(at))).collect()
    }

    /// One past the last raw offset of a partition that the committed entries cover, as far as they were read.
    fn covered(&self, id: PartitionId) -> Option<Offset> {
        let last = self.entries.shown.iter().rev().find_map(|entry| entry.end.section(id));
        last.map(|section| section.next)
    }

    /// Where processing of a partition resumes. `None` when the offset and the state have expired, and an operator has to set
    /// the offset. `local` is the end of the local state, where a group without an offset resumes.
    pub fn resume_point(
        &self,
        id: PartitionId,
        decision: &TornDecision,
        local: Option<Offset>,
    ) -> Option<ResumePoint> {
        let committed = self.answers.get(&id).and_then(|answer| answer.offset);
        // While another partition has a checkpoint, this one has no offset because nothing of it was processed.
        let log_start = (self.bounds.low == 0 || self.keeps_offsets()).then_some(0);
        let next = committed.or(self.covered(id).max(local)).or(log_start)?;
        let clean = self.clean.get(&id);
        let is_open = clean.is_some_and(LogBounds::has_open_records) || self.bounds.has_open_records();
        if self.position_set_elsewhere(id).is_some() {
            return Some(ResumePoint { next, is_final: !is_open });
        }
        if is_open || matches!(decision, TornDecision::Missing(..) | TornDecision::Undecidable(..)) {
            // No repair rewinds to before the last transaction.
            let lowest = self.entries.last_of(id).map(|section| section.first).min().unwrap_or(0);
            return Some(ResumePoint { next: lowest.min(next), is_final: false });
        }
        let repaired =
            if let TornDecision::Repair(repair) = decision { repair.end.section(id) } else { None };
        Some(ResumePoint { next: repaired.map_or(next, |section| section.next), is_final: true })
    }

    /// The decision, by what the clean logs show. `newest_only`: see [`Evidence::newest_only`].
    pub fn decide(&self, clean: &CleanShown, newest_only: bool) -> TornDecision {
        decide(&Evidence {
            positions: &self.positions,
            journal_low: self.bounds.low,
            entries: &self.entries,
            clean,
            newest_only,
        })
    }

    /// Whether another read of the logs has found the same.
    pub fn is_same_as(&self, other: &Self) -> bool {
        (&self.answers, &self.clean, self.bounds) == (&other.answers, &other.clean, other.bounds)
    }
}
