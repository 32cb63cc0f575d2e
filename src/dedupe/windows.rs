//! One partition's windows: one for each kind of records, the first for those of no named kind.
//!
//! All share the partition's stream time and its committed offset, and are committed and undone together. Each has its
//! own owners, so each expires and is limited by itself.

use super::block::{Block, BlockError, BlockView};
use super::bloom::{Bloom, Layout};
use super::identity::{HashKind, Identity};
use super::kind::KindId;
use super::window::{Lost, Window};
use super::{Offset, PartitionId};

/// The windows of one partition, by the number of the kind in the configuration.
#[derive(Debug)]
pub struct Windows(Vec<Kept>);

#[derive(Debug)]
struct Kept {
    kind: KindId,
    /// `None` for a kind that is not deduplicated.
    window: Option<Window>,
}

/// What a restart has to be told of a window, because blocks do not show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remembered {
    /// Whose window.
    pub kind: KindId,
    /// What limits made it forget before its time.
    pub lost: Lost,
    /// How its filters stand.
    pub filters: Option<Layout>,
    /// Ids from before this stream time may be missing, whatever the limits.
    pub incomplete_ms: Option<i64>,
}

impl Windows {
    /// Empty windows: one for each kind, `None` for one that is not deduplicated.
    #[must_use]
    pub fn new(windows: impl IntoIterator<Item = (KindId, Option<Window>)>) -> Self {
        Self(windows.into_iter().map(|(kind, window)| Kept { kind, window }).collect())
    }

    /// The window of the kind with this number.
    #[must_use]
    #[inline]
    pub fn get(&self, kind: usize) -> Option<&Window> {
        self.0.get(kind)?.window.as_ref()
    }

    /// The window of the kind with this number, to change.
    #[inline]
    pub fn get_mut(&mut self, kind: usize) -> Option<&mut Window> {
        self.0.get_mut(kind)?.window.as_mut()
    }

    /// The window of the records that belong to no named kind.
    #[must_use]
    pub fn unnamed(&self) -> Option<&Window> {
        self.get(0)
    }

    /// All windows.
    pub fn iter(&self) -> impl Iterator<Item = (KindId, &Window)> {
        self.0.iter().filter_map(|kept| Some((kept.kind, kept.window.as_ref()?)))
    }

    /// All windows, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (KindId, &mut Window)> {
        self.0.iter_mut().filter_map(|kept| Some((kept.kind, kept.window.as_mut()?)))
    }

    /// The window that a block belongs to, if there is such a kind.
    pub fn of_block(&mut self, filed: PartitionId) -> Option<&mut Window> {
        let (kind, _) = KindId::of_filed(filed);
        self.iter_mut().find(|(own, _)| *own == kind).map(|(_, window)| window)
    }

    /// Moves stream time by a record that is about to be judged.
    #[inline]
    pub fn observe(&mut self, timestamp_ms: Option<i64>, now_ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.observe(timestamp_ms, now_ms));
    }

    /// Whether the open transaction has new owners.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.iter().any(|(_, window)| !window.pending().is_empty())
    }

    /// The open transaction's owners as blocks that cover `covered`: those of the named kinds that have any, then
    /// those of the unnamed kind, without owners if need be. So the last block stands for the whole transaction.
    #[must_use]
    pub fn blocks(
        &mut self,
        hash: HashKind,
        partition: PartitionId,
        covered: &std::ops::Range<Offset>,
        most: usize,
    ) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (kind, window) in self.iter_mut() {
            if kind == KindId::UNNAMED || window.pending().is_empty() {
                continue;
            }
            blocks.extend(window.blocks(hash, kind.filed(partition), covered.clone(), most));
        }
        if let Some(window) = self.get_mut(0) {
            blocks.extend(window.blocks(hash, partition, covered.clone(), most));
        }
        blocks
    }

    /// The transaction is committed up to `next`. Gives the first offset of each kind whose block is still needed, the
    /// unnamed kind last: what the store says of it stands for all.
    pub fn commit(&mut self, next: Offset) -> Vec<(KindId, Offset)> {
        let mut needed: Vec<_> = self.iter_mut().map(|(kind, window)| (kind, window.commit(next))).collect();
        needed.reverse();
        needed
    }

    /// The transaction did not happen.
    pub fn abort(&mut self) {
        self.iter_mut().for_each(|(_, window)| window.abort());
    }

    /// Forgets every owner at or beyond `from`.
    pub fn truncate(&mut self, from: Offset) {
        for (_, window) in self.iter_mut() {
            window.truncate(from);
        }
    }

    /// Takes in a stored block, all of it; false for a kind that there is no more.
    pub fn restore(&mut self, view: &BlockView<'_>) -> Result<bool, BlockError> {
        let Some(window) = self.of_block(view.header.partition) else { return Ok(false) };
        window.restore(view, Offset::MAX).map(|_| true)
    }

    /// One past the last offset known to be committed.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.iter().map(|(_, window)| window.next()).max().unwrap_or(0)
    }

    /// Stream time, ms since the epoch; 0 while unknown.
    #[must_use]
    pub fn stream_time_ms(&self) -> i64 {
        self.iter().map(|(_, window)| window.stream_time_ms()).max().unwrap_or(0)
    }

    /// Sets stream time from a checkpoint; zero and less is ignored.
    pub fn set_stream_time(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.set_stream_time(ms));
    }

    /// What a restart has to be told, of each window that there is something to tell of.
    #[must_use]
    pub fn remembered(&self) -> Vec<Remembered> {
        let all = self.iter().map(|(kind, window)| Remembered {
            kind,
            lost: window.lost(),
            filters: window.bloom().and_then(Bloom::layout),
            incomplete_ms: window.incomplete_before_ms(),
        });
        all.filter(|it| *it != Remembered { kind: it.kind, ..Remembered::default() }).collect()
    }

    /// Makes empty windows come to stand as they stood, when they are filled again.
    pub fn follow(&mut self, remembered: &[Remembered]) {
        for (kind, window) in self.iter_mut() {
            if let Some(layout) = of(kind, remembered).and_then(|it| it.filters.as_ref()) {
                window.follow_filters(layout);
            }
        }
    }

    /// Takes over what was forgotten before a restart.
    pub fn inherit(&mut self, remembered: &[Remembered]) {
        for (kind, window) in self.iter_mut() {
            let told = of(kind, remembered);
            window.inherit(told.map(|it| it.lost).unwrap_or_default());
            if let Some(ms) = told.and_then(|it| it.incomplete_ms) {
                window.note_incomplete_before(ms);
            }
        }
    }

    /// Says of all windows that ids from before this stream time may be missing: [`Window::note_incomplete_before`].
    /// Checkpoint and local head keep it from the next of each on.
    pub fn note_incomplete_before(&mut self, ms: i64) {
        self.iter_mut().for_each(|(_, window)| window.note_incomplete_before(ms));
    }

    /// The stream time noted so that holds for all windows, as long as it matters to each of them.
    #[must_use]
    pub fn incomplete_before_ms(&self) -> Option<i64> {
        self.iter().map(|(_, window)| window.incomplete_before_ms()).min().flatten()
    }

    /// Takes back a committed owner of an identity, whatever its kind.
    pub fn forget(&mut self, owner: Offset, identity: Identity) {
        self.iter_mut().for_each(|(_, window)| window.forget(owner, identity));
    }

    /// Identities held, in all windows.
    #[must_use]
    pub fn ids(&self) -> u64 {
        self.iter().map(|(_, window)| window.ids()).sum()
    }

    /// The chance that a record never seen counts as probably seen, in the window where it is largest.
    #[must_use]
    pub fn false_positive_rate(&self) -> f64 {
        self.iter().map(|(_, window)| window.false_positive_rate()).fold(0.0, f64::max)
    }
}

fn of(kind: KindId, remembered: &[Remembered]) -> Option<&Remembered> {
    remembered.iter().find(|it| it.kind == kind)
}
