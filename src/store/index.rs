//! The index of one window in memory. It is built when the store is opened and changed with every write, so sled is never read.

use std::collections::VecDeque;

use super::files::Files;
use super::record::WindowRecord;
use super::run::{OWNER_BYTES, Run};
use crate::dedupe::{Identity, Offset, Sequence, StoredOwner, WindowId};
use crate::ports::Head;

/// The head, runs and files of one window.
#[derive(Debug)]
pub(super) struct WindowIndex {
    pub window: WindowId,
    /// The stored head. `None` if nothing is stored.
    pub head: Option<Head>,
    /// [`crate::ports::Store::missing_ms`].
    pub missing_ms: i64,
    /// The files of the runs.
    pub files: Files,
    /// In ascending order of offsets and numbers.
    runs: VecDeque<Run>,
    identities: u64,
    /// The newest owners, which are found without reading a file: most duplicates arrive soon after their owner.
    recent: VecDeque<(Offset, Identity)>,
}

impl WindowIndex {
    /// The index of a window of which nothing is stored.
    pub(super) fn new(window: WindowId) -> Self {
        Self {
            window,
            head: None,
            missing_ms: 0,
            files: Files::default(),
            runs: VecDeque::new(),
            identities: 0,
            recent: VecDeque::new(),
        }
    }

    /// The record that matches this index.
    pub(super) fn record(&self) -> WindowRecord {
        let head = self.head.unwrap_or_default();
        let (runs, identities, missing_ms) = (self.runs.len() as u64, self.identities, self.missing_ms);
        WindowRecord { head, runs, identities, missing_ms }
    }

    /// Number of identities in all runs.
    pub(super) fn identities(&self) -> u64 {
        self.identities
    }

    /// One past the last covered offset; 0 when there is no run.
    pub(super) fn end(&self) -> Offset {
        self.runs.back().map_or(0, |last| last.next)
    }

    /// One past the number of the last owner; 0 when there is no run.
    pub(super) fn next_number(&self) -> Sequence {
        self.runs.back().map_or(0, Run::end)
    }

    /// The last run.
    pub(super) fn last(&self) -> Option<Run> {
        self.runs.back().copied()
    }

    /// The run of the owner with this number.
    pub(super) fn run_of(&self, number: Sequence) -> Option<Run> {
        self.run_from(number).filter(|run| run.number <= number)
    }

    /// The first run with an owner from this number on.
    pub(super) fn run_from(&self, number: Sequence) -> Option<Run> {
        let place = self.runs.partition_point(|run| run.end() <= number);
        self.runs.get(place).copied()
    }

    /// The runs that cover offsets from this one on.
    pub(super) fn runs_at(&self, offset: Offset) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.range(self.runs.partition_point(|run| run.next <= offset)..)
    }

    /// All runs.
    pub(super) fn runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.iter()
    }

    /// The owner with this number, if it is one of the newest.
    pub(super) fn recent(&self, number: Sequence) -> Option<StoredOwner> {
        let first = self.next_number().checked_sub(self.recent.len() as Sequence)?;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        let (offset, identity) = *self.recent.get(place)?;
        Some(StoredOwner { offset, identity: Some(identity) })
    }

    /// Keeps appended owners in memory: at most so many bytes of the newest.
    pub(super) fn keep_recent(&mut self, owners: &[(Offset, Identity)], max_bytes: u64) {
        let most = usize::try_from(max_bytes).unwrap_or(usize::MAX) / OWNER_BYTES;
        let kept = owners.get(owners.len().saturating_sub(most)..).unwrap_or_default();
        let excess = (self.recent.len() + kept.len()).saturating_sub(most);
        self.recent.drain(..excess.min(self.recent.len()));
        let needed = self.recent.len() + kept.len();
        if needed > self.recent.capacity() {
            // It would double, also beyond what it may hold.
            let capacity = (self.recent.capacity() * 2).clamp(needed, most.max(needed));
            self.recent.reserve_exact(capacity - self.recent.len());
        }
        self.recent.extend(kept);
    }

    /// Keeps none of the newest owners in memory, because their numbers have changed.
    pub(super) fn forget_recent(&mut self) {
        self.recent.clear();
    }

    /// Adds a run, or replaces the one that begins at the same offset.
    pub(super) fn insert(&mut self, run: Run) {
        self.files.add(&run);
        self.identities += run.identities();
        let place = self.runs.partition_point(|other| other.first < run.first);
        match self.runs.get_mut(place).filter(|other| other.first == run.first) {
            Some(other) => {
                let old = std::mem::replace(other, run);
                self.uncount(&old);
            }
            None => self.runs.insert(place, run),
        }
    }

    /// Removes the run that begins at an offset.
    pub(super) fn remove(&mut self, first: Offset) {
        let place = self.runs.partition_point(|other| other.first < first);
        if self.runs.get(place).is_some_and(|run| run.first == first)
            && let Some(old) = self.runs.remove(place)
        {
            self.uncount(&old);
        }
    }

    fn uncount(&mut self, run: &Run) {
        self.identities -= run.identities();
        self.files.remove(run);
    }
}
