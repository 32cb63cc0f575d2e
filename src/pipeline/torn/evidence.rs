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
//! same key replaces. So a record that no reader finds is no evidence ([`Shown::Gone`]). Block and offset decide if they agree;
//! otherwise an operator has to ([`Decision::Undecidable`]).
//!
//! The decision can be repeated: the action of each row is one ordinary transaction. If that is interrupted, it is aborted and
//! leaves the evidence unchanged. If it is torn itself, it leaves a case of the same table. The rows hold for one
//! transaction: a producer begins the next one only when it has seen all markers of the last ([`crate::pipeline::commit::markers`]).

use std::collections::BTreeSet;

use crate::dedupe::{Block, BlockView, Checkpoint, ForgetRecord, KindId, Offset, StateKey, Tail};
use crate::ports::StateItem;

/// Whether the clean log shows the records of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// They are visible to `read_committed` readers.
    Yes,
    /// They are in the log, but aborted.
    No,
    /// The log holds their offsets, and compaction has removed the record that decides.
    Gone,
    /// The transaction wrote no clean records, or the log no longer holds their offsets.
    Unknowable,
}

/// The blocks that one transaction wrote for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// Each block with its key, in log order.
    pub blocks: Vec<(StateKey, Vec<u8>)>,
    /// State offset of the last block.
    pub at: Offset,
    /// Whether blocks of the transaction may precede those that were read: in the log, or deleted by retention.
    pub is_cut: bool,
    /// First raw offset covered.
    pub first: Offset,
    /// The tail that names the last block in a checkpoint.
    pub tail: Tail,
    /// Stream time before and after the transaction, epoch milliseconds.
    pub times: (i64, i64),
    /// Whether the last block is one of the unnamed kind. The blocks of named kinds come before it, so a group without it
    /// may be incomplete.
    is_unnamed: bool,
}

impl Group {
    /// One past the last clean offset of the transaction, if it wrote clean records.
    pub fn clean_end(&self) -> Option<Offset> {
        self.blocks.first().and_then(|(key, _)| key.clean_end)
    }

    fn is_by(&self, writer: &str) -> bool {
        self.blocks.first().is_some_and(|(key, _)| key.writer == writer)
    }

    fn continues_with(&self, key: &StateKey, block: &Block) -> bool {
        let same =
            |(last, _): &(StateKey, Vec<u8>)| last.writer == key.writer && last.clean_end == key.clean_end;
        let is_open = key.clean_end.is_some() || block.next == self.tail.next;
        self.blocks.last().is_some_and(same) && is_open && !self.is_whole()
    }

    /// Adds the next block. The last block of a complete copy makes what precedes the copy superfluous: that may have lost its
    /// first blocks.
    fn push(&mut self, key: StateKey, bytes: Vec<u8>) {
        let copied = key.copied;
        self.blocks.push((key, bytes));
        if let Some(before) = copied.and_then(|copied| self.blocks.len().checked_sub(copied)) {
            self.blocks.drain(..before);
            self.is_cut = false;
        }
    }

    /// Takes the name and the end of the transaction from a later block, if that block is the one that a checkpoint names: the
    /// last one of the unnamed kind. Of a transaction that was cut short before it, the last block that there is.
    fn take_name(&mut self, is_unnamed: bool, tail: Tail, end_ms: i64) {
        if (is_unnamed, tail.next) >= (self.is_unnamed, self.tail.next) {
            self.is_unnamed = is_unnamed;
            self.tail = Tail { from: self.tail.from, ..tail };
            self.times.1 = end_ms;
        }
    }

    /// Whether it has all its blocks, where that is known: without clean records there is one for each kind.
    fn is_whole(&self) -> bool {
        self.is_unnamed && self.clean_end().is_none()
    }
}

/// The records at the end of a state log, grouped by transaction.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    /// Transactions whose blocks are committed, in log order.
    pub shown: Vec<Group>,
    /// Transactions whose blocks are aborted, in log order.
    pub hidden: Vec<Group>,
    /// The highest number among the committed forget records.
    pub forgets: u64,
    /// The last aborted forget record.
    pub hidden_forget: Option<(StateKey, ForgetRecord)>,
}

impl Tails {
    /// Groups the records of one partition: `everything` has all of them, `committed` the state offsets of those that are
    /// committed.
    pub fn new(everything: Vec<StateItem>, committed: &BTreeSet<Offset>) -> Self {
        let mut tails = Self::default();
        for item in everything {
            let StateItem::Block { offset, key: Some(key), block, .. } = item else { continue };
            tails.add(offset, key, block, committed.contains(&offset));
        }
        tails
    }

    /// Whether an aborted transaction is newer than every committed one.
    pub fn is_newest(&self, hidden: &Group) -> bool {
        self.shown.last().is_none_or(|last| hidden.at > last.at)
    }

    /// The transactions that can be the last one: the last committed one, and the aborted ones after it. There can be several
    /// of the latter, because a member that has lost the partition may write until it detects the loss.
    pub fn last(&self) -> impl Iterator<Item = &Group> {
        let newest = self.hidden.iter().filter(|group| self.is_newest(group));
        self.shown.last().into_iter().chain(newest)
    }

    /// Whether the committed blocks continue the named one, which is committed too. An aborted copy behind them is not the named
    /// block then: a member that had lost the partition has processed the same records again.
    fn continues_after(&self, named: &Tail) -> bool {
        let is_named =
            |group: &Group| group.tail.names_same(named) && named.from.is_none_or(|from| group.at >= from);
        let mut later = self.shown.iter().skip_while(|group| !is_named(group)).skip(1).peekable();
        later.peek().is_some() && later.all(|group| group.first >= named.next)
    }

    fn add(&mut self, offset: Offset, key: StateKey, bytes: Vec<u8>, is_shown: bool) {
        if ForgetRecord::is_here(&bytes) {
            let Ok(forgotten) = ForgetRecord::decode(&bytes) else { return };
            if is_shown {
                self.forgets = self.forgets.max(forgotten.number);
            } else {
                self.hidden_forget = Some((key, forgotten));
            }
            return;
        }
        // The restore reports an unreadable block with its offset.
        if BlockView::verified(&bytes).is_err() {
            return;
        }
        let Ok(block) = Block::decode(&bytes) else { return };
        // The owner of a partition begins a transaction when the one before has ended. So all of a transaction follows the
        // committed record before it, also where its first block is not marked: an earlier version has written it.
        let is_cut = !key.is_first && self.shown.is_empty() && self.forgets == 0;
        let groups = if is_shown { &mut self.shown } else { &mut self.hidden };
        push(groups, (offset, is_cut), key, (block, bytes));
    }
}

fn push(
    groups: &mut Vec<Group>,
    (at, is_cut): (Offset, bool),
    key: StateKey,
    (block, bytes): (Block, Vec<u8>),
) {
    let tail = Tail { crc: Block::checksum(&bytes), next: block.next, from: Some(at) };
    let is_unnamed = block.window.kind() == KindId::UNNAMED;
    if let Some(last) = groups.last_mut().filter(|last| last.continues_with(&key, &block)) {
        last.at = at;
        last.first = last.first.min(block.first);
        // The same blocks may follow once more, cut short at any of them.
        last.take_name(is_unnamed, tail, block.time_last_ms);
        last.push(key, bytes);
        return;
    }
    let times = (block.time_first_ms, block.time_last_ms);
    let mut group = Group { blocks: Vec::new(), at, is_cut, first: block.first, tail, times, is_unnamed };
    group.push(key, bytes);
    groups.push(group);
}

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
    pub last: Shown,
    /// Whether the clean log shows each group of `tails.hidden`, in the same order. Only the entries of groups newer than the
    /// last committed one count.
    pub hidden: &'a [Shown],
}

/// What to do before the committed offset can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing: the logs agree.
    Agreed,
    /// Rewrite these blocks, and commit the offset at their end.
    Redo(Group),
    /// Commit the offset at the end of this transaction, whose blocks are committed.
    Advance(Group),
    /// Void the blocks of this transaction from this raw offset on, and commit that offset.
    Rewind(Offset, Group),
    /// Rewrite the forget record.
    RedoForgotten(StateKey, ForgetRecord),
    /// Commit the same offset with this number of forget records.
    AdvanceForgets(u64),
    /// The block named by the committed offset is not in the state log, and its content cannot be recovered.
    Missing(Tail),
    /// The logs disagree about this transaction, and what would decide has been deleted.
    Undecidable(Lack, Group),
}

/// What was deleted before the outcome of a transaction was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Compaction has removed its last record from the clean log.
    Record,
    /// Retention has deleted its first blocks from the state log.
    Blocks,
}

impl Decision {
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

/// Decides by the table at the top of this module.
pub(crate) fn decide(evidence: &Evidence<'_>) -> Decision {
    match by_table(evidence) {
        Decision::Redo(group) if evidence.lacks_blocks(&group) && !evidence.is_set_elsewhere() => {
            Decision::Undecidable(Lack::Blocks, group)
        }
        // A rewind to the committed offset does not depend on the first block.
        Decision::Rewind(to, group) if evidence.lacks_blocks(&group) && Some(to) != evidence.committed => {
            match evidence.committed.filter(|_| evidence.is_set_elsewhere()) {
                // The operator has decided where processing continues.
                Some(committed) => Decision::Rewind(to.min(committed), group),
                None => Decision::Undecidable(Lack::Blocks, group),
            }
        }
        Decision::Redo(group) => Decision::Redo(Group { is_cut: evidence.lacks_blocks(&group), ..group }),
        decision => decision,
    }
}

impl Evidence<'_> {
    /// Whether blocks of the transaction precede those that were read. The checkpoint of its offset names an offset before them.
    fn lacks_blocks(&self, group: &Group) -> bool {
        let named = self.checkpoint.and_then(|checkpoint| checkpoint.tail);
        let named = named.filter(|named| named.from.is_some_and(|from| from >= self.state_low));
        group.is_cut && !named.is_some_and(|named| group.tail.names_same(&named))
    }

    /// Whether another program has set the committed offset.
    fn is_set_elsewhere(&self) -> bool {
        self.committed.is_some() && self.checkpoint.is_none()
    }

    /// Commits the offset at the end of the last committed transaction, unless nothing shows that its records were committed.
    fn advance(&self, group: &Group) -> Decision {
        match self.last {
            Shown::Gone => Decision::Undecidable(Lack::Record, group.clone()),
            _ => Decision::Advance(group.clone()),
        }
    }
}

fn by_table(evidence: &Evidence<'_>) -> Decision {
    let tails = evidence.tails;
    if let Some(group) = shown_but_for_its_blocks(tails, evidence.hidden) {
        return Decision::Redo(group);
    }
    let last = tails.shown.last();
    if let Some(group) = last.filter(|_| evidence.last == Shown::No) {
        // What was committed before this transaction stays committed, also when another program has set a lower offset.
        let own = evidence.committed.filter(|_| evidence.checkpoint.is_some());
        return Decision::Rewind(group.first.min(own.unwrap_or(group.first)), group.clone());
    }
    // Without metadata another program has set the offset. It stays, and `group.on_rewind` defines what follows from it.
    let Some((committed, checkpoint)) = evidence.committed.zip(evidence.checkpoint) else {
        return Decision::Agreed;
    };
    let Some(named) = checkpoint.tail else {
        // A committed block beyond this offset is the first block of the partition, and its offset was undone.
        return match last.filter(|group| group.tail.next > committed) {
            Some(group) => evidence.advance(group),
            None => agreed_blocks(tails, checkpoint),
        };
    };
    let is_named = |group: &&Group| group.tail.names_same(&named);
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
    let is_other = |group: &Group| is_cut && (is_ended || !group.is_by(&checkpoint.writer));
    match tails.hidden.iter().zip(evidence.hidden).rfind(|(group, _)| is_named(group) && !is_other(group)) {
        Some((group, Shown::No)) => Decision::Rewind(group.first.min(committed), group.clone()),
        Some((group, Shown::Gone)) => Decision::Undecidable(Lack::Record, group.clone()),
        Some((group, _)) => Decision::Redo(group.clone()),
        // The checkpoint was written by a version that does not store the state offset of the block.
        None if named.from.is_none() => Decision::Agreed,
        // Retention has deleted the block, so what is left in the log is newer.
        None if is_cut => last.map_or(Decision::Agreed, |last| evidence.advance(last)),
        None => Decision::Missing(named),
    }
}

/// Decides about the forget records, which have to agree too, once the blocks agree.
fn agreed_blocks(tails: &Tails, checkpoint: &Checkpoint) -> Decision {
    match &tails.hidden_forget {
        _ if tails.forgets > checkpoint.forgets => Decision::AdvanceForgets(tails.forgets),
        Some((key, forgotten))
            if forgotten.number == checkpoint.forgets && tails.forgets < forgotten.number =>
        {
            Decision::RedoForgotten(key.clone(), forgotten.clone())
        }
        _ => Decision::Agreed,
    }
}

/// The blocks of the last transaction that the clean log shows and the state log does not. Attempts to rewrite them may have
/// left several copies. The first copy of each block counts, from the first attempt on that has the first block.
fn shown_but_for_its_blocks(tails: &Tails, shown: &[Shown]) -> Option<Group> {
    // A member that had lost the partition may have rewritten older blocks in a transaction that was aborted.
    let is_known = |group: &Group| tails.shown.last().is_some_and(|last| group.tail.next <= last.tail.next);
    let is_shown = |(group, shown): &(&Group, &Shown)| {
        **shown == Shown::Yes && tails.is_newest(group) && !is_known(group)
    };
    let shown = || tails.hidden.iter().zip(shown).filter(is_shown);
    let (last, _) = shown().next_back()?;
    let copies = || shown().map(|(group, _)| group).filter(|group| group.clean_end() == last.clean_end());
    let all_are_cut = copies().all(|group| group.is_cut);
    let mut copies = copies().skip_while(|group| group.is_cut && !all_are_cut);
    let mut whole = copies.next()?.clone();
    for copy in copies {
        whole.first = whole.first.min(copy.first);
        whole.take_name(copy.is_unnamed, copy.tail, copy.times.1);
        whole.blocks.extend(copy.blocks.iter().cloned());
    }
    let mut known = BTreeSet::new();
    whole.blocks.retain(|(_, bytes)| known.insert(bytes.clone()));
    Some(whole)
}

#[cfg(test)]
mod tests;
