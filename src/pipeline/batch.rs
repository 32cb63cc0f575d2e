//! The open transaction's size and age, and the partitions of a worker.

use std::collections::BTreeSet;
use std::time::Duration;

use super::options::Options;
use super::partition::{Open, Partition};
use crate::dedupe::{KindId, PartitionId, Window, Windows};
use crate::ports::{Failure, Sink, Source};

/// The open transaction, if there is one. It begins with its first record, so that idle time does not count against
/// the transaction timeout.
#[derive(Debug, Default)]
pub struct Batch {
    since: Option<Duration>,
    records: usize,
    bytes: usize,
    touched: BTreeSet<PartitionId>,
}

impl Batch {
    /// Begins a transaction if none is open. `now` returns monotonic time; it is called only when a transaction
    /// begins, because this function runs for every record.
    pub fn begin<S: Source, K: Sink<S>>(
        &mut self,
        sink: &mut K,
        now: impl FnOnce() -> Duration,
    ) -> Result<(), Failure> {
        if self.since.is_none() {
            sink.begin()?;
            *self = Self { since: Some(now()), ..Self::default() };
        }
        Ok(())
    }

    /// What the open transaction did to a partition. The first call for a partition counts it as touched.
    pub fn touch<'a>(&mut self, partition: PartitionId, open: &'a mut Option<Open>) -> &'a mut Open {
        if open.is_none() {
            self.touched.insert(partition);
        }
        open.get_or_insert_default()
    }

    /// Counts a record of `bytes`.
    pub fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    /// The partitions that the transaction touched, also those that were released meanwhile.
    #[must_use]
    pub fn touched(&self) -> Vec<PartitionId> {
        self.touched.iter().copied().collect()
    }

    /// Bytes of the keys and values in the open transaction.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resets the batch after a commit, an abort or an unknown result.
    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the transaction has reached one of its limits.
    #[must_use]
    pub fn is_full(&self, options: &Options) -> bool {
        self.records >= options.max_records
            || self.bytes >= options.max_bytes
            || self.touched.len() >= options.most_partitions
    }

    /// Time left until the transaction has to be committed; `None` when none is open.
    #[must_use]
    pub fn remaining(&self, now: Duration, interval: Duration) -> Option<Duration> {
        self.since.map(|since| (since + interval).saturating_sub(now))
    }
}

/// The partitions of a worker, indexed by number.
#[derive(Debug, Default)]
pub struct Partitions(Vec<Option<Box<Partition>>>);

impl Partitions {
    /// One partition.
    #[must_use]
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.0.get(id as usize)?.as_deref()
    }

    /// One partition, mutable.
    pub fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.0.get_mut(id as usize)?.as_deref_mut()
    }

    /// One past the highest partition number inserted so far.
    #[must_use]
    pub fn end(&self) -> PartitionId {
        PartitionId::try_from(self.0.len()).unwrap_or(PartitionId::MAX)
    }

    /// Adds or replaces a partition.
    pub fn insert(&mut self, partition: Partition) {
        let at = partition.id as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(at) {
            *slot = Some(Box::new(partition));
        }
    }

    /// Removes a partition.
    pub fn remove(&mut self, id: PartitionId) -> Option<Box<Partition>> {
        self.0.get_mut(id as usize)?.take()
    }

    /// Removes all partitions. [`Self::end`] stays: leftovers of partitions that were added later are still to be found.
    pub fn remove_all(&mut self) {
        self.0.fill_with(|| None);
    }

    /// All partitions, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.0.iter().filter_map(Option::as_deref)
    }

    /// All partitions, in the order of their numbers, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.0.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// All loaded windows, each with its partition and kind.
    pub fn kinds(&self) -> impl Iterator<Item = (PartitionId, KindId, &Window)> {
        self.iter()
            .flat_map(|p| p.windows.iter().flat_map(Windows::iter).map(|(kind, window)| (p.id, kind, window)))
    }

    /// All loaded windows.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.kinds().map(|(_, _, window)| window)
    }

    /// All loaded windows, mutable.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let windows = self.iter_mut().filter_map(|p| p.windows.as_mut());
        windows.flat_map(Windows::iter_mut).map(|(_, window)| window)
    }

    /// The running partitions that the open transaction touched. A partition that is not running may still hold the
    /// effects of an earlier transaction with an unknown outcome; those are not part of the open one.
    pub fn open_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.iter_mut().filter(|partition| partition.open.is_some() && partition.is_running())
    }

    /// The numbers of the partitions for which `matches` returns true.
    pub fn ids(&self, matches: impl Fn(&Partition) -> bool) -> Vec<PartitionId> {
        self.iter().filter(|p| matches(p)).map(|p| p.id).collect()
    }
}
