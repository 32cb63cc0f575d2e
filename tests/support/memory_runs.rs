//! The owners of the store in memory, and what a write changes of them.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupd::dedupe::{Block, Identity, Offset, Sequence, StoredOwner};
use dedupd::ports::{Head, StoreError};

/// A partition before a write: its head, and its runs at or beyond `from`. The write changes no other.
#[derive(Debug)]
pub struct Before {
    pub head: Head,
    pub from: Offset,
    pub runs: Runs,
}

/// By the first offset that each covers.
pub type Runs = BTreeMap<Offset, Arc<MemoryRun>>;

#[derive(Debug, Clone, Default)]
pub struct Partition {
    pub head: Head,
    pub runs: Runs,
}

/// The owners of one appended block.
#[derive(Debug, Clone)]
pub struct MemoryRun {
    /// One past the last offset that it covers.
    pub next: Offset,
    /// The number of the first owner.
    pub number: Sequence,
    /// At least one.
    pub owners: Vec<StoredOwner>,
    pub times_ms: (i64, i64),
    pub is_damaged: bool,
}

impl MemoryRun {
    fn of(block: &Block, number: Sequence) -> Self {
        let owner = |(offset, identity): &(_, _)| StoredOwner { offset: *offset, identity: Some(*identity) };
        Self {
            next: block.next,
            number,
            owners: block.entries.iter().map(owner).collect(),
            times_ms: (block.time_first_ms, block.time_last_ms),
            is_damaged: false,
        }
    }

    /// One past the number of the last owner.
    pub fn end(&self) -> Sequence {
        self.number + self.owners.len() as Sequence
    }

    /// The owners, as far as they can be read.
    pub fn read(&self) -> Result<&[StoredOwner], StoreError> {
        let damaged = || StoreError::Corrupt(format!("the owners from number {} on", self.number));
        if self.is_damaged { Err(damaged()) } else { Ok(&self.owners) }
    }

    /// The owners from a number on.
    pub fn read_from(&self, number: Sequence) -> Result<&[StoredOwner], StoreError> {
        let before = usize::try_from(number - self.number).unwrap_or(usize::MAX);
        Ok(self.read()?.get(before..).unwrap_or_default())
    }
}

impl Partition {
    /// A run that begins before `from` may reach beyond it.
    pub fn before(&self, from: Offset) -> Before {
        let from = self.runs.range(..from).next_back().map_or(from, |(first, _)| *first);
        let runs = self.runs.range(from..).map(|(first, run)| (*first, Arc::clone(run))).collect();
        Before { head: self.head, from, runs }
    }

    pub fn end(&self) -> Offset {
        self.runs.last_key_value().map_or(0, |(_, run)| run.next)
    }

    pub fn next_number(&self) -> Sequence {
        self.runs.last_key_value().map_or(0, |(_, run)| run.end())
    }

    pub fn cut(&mut self, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        self.head = self.head.lowered(from);
        let (mut removed, mut left) = (Vec::new(), Runs::new());
        for (first, mut run) in std::mem::take(&mut self.runs) {
            if run.next > from {
                let keep = run.read()?.partition_point(|owner| owner.offset < from);
                let run = Arc::make_mut(&mut run);
                let gone = run.owners.drain(keep..);
                removed.extend(gone.filter_map(|owner| Some((owner.offset, owner.identity?))));
                run.next = from;
            }
            if !run.owners.is_empty() {
                left.insert(first, run);
            }
        }
        self.runs = left;
        Ok(removed)
    }

    /// Offsets without owners belong to the run before them.
    pub fn add(&mut self, block: &Block, number: Sequence) {
        if !block.entries.is_empty() {
            self.runs.insert(block.first, Arc::new(MemoryRun::of(block, number)));
        } else if let Some(mut last) = self.runs.last_entry() {
            let last = Arc::make_mut(last.get_mut());
            last.next = last.next.max(block.next);
        }
    }

    pub fn forget(&mut self, owner: Offset) -> Result<(), StoreError> {
        let Some((_, run)) = self.runs.range_mut(..=owner).next_back() else { return Ok(()) };
        let Ok(place) = run.read()?.binary_search_by_key(&owner, |held| held.offset) else { return Ok(()) };
        Arc::make_mut(run).owners[place].identity = None;
        Ok(())
    }
}
