//! What became of the last transaction of a partition, decided by what can be read of it.
//!
//! A transaction writes to three logs for a partition: records to the clean topic, blocks to the state topic, and
//! the offset to the group's offsets. Normally all three show it or none. After a broker failure a marker can be
//! missing in some of them (see [`super::torn`]); what was left open there has then been ended as aborted, so that
//! each log shows the transaction or never will. **The clean log decides**, because its readers may have seen it:
//!
//! | clean | block | offset | what happened | decision |
//! |---|---|---|---|---|
//! | shown | shown | shown | committed | agreed |
//! | shown | shown | hidden | committed, offset undone | advance the offset to the end of the block |
//! | shown | hidden | shown | committed, block undone | write the block again |
//! | shown | hidden | hidden | committed, block and offset undone | write both again |
//! | hidden | shown | shown | committed, records undone | void the block, go back to its first offset |
//! | hidden | shown | hidden | committed, records and offset undone | void the block |
//! | hidden | hidden | shown | committed, records and block undone | go back to the block's first offset |
//! | hidden | hidden | hidden | aborted | agreed |
//!
//! Going back is exact where nothing of the transaction is shown in the clean log: its records are processed again.
//! A block without clean records (it only voids others) has no column of its own to decide it: its block or its
//! offset, whichever is shown, decides for the other.
//!
//! The decision repeats: each row's action is one transaction of the ordinary kind. Cut short, it is aborted and leaves
//! the evidence as it was; torn itself, it leaves a case of the same table. The rows hold for one transaction: a
//! producer begins the next one only when it has seen all markers of the last ([`super::markers`]).

use std::collections::BTreeSet;

use super::checkpoint::{Checkpoint, Origin, Tail};
use crate::dedupe::{Block, BlockView, Forgotten, KindId, Offset};
use crate::ports::StateItem;

/// Whether the clean log shows the records of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// `read_committed` readers see them.
    Yes,
    /// They are in the log, aborted.
    No,
    /// The transaction wrote none here, or the log no longer holds their offsets.
    Unknowable,
}

/// The blocks that one transaction wrote for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Each with its key, in the order of the log.
    pub blocks: Vec<(Origin, Vec<u8>)>,
    /// State offset of the last one.
    pub at: Offset,
    /// First raw offset covered.
    pub first: Offset,
    /// What names the last block in a checkpoint.
    pub tail: Tail,
    /// Stream time before and after the transaction, epoch milliseconds.
    pub times: (i64, i64),
    /// The last block is one of the unnamed kind. Those of named kinds come before it, so without it some may be missing.
    is_unnamed: bool,
}

impl Group {
    /// One past the last clean offset of the transaction, if it wrote any.
    pub fn clean_end(&self) -> Option<Offset> {
        self.blocks.first().and_then(|(origin, _)| origin.clean_end)
    }

    fn is_by(&self, writer: &str) -> bool {
        self.blocks.first().is_some_and(|(origin, _)| origin.writer == writer)
    }

    fn continues_with(&self, origin: &Origin, block: &Block) -> bool {
        let same = |(last, _): &(Origin, Vec<u8>)| {
            last.writer == origin.writer && last.clean_end == origin.clean_end
        };
        let is_open = origin.clean_end.is_some() || block.next == self.tail.next;
        self.blocks.last().is_some_and(same) && is_open && !self.is_whole()
    }

    /// Whether it has all its blocks, where that is known: without clean records there is one for each kind.
    fn is_whole(&self) -> bool {
        self.is_unnamed && self.clean_end().is_none()
    }
}

/// What a part of a state log holds, sorted by transaction.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// Transactions whose blocks are committed, in the order of the log.
    pub shown: Vec<Group>,
    /// Transactions whose blocks are aborted, in the order of the log.
    pub hidden: Vec<Group>,
    /// The highest number among committed records that forget ids.
    pub forgets: u64,
    /// The last aborted record that forgets ids.
    pub hidden_forget: Option<(Origin, Forgotten)>,
}

impl Tails {
    /// Sorts the records of one partition: all of them, and the state offsets of those that are committed.
    pub fn new(everything: Vec<StateItem>, committed: &BTreeSet<Offset>) -> Self {
        let mut tails = Self::default();
        for item in everything {
            let StateItem::Block { offset, key, block, .. } = item else { continue };
            let Some(origin) = Origin::parse(&key) else { continue };
            tails.add(offset, origin, block, committed.contains(&offset));
        }
        tails
    }

    /// Whether an aborted transaction is newer than every committed one.
    pub fn is_newest(&self, hidden: &Group) -> bool {
        self.shown.last().is_none_or(|last| hidden.at > last.at)
    }

    fn add(&mut self, offset: Offset, origin: Origin, bytes: Vec<u8>, is_shown: bool) {
        if Forgotten::is_here(&bytes) {
            let Ok(forgotten) = Forgotten::decode(&bytes) else { return };
            if is_shown {
                self.forgets = self.forgets.max(forgotten.number);
            } else {
                self.hidden_forget = Some((origin, forgotten));
            }
            return;
        }
        // The restore reports what it cannot read, with its place.
        if BlockView::verified(&bytes).is_err() {
            return;
        }
        let Ok(block) = Block::decode(&bytes) else { return };
        let groups = if is_shown { &mut self.shown } else { &mut self.hidden };
        push(groups, offset, origin, (block, bytes));
    }
}

fn push(groups: &mut Vec<Group>, at: Offset, origin: Origin, (block, bytes): (Block, Vec<u8>)) {
    let tail = Tail { crc: Block::checksum(&bytes), next: block.next, from: Some(at) };
    let is_unnamed = KindId::of_filed(block.partition).0 == KindId::UNNAMED;
    if let Some(last) = groups.last_mut().filter(|last| last.continues_with(&origin, &block)) {
        last.at = at;
        last.first = last.first.min(block.first);
        // The same blocks may follow once more, cut short at any of them: what names the transaction is the last one it has.
        if last.tail.next <= block.next && (is_unnamed || !last.is_unnamed) {
            last.tail = Tail { from: last.tail.from, ..tail };
            last.times.1 = block.time_last_ms;
        }
        last.is_unnamed |= is_unnamed;
        last.blocks.push((origin, bytes));
        return;
    }
    let times = (block.time_first_ms, block.time_last_ms);
    groups.push(Group { blocks: vec![(origin, bytes)], at, first: block.first, tail, times, is_unnamed });
}

/// Everything that is known of a partition.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    /// The committed offset, when the group has one.
    pub committed: Option<Offset>,
    /// What stands beside it, when it was written by dedupd.
    pub checkpoint: Option<&'a Checkpoint>,
    /// First offset that the state log holds.
    pub state_low: Offset,
    /// The state log, from the block that the checkpoint names on.
    pub tails: &'a Tails,
    /// Whether the clean log shows the last committed transaction.
    pub last: Shown,
    /// Whether it shows the aborted ones, in their order; only that of those newer than the last committed one counts.
    pub hidden: &'a [Shown],
}

/// What there is to do before the committed offset may be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing: the logs agree.
    Agreed,
    /// Write these blocks again, and the offset at their end.
    Redo(Group),
    /// Commit the offset at the end of this transaction, whose blocks are committed.
    Advance(Group),
    /// Void the blocks from this raw offset on, of this transaction, and commit that offset.
    Rewind(Offset, Group),
    /// Write the record that forgets ids again.
    RedoForgotten(Origin, Forgotten),
    /// Commit the same offset with this number of records that forget ids.
    AdvanceForgets(u64),
    /// The block named by the committed offset is not in the state log, and nothing shows what it was.
    Missing(Tail),
}

impl Decision {
    /// As logged.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agreed => "agreed",
            Self::Redo(_) => "write the blocks again",
            Self::Advance(_) => "commit the offset again",
            Self::Rewind(..) => "process the records again",
            Self::RedoForgotten(..) => "write the forgotten ids again",
            Self::AdvanceForgets(_) => "commit the number of forgotten ids again",
            Self::Missing(_) => "a committed block is missing",
        }
    }
}

/// Decides by the table at the top of this module.
pub(super) fn decide(evidence: &Evidence<'_>) -> Decision {
    let tails = evidence.tails;
    if evidence.committed.is_some() && evidence.checkpoint.is_none() {
        // Somebody else has set the offset; `group.on_rewind` says what that means.
        return Decision::Agreed;
    }
    if let Some(group) = shown_but_for_its_blocks(tails, evidence.hidden) {
        return Decision::Redo(group);
    }
    let last = tails.shown.last();
    if let Some(group) = last.filter(|_| evidence.last == Shown::No) {
        return Decision::Rewind(group.first.min(evidence.committed.unwrap_or(group.first)), group.clone());
    }
    let Some((committed, checkpoint)) = evidence.committed.zip(evidence.checkpoint) else {
        return Decision::Agreed;
    };
    let Some(named) = checkpoint.tail else {
        // The first block of a partition, whose offset was undone.
        return match last.filter(|group| group.tail.next > committed) {
            Some(group) => Decision::Advance(group.clone()),
            None => agreed_blocks(tails, checkpoint),
        };
    };
    let is_named = |group: &&Group| group.tail.names_same(&named);
    if last.is_some_and(|group| is_named(&group)) {
        return agreed_blocks(tails, checkpoint);
    }
    let voided = |group: &Group| is_named(&group) && !tails.is_newest(group);
    if let (true, Some(last)) = (tails.shown.iter().chain(&tails.hidden).any(voided), last) {
        return Decision::Advance(last.clone());
    }
    let is_cut = named.from.is_some_and(|from| from < evidence.state_low);
    // A member that had lost the partition may have written the same block and aborted it; where retention has deleted the
    // one that was committed, this one must not pass for it.
    let is_other = |group: &Group| is_cut && !group.is_by(&checkpoint.writer);
    match tails.hidden.iter().zip(evidence.hidden).find(|(group, _)| is_named(group) && !is_other(group)) {
        Some((group, Shown::No)) => Decision::Rewind(group.first.min(committed), group.clone()),
        Some((group, _)) => Decision::Redo(group.clone()),
        // Written by a version that does not note where, or deleted by retention. What is left is newer then.
        None if named.from.is_none() => Decision::Agreed,
        None if is_cut => last.map_or(Decision::Agreed, |last| Decision::Advance(last.clone())),
        None => Decision::Missing(named),
    }
}

/// The blocks agree; so must the records that forget ids.
fn agreed_blocks(tails: &Tails, checkpoint: &Checkpoint) -> Decision {
    match &tails.hidden_forget {
        _ if tails.forgets > checkpoint.forgets => Decision::AdvanceForgets(tails.forgets),
        Some((origin, forgotten))
            if forgotten.number == checkpoint.forgets && tails.forgets < forgotten.number =>
        {
            Decision::RedoForgotten(origin.clone(), forgotten.clone())
        }
        _ => Decision::Agreed,
    }
}

/// The blocks of the last transaction that the clean log shows and the state log does not. They may have been written
/// several times, by attempts to write them again; the first writing of each counts.
fn shown_but_for_its_blocks(tails: &Tails, shown: &[Shown]) -> Option<Group> {
    // A member that had lost the partition may have written older blocks again, and was aborted.
    let is_known = |group: &Group| tails.shown.last().is_some_and(|last| group.tail.next <= last.tail.next);
    let is_shown = |(group, shown): &(&Group, &Shown)| {
        **shown == Shown::Yes && tails.is_newest(group) && !is_known(group)
    };
    let shown = || tails.hidden.iter().zip(shown).filter(is_shown);
    let (last, _) = shown().next_back()?;
    let mut copies = shown().map(|(group, _)| group).filter(|group| group.clean_end() == last.clean_end());
    let mut whole = copies.next()?.clone();
    for copy in copies {
        whole.first = whole.first.min(copy.first);
        // Of a copy that was cut short, the last block names nothing.
        if copy.is_unnamed && (!whole.is_unnamed || copy.tail.next >= whole.tail.next) {
            whole.is_unnamed = true;
            whole.tail = Tail { from: whole.tail.from, ..copy.tail };
        }
        whole.blocks.extend(copy.blocks.iter().cloned());
    }
    let mut known = BTreeSet::new();
    whole.blocks.retain(|(_, bytes)| known.insert(bytes.clone()));
    Some(whole)
}

#[cfg(test)]
mod tests;
