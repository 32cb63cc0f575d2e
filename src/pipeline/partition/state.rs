//! The state of one partition up to its committed offset, and what the open transaction adds to it.

use std::collections::BTreeSet;

use crate::dedupe::{
    Block, Checkpoint, ForgetRecord, HashKind, KindId, Offset, PartitionId, Section, Tail, Windows,
};
use crate::pipeline::kinds::Kinds;
use crate::pipeline::partition::loading::cut_back;
use crate::pipeline::partition::order::Order;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::topic::Lateness;
use crate::ports::{Committed, Epoch, Head, Store, StoreError};

/// What the open transaction did to a partition.
#[derive(Debug, Clone, Default)]
pub struct Uncommitted {
    /// Number of records processed.
    pub records: usize,
    /// Whether any record was written, to the clean topic or to a side topic.
    pub wrote: bool,
    /// The entry with its section; `None` before that is written.
    pub tail: Option<Tail>,
    /// The offset and metadata of its commit, set when they are sent.
    pub sent: Option<(Offset, String)>,
    /// The identities that it forgets.
    pub forgotten: Option<ForgetRecord>,
}

/// The state of a partition. While it is loaded or restored, its windows are incomplete.
///
/// Large because it holds all that a checkpoint names and a head stores, which a commit changes together.
#[derive(Debug)]
pub struct DedupeState {
    /// Number of the raw partition, and of its clean partition.
    pub id: PartitionId,
    /// The identities that count, by kind.
    pub windows: Windows,
    /// C as last read or committed.
    pub committed: Offset,
    /// The next raw offset expected; ahead of `committed` while a transaction is open.
    pub next: Offset,
    /// Offset in the journal: every section of the partition that is newer than `tail` is at or behind it.
    pub state_next: Offset,
    /// The last committed entry with a section of the partition.
    pub tail: Option<Tail>,
    /// What the open transaction did here; kept while its outcome is unknown.
    pub open: Option<Uncommitted>,
    /// The group was rewound and the state beyond C was removed. The next transaction has to add a section even
    /// without identities; otherwise a later restore would revive the removed owners.
    pub rewound: bool,
    /// The start offset of this partition was chosen by this process only. It is committed although no record was
    /// read, so that the next owner starts at the same offset.
    pub uncommitted_position: bool,
    /// The leader epoch of the last record before `next`. Between that record and `next` are only markers and aborted records.
    pub epoch: Option<Epoch>,
    /// The same of C.
    pub committed_epoch: Option<Epoch>,
    /// Number of raw partitions when the group began, from the last checkpoint.
    pub first_raw_partitions: Option<u32>,
    /// Kinds whose windows start empty with the next commit, because a change of their rule was accepted.
    pub reset_kinds: BTreeSet<KindId>,
    /// The stream time at the last commit whose markers are all there, epoch milliseconds: no repair undoes it.
    pub settled_ms: i64,
    /// How far the partition's clock is ahead of the worker's, ms.
    pub ahead_ms: i64,
    /// How far the partition's clock was ahead of the wall clock at the last checkpoint, ms.
    pub ahead_of_wall_ms: i64,
    /// How far its clock is behind the others without unread records. Only in topic scope.
    pub lateness: Lateness,
}

impl DedupeState {
    /// The state before anything is loaded into these windows.
    #[must_use]
    pub fn new(id: PartitionId, windows: Windows, reset_kinds: BTreeSet<KindId>) -> Self {
        Self {
            id,
            windows,
            committed: 0,
            next: 0,
            state_next: 0,
            tail: None,
            open: None,
            rewound: false,
            uncommitted_position: false,
            epoch: None,
            committed_epoch: None,
            first_raw_partitions: None,
            reset_kinds,
            settled_ms: 0,
            ahead_ms: 0,
            ahead_of_wall_ms: 0,
            lateness: Lateness::default(),
        }
    }

    /// The state is complete up to `committed`. Sets what entries do not contain, from the checkpoint.
    pub fn complete(&mut self, committed: Offset, checkpoint: &Checkpoint) {
        self.committed = committed;
        self.next = committed;
        self.first_raw_partitions = checkpoint.first_raw_partitions;
        self.ahead_of_wall_ms = checkpoint.ahead_of_wall_ms;
        self.epoch = checkpoint.epoch_before(committed);
        self.committed_epoch = self.epoch;
        self.settled_ms = checkpoint.stream_time_ms;
        self.windows.set_stream_time(checkpoint.stream_time_ms);
        self.lateness = Lateness::of(checkpoint.late_ms, self.windows.stream_time_ms());
    }

    /// Where the client reads on, and the leader epoch of the record before that if it is known: behind the last record, also where markers and
    /// aborted records follow that. Their epochs are not known, and a comparison by an older one would take an election for a truncation.
    #[must_use]
    pub fn position(&self) -> (Offset, Option<Epoch>) {
        let epoch = if self.open.is_some() { self.epoch } else { self.committed_epoch };
        (epoch.map_or(self.next, |epoch| epoch.next.min(self.next)), epoch)
    }

    /// A reading that begins at [`Self::position`].
    #[must_use]
    pub fn order(&self) -> Order {
        Order::with_gap(self.position().0..self.next)
    }

    /// Drops the leader epoch of the committed offset unless it can still be compared. To be called without an open transaction.
    pub fn keep_epoch(&mut self, is_valid: impl FnOnce(&Epoch) -> bool) {
        self.committed_epoch = self.committed_epoch.filter(is_valid);
        self.epoch = self.committed_epoch;
    }

    /// Whether the open transaction adds a section of this partition to the journal: when something was written, or owners are undone or
    /// forgotten. Without identities it proves that the transaction was complete, also to a group that has lost its offset.
    #[must_use]
    pub fn adds_section(&self) -> bool {
        let wrote = self.open.as_ref().map(|open| open.wrote || open.forgotten.is_some());
        wrote.is_some_and(|wrote| wrote || self.rewound || self.windows.has_pending())
    }

    /// The blocks of the open transaction, each with at most `most` identities: everything new in `committed..next`. The last one is of the
    /// unnamed kind, even without identities: its head in the store stands for all kinds.
    #[must_use]
    pub fn blocks(&self, hash: HashKind, most: usize) -> Vec<Block> {
        self.windows.blocks(hash, self.id, &(self.committed..self.next), most)
    }

    /// The section of the open transaction, before its clean records are acknowledged.
    #[must_use]
    pub fn section(&self) -> Section {
        Section {
            partition: self.id,
            first: self.committed,
            next: self.next,
            clean_end: None,
            time_first_ms: self.windows.opened_ms(),
            time_last_ms: self.windows.stream_time_ms(),
            reset_kinds: self.reset_kinds.iter().copied().collect(),
        }
    }

    /// Called when the open transaction has written a record of this partition.
    pub fn wrote(&mut self) {
        if let Some(open) = self.open.as_mut() {
            open.wrote = true;
        }
    }

    /// Applies the committed transaction. Returns for each kind the first raw offset whose owner is still needed.
    pub fn commit(&mut self, state_end: Option<Offset>) -> Vec<(KindId, Offset)> {
        self.lateness.save(self.late_ms());
        let open = self.open.take().unwrap_or_default();
        self.committed = self.next;
        self.committed_epoch = self.epoch;
        self.rewound = false;
        self.reset_kinds.clear();
        self.uncommitted_position = false;
        self.state_next = state_end.map_or(self.state_next, |end| end.max(self.state_next));
        self.tail = open.tail.or(self.tail);
        self.windows.commit(self.committed)
    }

    /// Removes from the local store what the open transaction wrote.
    pub fn undo_stored(&self, store: &mut impl Store, kinds: &Kinds) -> Result<(), StoreError> {
        match self.open.as_ref().and_then(|open| open.tail) {
            Some(_) => cut_back(store, &kinds.windows_of(self.id), self.committed),
            None => Ok(()),
        }
    }

    /// Undoes the aborted transaction.
    pub fn abort(&mut self) {
        self.open = None;
        self.next = self.committed;
        self.epoch = self.committed_epoch;
        self.windows.abort();
    }

    /// Forgets identities, after the transaction that forgets them is committed. The store still has their owners.
    pub fn forget(
        &mut self,
        forgotten: &ForgetRecord,
        store: &impl Store,
        is_copy: bool,
    ) -> Result<(), StoreError> {
        let (id, windows) = (self.id, &mut self.windows);
        let owners_of = |kind: KindId| Stored { store, window: kind.window(id), is_copy };
        forgotten.owners.iter().try_for_each(|owner| windows.forget(*owner, owners_of))
    }

    /// Removes every owner at or beyond `from` from the windows. The store still has them.
    pub fn truncate(&mut self, from: Offset, store: &impl Store, is_copy: bool) -> Result<(), StoreError> {
        let id = self.id;
        self.windows.truncate(from, |kind| Stored { store, window: kind.window(id), is_copy })
    }

    /// The head that the local store may record for this partition.
    #[must_use]
    pub fn head(&self) -> Head {
        let tail = self.tail.map(|tail| Tail { from: None, ..tail });
        Head {
            confirmed: self.committed,
            state_next: self.state_next,
            // The open transaction may be aborted, and another process with another clock may commit instead.
            stream_time_ms: self.windows.committed_time_ms(),
            tail,
            confirmed_tail: tail,
            incomplete_ms: self.windows.incomplete_before_ms().unwrap_or(0),
        }
    }

    /// Whether this is the state of a committed offset, or of one that the open transaction was committed with. It is not if the
    /// broker has undone a transaction that it had responded to.
    #[must_use]
    pub fn is_of(&self, answer: &Committed) -> bool {
        // A commit that only forgets ids leaves the offset unchanged.
        let is_same_entry = |it: Checkpoint| match (it.tail, self.tail) {
            (Some(theirs), Some(ours)) => theirs.names_same(&ours),
            (theirs, ours) => theirs.is_none() && ours.is_none(),
        };
        let is_same = answer.offset == Some(self.committed)
            && Checkpoint::parse(&answer.metadata).is_none_or(is_same_entry);
        is_same || self.was_committed_as(answer.offset, &answer.metadata)
    }

    /// Whether the open transaction was committed with exactly this offset and metadata. The offset alone does not prove that:
    /// another worker may have committed the same offset, and a commit that only forgets ids leaves the offset unchanged.
    #[must_use]
    pub fn was_committed_as(&self, offset: Option<Offset>, metadata: &str) -> bool {
        let sent = self.open.as_ref().and_then(|open| open.sent.as_ref());
        sent.is_some_and(|(next, text)| offset == Some(*next) && metadata == text)
    }
}
