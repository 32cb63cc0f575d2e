//! Owners that a restore has read and not yet written to the local store.
//!
//! At a low rate a transaction adds a few identities. Appending those of each entry alone takes many times as
//! long as reading it, so the owners of several entries are appended together.

use std::collections::BTreeMap;
use std::mem;

use crate::dedupe::{JournalId, KindId, Sequence, StampedOwner, WindowId, for_each_run};
use crate::ports::{Head, Store, StoreError};

/// Most identities that wait, and have to be read again after a crash.
const IDS: usize = 1_350;
/// Most entries whose owners wait.
const ENTRIES: usize = 1_350;

/// Owners that a window has and the store has not.
#[derive(Debug)]
pub(crate) struct NewOwners {
    /// The number of the first one.
    pub number: Sequence,
    /// See [`for_each_run`].
    pub longest_ms: i64,
    pub owners: Vec<StampedOwner>,
}

/// The owners of whole entries, by window.
#[derive(Debug, Default)]
pub struct Unwritten {
    windows: BTreeMap<WindowId, NewOwners>,
    /// The head of the unnamed kind once all are written; `None` when nothing was read.
    head: Option<Head>,
    ids: usize,
    entries: usize,
}

impl Unwritten {
    /// Adds owners of the entry that is being read. The first one has this number.
    pub(crate) fn add(
        &mut self,
        window: WindowId,
        number: Sequence,
        owners: Vec<StampedOwner>,
        longest_ms: i64,
    ) {
        self.ids += owners.len();
        let of_window = || NewOwners { number, longest_ms, owners: Vec::new() };
        self.windows.entry(window).or_insert_with(of_window).owners.extend(owners);
    }

    /// All owners of an entry are added. The unnamed kind gets this head with it.
    pub(crate) fn end_entry(&mut self, head: Head) {
        self.head = Some(head);
        self.entries += 1;
    }

    /// Removes what waits of a window: its owners do not count.
    pub(crate) fn discard(&mut self, window: WindowId) {
        let discarded = self.windows.remove(&window);
        self.ids -= discarded.map_or(0, |it| it.owners.len());
    }

    /// Number of identities.
    pub(crate) fn ids(&self) -> usize {
        self.ids
    }

    /// Whether they have to be written.
    pub(crate) fn is_full(&self) -> bool {
        self.ids >= IDS || self.entries >= ENTRIES
    }

    /// Writes everything, if the entry that was read last is complete: a head never names a part of one. The unnamed kind comes last: its head stands
    /// for all kinds, so it must not claim them complete before they are.
    pub(crate) fn write(&mut self, store: &mut impl Store, journal: JournalId) -> Result<(), StoreError> {
        let Some(head) = self.head.take() else { return Ok(()) };
        let Self { mut windows, .. } = mem::take(self);
        let unnamed = WindowId::from(journal);
        let of_unnamed = windows.remove(&unnamed);
        for (window, new) in windows.into_iter().rev() {
            let before = store.head(window)?.unwrap_or_default();
            // Where a crash leaves the unnamed kind at an earlier entry, these owners are not of that.
            let after = Head {
                confirmed: new.number,
                confirmed_entry: before.confirmed_entry,
                covered: BTreeMap::new(),
                ..head.clone()
            };
            append_runs(store, window, &new, &before.confirmed_at(new.number), &after)?;
        }
        match of_unnamed.filter(|new| !new.owners.is_empty()) {
            Some(new) => {
                let before = store.head(unnamed)?.unwrap_or_default().confirmed_at(new.number);
                let confirmed = new.number + new.owners.len() as Sequence;
                append_runs(store, unnamed, &new, &before, &Head { confirmed, ..head })
            }
            None => store.set_head(unnamed, &Head { confirmed: store.next_number(unnamed)?, ..head }),
        }
    }
}

/// Appends owners to a window. Until the last of them, it has the head `before`, then `after`.
pub(crate) fn append_runs(
    store: &mut impl Store,
    window: WindowId,
    new: &NewOwners,
    before: &Head,
    after: &Head,
) -> Result<(), StoreError> {
    let end = new.number + new.owners.len() as Sequence;
    if new.owners.is_empty() {
        return store.set_head(window, after);
    }
    for_each_run(&new.owners, new.number, new.longest_ms, |run| {
        store.append(window, run, if run.end() == end { after } else { before })
    })
}

/// The windows of a journal in the order in which they are cut back or cleared: the unnamed kind first. Its head stands for all kinds, so it must not
/// claim them complete when the machine loses the writes that follow.
pub(crate) fn unnamed_first(mut windows: Vec<WindowId>) -> Vec<WindowId> {
    windows.sort_by_key(|window| window.kind() != KindId::UNNAMED);
    windows
}
