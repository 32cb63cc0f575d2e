//! The last transactions that the logs of a partition show.

use std::collections::BTreeSet;

use crate::dedupe::{Block, BlockView, ForgetRecord, KindId, Offset, StateKey, Tail};
use crate::ports::StateItem;

/// Whether the clean log shows the records of a transaction.
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

/// The blocks that one transaction wrote for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransactionBlocks {
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

impl TransactionBlocks {
    /// One past the last clean offset of the transaction, if it wrote clean records.
    pub fn clean_end(&self) -> Option<Offset> {
        self.blocks.first().and_then(|(key, _)| key.clean_end)
    }

    pub fn is_by(&self, writer: &str) -> bool {
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

    /// The blocks of all copies of this transaction. The first copy of each block counts.
    pub fn joined<'a>(mut self, copies: impl Iterator<Item = &'a Self>) -> Self {
        for copy in copies {
            self.first = self.first.min(copy.first);
            self.take_name(copy.is_unnamed, copy.tail, copy.times.1);
            self.blocks.extend(copy.blocks.iter().cloned());
        }
        let mut known = BTreeSet::new();
        self.blocks.retain(|(_, bytes)| known.insert(bytes.clone()));
        self
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
    pub shown: Vec<TransactionBlocks>,
    /// Transactions whose blocks are aborted, in log order.
    pub hidden: Vec<TransactionBlocks>,
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
    pub fn is_newest(&self, hidden: &TransactionBlocks) -> bool {
        self.shown.last().is_none_or(|last| hidden.at > last.at)
    }

    /// The transactions that can be the last one: the last committed one, and the aborted ones after it. There can be several
    /// of the latter, because a member that has lost the partition may write until it detects the loss.
    pub fn last(&self) -> impl Iterator<Item = &TransactionBlocks> {
        let newest = self.hidden.iter().filter(|group| self.is_newest(group));
        self.shown.last().into_iter().chain(newest)
    }

    /// Whether the committed blocks continue the named one, which is committed too. An aborted copy behind them is not the named
    /// block then: a member that had lost the partition has processed the same records again.
    pub fn continues_after(&self, named: &Tail) -> bool {
        let is_named = |group: &TransactionBlocks| {
            group.tail.names_same(named) && named.from.is_none_or(|from| group.at >= from)
        };
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
    groups: &mut Vec<TransactionBlocks>,
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
    let mut group =
        TransactionBlocks { blocks: Vec::new(), at, is_cut, first: block.first, tail, times, is_unnamed };
    group.push(key, bytes);
    groups.push(group);
}
