//! The open transaction's size and age, and the partitions of a worker.

use std::collections::BTreeSet;
use std::time::Duration;

use super::options::Options;
use super::partition::{Open, Partition};
use crate::dedupe::{KindId, PartitionId, Window, Windows};
use crate::ports::{Failure, Sink, Source};

/// The open transaction, or none. It begins with its first record, so that idle time never counts
/// against the transaction timeout.
#[derive(Debug, Default)]
pub struct Batch {
    since: Option<Duration>,
    records: usize,
    bytes: usize,
    touched: BTreeSet<PartitionId>,
}

impl Batch {
    /// Opens the transaction if none is open. `now` tells monotonic time; it is asked only then, because
    /// this comes with each record.
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

    /// What the open transaction did to a partition, which is one more when it is the first.
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

    /// The partitions that it has something of, whatever became of them meanwhile.
    #[must_use]
    pub fn touched(&self) -> Vec<PartitionId> {
        self.touched.iter().copied().collect()
    }

    /// Bytes of the keys and values in the open transaction.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets the transaction, however it ended.
    pub fn close(&mut self) {
        *self = Self::default();
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// Whether it may take no more.
    #[must_use]
    pub fn is_full(&self, options: &Options) -> bool {
        self.records >= options.max_records
            || self.bytes >= options.max_bytes
            || self.touched.len() >= options.most_partitions
    }

    /// Time left until it has to be committed; `None` when none is open.
    #[must_use]
    pub fn remaining(&self, now: Duration, interval: Duration) -> Option<Duration> {
        self.since.map(|since| (since + interval).saturating_sub(now))
    }
}

/// The partitions of a worker, found by number.
#[derive(Debug, Default)]
pub struct Partitions(Vec<Option<Box<Partition>>>);

impl Partitions {
    /// One partition.
    #[must_use]
    pub fn get(&self, id: PartitionId) -> Option<&Partition> {
        self.0.get(id as usize)?.as_deref()
    }

    /// One partition, to change.
    pub fn get_mut(&mut self, id: PartitionId) -> Option<&mut Partition> {
        self.0.get_mut(id as usize)?.as_deref_mut()
    }

    /// One past the highest number that was ever in it.
    #[must_use]
    pub fn end(&self) -> PartitionId {
        PartitionId::try_from(self.0.len()).unwrap_or(PartitionId::MAX)
    }

    /// Takes a partition in.
    pub fn insert(&mut self, partition: Partition) {
        let at = partition.id as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.0.get_mut(at) {
            *slot = Some(Box::new(partition));
        }
    }

    /// Lets a partition go.
    pub fn remove(&mut self, id: PartitionId) -> Option<Box<Partition>> {
        self.0.get_mut(id as usize)?.take()
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.0.iter().filter_map(Option::as_deref)
    }

    /// All of them, by number, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.0.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Every window there is, with its partition and kind.
    pub fn kinds(&self) -> impl Iterator<Item = (PartitionId, KindId, &Window)> {
        self.iter()
            .flat_map(|p| p.windows.iter().flat_map(Windows::iter).map(|(kind, window)| (p.id, kind, window)))
    }

    /// Every window there is, to look at.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.kinds().map(|(_, _, window)| window)
    }

    /// Every window there is, to change.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        let windows = self.iter_mut().filter_map(|p| p.windows.as_mut());
        windows.flat_map(Windows::iter_mut).map(|(_, window)| window)
    }

    /// Those that the open transaction touched. One that does not run may still remember what an
    /// earlier transaction did, whose outcome is unknown; that is no part of the open one.
    pub fn open_mut(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.iter_mut().filter(|partition| partition.open.is_some() && partition.is_running())
    }

    /// The numbers of those for which `wanted` holds.
    pub fn ids(&self, wanted: impl Fn(&Partition) -> bool) -> Vec<PartitionId> {
        self.iter().filter(|p| wanted(p)).map(|p| p.id).collect()
    }
}
