//! The journals of a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dedupe::{JournalId, KindId, PartitionId, Window, Windows};
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::restoring::Restoring;

/// The journals of a worker, by their number: those that one of its partitions belongs to.
#[derive(Debug, Default)]
pub struct Journals(BTreeMap<PartitionId, Journal>);

impl Journals {
    /// A journal.
    pub fn get(&self, id: JournalId) -> Option<&Journal> {
        self.0.get(&id)
    }

    /// A journal, mutable.
    pub fn get_mut(&mut self, id: JournalId) -> Option<&mut Journal> {
        self.0.get_mut(&id)
    }

    /// A partition of this journal is assigned.
    pub fn assigned(&mut self, id: JournalId, now: Duration) -> &mut Journal {
        self.0.entry(id).or_insert_with(|| Journal::new(id, now))
    }

    /// Removes a journal: its last partition was revoked or lost.
    pub fn remove(&mut self, id: JournalId) -> Option<Journal> {
        self.0.remove(&id)
    }

    /// All journals, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Journal> {
        self.0.values()
    }

    /// All journals, in the order of their numbers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Journal> {
        self.0.values_mut()
    }

    /// The numbers of the journals for which `matches` returns true.
    pub fn ids(&self, matches: impl Fn(&Journal) -> bool) -> Vec<PartitionId> {
        self.iter().filter(|journal| matches(journal)).map(|journal| journal.id).collect()
    }

    /// Whether every journal runs.
    pub fn are_running(&self) -> bool {
        self.iter().all(Journal::is_running)
    }

    /// The restores in progress, each with the number of its journal.
    pub fn all_restoring_mut(&mut self) -> impl Iterator<Item = (PartitionId, &mut Restoring)> {
        self.iter_mut().filter_map(|journal| Some((journal.id, journal.restoring_mut()?)))
    }

    /// All windows in memory, each with its journal and kind.
    pub fn windows(&self) -> impl Iterator<Item = (PartitionId, KindId, &Window)> {
        let shown = self.iter().filter_map(|journal| Some((journal.id, journal.shown()?)));
        shown.flat_map(|(id, windows)| windows.iter().map(move |(kind, window)| (id, kind, window)))
    }

    /// All windows in memory, mutable.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let shown = self.iter_mut().filter_map(Journal::shown_mut);
        shown.flat_map(Windows::iter_mut).map(|(_, window)| window)
    }

    /// All journals have to be checked again.
    pub fn uncheck_all(&mut self) {
        self.iter_mut().for_each(|journal| journal.is_checked = false);
    }
}
