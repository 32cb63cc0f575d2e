//! The partitions of a worker.

use crate::dedupe::{KindId, PartitionGroups, PartitionId, Window, Windows};
use crate::pipeline::partition::loading::Loading;
use crate::pipeline::partition::rejections::Rejections;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::{Locating, Partition, Phase, Running};

/// The partitions of a worker, indexed by number.
///
/// Large because every part of the worker visits the partitions, each in another phase: most methods are iterators.
#[derive(Debug, Default)]
pub struct Partitions {
    all: Vec<Option<Box<Partition>>>,
    /// See [`Self::has_nothing_pending`]. Every method that lets the caller change a phase clears it.
    nothing_pending: bool,
}

impl Partitions {
    /// The partition with this number; `None` when it is not assigned to this worker.
    #[must_use]
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.all.get(id as usize)?.as_deref()
    }

    /// One partition, mutable.
    pub fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.nothing_pending = false;
        self.all.get_mut(id as usize)?.as_deref_mut()
    }

    /// What a record of a running partition changes; `None` while the partition is held or waits for a schema.
    pub fn record_mut(&mut self, id: PartitionId) -> Option<(&mut Running, &mut Rejections)> {
        self.record_and_others(id).map(|(parts, _)| parts)
    }

    /// [`Self::record_mut`], and all other partitions.
    pub fn record_and_others(
        &mut self,
        id: PartitionId,
    ) -> Option<((&mut Running, &mut Rejections), Others<'_>)> {
        let (before, rest) = self.all.split_at_mut_checked(id as usize)?;
        let (own, after) = rest.split_first_mut()?;
        let parts = own.as_deref_mut()?.record_mut().filter(|(running, _)| running.is_open())?;
        Some((parts, Others { before, after }))
    }

    /// Whether every partition is running, none of them is held, and none has a position that is only in this worker. The result
    /// is kept until a phase may have changed, so that an iteration does not visit a thousand partitions that have nothing to
    /// do.
    pub fn has_nothing_pending(&mut self) -> bool {
        let is_committed = |running: &Running| !running.held && !running.state.uncommitted_position;
        self.nothing_pending =
            self.nothing_pending || self.iter().all(|p| p.running().is_some_and(is_committed));
        self.nothing_pending
    }

    /// A partition whose committed offset has to be read.
    pub fn locating_mut(&mut self, id: PartitionId) -> Option<&mut Locating> {
        match &mut self.get_mut(id)?.phase {
            Phase::Locating(locating) => Some(locating),
            Phase::Loading(_) | Phase::Restoring(_) | Phase::Running(_) => None,
        }
    }

    /// A partition that is being restored from the state topic.
    pub fn restoring_mut(&mut self, id: PartitionId) -> Option<&mut Restoring> {
        match &mut self.get_mut(id)?.phase {
            Phase::Restoring(restoring) => Some(restoring),
            Phase::Locating(_) | Phase::Loading(_) | Phase::Running(_) => None,
        }
    }

    /// The loads of local state in progress.
    pub fn all_loading_mut(&mut self) -> impl Iterator<Item = &mut Loading> {
        self.iter_mut().filter_map(|partition| match &mut partition.phase {
            Phase::Loading(loading) => Some(&mut **loading),
            Phase::Locating(_) | Phase::Restoring(_) | Phase::Running(_) => None,
        })
    }

    /// The restores in progress.
    pub fn all_restoring_mut(&mut self) -> impl Iterator<Item = &mut Restoring> {
        self.iter_mut().filter_map(|partition| match &mut partition.phase {
            Phase::Restoring(restoring) => Some(&mut **restoring),
            Phase::Locating(_) | Phase::Loading(_) | Phase::Running(_) => None,
        })
    }

    /// One past the highest partition number inserted so far.
    #[must_use]
    pub fn end(&self) -> PartitionId {
        PartitionId::try_from(self.all.len()).unwrap_or(PartitionId::MAX)
    }

    /// Adds or replaces a partition.
    pub fn insert(&mut self, partition: Partition) {
        self.nothing_pending = false;
        let at = partition.id as usize;
        if self.all.len() <= at {
            self.all.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.all.get_mut(at) {
            *slot = Some(Box::new(partition));
        }
    }

    /// Removes a partition, because it was revoked or lost.
    pub fn remove(&mut self, id: PartitionId) -> Option<Box<Partition>> {
        self.nothing_pending = false;
        self.all.get_mut(id as usize)?.take()
    }

    /// Removes all partitions. [`Self::end`] stays: leftovers of partitions that were added later are still to be found.
    pub fn remove_all(&mut self) {
        self.nothing_pending = false;
        self.all.fill_with(|| None);
    }

    /// All partitions, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.all.iter().filter_map(Option::as_deref)
    }

    /// All partitions, in the order of their numbers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.nothing_pending = false;
        self.all.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The partitions whose records are processed, each with its number.
    pub fn running_mut(&mut self) -> impl Iterator<Item = (PartitionId, &mut Running)> {
        let partitions = self.all.iter_mut().filter_map(Option::as_deref_mut);
        partitions.filter_map(|partition| Some((partition.id, partition.running_mut()?)))
    }

    /// The states of the running partitions that the open transaction touched. A partition that is not running may still hold
    /// the effects of an earlier transaction with an unknown outcome; those are not part of the open one.
    pub fn open_mut(&mut self) -> impl Iterator<Item = &mut DedupeState> {
        self.running_mut().map(|(_, running)| &mut *running.state).filter(|state| state.open.is_some())
    }

    /// All loaded windows, each with its partition and kind.
    pub fn kinds(&self) -> impl Iterator<Item = (PartitionId, KindId, &Window)> {
        let states = self.iter().filter_map(Partition::state);
        states.flat_map(|state| state.windows.iter().map(|(kind, window)| (state.id, kind, window)))
    }

    /// All loaded windows.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.kinds().map(|(_, _, window)| window)
    }

    /// All loaded windows, mutable.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let partitions = self.all.iter_mut().filter_map(Option::as_deref_mut);
        let windows = partitions.filter_map(|p| Some(&mut p.state_mut()?.windows));
        windows.flat_map(Windows::iter_mut).map(|(_, window)| window)
    }

    /// The slowest partition: how far it is read ([`DedupeState::reached_ms`]), and its number. `None` when there is no partition,
    /// or the state of one is not in memory.
    #[must_use]
    pub fn slowest(&self) -> Option<(i64, PartitionId)> {
        let mut reached = self.iter().map(|partition| Some((partition.state()?.reached_ms(), partition.id)));
        let first = reached.next()??;
        reached.try_fold(first, |slowest, reached| Some(slowest.min(reached?)))
    }

    /// The latest stream time of all partitions, epoch milliseconds; 0 while unknown.
    #[must_use]
    pub fn fastest_ms(&self) -> i64 {
        let states = self.iter().filter_map(Partition::state);
        states.map(|state| state.windows.stream_time_ms()).max().unwrap_or(0)
    }

    /// The numbers of the partitions for which `matches` returns true.
    pub fn ids(&self, matches: impl Fn(&Partition) -> bool) -> Vec<PartitionId> {
        self.iter().filter(|p| matches(p)).map(|p| p.id).collect()
    }
}

/// The partitions of a worker beside one that is borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a> {
    before: &'a [Option<Box<Partition>>],
    after: &'a [Option<Box<Partition>>],
}

impl<'a> Others<'a> {
    /// The windows of the kind with this number in the partitions of these groups, each with its partition.
    pub fn windows_in(
        &self,
        groups: PartitionGroups,
        kind: usize,
    ) -> impl Iterator<Item = (PartitionId, &'a Window)> + use<'a> {
        let others = *self;
        let end = self.before.len() + 1 + self.after.len();
        let end = PartitionId::try_from(end).unwrap_or(PartitionId::MAX);
        groups.partitions(end).filter_map(move |id| Some((id, others.window(id, kind)?)))
    }

    /// The window of the kind with this number in a partition.
    #[must_use]
    pub fn window(&self, id: PartitionId, kind: usize) -> Option<&'a Window> {
        let (at, own) = (id as usize, self.before.len());
        let slot = if at < own { self.before.get(at) } else { self.after.get(at.checked_sub(own + 1)?) };
        slot?.as_ref()?.state()?.windows.get(kind)
    }

    /// The windows of the kind with this number, each with its partition.
    pub fn windows(&self, kind: usize) -> impl Iterator<Item = (PartitionId, &'a Window)> + use<'a> {
        let partitions = self.before.iter().chain(self.after).filter_map(Option::as_deref);
        partitions.filter_map(move |p| Some((p.id, p.state()?.windows.get(kind)?)))
    }
}
