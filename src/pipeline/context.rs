//! What every part of a worker uses.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{CopySample, PartitionId, Positions, Schemas, TopicFilter, WindowId};
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::Journals;
use crate::pipeline::limits::shortened::WindowLimiter;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Partition;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::restoring::Restorer;
use crate::pipeline::partition::topic::TopicScope;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::progress::Progress;
use crate::pipeline::report::WorkerReport;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::time::Time;
use crate::ports::{Source, Store, StoreError};

/// Pause before dropped state is loaded again.
const RELOAD_PAUSE: Duration = Duration::from_millis(50);

/// The partitions of a worker, their state in the local store and in the state topic, and the settings.
///
/// Large because all parts of a worker use it: one field for each thing that more than one of them needs.
pub(crate) struct Context<W: WorkerPorts> {
    pub(crate) partitions: Partitions,
    /// Their journals.
    pub(crate) journals: Journals,
    /// In topic scope, what finds copies in other partitions.
    pub(crate) topic: Option<TopicScope>,
    /// In partition scope, what estimates how many copies in other partitions are forwarded.
    pub(crate) copies: Option<CopySample>,
    /// The limits in force on the windows of the partitions.
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

fn topic_filter(options: &WorkerOptions, positions: Positions) -> TopicFilter {
    TopicFilter::new(options.kinds.longest(), positions, options.limits.topic_filter().0)
}

impl<W: WorkerPorts> Context<W> {
    /// Without partitions.
    pub fn new(
        (log, store): (W::Log, W::Store),
        clock: W::Clock,
        options: WorkerOptions,
        report: WorkerReport,
    ) -> Self {
        let topic =
            options.is_topic_wide().then(|| TopicScope::new(topic_filter(&options, store.positions())));
        Self {
            partitions: Partitions::default(),
            journals: Journals::default(),
            topic,
            copies: (!options.is_topic_wide()).then(CopySample::default),
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
        let states = self.partitions.iter().filter_map(Partition::state);
        let began = states.filter_map(|state| state.first_raw_partitions).max().unwrap_or(0);
        let found = self.options.partition_limit.raw().max(began);
        0..self.options.raw_partitions.max(self.partitions.end()).max(found)
    }

    /// Whether this worker has all partitions of raw, as far as it knows them.
    pub(crate) fn has_all_partitions(&self) -> bool {
        self.known_partitions().all(|id| self.partitions.get(id).is_some())
            || !self.options.keeps(Safeguard::AllPartitions)
    }

    /// The stream time by which windows expire, epoch milliseconds; `None` if each one expires by its own.
    pub(crate) fn horizon_ms(&self) -> Option<i64> {
        let topic = self.topic.as_ref().filter(|_| self.options.keeps(Safeguard::NeededFrom));
        topic.map(TopicScope::horizon_ms)
    }

    /// The partitions, and what their restores use beside them.
    pub(crate) fn restorer(&mut self) -> (&mut Partitions, Restorer<'_, W>) {
        let restorer = Restorer {
            store: &mut self.store,
            options: &self.options,
            report: &self.report,
            topic: self.topic.as_mut(),
        };
        (&mut self.partitions, restorer)
    }

    /// Gives up the windows of a partition that is not processed here any more.
    pub(crate) fn release_leases(&mut self, id: PartitionId) {
        for window in self.options.kinds.windows_of(id) {
            self.store.release_lease(window);
        }
    }

    /// Removes the local state of a partition, and of all partitions that share its slices: a filter cannot lose the owners of one window
    /// ([`StoreError::InFilter`]). Returns the partitions. Their state in memory must be dropped before anything else is written: it would
    /// set heads that claim the removed owners.
    pub(crate) fn clear_sharing(&mut self, window: WindowId) -> Result<Vec<PartitionId>, StoreError> {
        let mut ids = BTreeSet::from([window.partition()]);
        if self.options.is_topic_wide() {
            // A restart can have state of partitions that it does not know yet.
            ids.extend(self.known_partitions().chain(self.store.stored_partitions()));
        }
        let ids: Vec<PartitionId> = ids.into_iter().collect();
        // The unnamed kind first: its head stands for all kinds.
        let windows_of = |id: &PartitionId| self.options.kinds.windows_of(*id).into_iter().rev();
        let windows: Vec<WindowId> = ids.iter().flat_map(windows_of).collect();
        for window in &windows {
            // Also those of partitions that are not assigned: the filter may have owners of them.
            self.store.acquire_free_lease(*window);
        }
        let cleared = self.store.clear_all(&windows);
        for id in &ids {
            if self.partitions.get(*id).is_none() {
                self.release_leases(*id);
            }
        }
        cleared?;
        tracing::warn!(
            partition = window.partition(),
            restored = %ranges(ids.iter().copied()),
            "a filter has owners of a partition that have to be removed, and cannot lose single ones; restoring all partitions \
             that share it from the state topic"
        );
        Ok(ids)
    }

    /// Discards the filter over all windows, when there are no windows.
    pub(crate) fn empty_topic_filter(&mut self) {
        if let Some(topic) = &mut self.topic {
            topic.filter = topic_filter(&self.options, self.store.positions());
        }
    }

    /// Called when a partition was removed: another worker may write to its journal, and in topic scope no record is processed before this
    /// one has all partitions again.
    pub(crate) fn removed(&mut self, id: PartitionId) {
        self.journals.uncheck(self.options.journal_of(id));
        if let Some(topic) = &mut self.topic {
            topic.is_open = false;
        }
    }

    /// Pauses every running partition; each continues after its committed offset is read again.
    pub(crate) fn relocate(&mut self, source: &W::Source, pause: Duration) -> Result<(), WorkerError> {
        let not_before = self.clock.elapsed() + pause;
        let running = self.partitions.ids(Partition::is_running);
        self.partitions.iter_mut().filter(|p| p.is_running()).for_each(|p| p.relocate(not_before));
        if !running.is_empty() {
            source.pause(&running)?;
        }
        Ok(())
    }

    /// Drops the state of these partitions in memory; it is loaded again in a later iteration.
    pub(crate) fn unload(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), WorkerError> {
        let not_before = self.clock.elapsed() + RELOAD_PAUSE;
        let mut running = Vec::new();
        for id in ids {
            if let Some(partition) = self.partitions.get_mut(*id) {
                running.extend(partition.is_running().then_some(*id));
                partition.unload(not_before);
            }
        }
        if !running.is_empty() {
            source.pause(&running)?;
        }
        Ok(())
    }
}
