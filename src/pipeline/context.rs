//! What every part of a worker uses.

use std::ops::Range;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, JournalId, PartitionId, Schemas, WindowId, Windows};
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::restorer::Restorer;
use crate::pipeline::journal::restoring::Restoring;
use crate::pipeline::journal::unwritten::unnamed_first;
use crate::pipeline::journal::{Journal, Journals};
use crate::pipeline::kinds::Kind;
use crate::pipeline::limits::shortened::WindowLimiter;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::clock::Ends;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::progress::Progress;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::time::Time;
use crate::ports::{Source, Store, StoreError};

/// Pause before dropped windows are loaded again.
const RELOAD_PAUSE: Duration = Duration::from_millis(50);

/// The partitions of a worker, their windows in memory, in the local store and in the state topic, and the settings.
///
/// Large because all parts of a worker use it: one field for each thing that more than one of them needs.
pub(crate) struct Context<W: WorkerPorts> {
    pub(crate) partitions: Partitions,
    /// Their journals.
    pub(crate) journals: Journals,
    /// In topic scope, the ends of the logs that the partitions were read beyond.
    pub(crate) ends: Ends,
    /// The limits in force on the windows.
    pub(crate) limits: WindowLimiter,
    pub(crate) log: W::Log,
    pub(crate) store: W::Store,
    pub(crate) clock: W::Clock,
    pub(crate) time: Time,
    pub(crate) options: WorkerOptions,
    pub(crate) report: WorkerReport,
    /// The schemas that are known.
    pub(crate) schemas: Schemas,
    /// The progress of the worker, for the supervisor.
    pub(crate) progress: Progress,
}

impl<W: WorkerPorts> Context<W> {
    /// Without partitions.
    pub fn new(
        log: W::Log,
        store: W::Store,
        clock: W::Clock,
        options: WorkerOptions,
        report: WorkerReport,
    ) -> Self {
        Self {
            partitions: Partitions::default(),
            journals: Journals::default(),
            ends: Ends::default(),
            limits: WindowLimiter::default(),
            log,
            store,
            time: Time::start(&clock),
            clock,
            options,
            report,
            schemas: Schemas::default(),
            progress: Progress::default(),
        }
    }

    /// The partitions of raw that this worker knows: those that existed when the process started or when the group began, those that the topic
    /// monitor or a worker has found, and those that were assigned since.
    pub(crate) fn known_partitions(&self) -> Range<PartitionId> {
        let began = self.partitions.iter().filter_map(|it| it.first_raw_partitions).max().unwrap_or(0);
        let found = self.options.partition_counts.raw().max(began);
        0..self.options.raw_partitions.max(self.partitions.end()).max(found)
    }

    /// Whether this worker has all partitions of raw, as far as it knows them.
    pub(crate) fn has_all_partitions(&self) -> bool {
        self.known_partitions().all(|id| self.partitions.get(id).is_some())
    }

    /// Whether this worker has to have all partitions before it begins: one journal has them all.
    pub(crate) fn needs_all_partitions(&self) -> bool {
        self.options.is_topic_wide() && self.options.keeps(Safeguard::AllPartitions)
    }

    /// Whether it has to wait for partitions that are not assigned yet.
    pub(crate) fn awaits_partitions(&self) -> bool {
        self.needs_all_partitions() && !self.has_all_partitions()
    }

    /// The known partitions that exist in the raw, clean and state topic.
    pub(crate) fn all_partitions(&self) -> Vec<PartitionId> {
        self.known_partitions().filter(|id| self.options.partition_counts.covers(*id)).collect()
    }

    /// Those of them that have one of these journals.
    pub(crate) fn all_members(&self, journals: &[PartitionId]) -> Vec<PartitionId> {
        let mut all = self.all_partitions();
        all.retain(|id| journals.contains(&self.options.journal_of(*id)));
        all
    }

    /// The partitions of a journal that are assigned to this worker, and exist in all topics.
    pub(crate) fn members(&self, journal: JournalId) -> Vec<PartitionId> {
        let members = self.partitions.of(journal).map(|partition| partition.id);
        members.filter(|id| self.options.partition_counts.covers(*id)).collect()
    }

    /// Empty windows for one of the current journals, which continue at this checkpoint.
    pub(crate) fn empty_windows(&self, checkpoint: Option<&Checkpoint>) -> Windows {
        let (limits, count) = (&self.options.limits, self.options.windows_of(&self.journals));
        let positions = self.store.positions();
        let window = |kind: &Kind| kind.window.map(|configured| limits.window(configured, positions, count));
        let mut windows = Windows::new(self.options.kinds.iter().map(|kind| (kind.id, window(kind))));
        if let Some(checkpoint) = checkpoint {
            windows.set_horizon(checkpoint.horizon_ms);
            // What a limit had dropped stays dropped: a limit on disk space is not known before the first commit.
            windows.inherit(&checkpoint.windows);
        }
        windows
    }

    /// The restore of a journal, and what it uses beside that.
    pub(crate) fn restorer(&mut self, journal: JournalId) -> (Option<&mut Restoring>, Restorer<'_, W>) {
        let restorer =
            Restorer { journal, store: &mut self.store, options: &self.options, report: &self.report };
        (self.journals.get_mut(journal).and_then(Journal::restoring_mut), restorer)
    }

    /// Takes the windows of a journal. What is in memory is valid only if nobody else held them meanwhile.
    pub(crate) fn take_leases(&mut self, journal: JournalId) {
        let windows = self.options.kinds.windows_of(journal).into_iter();
        let unchanged: Vec<bool> = windows.map(|window| self.store.acquire_lease(window)).collect();
        if unchanged.contains(&false)
            && let Some(journal) = self.journals.get_mut(journal)
        {
            journal.unload(Duration::ZERO);
        }
    }

    /// Gives up the windows of a journal that is not used here any more.
    pub(crate) fn release_leases(&mut self, journal: JournalId) {
        for window in self.options.kinds.windows_of(journal) {
            self.store.release_lease(window);
        }
    }

    /// Removes the local state of a journal: a filter cannot lose single owners ([`StoreError::InFilter`]). Its windows in memory must be dropped
    /// before anything else is written: it would set heads that claim the removed owners.
    pub(crate) fn clear_filter(&mut self, window: WindowId) -> Result<(), StoreError> {
        let journal = window.journal();
        self.store.clear(&unnamed_first(self.options.kinds.windows_of(journal)))?;
        tracing::warn!(
            journal,
            "a filter has owners that have to be removed, and cannot lose single ones; restoring the windows from the state topic"
        );
        Ok(())
    }

    /// Stops processing the records of a journal's partitions. Returns those that were processed.
    fn stop(&mut self, journal: JournalId) -> Vec<PartitionId> {
        let started = self.partitions.of_mut(journal).filter(|partition| partition.is_started);
        let stop = |partition: &mut Partition| {
            partition.is_started = false;
            partition.id
        };
        started.map(stop).collect()
    }

    /// Stops processing the records of these journals; each continues after its committed offsets are read again.
    pub(crate) fn relocate(
        &mut self,
        source: &W::Source,
        journals: &[PartitionId],
        pause: Duration,
    ) -> Result<(), WorkerError> {
        let not_before = self.clock.elapsed() + pause;
        let mut stopped = Vec::new();
        for id in journals {
            if let Some(journal) = self.journals.get_mut(*id).filter(|journal| journal.windows.is_some()) {
                journal.relocate(not_before);
            }
            stopped.extend(self.stop(*id));
        }
        if !stopped.is_empty() {
            source.pause(&stopped)?;
        }
        Ok(())
    }

    /// [`Self::relocate`] of all journals.
    pub(crate) fn relocate_all(&mut self, source: &W::Source, pause: Duration) -> Result<(), WorkerError> {
        let all = self.journals.ids(|_| true);
        self.relocate(source, &all, pause)
    }

    /// Drops the windows of these journals in memory; they are loaded again in a later iteration.
    pub(crate) fn unload(&mut self, source: &W::Source, journals: &[PartitionId]) -> Result<(), WorkerError> {
        let not_before = self.clock.elapsed() + RELOAD_PAUSE;
        let mut stopped = Vec::new();
        for id in journals {
            self.journals.get_mut(*id).into_iter().for_each(|journal| journal.unload(not_before));
            stopped.extend(self.stop(*id));
        }
        for id in &stopped {
            self.partitions.get_mut(*id).into_iter().for_each(|partition| partition.open = None);
        }
        if !stopped.is_empty() {
            source.pause(&stopped)?;
        }
        Ok(())
    }
}
