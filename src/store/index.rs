//! The index of one window in memory. It is built when the store is opened and changed with every write, so sled is never read.

use std::collections::VecDeque;

use super::files::Files;
use super::record::Counts;
use super::run::{OWNER_BYTES, Run, decoded};
use crate::dedupe::{Sequence, StoredOwner, WindowId};
use crate::ports::Head;

/// The head, runs and files of one window.
#[derive(Debug, Default)]
pub(super) struct WindowIndex {
    pub window: WindowId,
    /// The stored head. `None` if nothing is stored.
    pub head: Option<Head>,
    /// [`crate::ports::Store::missing_ms`].
    pub missing_ms: i64,
    /// [`crate::ports::Store::next_number`]. It stays when runs are removed from the front.
    pub next_number: Sequence,
    /// The files of the runs.
    pub files: Files,
    /// In ascending order of numbers.
    runs: VecDeque<Run>,
    identities: u64,
    /// The newest owners in their stored form, which are found without reading a file: most duplicates arrive soon after their owner.
    recent: VecDeque<[u8; OWNER_BYTES]>,
}

impl WindowIndex {
    /// The index of a window of which nothing is stored.
    pub(super) fn new(window: WindowId) -> Self {
        Self { window, ..Self::default() }
    }

    /// The counts of the record that matches this index.
    pub(super) fn counts(&self) -> Counts {
        let Self { identities, next_number, missing_ms, .. } = *self;
        Counts { runs: self.runs.len() as u64, identities, next_number, missing_ms }
    }

    /// Number of identities in all runs.
    pub(super) fn identities(&self) -> u64 {
        self.identities
    }

    /// The last run.
    pub(super) fn last(&self) -> Option<&Run> {
        self.runs.back()
    }

    /// The run of the owner with this number.
    pub(super) fn run_of(&self, number: Sequence) -> Option<Run> {
        self.run_from(number).filter(|run| run.number <= number)
    }

    /// The first run that has owners from this number on.
    pub(super) fn run_from(&self, number: Sequence) -> Option<Run> {
        self.runs_from(number).next().cloned()
    }

    /// The runs that have owners from this number on.
    pub(super) fn runs_from(&self, number: Sequence) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.range(self.runs.partition_point(|run| run.end() <= number)..)
    }

    /// The owner with this number, in a run with this rule, if it is one of the newest.
    pub(super) fn recent(&self, number: Sequence, rule: u32) -> Option<StoredOwner> {
        let first = self.next_number.checked_sub(self.recent.len() as Sequence)?;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        self.recent.get(place).map(|owner| decoded(owner, rule))
    }

    /// Keeps appended owners in memory: at most so many bytes of the newest.
    pub(super) fn keep_recent(&mut self, owners: &[u8], max_bytes: u64) {
        let most = usize::try_from(max_bytes).unwrap_or(usize::MAX) / OWNER_BYTES;
        let owners = owners.as_chunks().0;
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

    /// Keeps none of the newest owners in memory, because they were removed, or the next number does not follow them.
    pub(super) fn forget_recent(&mut self) {
        self.recent.clear();
    }

    /// Adds a run, or replaces the one that begins with the same number.
    pub(super) fn insert(&mut self, run: Run) {
        self.files.add(&run);
        self.identities += run.identities();
        self.next_number = self.next_number.max(run.end());
        let place = self.runs.partition_point(|other| other.number < run.number);
        match self.runs.get_mut(place).filter(|other| other.number == run.number) {
            Some(other) => {
                let old = std::mem::replace(other, run);
                self.uncount(&old);
            }
            None => self.runs.insert(place, run),
        }
    }

    /// Removes the run that begins with this number.
    pub(super) fn remove(&mut self, number: Sequence) {
        let place = self.runs.partition_point(|other| other.number < number);
        if self.runs.get(place).is_some_and(|run| run.number == number)
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
