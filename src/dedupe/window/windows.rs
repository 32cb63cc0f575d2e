//! The windows of a journal: one per kind of records. The first is for records without a named kind.
//!
//! All share the clock by which owners expire, and are committed and aborted together. Each has its own owners and its own limits.

use super::{Owner, StampedOwner, Window};
use crate::dedupe::coordinates::{Offset, PartitionId, Sequence};
use crate::dedupe::format::{Block, WindowCheckpoint};
use crate::dedupe::identity::{HashKind, KindId};
use crate::dedupe::window::IndexKey;

/// The windows of one journal, indexed by the position of the kind in the configuration.
#[derive(Debug, Default)]
pub struct Windows {
    kinds: Vec<KindWindow>,
    /// The latest stream time of all partitions, epoch milliseconds: the stamp of the next owner.
    latest_ms: i64,
    /// The same at the last commit.
    committed_ms: i64,
    horizon_ms: i64,
}

#[derive(Debug)]
struct KindWindow {
    kind: KindId,
    /// `None` for a kind that is not deduplicated.
    window: Option<Window>,
}

impl Windows {
    /// Empty windows: one per kind, `None` for a kind that is not deduplicated.
    pub fn new(windows: impl IntoIterator<Item = (KindId, Option<Window>)>) -> Self {
        let kinds = windows.into_iter().map(|(kind, window)| KindWindow { kind, window }).collect();
        Self { kinds, ..Self::default() }
    }

    /// The window of the kind at this position.
    #[inline]
    pub fn get(&self, kind: usize) -> Option<&Window> {
        self.kinds.get(kind)?.window.as_ref()
    }

    /// The window of the records that belong to no named kind.
    pub fn unnamed(&self) -> Option<&Window> {
        self.get(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (KindId, &Window)> {
        self.kinds.iter().filter_map(|entry| Some((entry.kind, entry.window.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (KindId, &mut Window)> {
        self.kinds.iter_mut().filter_map(|entry| Some((entry.kind, entry.window.as_mut()?)))
    }

    /// The window of a kind; `None` when the kind is not configured.
    pub fn of_kind(&mut self, kind: KindId) -> Option<&mut Window> {
        self.iter_mut().find(|(own, _)| *own == kind).map(|(_, window)| window)
    }

    /// Advances the stamps to the stream time of a partition, before the verdict on its record.
    #[inline]
    pub fn observe(&mut self, stream_ms: i64) {
        self.latest_ms = self.latest_ms.max(stream_ms);
    }

    /// Adds a record as the owner of its identity to the window of the kind at this position, in the open transaction.
    #[inline]
    pub fn admit(&mut self, kind: usize, owner: Owner, key: &IndexKey) {
        let stamp_ms = self.latest_ms;
        let window = self.kinds.get_mut(kind).and_then(|kind| kind.window.as_mut());
        if let Some(window) = window {
            window.admit(StampedOwner { owner, stamp_ms }, key);
        }
    }

    /// The open transaction's owners as blocks of at most `most` owners, partition by partition.
    pub fn blocks(&self, hash: HashKind, most: usize) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (kind, window) in self.iter() {
            let mut owners: Vec<Owner> = window.pending().iter().map(|pending| pending.owner).collect();
            owners.sort_by_key(|owner| owner.at);
            let parts = owners.chunks(most.max(1));
            blocks.extend(parts.map(|owners| Block { hash, kind, owners: owners.to_vec() }));
        }
        blocks
    }

    /// The latest stream time of all partitions at the last commit, epoch milliseconds; 0 while unknown.
    pub fn committed_ms(&self) -> i64 {
        self.committed_ms
    }

    /// The clock by which owners expire, epoch milliseconds; 0 while unknown.
    pub fn horizon_ms(&self) -> i64 {
        self.horizon_ms
    }

    /// Advances the clock by which owners expire. It never goes back. The next commit applies it.
    pub fn set_horizon(&mut self, ms: i64) {
        self.horizon_ms = self.horizon_ms.max(ms);
        let horizon_ms = self.horizon_ms;
        self.iter_mut().for_each(|(_, window)| window.set_horizon(horizon_ms));
    }

    /// Commits the transaction. Returns for each kind the lowest number whose owner is still needed, the
    /// unnamed kind last: the store's state of the unnamed kind represents all kinds.
    pub fn commit(&mut self) -> Vec<(KindId, Sequence)> {
        self.committed_ms = self.latest_ms;
        let mut needed: Vec<_> = self.iter_mut().map(|(kind, window)| (kind, window.commit())).collect();
        needed.reverse();
        needed
    }

    /// Undoes the open transaction.
    pub fn abort(&mut self) {
        self.latest_ms = self.committed_ms;
        self.iter_mut().for_each(|(_, window)| window.abort());
    }

    /// A partition has reached this stream time in what was restored or loaded, epoch milliseconds.
    pub fn restored_to(&mut self, stream_ms: i64) {
        self.latest_ms = self.latest_ms.max(stream_ms);
        self.committed_ms = self.latest_ms;
    }

    /// Removes the claims of a partition below an offset: its transaction has ended.
    pub fn clear_claims_below(&mut self, partition: PartitionId, next: Offset) {
        self.iter_mut().for_each(|(_, window)| window.clear_claims_below(partition, next));
    }

    /// The state that a restart must take over, for each window that has any.
    pub fn checkpoints(&self) -> Vec<WindowCheckpoint> {
        let all = self.iter().map(|(kind, window)| WindowCheckpoint {
            kind,
            dropped_ms: window.dropped_ms(),
            incomplete_ms: window.incomplete_before_ms(),
        });
        all.filter(|it| *it != WindowCheckpoint { kind: it.kind, ..WindowCheckpoint::default() }).collect()
    }

    /// Takes over what was dropped or missing before a restart.
    pub fn inherit(&mut self, checkpoints: &[WindowCheckpoint]) {
        for (kind, window) in self.iter_mut() {
            let previous = checkpoints.iter().find(|it| it.kind == kind);
            window.inherit(previous.and_then(|it| it.dropped_ms));
            if let Some(ms) = previous.and_then(|it| it.incomplete_ms) {
                window.note_incomplete_before(ms);
            }
        }
    }

    /// Notes in all windows that ids from before this time may be missing: [`Window::note_incomplete_before`].
    /// The next checkpoint and the next local head store the note.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.note_incomplete_before(ms));
    }

    /// The earliest noted time of all windows; `None` as soon as it no longer affects one of them.
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        self.iter().map(|(_, window)| window.incomplete_before_ms()).min().flatten()
    }
}

#[cfg(test)]
mod tests;
