//! A journal of a worker: a partition of the state topic, and the windows of the raw partitions whose transactions add entries to it.
//!
//! The windows are loaded and restored for all partitions of the journal together, and records of any of them are processed only when the windows are
//! complete and the positions of all are known.

pub mod expiry;
pub mod forgetting;
pub mod journals;
pub mod loading;
pub mod local;
mod own;
pub mod phase;
pub mod read_progress;
pub mod reading;
pub mod restorer;
pub mod restoring;
pub mod rules;
pub mod sealed;
pub mod stored;
pub mod undoing;
pub mod unwritten;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{
    Coordinates, EntryName, ForgetRecord, Identity, JournalId, KindId, LastEntry, Offset, PartitionId,
    Sequence, Window, WindowId, Windows,
};
pub(crate) use crate::pipeline::journal::journals::Journals;
use crate::pipeline::journal::loading::Loading;
use crate::pipeline::journal::local::UNDONE;
use crate::pipeline::journal::own::OwnRecords;
pub(crate) use crate::pipeline::journal::phase::{LeftOpen, Locating, Phase};
use crate::pipeline::journal::reading::Reading;
use crate::pipeline::journal::restoring::Restoring;
use crate::pipeline::journal::undoing::Undoing;
use crate::ports::{Covered, Head, Store, StoreError};

/// The end of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalEnd {
    /// The last committed entry.
    pub last: Option<LastEntry>,
    /// An offset at or behind that entry, and at or before the next one.
    pub next: Offset,
}

impl JournalEnd {
    /// Number of the last committed entry; 0 when there is none.
    pub fn number(&self) -> u64 {
        self.last.map_or(0, |last| last.entry.number)
    }

    /// Takes a later entry as the last one.
    pub fn extend(&mut self, last: Option<LastEntry>) {
        self.last = LastEntry::later(last, self.last);
    }
}

/// What the open transaction adds to a journal; kept while its outcome is unknown.
#[derive(Debug, Default)]
pub struct OpenEntry {
    /// Its name, once its owners are stored.
    pub last_entry: Option<LastEntry>,
    /// Number of its records.
    pub records: u64,
    /// The identities that it forgets.
    pub forgotten: Option<ForgetRecord>,
    /// Owners of these that only the store has.
    pub found: BTreeMap<WindowId, Vec<(Sequence, Identity)>>,
}

/// A journal of a worker.
///
/// Large because it holds all that a head stores, which a commit changes together, and what is known of its log.
#[derive(Debug, Default)]
pub struct Journal {
    /// Its number: a partition of the state topic.
    pub id: JournalId,
    /// Its end after the last commit, or as it was checked.
    pub end: JournalEnd,
    /// The last entry that is in the windows.
    pub last_entry: Option<LastEntry>,
    /// Whether it was checked since the producer was created: no transaction is open in it, and the other logs agree with its last entry.
    pub is_checked: bool,
    phase: Phase,
    /// The windows, complete up to the last record processed; `None` while they are being read.
    pub windows: Option<Windows>,
    /// What the open transaction adds.
    pub open: OpenEntry,
    pub(crate) own: OwnRecords,
    /// Where the last section of each partition ends.
    pub covered: BTreeMap<PartitionId, Covered>,
    /// Kinds whose windows start empty with the next commit, because a change of their rule was accepted.
    pub reset_kinds: BTreeSet<KindId>,
    /// Owners were undone that the next committed entry undoes: until then, local state is that of no entry.
    pub is_undone: bool,
    /// Number of consecutive restores that ended before the last committed entry, or lacked records.
    pub early_ends: u32,
    /// Monotonic time since which its windows have been missing: since the assignment, or a later loss. `None` once they are complete.
    pub missing_since: Option<Duration>,
    /// Whether it has run since its first partition was assigned, and none has been released since.
    pub has_run: bool,
    reading: Reading,
}

impl Journal {
    fn new(id: JournalId, now: Duration) -> Self {
        Self { id, phase: Phase::locating(now), missing_since: Some(now), ..Self::default() }
    }

    /// Where it is in its life cycle; only [`Self::enter`] changes that.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Changes the phase, and returns the one that ended.
    pub fn enter(&mut self, next: Phase) -> Phase {
        let is_locating = |phase: &Phase| matches!(phase, Phase::Locating(_));
        debug_assert!(
            is_locating(&self.phase) || is_locating(&next),
            "journal {}: a phase does not begin and end in Locating",
            self.id
        );
        std::mem::replace(&mut self.phase, next)
    }

    /// Whether records are processed.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// The windows, if records are processed.
    pub fn running(&self) -> Option<&Windows> {
        self.windows.as_ref().filter(|_| self.is_running())
    }

    /// The windows, if they are complete, and no transaction with an unknown outcome has added to them.
    pub fn settled(&self) -> Option<&Windows> {
        self.windows.as_ref().filter(|_| self.is_checked && self.open.last_entry.is_none())
    }

    /// The windows in memory; incomplete while they are being read.
    pub fn shown(&self) -> Option<&Windows> {
        match &self.phase {
            Phase::Loading(loading) => Some(&loading.windows),
            Phase::Restoring(restoring) => Some(&restoring.windows),
            Phase::Locating(_) | Phase::Undoing(_) | Phase::Running => self.windows.as_ref(),
        }
    }

    /// [`Self::shown`], mutable.
    pub fn shown_mut(&mut self) -> Option<&mut Windows> {
        match &mut self.phase {
            Phase::Loading(loading) => Some(&mut loading.windows),
            Phase::Restoring(restoring) => Some(&mut restoring.windows),
            Phase::Locating(_) | Phase::Undoing(_) | Phase::Running => self.windows.as_mut(),
        }
    }

    /// A journal whose committed offsets have to be read.
    pub fn locating_mut(&mut self) -> Option<&mut Locating> {
        if let Phase::Locating(locating) = &mut self.phase { Some(locating) } else { None }
    }

    /// A journal that is being restored.
    pub fn restoring_mut(&mut self) -> Option<&mut Restoring> {
        if let Phase::Restoring(restoring) = &mut self.phase { Some(restoring) } else { None }
    }

    /// A journal whose local state is being read.
    pub fn loading_mut(&mut self) -> Option<&mut Loading> {
        if let Phase::Loading(loading) = &mut self.phase { Some(loading) } else { None }
    }

    /// Returns to `Locating`, where the committed offsets are read again, not before `not_before`. What was being read or undone is dropped: it must
    /// not be mistaken for complete windows.
    pub fn relocate(&mut self, not_before: Duration) {
        self.own.interrupt();
        match &mut self.phase {
            Phase::Locating(locating) => (locating.not_before, locating.blocked) = (not_before, None),
            Phase::Undoing(_) => {
                self.windows = None;
                drop(self.enter(Phase::locating(not_before)));
            }
            Phase::Loading(_) | Phase::Restoring(_) | Phase::Running => {
                drop(self.enter(Phase::locating(not_before)));
            }
        }
    }

    /// Returns to `Locating` without windows; they are loaded again.
    pub fn unload(&mut self, not_before: Duration) {
        self.relocate(not_before);
        (self.windows, self.open) = (None, OpenEntry::default());
    }

    /// Ends a restore: returns it, and the journal returns to `Locating`, in case that what follows fails.
    pub fn take_restoring(&mut self, not_before: Duration) -> Option<Box<Restoring>> {
        if !matches!(self.phase, Phase::Restoring(_)) {
            return None;
        }
        let Phase::Restoring(restoring) = self.enter(Phase::locating(not_before)) else { return None };
        Some(restoring)
    }

    /// Ends a load that has read everything, like [`Self::take_restoring`]; `None` while there is more to read.
    pub fn take_loaded(&mut self, not_before: Duration) -> Option<Box<Loading>> {
        if !matches!(&self.phase, Phase::Loading(loading) if loading.is_done()) {
            return None;
        }
        let Phase::Loading(loading) = self.enter(Phase::locating(not_before)) else { return None };
        Some(loading)
    }

    /// The heads that the local store may record for the windows, without an open transaction; that of the unnamed kind is the first.
    pub fn heads(&self) -> Vec<(KindId, Head)> {
        let Some(windows) = &self.windows else { return Vec::new() };
        let last_entry = if self.is_undone { Some(UNDONE) } else { self.last_entry.map(|last| last.entry) };
        let incomplete_ms = windows.incomplete_before_ms().unwrap_or(0);
        let head = |(kind, window): (KindId, &Window)| {
            let covered = if kind == KindId::UNNAMED { self.covered.clone() } else { BTreeMap::new() };
            let head = Head {
                confirmed: window.next_number(),
                state_next: self.end.next,
                last_entry,
                confirmed_entry: last_entry,
                // The open transaction may be aborted, and another process with another clock may commit instead.
                time_ms: windows.committed_ms(),
                incomplete_ms,
                covered,
            };
            (kind, head)
        };
        windows.iter().map(head).collect()
    }

    /// Begins to undo owners from these coordinates on that no entry has undone yet: until one has, the heads name none, and so local state that was
    /// undone in part is not used after a crash. With it, owners would be missing behind a head that claims them.
    pub fn begin_undoing(&mut self, store: &mut impl Store, from: &[Coordinates]) -> Result<(), StoreError> {
        let Some(windows) = self.windows.as_ref().filter(|_| !from.is_empty()) else { return Ok(()) };
        let undoing = Undoing::new(self.id, windows, from);
        self.is_undone = true;
        self.confirm(store)?;
        self.enter(Phase::Undoing(undoing));
        Ok(())
    }

    /// Continues to undo owners until `is_over`. Returns whether the windows are complete now: the journal is in `Locating` then.
    pub fn undo(&mut self, store: &mut impl Store, is_over: impl Fn() -> bool) -> Result<bool, StoreError> {
        let (Phase::Undoing(undoing), Some(windows)) = (&mut self.phase, &mut self.windows) else {
            return Ok(false);
        };
        let is_done = undoing.advance(store, windows, is_over)?;
        if is_done {
            self.enter(Phase::locating(Duration::ZERO));
        }
        Ok(is_done)
    }

    /// Whether owners are being undone.
    pub fn is_undoing(&self) -> bool {
        match &self.phase {
            Phase::Undoing(_) => true,
            Phase::Restoring(restoring) => restoring.undoing.is_some(),
            Phase::Locating(_) | Phase::Loading(_) | Phase::Running => false,
        }
    }

    /// Records in the local store that its owners are committed. The head of the unnamed kind comes first: those of the others count by the entry that
    /// it names.
    pub fn confirm(&self, store: &mut impl Store) -> Result<(), StoreError> {
        self.heads().iter().try_for_each(|(kind, head)| store.set_head(kind.window(self.id), head))
    }

    /// Removes from the local store what the open transaction wrote, from the unnamed kind first.
    pub fn undo_stored(&self, store: &mut impl Store) -> Result<(), StoreError> {
        if self.open.last_entry.is_none() {
            return Ok(());
        }
        let Some(windows) = &self.windows else { return Ok(()) };
        let mut windows = windows.iter();
        windows.try_for_each(|(kind, it)| store.truncate(kind.window(self.id), it.next_number()).map(drop))
    }

    /// Undoes the aborted transaction.
    pub fn abort(&mut self) {
        self.own.interrupt();
        self.open = OpenEntry::default();
        self.windows.iter_mut().for_each(Windows::abort);
    }

    /// Whether this entry is the last committed one.
    pub fn ends_with(&self, entry: Option<EntryName>) -> bool {
        self.last_entry.map(|last| last.entry) == entry
    }
}

#[cfg(test)]
mod tests;
