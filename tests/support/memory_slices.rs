//! Sealed slices of the store in memory: lists of owners.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ops::ControlFlow;
use std::sync::Arc;

use dedupd::dedupe::{
    Coordinates, Identity, IndexKey, KnownOwner, SealedRange, Sequence, StoredOwner, WindowId,
};
use dedupd::ports::{FilterJob, SealJob, SealedPlaces, Sealing, StoreError};

use super::memory_runs::is_from;
use super::{MemoryStore, MemoryWindow};

/// A deliberate defect of slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SliceDefect {
    /// No defect.
    #[default]
    None,
    /// The last quarter of the owners is missing.
    CutShort,
    /// Forgotten owners stay.
    KeepsForgotten,
    /// Owners that are undone stay.
    KeepsRemoved,
    /// Filters do not have all of their ids.
    FilterMisses,
    /// Forgotten ids stay in filters.
    FilterKeepsForgotten,
}

/// A sealed slice.
#[derive(Debug, Clone)]
pub struct MemorySlice {
    pub range: SealedRange,
    /// The earliest and the latest stream time of the owners that were written.
    time_ms: (i64, i64),
    /// In no order.
    owners: Vec<(Identity, KnownOwner)>,
    /// Look-ups do not find the owners.
    is_filter: bool,
}

impl MemorySlice {
    fn new(range: SealedRange, owners: Vec<(Identity, KnownOwner)>) -> Self {
        let times = || owners.iter().map(|(_, owner)| owner.time_ms);
        let time_ms = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        Self { range, time_ms, owners, is_filter: false }
    }

    /// Whether it becomes a filter when owners from before a time of the window's clock may.
    fn is_replaced(&self, before_ms: i64) -> bool {
        !self.is_filter && self.range.marks.iter().all(|mark| mark.time_ms.1 < before_ms)
    }

    fn retain(slice: &mut Arc<Self>, is_kept: impl Fn(Identity, Coordinates) -> bool) {
        Arc::make_mut(slice).owners.retain(|(identity, owner)| is_kept(*identity, owner.at));
    }
}

/// What a handle does in the background.
#[derive(Debug)]
pub struct MemoryTask {
    pub window: WindowId,
    step: TaskStep,
    /// Number of times that it is still reported as busy.
    left: u64,
}

#[derive(Debug)]
enum TaskStep {
    Seal(SealJob, MemorySlice),
    /// Replaces slices of owners from before this time by filters.
    Filter(i64),
    /// Removes the runs below this number: a slice has their owners.
    Tidy(Sequence),
}

impl MemoryTask {
    /// Whether it seals owners from a number on.
    pub fn seals(&self, window: WindowId, from: Sequence) -> bool {
        matches!(&self.step, TaskStep::Seal(job, _) if job.window == window && job.range.next > from)
    }
}

impl MemoryWindow {
    /// Removes the owners from these coordinates on from slices. A filter cannot lose some of its owners.
    pub fn undo_sealed(&mut self, window: WindowId, from: Coordinates) -> Result<(), StoreError> {
        let mut filters = self.slices.iter().filter(|slice| slice.is_filter);
        if filters.any(|slice| slice.owners.iter().any(|(_, owner)| is_from(owner.at, from))) {
            return Err(StoreError::InFilter(window));
        }
        for slice in &mut self.slices {
            MemorySlice::retain(slice, |_, at| !is_from(at, from));
        }
        Ok(())
    }

    pub fn forget_sealed(&mut self, identities: &[Identity], defect: SliceDefect) {
        for slice in self.slices.iter_mut().filter(|_| !identities.is_empty()) {
            let keeps =
                if slice.is_filter { SliceDefect::FilterKeepsForgotten } else { SliceDefect::KeepsForgotten };
            if defect != keeps {
                MemorySlice::retain(slice, |identity, _| !identities.contains(&identity));
            }
        }
    }

    /// Replaces slices by filters, whatever the time is over which their owners arrived.
    fn filter(&mut self, before_ms: i64, misses: bool) {
        for slice in self.slices.iter_mut().filter(|slice| slice.is_replaced(before_ms)) {
            MemorySlice::retain(slice, |identity, _| !misses || !identity.0[0].is_multiple_of(4));
            Arc::make_mut(slice).is_filter = true;
        }
    }

    /// What the slices have of an identity.
    pub fn places(&self, key: &IndexKey) -> SealedPlaces {
        let mut places = SealedPlaces::default();
        for slice in self.slices.iter().rev() {
            let found = slice.owners.iter().filter(|(identity, _)| *identity == key.identity);
            if !slice.is_filter {
                places.owners.extend(found.map(|(_, owner)| *owner));
            } else if found.count() > 0 {
                places.filters.push(slice.time_ms);
            }
        }
        places
    }
}

impl MemoryStore {
    pub fn begin_task(&mut self, job: SealJob) -> Result<(), StoreError> {
        if self.task.is_some() {
            return Ok(());
        }
        let (window, numbers) = (job.window, job.range.first..job.range.next);
        let mut owners = Vec::new();
        self.scan_runs(window, numbers.start, &mut |run| {
            let sealed = (run.number..numbers.end).zip(run.owners);
            owners.extend(sealed.filter_map(|(_, owner)| {
                let StoredOwner { at, time_ms, digest, .. } = *owner;
                Some((owner.identity?, KnownOwner { at, time_ms, digest }))
            }));
            Ok(if run.end() < numbers.end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        if self.has(SliceDefect::CutShort) {
            owners.truncate(owners.len() / 4 * 3);
        }
        let slice = MemorySlice::new(job.range.clone(), owners);
        self.task = Some(MemoryTask { window, step: TaskStep::Seal(job, slice), left: numbers.end % 4 });
        Ok(())
    }

    pub fn begin_filter_task(&mut self, job: &FilterJob) -> bool {
        let is_old = |slice: &Arc<MemorySlice>| slice.is_replaced(job.before_ms);
        let is_any =
            self.lock().windows.get(&job.window).is_some_and(|stored| stored.slices.iter().any(is_old));
        let begins = self.task.is_none() && is_any;
        if begins {
            let left = job.before_ms.unsigned_abs() % 4;
            self.task = Some(MemoryTask { window: job.window, step: TaskStep::Filter(job.before_ms), left });
        }
        begins
    }

    pub fn poll_task(&mut self) -> Result<Sealing, StoreError> {
        let Some(MemoryTask { window, step, left }) = self.task.take() else { return Ok(Sealing::Idle) };
        if left > 0 {
            self.task = Some(MemoryTask { window, step, left: left - 1 });
            return Ok(Sealing::Busy);
        }
        match step {
            TaskStep::Seal(job, slice) => {
                self.task = Some(MemoryTask { window, step: TaskStep::Tidy(job.range.next), left });
                self.change(window, |stored| {
                    stored.slices.push(Arc::new(slice));
                    Ok(())
                })?;
                return Ok(Sealing::Done(job));
            }
            TaskStep::Filter(before_ms) => {
                let misses = self.has(SliceDefect::FilterMisses);
                self.change(window, |stored| {
                    stored.filter(before_ms, misses);
                    Ok(())
                })?;
            }
            TaskStep::Tidy(next) => self.change(window, |stored| {
                stored.expire_runs(next);
                Ok(())
            })?,
        }
        Ok(Sealing::Busy)
    }
}
