//! Reads the evidence about the last transactions of journals, in pieces: on a slow connection all of it can take minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::torn::evidence::{CleanShown, JournalEvidence};
use crate::pipeline::torn::last_entries::LastEntries;
use crate::ports::{Committed, Isolation, LogBounds, LogId, LogReads, StateItem};

/// Timeout of reading the ends of logs.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How many times `evidence_records` one piece has, unless the last transaction of a single journal is longer. With
/// blocks of 0.5 MB a piece takes some seconds at 100 MB/s; most blocks are far smaller.
const PIECE: Offset = 10;

impl<W: WorkerPorts> Context<W> {
    /// Where the last transactions of the journals of these partitions are. The answers have all partitions of each journal.
    pub(super) fn last_transactions(
        &self,
        answers: &[Committed],
    ) -> Result<Vec<JournalEvidence>, WorkerError> {
        let ids: Vec<PartitionId> = answers.iter().map(|answer| answer.partition).collect();
        let logs = self.options.outputs_of(&ids);
        let bounds = self.log.bounds(&logs, REQUEST_TIMEOUT)?;
        let bounds: BTreeMap<LogId, LogBounds> = logs.into_iter().zip(bounds).collect();
        let journals = self.options.by_journal(answers.to_vec());
        let evidence = journals.into_iter().filter_map(|(journal, answers)| {
            let answers: BTreeMap<_, _> =
                answers.into_iter().map(|answer| (answer.partition, answer)).collect();
            let clean =
                answers.keys().filter_map(|id| Some((*id, *bounds.get(&LogId::clean(*id))?))).collect();
            let of_journal = *bounds.get(&LogId::state(journal))?;
            Some(JournalEvidence::new(journal, answers, clean, of_journal, self.options.evidence_records))
        });
        Ok(evidence.collect())
    }

    /// Reads the last transactions of these journals, each from its first record on.
    ///
    /// Without a checkpoint nothing names that record, and a transaction can have any number of them. What follows from a part
    /// of it would be wrong: an entry that is written again without the first ones leaves ids out of the window. `needed`: see
    /// [`JournalEvidence::extend`].
    pub(super) fn read_evidence(
        &self,
        mut evidence: Vec<JournalEvidence>,
        needed: &[PartitionId],
    ) -> Result<Vec<JournalEvidence>, WorkerError> {
        let mut unread: Vec<&mut JournalEvidence> = evidence.iter_mut().collect();
        while !unread.is_empty() {
            self.read_entries(&mut unread)?;
            let extends = self.options.keeps(Safeguard::WholeTransactions);
            unread.retain_mut(|evidence| extends && evidence.extend(needed));
        }
        Ok(evidence)
    }

    fn read_entries(&self, unread: &mut [&mut JournalEvidence]) -> Result<(), WorkerError> {
        let all: Vec<_> = unread.iter().map(|it| (it.journal, it.from..it.bounds.high)).collect();
        let stable: Vec<_> = unread.iter().map(|it| (it.journal, it.from..it.bounds.stable)).collect();
        let mut everything: BTreeMap<PartitionId, Vec<StateItem>> = BTreeMap::new();
        for item in self.log.records(&all, Isolation::Uncommitted, READ_TIMEOUT)? {
            if let Some((journal, _)) = place(&item) {
                everything.entry(journal).or_default().push(item);
            }
        }
        self.progress.advance();
        let mut committed: BTreeMap<PartitionId, BTreeSet<Offset>> = BTreeMap::new();
        for (journal, at) in
            self.log.records(&stable, Isolation::Committed, READ_TIMEOUT)?.iter().filter_map(place)
        {
            committed.entry(journal).or_default().insert(at);
        }
        for evidence in unread {
            let own = everything.remove(&evidence.journal).unwrap_or_default();
            let committed = committed.remove(&evidence.journal).unwrap_or_default();
            evidence.entries = LastEntries::new(own, &committed);
        }
        self.progress.advance();
        Ok(())
    }

    /// Whether the clean logs show the last committed transaction of each journal, and the aborted transactions after it.
    pub(super) fn visibility(
        &mut self,
        evidence: &[JournalEvidence],
    ) -> Result<Vec<CleanShown>, WorkerError> {
        let wanted = evidence.iter().flat_map(JournalEvidence::clean_ends);
        let mut unseen: BTreeSet<(PartitionId, Offset)> = wanted.map(|(id, end)| (id, end - 1)).collect();
        let committed = self.find_clean(&mut unseen, Isolation::Committed)?;
        // A record that only this reader finds is aborted. One that it does not find either was removed by compaction.
        let aborted = self.find_clean(&mut unseen, Isolation::Uncommitted)?;
        Ok(evidence.iter().map(|evidence| evidence.sort([&committed, &aborted])).collect())
    }

    /// Moves the clean records that such a reader finds out of `unseen`.
    fn find_clean(
        &self,
        unseen: &mut BTreeSet<(PartitionId, Offset)>,
        reader: Isolation,
    ) -> Result<BTreeSet<(PartitionId, Offset)>, WorkerError> {
        if unseen.is_empty() {
            return Ok(BTreeSet::new());
        }
        let requested: Vec<(PartitionId, Offset)> = unseen.iter().copied().collect();
        let seen = self.log.visible(&requested, reader, READ_TIMEOUT)?;
        let found = requested.into_iter().zip(seen).filter(|(_, seen)| *seen).map(|(at, _)| at);
        let found: BTreeSet<(PartitionId, Offset)> = found.collect();
        unseen.retain(|at| !found.contains(at));
        Ok(found)
    }
}

/// Takes the journals whose records are read together.
pub(super) fn next_piece(
    options: &WorkerOptions,
    unread: &mut Vec<JournalEvidence>,
) -> Option<Vec<JournalEvidence>> {
    let (most, mut records) = (PIECE * options.evidence_records, 0);
    let fits = |evidence: &&JournalEvidence| {
        records += evidence.bounds.high.saturating_sub(evidence.from);
        records <= most
    };
    let count = unread.iter().take_while(fits).count().max(1);
    (!unread.is_empty()).then(|| unread.drain(..count).collect())
}

fn place(item: &StateItem) -> Option<(PartitionId, Offset)> {
    match item {
        StateItem::Record { partition, offset, .. } => Some((*partition, *offset)),
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    }
}
