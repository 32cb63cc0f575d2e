//! What the logs of a partition show of its last transactions, and the decision that follows.

use std::collections::BTreeSet;

use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::pipeline::torn::decision::{Evidence, TornDecision, decide};
use crate::pipeline::torn::tails::{CleanVisibility, Tails, TransactionBlocks};
use crate::ports::{CommitPosition, Committed, LogBounds};

/// Where processing of a raw partition resumes, whichever worker owns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    /// Raw records below this offset are committed, and are not processed again.
    pub next: Offset,
    /// Whether the records from `next` on are certain to be processed again.
    pub is_final: bool,
}

/// The committed offset, the log bounds and the last transactions of one partition.
pub(super) struct PartitionEvidence<'a> {
    pub answer: &'a Committed,
    pub checkpoint: Option<Checkpoint>,
    pub clean: LogBounds,
    pub state: LogBounds,
    /// The state offset from which `tails` are read.
    pub from: Offset,
    pub tails: Tails,
}

impl<'a> PartitionEvidence<'a> {
    /// Without tails. Where no checkpoint names the last block, the last `records` of the state log are to be read first.
    pub fn new(answer: &'a Committed, [clean, state]: [LogBounds; 2], records: Offset) -> Self {
        let checkpoint = Checkpoint::parse(&answer.metadata);
        let named = checkpoint.as_ref().map(|checkpoint| {
            let next = checkpoint.state_next.saturating_sub(1);
            checkpoint.tail.and_then(|tail| tail.from).map_or(next, |from| from.min(next))
        });
        let from = named.unwrap_or(state.high.saturating_sub(records));
        let from = from.clamp(state.low, state.stable.max(state.low));
        Self { answer, checkpoint, clean, state, from, tails: Tails::default() }
    }

    /// Extends the range to be read, until it has each transaction that decides from its first block on, or the log starts. A
    /// checkpoint names an offset before them. Returns false when nothing more is to be read.
    pub fn extend(&mut self) -> bool {
        // Aborted transactions and attempts at a repair may follow the last committed one, which decides too.
        let is_complete = !self.tails.shown.is_empty() && self.tails.last().all(|group| !group.is_cut);
        if self.checkpoint.is_some() || self.from == self.state.low || is_complete {
            return false;
        }
        let read = self.state.high.saturating_sub(self.from).max(1);
        self.from = self.state.high.saturating_sub(2 * read).max(self.state.low);
        true
    }

    /// The committed position, if another program has set it: it has no metadata of ours. A repair of the logs leaves it
    /// unchanged.
    pub fn position_set_elsewhere(&self) -> Option<CommitPosition> {
        let next = self.answer.offset.filter(|_| self.checkpoint.is_none())?;
        Some(CommitPosition {
            partition: self.answer.partition,
            next,
            metadata: self.answer.metadata.clone(),
        })
    }

    /// The offsets of the state topic that were read, and the last blocks of the transactions that were found, for messages.
    pub fn summary(&self) -> String {
        let ends = |groups: &[TransactionBlocks]| {
            let ends =
                groups.iter().map(|group| format!("{} (up to raw offset {})", group.at, group.tail.next));
            let ends: Vec<String> = ends.collect();
            if ends.is_empty() { "none".to_owned() } else { ends.join(", ") }
        };
        format!(
            "offsets {} to {} hold committed blocks at {}, and aborted blocks at {}",
            self.from,
            self.state.high,
            ends(&self.tails.shown),
            ends(&self.tails.hidden)
        )
    }

    fn clean_holds(&self, end: Offset) -> bool {
        end > 0 && self.clean.holds(end - 1)
    }

    /// The clean ends that decide.
    pub fn clean_ends(&self) -> impl Iterator<Item = Offset> {
        self.tails.last().filter_map(TransactionBlocks::clean_end).filter(|end| self.clean_holds(*end))
    }

    /// What the clean log shows of the last committed transaction, and of each aborted one: the records that a reader of
    /// committed records finds, and those that only a reader of all records finds.
    pub fn sort(
        &self,
        [committed, aborted]: [&BTreeSet<(PartitionId, Offset)>; 2],
    ) -> (CleanVisibility, Vec<CleanVisibility>) {
        let of = |group: &TransactionBlocks| match group.clean_end().filter(|end| self.clean_holds(*end)) {
            None => CleanVisibility::Unknowable,
            Some(end) if committed.contains(&(self.answer.partition, end - 1)) => CleanVisibility::Yes,
            Some(end) if aborted.contains(&(self.answer.partition, end - 1)) => CleanVisibility::No,
            Some(_) => CleanVisibility::Gone,
        };
        (
            self.tails.shown.last().map_or(CleanVisibility::Unknowable, of),
            self.tails.hidden.iter().map(of).collect(),
        )
    }

    /// Where processing of the partition resumes. `None` when the offset and the state have expired, and an operator has to set
    /// the offset. `local` is the end of the local state, where a group without an offset resumes.
    pub fn resume_point(
        &self,
        shown: &(CleanVisibility, Vec<CleanVisibility>),
        local: Option<Offset>,
    ) -> Option<ResumePoint> {
        let covered = self.tails.shown.last().map(|group| group.tail.next);
        let log_start = (self.state.low == 0).then_some(0);
        let next = self.answer.offset.or(covered.max(local)).or(log_start)?;
        let is_open = self.clean.has_open_records() || self.state.has_open_records();
        let decision = self.decide(shown);
        if self.position_set_elsewhere().is_some() {
            return Some(ResumePoint { next, is_final: !is_open });
        }
        if is_open || matches!(decision, TornDecision::Missing(_) | TornDecision::Undecidable(..)) {
            return Some(ResumePoint { next: self.lowest_rewind().min(next), is_final: false });
        }
        let next = match decision {
            TornDecision::Rewind(to, _) => to,
            TornDecision::Redo(group) | TornDecision::Advance(group) => next.max(group.tail.next),
            _ => next,
        };
        Some(ResumePoint { next, is_final: true })
    }

    /// The lowest offset that a repair may rewind to. No repair rewinds to before the last transaction.
    fn lowest_rewind(&self) -> Offset {
        self.tails.last().map(|group| if group.is_cut { 0 } else { group.first }).min().unwrap_or(0)
    }

    pub fn decide(&self, (last, hidden): &(CleanVisibility, Vec<CleanVisibility>)) -> TornDecision {
        decide(&Evidence {
            committed: self.answer.offset,
            checkpoint: self.checkpoint.as_ref(),
            state_low: self.state.low,
            tails: &self.tails,
            last: *last,
            hidden,
        })
    }
}
