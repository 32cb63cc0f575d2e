//! The partitions of a worker.

use crate::dedupe::{JournalId, PartitionId};
use crate::pipeline::partition::Partition;

/// The partitions of a worker, indexed by number.
#[derive(Debug, Default)]
pub struct Partitions {
    all: Vec<Option<Box<Partition>>>,
}

impl Partitions {
    /// The partition with this number; `None` when it is not assigned to this worker.
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.all.get(id as usize)?.as_deref()
    }

    /// One partition, mutable.
    pub fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.all.get_mut(id as usize)?.as_deref_mut()
    }

    /// A partition whose records are processed; `None` while it waits.
    pub fn record_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.get_mut(id).filter(|partition| partition.is_open())
    }

    /// One past the highest partition number inserted so far.
    pub fn end(&self) -> PartitionId {
        PartitionId::try_from(self.all.len()).unwrap_or(PartitionId::MAX)
    }

    /// Adds or replaces a partition.
    pub fn insert(&mut self, partition: Partition) {
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
        self.all.get_mut(id as usize)?.take()
    }

    /// Removes all partitions. [`Self::end`] stays: leftovers of partitions that were added later are still to be found.
    pub fn remove_all(&mut self) {
        self.all.fill_with(|| None);
    }

    /// All partitions, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.all.iter().filter_map(Option::as_deref)
    }

    /// All partitions, in the order of their numbers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.all.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The partitions of a journal. They follow one another, and the first has its number.
    pub fn of(&self, journal: JournalId) -> impl Iterator<Item = &Partition> {
        let from = self.all.iter().skip(journal as usize).filter_map(Option::as_deref);
        from.take_while(move |partition| partition.journal == journal)
    }

    /// The partitions of a journal, mutable.
    pub fn of_mut(&mut self, journal: JournalId) -> impl Iterator<Item = &mut Partition> {
        let from = self.all.iter_mut().skip(journal as usize).filter_map(Option::as_deref_mut);
        from.take_while(move |partition| partition.journal == journal)
    }

    /// The partitions whose records are processed.
    pub fn started_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.iter_mut().filter(|partition| partition.is_started)
    }

    /// The partitions that the open transaction touched. One that is not started may still hold
    /// the effects of an earlier transaction with an unknown outcome; those are not part of the open one.
    pub fn open_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.started_mut().filter(|partition| partition.open.is_some())
    }

    /// The numbers of the partitions for which `matches` returns true.
    pub fn ids(&self, matches: impl Fn(&Partition) -> bool) -> Vec<PartitionId> {
        self.iter().filter(|p| matches(p)).map(|p| p.id).collect()
    }
}
