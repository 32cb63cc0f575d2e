//! Loads windows from the local store.
//!
//! A worker with hundreds of millions of identities needs minutes to load its local state. It reads one part of it in each
//! poll loop iteration, with a thread for each of several journals. A member that does not poll is removed from the group, and
//! the supervisor ends a process with a worker whose iteration does not end.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{JournalId, KindId, Offset, PartitionId, Sequence, StoredOwner, WindowId, Windows};
use crate::metrics::RestoreSource;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::journal::local::Located;
use crate::pipeline::journal::read_progress::ReadProgress;
use crate::pipeline::journal::sealed::load_sealed;
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::pipeline::journal::{Journal, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Head, Store, StoreError};

/// How much local state the worker reads in one poll loop iteration, whichever bound is reached first; at least one run of owners in
/// each thread. Between two parts the worker polls and processes the records of other journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadPart {
    /// Identities that each thread reads.
    pub ids: u64,
    /// Time after which the part ends, even if fewer identities were read.
    pub time: Duration,
    /// Threads, each of which reads other journals; at least 1.
    pub threads: usize,
}

impl Default for LoadPart {
    fn default() -> Self {
        // About 5 million identities per second are loaded. The time is the same as for one part of the state topic.
        Self { ids: 1_000_000, time: Duration::from_millis(20), threads: 1 }
    }
}

/// Local state that is being read, part by part.
#[derive(Debug)]
pub struct Loading {
    /// How much was read.
    pub(crate) progress: ReadProgress,
    /// The head of the unnamed kind when it began.
    pub(crate) head: Head,
    pub(crate) next: Box<AfterLoading>,
    /// The windows that are being filled.
    pub windows: Windows,
    journal: JournalId,
    /// The kinds whose owners are still to be read; the last one is being read.
    kinds: Vec<KindId>,
    /// Where reading continues; `None` before the first owner of a kind.
    from: Option<Sequence>,
    /// Identities stored when it began.
    total: u64,
}

/// What follows after the local state is loaded.
#[derive(Debug)]
pub(crate) enum AfterLoading {
    /// The windows are complete up to the last committed entry.
    Start(Located),
    /// The journal is read from this offset on.
    Restore(Located, Offset),
}

impl Loading {
    /// Fraction of the identities read so far, in 0..=1.
    pub fn share(&self) -> f64 {
        (self.progress.ids as f64 / self.total.max(1) as f64).min(1.0)
    }

    /// Identities still to be read.
    pub(crate) fn left(&self) -> u64 {
        self.total.saturating_sub(self.progress.ids)
    }

    /// Whether all owners are read.
    pub fn is_done(&self) -> bool {
        self.kinds.is_empty()
    }

    /// Reads owners until all are read or the part is used up.
    fn read(
        &mut self,
        store: &impl Store,
        clock: &impl Clock,
        budget: &mut Budget,
    ) -> Result<(), StoreError> {
        while let Some(kind) = self.kinds.last().copied() {
            let id = kind.window(self.journal);
            let Some(window) = self.windows.of_kind(kind) else {
                self.kinds.pop();
                continue;
            };
            if self.from.is_none() {
                // Sealed owners are not read.
                let sealed = load_sealed(store, id, window);
                (self.total, self.progress.ids) = (self.total + sealed, self.progress.ids + sealed);
                window.reserve(store.ids(id)?);
            }
            let read = &mut self.progress.ids;
            let rest = store.scan_from(id, self.from.unwrap_or(0), &mut |run| {
                // Without those that are also in a slice.
                *read += window.load(run, Sequence::MAX);
                failpoint::pass("block_loaded");
                budget.ids = budget.ids.saturating_sub(run.owners.len() as u64);
                let spent = budget.is_spent(clock.elapsed());
                Ok(if spent { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            if rest.is_some() {
                self.from = rest;
                let share = self.share();
                self.progress.log(clock.elapsed(), self.journal, "loading local state", share);
                return Ok(());
            }
            window.number_from(store.next_number(id)?);
            self.from = None;
            self.kinds.pop();
        }
        self.windows.restored_to(self.head.time_ms);
        Ok(())
    }
}

/// The journals that one thread reads in a part, one after the other.
pub struct LocalRead<'a> {
    loadings: Vec<&'a mut Loading>,
    budget: Budget,
}

/// Divides the journals among threads. The first ones begin at once.
pub(crate) fn distributed<'a>(
    loadings: Vec<&'a mut Loading>,
    threads: usize,
    budget: &Budget,
) -> Vec<LocalRead<'a>> {
    let count = threads.clamp(1, loadings.len().max(1));
    let mut reads: Vec<_> = (0..count).map(|_| LocalRead { loadings: Vec::new(), budget: *budget }).collect();
    for (number, loading) in loadings.into_iter().enumerate() {
        if let Some(read) = reads.get_mut(number % count) {
            read.loadings.push(loading);
        }
    }
    reads
}

impl LocalRead<'_> {
    /// Identities that were read so far.
    pub(crate) fn ids(reads: &[Self]) -> u64 {
        reads.iter().flat_map(|read| &read.loadings).map(|loading| loading.progress.ids).sum()
    }

    /// Reads owners until all are read or the part is used up.
    pub fn run(&mut self, store: &impl Store, clock: &impl Clock) -> Result<(), StoreError> {
        for loading in &mut self.loadings {
            loading.read(store, clock, &mut self.budget)?;
            if self.budget.is_spent(clock.elapsed()) {
                break;
            }
        }
        Ok(())
    }
}

/// The unused rest of one iteration's part, whichever bound is reached first; at least one run of owners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) ids: u64,
    /// Monotonic time at which the part ends.
    pub(crate) until: Duration,
}

impl Budget {
    pub(crate) fn is_spent(&self, now: Duration) -> bool {
        self.ids == 0 || now >= self.until
    }
}

/// Removes the owners of an entry that does not count from the store, and returns them. What is stored up to the `trusted` entry counts.
pub(crate) fn cut_unconfirmed(
    store: &mut impl Store,
    windows: Vec<WindowId>,
    head: &Head,
    is_last_trusted: bool,
) -> Result<Vec<(KindId, StoredOwner)>, StoreError> {
    let trusted = if is_last_trusted { head.last_entry } else { head.confirmed_entry };
    let mut removed = Vec::new();
    for window in unnamed_first(windows) {
        let Some(of_kind) = store.head(window)? else { continue };
        if let Some(from) = of_kind.counted(trusted) {
            removed.extend(store.truncate(window, from)?.into_iter().map(|owner| (window.kind(), owner)));
        }
    }
    Ok(removed)
}

impl<W: WorkerPorts> Context<W> {
    /// Starts reading the local owners into these empty windows.
    pub(crate) fn begin_loading(
        &mut self,
        id: PartitionId,
        mut windows: Windows,
        next: AfterLoading,
    ) -> Result<(), WorkerError> {
        let head = self.store.head(id.into())?.unwrap_or_default();
        windows.note_incomplete_before(head.incomplete_ms);
        // Owners must not be removed while they are read.
        self.store.end_seal();
        let (mut total, mut kinds) = (0, Vec::new());
        for (kind, window) in windows.iter_mut() {
            // A window that is longer than it was lacks what has expired.
            window.note_incomplete_before(self.store.missing_ms(kind.window(id))?);
            total += self.store.ids(kind.window(id))?;
            kinds.push(kind);
        }
        let progress = ReadProgress::start(self.clock.elapsed());
        let next = Box::new(next);
        let loading = Loading { progress, head, next, windows, journal: id, kinds, from: None, total };
        if let Some(journal) = self.journals.get_mut(id) {
            journal.enter(Phase::Loading(Box::new(loading)));
        }
        Ok(())
    }

    /// Reads one part of local state, until a monotonic time. Returns the journals that are being loaded, those with the least left
    /// to read first.
    pub(crate) fn read_local_part(&mut self, until: Duration) -> Result<Vec<PartitionId>, WorkerError> {
        let mut loadings: Vec<_> = self.journals.iter_mut().filter_map(Journal::loading_mut).collect();
        if loadings.is_empty() {
            return Ok(Vec::new());
        }
        let LoadPart { ids, threads, .. } = self.options.load_part;
        loadings.sort_unstable_by_key(|loading| (loading.left(), loading.journal));
        let waiting: Vec<PartitionId> = loadings.iter().map(|loading| loading.journal).collect();
        let mut reads = distributed(loadings, threads, &Budget { ids: ids.max(1), until });
        let before = LocalRead::ids(&reads);
        let read = W::read_local(&self.store, &self.clock, &mut reads);
        self.report.metrics.restored_ids(RestoreSource::Local).inc_by(LocalRead::ids(&reads) - before);
        read?;
        Ok(waiting)
    }

    /// Removes what local state has of a transaction that was not committed. Its records will be read again: its owners become claims in
    /// the returned windows, which are otherwise empty.
    pub(crate) fn claim(
        &mut self,
        id: PartitionId,
        located: &Located,
        is_last_trusted: bool,
    ) -> Result<Windows, WorkerError> {
        let mut windows = self.empty_windows(located.checkpoint.as_ref());
        let Some(head) = self.store.head(id.into())? else { return Ok(windows) };
        if !self.options.keeps(Safeguard::Claims) {
            return Ok(windows);
        }
        let removed =
            cut_unconfirmed(&mut self.store, self.options.kinds.windows_of(id), &head, is_last_trusted)?;
        for (kind, owner) in removed {
            let is_uncommitted =
                located.committed(owner.at.partition).is_none_or(|next| owner.at.offset >= next);
            if let (Some(window), Some(identity), true) =
                (windows.of_kind(kind), owner.identity, is_uncommitted)
            {
                window.claim(identity, owner.at);
            }
        }
        Ok(windows)
    }
}
