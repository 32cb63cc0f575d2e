//! The stored owners of an identity, searched part by part for a request of the admin API.
//!
//! A window that evicts owners no longer has those; the local store does, and the owners of a large window take minutes to read. Each iteration
//! reads one part of them. Owners are read in the order of their numbers, and later transactions append behind what was
//! read: so a search that is continued at the end of a window has seen all of it. What was read of a partition counts only while
//! its state is settled: otherwise its owners may have been written again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Clock;
use crate::control::{ANSWER, Request};
use crate::dedupe::{Identity, JournalId, Sequence, WindowId};
use crate::pipeline::context::Context;
use crate::pipeline::journal::Journal;
use crate::pipeline::journal::loading::Budget;
use crate::pipeline::ports::WorkerPorts;
use crate::ports::{Store, StoreError};

/// What was found in a window.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    /// Where reading continues.
    from: Sequence,
    /// Whether the last read ended at the end of the window.
    is_complete: bool,
    pub owners: Vec<(Sequence, Identity)>,
}

/// A request whose owners are being searched.
#[derive(Debug)]
pub(crate) struct Search {
    pub request: Request,
    /// Monotonic time of its start.
    pub since: Duration,
    found: BTreeMap<WindowId, SearchResult>,
}

impl Search {
    pub fn new(request: Request, since: Duration) -> Self {
        Self { request, since, found: BTreeMap::new() }
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self, now: Duration) -> bool {
        self.request.abandoned.load(Ordering::Acquire) || now.saturating_sub(self.since) >= ANSWER
    }

    /// What was found in the windows of a journal.
    pub fn found(&self, journal: JournalId) -> BTreeMap<WindowId, Vec<(Sequence, Identity)>> {
        let of_journal = self.found.iter().filter(|(window, _)| window.journal() == journal);
        of_journal.map(|(window, found)| (*window, found.owners.clone())).collect()
    }

    /// Adds windows. Returns whether all of them have been searched already.
    fn add(&mut self, windows: Vec<WindowId>) -> bool {
        let before = self.found.len();
        for window in windows {
            self.found.entry(window).or_default();
        }
        self.found.len() == before
    }
}

impl SearchResult {
    /// Reads owners. Returns whether the part is used up.
    fn read(
        &mut self,
        store: &impl Store,
        window: WindowId,
        identity: Identity,
        part: &mut Budget,
        now: impl Fn() -> Duration,
    ) -> Result<bool, StoreError> {
        let Self { from, owners, .. } = self;
        let rest = store.scan_from(window, *from, &mut |run| {
            owners.extend(run.numbers_of(identity).map(|number| (number, identity)));
            *from = run.end();
            part.ids = part.ids.saturating_sub(run.owners.len() as u64);
            Ok(if part.is_spent(now()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        self.is_complete = rest.is_none();
        Ok(rest.is_some())
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Reads one part. Returns whether everything that the request needs has been read.
    pub(crate) fn read_part(&self, search: &mut Search, mut part: Budget) -> Result<bool, StoreError> {
        let is_settled = |id| self.journals.get(id).and_then(Journal::settled).is_some();
        search.found.retain(|window, _| is_settled(window.journal()));
        loop {
            let identity = search.request.identity;
            for (window, found) in search.found.iter_mut().filter(|(_, found)| !found.is_complete) {
                if found.read(&self.store, *window, identity, &mut part, || self.clock.elapsed())? {
                    return Ok(false);
                }
            }
            // A record with the identity may have arrived in a journal that had none.
            if search.add(self.windows_to_search(&search.request)?) {
                return Ok(true);
            }
        }
    }

    /// Reads the owners that were stored since the windows were read to their ends: those of one commit.
    pub(crate) fn search_new(&self, search: &mut Search, part: Budget) -> Result<bool, StoreError> {
        search.found.values_mut().for_each(|found| found.is_complete = false);
        self.read_part(search, part)
    }
}
