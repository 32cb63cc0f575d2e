//! One partition's windows: one per kind of records. The first is for records without a named kind.
//!
//! All share the partition's stream time and its committed offset, and are committed and aborted together. Each has its
//! own owners, its own expiry and its own limits.

use super::{Owners, Window};
use crate::dedupe::coordinates::{Offset, PartitionId};
use crate::dedupe::format::{Block, WindowCheckpoint};
use crate::dedupe::identity::{HashKind, Identity, KindId};

/// The windows of one partition, indexed by the position of the kind in the configuration.
#[derive(Debug)]
pub struct Windows(Vec<KindWindow>);

#[derive(Debug)]
struct KindWindow {
    kind: KindId,
    /// `None` for a kind that is not deduplicated.
    window: Option<Window>,
}

impl Windows {
    /// Empty windows: one per kind, `None` for a kind that is not deduplicated.
    #[must_use]
    pub fn new(windows: impl IntoIterator<Item = (KindId, Option<Window>)>) -> Self {
        Self(windows.into_iter().map(|(kind, window)| KindWindow { kind, window }).collect())
    }

    /// The window of the kind at this position.
    #[must_use]
    #[inline]
    pub fn get(&self, kind: usize) -> Option<&Window> {
        self.0.get(kind)?.window.as_ref()
    }

    /// The window of the kind at this position, mutable.
    #[inline]
    pub fn get_mut(&mut self, kind: usize) -> Option<&mut Window> {
        self.0.get_mut(kind)?.window.as_mut()
    }

    /// The window of the records that belong to no named kind.
    #[must_use]
    pub fn unnamed(&self) -> Option<&Window> {
        self.get(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = (KindId, &Window)> {
        self.0.iter().filter_map(|entry| Some((entry.kind, entry.window.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (KindId, &mut Window)> {
        self.0.iter_mut().filter_map(|entry| Some((entry.kind, entry.window.as_mut()?)))
    }

    /// The window of a kind; `None` when the kind is not configured.
    pub fn of_kind(&mut self, kind: KindId) -> Option<&mut Window> {
        self.iter_mut().find(|(own, _)| *own == kind).map(|(_, window)| window)
    }

    /// Advances stream time by a record before its verdict.
    #[inline]
    pub fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.observe(timestamp_ms, now_ms));
    }

    /// Whether the open transaction has new owners.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.iter().any(|(_, window)| !window.pending().is_empty())
    }

    /// The open transaction's owners as blocks that cover `covered`: first those of named kinds with owners, then those
    /// of the unnamed kind, even without owners. So the last block represents the whole transaction.
    #[must_use]
    pub fn blocks(
        &self,
        hash: HashKind,
        partition: PartitionId,
        covered: &std::ops::Range<Offset>,
        most: usize,
    ) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (kind, window) in self.iter() {
            if kind == KindId::UNNAMED || window.pending().is_empty() {
                continue;
            }
            blocks.extend(window.blocks(hash, kind.window(partition), covered.clone(), most));
        }
        if let Some(window) = self.get(0) {
            blocks.extend(window.blocks(hash, partition.into(), covered.clone(), most));
        }
        blocks
    }

    /// Stream time at the first record of the open transaction, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn opened_ms(&self) -> i64 {
        self.iter().map(|(_, window)| window.opened_ms()).max().unwrap_or(0)
    }

    /// Sets the stream time by which owners expire: [`Window::set_horizon`].
    pub fn set_horizon(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.set_horizon(ms));
    }

    /// Commits the transaction up to `next`. Returns for each kind the lowest offset whose owner is still needed, the
    /// unnamed kind last: the store's state of the unnamed kind represents all kinds.
    pub fn commit(&mut self, next: Offset) -> Vec<(KindId, Offset)> {
        let mut needed: Vec<_> = self.iter_mut().map(|(kind, window)| (kind, window.commit(next))).collect();
        needed.reverse();
        needed
    }

    /// Undoes the open transaction.
    pub fn abort(&mut self) {
        self.iter_mut().for_each(|(_, window)| window.abort());
    }

    /// Removes every owner at or beyond `from`. `owners_of` has those of a kind in the store, which still has all of them.
    pub fn truncate<O: Owners>(
        &mut self,
        from: Offset,
        owners_of: impl Fn(KindId) -> O,
    ) -> Result<(), O::Error> {
        self.iter_mut().try_for_each(|(kind, window)| window.truncate(from, &owners_of(kind)).map(drop))
    }

    /// One past the last offset known to be committed.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.iter().map(|(_, window)| window.next()).max().unwrap_or(0)
    }

    /// Stream time, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn stream_time_ms(&self) -> i64 {
        self.iter().map(|(_, window)| window.stream_time_ms()).max().unwrap_or(0)
    }

    /// Stream time at the last commit, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn committed_time_ms(&self) -> i64 {
        self.iter().map(|(_, window)| window.committed_time_ms()).max().unwrap_or(0)
    }

    /// Sets stream time from a checkpoint. Zero and negative values are ignored.
    pub fn set_stream_time(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.set_stream_time(ms));
    }

    /// The state that a restart must take over, for each window that has any.
    #[must_use]
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
            let previous = of(kind, checkpoints);
            window.inherit(previous.and_then(|it| it.dropped_ms));
            if let Some(ms) = previous.and_then(|it| it.incomplete_ms) {
                window.note_incomplete_before(ms);
            }
        }
    }

    /// Notes in all windows that ids from before this stream time may be missing: [`Window::note_incomplete_before`].
    /// The next checkpoint and the next local head store the note.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.note_incomplete_before(ms));
    }

    /// The earliest noted stream time of all windows; `None` as soon as it no longer affects one of them.
    #[must_use]
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        self.iter().map(|(_, window)| window.incomplete_before_ms()).min().flatten()
    }

    /// Forgets a committed owner of an identity in the windows of all kinds. `owners_of` as for [`Windows::truncate`].
    pub fn forget<O: Owners>(
        &mut self,
        (owner, identity): (Offset, Identity),
        owners_of: impl Fn(KindId) -> O,
    ) -> Result<(), O::Error> {
        self.iter_mut().try_for_each(|(kind, window)| window.forget(owner, identity, &owners_of(kind)))
    }

    /// Number of identities in all windows.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.iter().map(|(_, window)| window.ids()).sum()
    }
}

fn of(kind: KindId, checkpoints: &[WindowCheckpoint]) -> Option<&WindowCheckpoint> {
    checkpoints.iter().find(|it| it.kind == kind)
}
