//! A window of the store in memory, and its owners outside of slices.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupd::dedupe::{Coordinates, Identity, OwnerRun, Sequence, StoredOwner};
use dedupd::ports::{Head, StoreError, Undone};

use super::memory_slices::MemorySlice;

#[derive(Debug, Clone, Default)]
pub struct MemoryWindow {
    pub head: Head,
    /// By the number of the first owner.
    pub runs: BTreeMap<Sequence, Arc<MemoryRun>>,
    /// The oldest first.
    pub slices: Vec<Arc<MemorySlice>>,
    /// It also counts the owners that were sealed or have expired.
    pub next_number: Sequence,
    pub missing_ms: i64,
}

/// Owners that were appended together.
#[derive(Debug, Clone)]
pub struct MemoryRun {
    /// At least one.
    pub owners: Vec<StoredOwner>,
    pub times_ms: (i64, i64),
    pub is_damaged: bool,
}

impl MemoryRun {
    /// The owners, as far as they can be read.
    pub fn read(&self) -> Result<&[StoredOwner], StoreError> {
        let damaged = || StoreError::Corrupt(format!("{} owners", self.owners.len()));
        if self.is_damaged { Err(damaged()) } else { Ok(&self.owners) }
    }

    /// Removes the identity of an owner.
    fn take(run: &mut Arc<Self>, place: Sequence) -> Result<Option<Identity>, StoreError> {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        if run.owners.get(place).is_none_or(|owner| owner.identity.is_none()) {
            return Ok(None);
        }
        run.read()?;
        Ok(Arc::make_mut(run).owners.get_mut(place).and_then(|owner| owner.identity.take()))
    }
}

/// Whether a record is of this partition, and at or beyond this offset.
pub fn is_from(at: Coordinates, from: Coordinates) -> bool {
    at.partition == from.partition && at.offset >= from.offset
}

impl MemoryWindow {
    pub fn append(&mut self, run: &OwnerRun<'_>) -> Result<(), StoreError> {
        if run.owners.is_empty() {
            return Ok(());
        }
        if run.number < self.next_number {
            return Err(StoreError::Corrupt(format!("number {} is taken", run.number)));
        }
        let (owners, times_ms) = (run.owners.to_vec(), run.times_ms);
        self.runs.insert(run.number, Arc::new(MemoryRun { owners, times_ms, is_damaged: false }));
        self.next_number = run.end();
        Ok(())
    }

    /// The runs with owners from a number on, and of each the number and the owners from there on.
    pub fn runs_from(&self, from: Sequence) -> impl Iterator<Item = (Sequence, &MemoryRun, usize)> {
        let first = self.runs.range(..=from).next_back().map_or(from, |(first, _)| *first);
        self.runs.range(first..).filter_map(move |(number, run)| {
            let skipped = from.saturating_sub(*number);
            let at = usize::try_from(skipped).ok().filter(|at| *at < run.owners.len())?;
            Some((number + skipped, &**run, at))
        })
    }

    pub fn owner(&self, number: Sequence) -> Result<Option<StoredOwner>, StoreError> {
        let found = self.runs_from(number).next().filter(|(first, ..)| *first == number);
        found.map_or(Ok(None), |(_, run, at)| Ok(run.read()?.get(at).copied()))
    }

    pub fn truncate(&mut self, from: Sequence) -> Result<Vec<StoredOwner>, StoreError> {
        let mut removed = Vec::new();
        for (_, run, at) in self.runs_from(from) {
            removed.extend(run.read()?.iter().skip(at));
        }
        self.runs.split_off(&from);
        if let Some((first, run)) = self.runs.iter_mut().next_back() {
            let left = usize::try_from(from - first).unwrap_or(usize::MAX);
            Arc::make_mut(run).owners.truncate(left);
        }
        self.next_number = self.next_number.min(from);
        if self.head.confirmed == from {
            self.head = self.head.confirmed_only();
        } else if self.head.confirmed > from {
            // The journal is read from its start.
            let Head { time_ms, incomplete_ms, .. } = self.head;
            self.head = Head { confirmed: from, time_ms, incomplete_ms, ..Head::default() };
        }
        Ok(removed)
    }

    /// Removes the identities of the owners from these coordinates on in a single run, the first one with owners from the number `next` on.
    pub fn undo(&mut self, from: &[Coordinates], next: Sequence) -> Result<Undone, StoreError> {
        let Some(first) = self.runs_from(next).next().map(|(number, _, at)| number - at as Sequence) else {
            return Ok(Undone::default());
        };
        let mut undone = Undone::default();
        if let Some(run) = self.runs.get_mut(&first) {
            let places =
                (0..).zip(&run.owners).filter(|(_, owner)| from.iter().any(|from| is_from(owner.at, *from)));
            let places: Vec<Sequence> = places.map(|(place, _)| place).collect();
            for place in places {
                undone.owners.extend(MemoryRun::take(run, place)?.map(|identity| (first + place, identity)));
            }
        }
        undone.next = self.runs.range(first + 1..).next().map(|(number, _)| *number);
        Ok(undone)
    }

    pub fn forget(&mut self, number: Sequence) -> Result<(), StoreError> {
        let run = self.runs.range_mut(..=number).next_back();
        run.map_or(Ok(()), |(first, run)| MemoryRun::take(run, number - first).map(drop))
    }

    /// Removes runs without owners from this number on.
    pub fn expire_runs(&mut self, first: Sequence) {
        self.runs.retain(|number, run| number + run.owners.len() as Sequence > first);
    }
}
