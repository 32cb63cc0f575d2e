//! Determines the outcome of the last transaction of a partition from what its logs show.
//!
//! A transaction writes to three logs for a partition: records to the clean topic, blocks to the state topic, and
//! the offset to the group's offsets. Normally either all three show it or none does. After a broker failure a marker can be
//! missing in some of them (see [`super`]). What was left open there has been aborted before this decision, so each
//! log shows the transaction or never will. *Shown* means visible to `read_committed` readers, *hidden* means not visible.
//! **The clean log decides**, because its readers may have read the records:
//!
//! | clean | block | offset | what happened | decision |
//! |---|---|---|---|---|
//! | shown | shown | shown | committed | agreed |
//! | shown | shown | hidden | committed, offset undone | advance the offset to the end of the block |
//! | shown | hidden | shown | committed, block undone | rewrite the block |
//! | shown | hidden | hidden | committed, block and offset undone | rewrite both |
//! | hidden | shown | shown | committed, records undone | void the block, rewind to its first offset |
//! | hidden | shown | hidden | committed, records and offset undone | void the block |
//! | hidden | hidden | shown | committed, records and block undone | rewind to the block's first offset |
//! | hidden | hidden | hidden | aborted | agreed |
//!
//! A rewind is exact where the clean log shows nothing of the transaction: its records are processed again.
//! For a transaction without clean records (its block only voids others) the clean column is unknown. Then the block or the
//! offset, whichever is shown, decides for the other.
//!
//! A clean topic may be compacted. Compaction removes aborted records, expired tombstones, and records that a later one with the
//! same key replaces. So a record that no reader finds is no evidence ([`CleanVisibility::Gone`]). Block and offset decide if they agree;
//! otherwise an operator has to ([`TornDecision::Undecidable`]).
//!
//! The decision can be repeated: the action of each row is one ordinary transaction. If that is interrupted, it is aborted and
//! leaves the evidence unchanged. If it is torn itself, it leaves a case of the same table. The rows hold for one
//! transaction: a producer begins the next one only when it has seen all markers of the last ([`crate::pipeline::commit::markers`]).

use crate::dedupe::{Checkpoint, ForgetRecord, Offset, StateKey, Tail};
use crate::pipeline::torn::tails::{CleanVisibility, Tails, TransactionBlocks};

/// The evidence that decides about the last transaction of a partition.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    /// The committed offset, when the group has one.
    pub committed: Option<Offset>,
    /// The metadata of the committed offset, if dedupd wrote it.
    pub checkpoint: Option<&'a Checkpoint>,
    /// First offset that the state log holds.
    pub state_low: Offset,
    /// The state log, starting at or before the block that the checkpoint names.
    pub tails: &'a Tails,
    /// Whether the clean log shows the last group of `tails.shown`.
    pub last: CleanVisibility,
    /// Whether the clean log shows each group of `tails.hidden`, in the same order. Only the entries of groups newer than the
    /// last committed one count.
    pub hidden: &'a [CleanVisibility],
}

/// What to do before the committed offset can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TornDecision {
    /// Nothing: the logs agree.
    Agreed,
    /// Rewrite these blocks, and commit the offset at their end.
    Redo(TransactionBlocks),
    /// Commit the offset at the end of this transaction, whose blocks are committed.
    Advance(TransactionBlocks),
    /// Void the blocks of this transaction from this raw offset on, and commit that offset.
    Rewind(Offset, TransactionBlocks),
    /// Rewrite the forget record.
    RedoForgotten(StateKey, ForgetRecord),
    /// Commit the same offset with this number of forget records.
    AdvanceForgets(u64),
    /// The block named by the committed offset is not in the state log, and its content cannot be recovered.
    Missing(Tail),
    /// The logs disagree about this transaction, and what would decide has been deleted.
    Undecidable(Lack, TransactionBlocks),
}

/// What was deleted before the outcome of a transaction was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Compaction has removed its last record from the clean log.
    Record,
    /// Retention has deleted its first blocks from the state log.
    Blocks,
}

impl TornDecision {
    /// The text of the log field `decision`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Redo(_) => "rewrite the blocks",
            Self::Advance(_) => "commit the offset again",
            Self::Rewind(..) => "process the records again",
            Self::RedoForgotten(..) => "rewrite the forgotten ids",
            Self::AdvanceForgets(_) => "commit the number of forget records again",
            Self::Missing(_) => "a committed block is missing",
            Self::Undecidable(..) => "none",
        }
    }
}

/// The stream time at the offset to which a transaction is rewound, epoch milliseconds; 0 while unknown. It is not that of the blocks that
/// retention has left of the transaction: these may be much later, and copies in other partitions would not count.
pub(crate) fn time_at(
    (to, group): (Offset, &TransactionBlocks),
    committed: Option<Offset>,
    checkpoint: Option<&Checkpoint>,
) -> i64 {
    match checkpoint {
        Some(checkpoint) if committed == Some(to) => checkpoint.stream_time_ms,
        None if group.is_cut => 0,
        _ => group.times.0,
    }
}

/// Decides by the table at the top of this module.
pub(crate) fn decide(evidence: &Evidence<'_>) -> TornDecision {
    match by_table(evidence) {
        TornDecision::Redo(group) if evidence.lacks_blocks(&group) && !evidence.is_set_elsewhere() => {
            TornDecision::Undecidable(Lack::Blocks, group)
        }
        // A rewind to the committed offset does not depend on the first block.
        TornDecision::Rewind(to, group)
            if evidence.lacks_blocks(&group) && Some(to) != evidence.committed =>
        {
            match evidence.committed.filter(|_| evidence.is_set_elsewhere()) {
                // The operator has decided where processing continues.
                Some(committed) => TornDecision::Rewind(to.min(committed), group),
                None => TornDecision::Undecidable(Lack::Blocks, group),
            }
        }
        TornDecision::Redo(mut group) => {
            group.is_cut = evidence.lacks_blocks(&group);
            TornDecision::Redo(group)
        }
        decision => decision,
    }
}

impl Evidence<'_> {
    /// Whether blocks of the transaction precede those that were read. The checkpoint of its offset names an offset before them.
    fn lacks_blocks(&self, group: &TransactionBlocks) -> bool {
        let named = self.checkpoint.and_then(|checkpoint| checkpoint.tail);
        let named = named.filter(|named| named.from.is_some_and(|from| from >= self.state_low));
        group.is_cut && !named.is_some_and(|named| group.tail.names_same(&named))
    }

    /// Whether another program has set the committed offset.
    fn is_set_elsewhere(&self) -> bool {
        self.committed.is_some() && self.checkpoint.is_none()
    }

    /// Commits the offset at the end of the last committed transaction, unless nothing shows that its records were committed.
    fn advance(&self, group: &TransactionBlocks) -> TornDecision {
        match self.last {
            CleanVisibility::Gone => TornDecision::Undecidable(Lack::Record, group.clone()),
            _ => TornDecision::Advance(group.clone()),
        }
    }
}

fn by_table(evidence: &Evidence<'_>) -> TornDecision {
    let tails = evidence.tails;
    if let Some(group) = shown_but_for_its_blocks(tails, evidence.hidden) {
        return TornDecision::Redo(group);
    }
    let last = tails.shown.last();
    if let Some(group) = last.filter(|_| evidence.last == CleanVisibility::No) {
        // What was committed before this transaction stays committed, also when another program has set a lower offset.
        let own = evidence.committed.filter(|_| evidence.checkpoint.is_some());
        return TornDecision::Rewind(group.first.min(own.unwrap_or(group.first)), group.clone());
    }
    // Without metadata another program has set the offset. It stays, and `group.on_rewind` defines what follows from it.
    let Some((committed, checkpoint)) = evidence.committed.zip(evidence.checkpoint) else {
        return TornDecision::Agreed;
    };
    let Some(named) = checkpoint.tail else {
        // A committed block beyond this offset is the first block of the partition, and its offset was undone.
        return match last.filter(|group| group.tail.next > committed) {
            Some(group) => evidence.advance(group),
            None => agreed_blocks(tails, checkpoint),
        };
    };
    let is_named = |group: &&TransactionBlocks| group.tail.names_same(&named);
    if last.is_some_and(|group| is_named(&group)) {
        return agreed_blocks(tails, checkpoint);
    }
    // An earlier attempt can have written the same block. The committed one is the last of them.
    let attempt = tails.shown.iter().chain(&tails.hidden).filter(is_named).max_by_key(|group| group.at);
    let is_followed = attempt.is_some_and(|group| !tails.is_newest(group)) || tails.continues_after(&named);
    if let (true, Some(last)) = (is_followed, last) {
        return evidence.advance(last);
    }
    let is_cut = named.from.is_some_and(|from| from < evidence.state_low);
    // A member that had lost the partition may have written the same block and aborted it. Where retention has deleted the
    // committed block, the aborted one must not be mistaken for it. A checkpoint that continues behind the block was written by a
    // later transaction, perhaps of the member that has aborted the same block before.
    let is_ended = named.from.is_some_and(|from| checkpoint.state_next > from);
    let is_other = |group: &TransactionBlocks| is_cut && (is_ended || !group.is_by(&checkpoint.writer));
    match tails.hidden.iter().zip(evidence.hidden).rfind(|(group, _)| is_named(group) && !is_other(group)) {
        Some((group, CleanVisibility::No)) => TornDecision::Rewind(group.first.min(committed), group.clone()),
        Some((group, CleanVisibility::Gone)) => TornDecision::Undecidable(Lack::Record, group.clone()),
        Some((group, _)) => TornDecision::Redo(group.clone()),
        // The checkpoint was written by a version that does not store the state offset of the block.
        None if named.from.is_none() => TornDecision::Agreed,
        // Retention has deleted the block, so what is left in the log is newer.
        None if is_cut => last.map_or(TornDecision::Agreed, |last| evidence.advance(last)),
        None => TornDecision::Missing(named),
    }
}

/// Decides about the forget records, which have to agree too, once the blocks agree.
fn agreed_blocks(tails: &Tails, checkpoint: &Checkpoint) -> TornDecision {
    match &tails.hidden_forget {
        _ if tails.forgets > checkpoint.forgets => TornDecision::AdvanceForgets(tails.forgets),
        Some((key, forgotten))
            if forgotten.number == checkpoint.forgets && tails.forgets < forgotten.number =>
        {
            TornDecision::RedoForgotten(key.clone(), forgotten.clone())
        }
        _ => TornDecision::Agreed,
    }
}

/// The blocks of the last transaction that the clean log shows and the state log does not. Attempts to rewrite them may have
/// left several copies. The first copy of each block counts, from the first attempt on that has the first block.
fn shown_but_for_its_blocks(tails: &Tails, shown: &[CleanVisibility]) -> Option<TransactionBlocks> {
    // A member that had lost the partition may have rewritten older blocks in a transaction that was aborted.
    let is_known =
        |group: &TransactionBlocks| tails.shown.last().is_some_and(|last| group.tail.next <= last.tail.next);
    let is_shown = |(group, shown): &(&TransactionBlocks, &CleanVisibility)| {
        **shown == CleanVisibility::Yes && tails.is_newest(group) && !is_known(group)
    };
    let shown = || tails.hidden.iter().zip(shown).filter(is_shown);
    let (last, _) = shown().next_back()?;
    let copies = || shown().map(|(group, _)| group).filter(|group| group.clean_end() == last.clean_end());
    let all_are_cut = copies().all(|group| group.is_cut);
    let mut copies = copies().skip_while(|group| group.is_cut && !all_are_cut);
    Some(copies.next()?.clone().joined(copies))
}

#[cfg(test)]
mod tests;
