//! Sealed slices of the store in memory: lists of owners.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use dedupd::dedupe::{Coordinates, Identity, IndexKey, KindId, Offset, SlicePartition, WindowId};
use dedupd::ports::{FilterJob, SealJob, SealedPlaces, Sealing, Store, StoreError, ToForget};

use super::{MemoryStore, Partitions};

pub type Slices = Vec<Arc<MemorySlice>>;

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

/// A sealed slice: its owners, in no order.
#[derive(Debug, Clone)]
pub struct MemorySlice {
    pub kind: KindId,
    pub partitions: Vec<SlicePartition>,
    pub owners: Vec<(Identity, Coordinates)>,
    /// The identities, if it is a filter only.
    pub filter: Option<BTreeSet<Identity>>,
}

/// What a task does.
#[derive(Debug)]
pub enum TaskJob {
    Seal(SealJob, MemorySlice),
    Filter(FilterJob),
}

#[derive(Debug)]
pub struct MemoryTask {
    pub job: TaskJob,
    /// Number of times that it is still reported as busy.
    pub left: u64,
    pub is_void: bool,
}

impl MemoryTask {
    pub fn removed(&mut self, window: WindowId, from: Offset) {
        let TaskJob::Seal(job, _) = &self.job else { return };
        let is_cut = |of: &SlicePartition| of.partition == window.partition() && of.next > from;
        self.is_void |= job.kind == window.kind() && job.partitions.iter().any(is_cut);
    }
}

impl MemorySlice {
    /// Whether a window shares this slice.
    fn is_of(&self, window: WindowId, is_shared: bool) -> bool {
        let has = || self.partitions.iter().any(|of| of.partition == window.partition());
        self.kind == window.kind() && (is_shared || has())
    }

    /// Stream times of its first and its last owner.
    fn time_ms(&self) -> (i64, i64) {
        let marks = || self.partitions.iter().flat_map(|of| &of.marks);
        let first = marks().map(|mark| mark.time_ms.0).min();
        (first.unwrap_or(0), marks().map(|mark| mark.time_ms.1).max().unwrap_or(0))
    }

    fn has_at_or_beyond(&self, window: WindowId, from: Offset) -> bool {
        let mut owners = self.owners.iter().map(|(_, owner)| owner);
        self.kind == window.kind()
            && owners.any(|owner| owner.partition == window.partition() && owner.offset >= from)
    }

    /// Removes the owners of a window that `is_removed` returns true for, and shortens its range to `end`.
    pub fn without(&self, window: WindowId, end: Offset, is_removed: impl Fn(Offset) -> bool) -> Self {
        let mut left = self.clone();
        if self.kind != window.kind() {
            return left;
        }
        left.owners.retain(|(_, owner)| owner.partition != window.partition() || !is_removed(owner.offset));
        for of in left.partitions.iter_mut().filter(|of| of.partition == window.partition()) {
            of.next = of.next.min(end);
            // A mark begins where the one before it ends.
            let whole = of.marks.partition_point(|mark| mark.next < end);
            of.marks.truncate(whole + 1);
            of.marks.last_mut().into_iter().for_each(|last| last.next = last.next.min(end));
        }
        left.partitions.retain(|of| of.first < of.next && !of.marks.is_empty());
        left
    }
}

/// Replaces each slice by what `change` makes of it.
pub fn change(slices: &mut Slices, change: impl Fn(&MemorySlice) -> MemorySlice) {
    for slice in slices {
        *slice = Arc::new(change(slice));
    }
}

/// Removes the owners of a window at or beyond `from`. A filter cannot lose some of its owners.
pub fn cut(slices: &mut Slices, window: WindowId, from: Offset) -> Result<(), StoreError> {
    let filters = slices.iter().filter(|slice| slice.filter.is_some());
    let cut_filters = filters.filter(|slice| slice.has_at_or_beyond(window, from));
    if cut_filters
        .map(|slice| slice.without(window, from, |offset| offset >= from))
        .any(|left| !left.owners.is_empty())
    {
        return Err(StoreError::InFilter(window));
    }
    change(slices, |slice| slice.without(window, from, |offset| offset >= from));
    slices.retain(|slice| !slice.owners.is_empty());
    Ok(())
}

/// Removes identities from the filters of a window whose owners begin before an offset.
pub fn forget_in_filters(
    slices: &mut Slices,
    window: WindowId,
    ToForget { identities, before, .. }: ToForget<'_>,
) {
    change(slices, |slice| {
        let mut left = slice.clone();
        let mut ranges = slice.partitions.iter().filter(|of| of.partition == window.partition());
        let is_here = slice.kind == window.kind() && ranges.any(|of| of.first < before);
        if let Some(filter) = left.filter.as_mut().filter(|_| is_here) {
            filter.retain(|identity| !identities.contains(identity));
        }
        left
    });
}

pub fn expire_runs(partitions: &mut Partitions, window: WindowId, first: Offset) {
    let Some(stored) = partitions.get_mut(&window) else { return };
    while let Some(oldest) = stored.runs.first_entry().filter(|oldest| oldest.get().next <= first) {
        oldest.remove();
    }
}

impl MemoryStore {
    /// Whether this handle writes a slice, or removes its runs.
    pub fn is_sealing(&self) -> bool {
        self.task.is_some() || !self.unneeded.is_empty()
    }

    pub fn begin_task(&mut self, job: SealJob) -> Result<(), StoreError> {
        if self.task.is_some() {
            return Ok(());
        }
        let mut owners = Vec::new();
        for of in &job.partitions {
            self.scan_runs(job.kind.window(of.partition), 0, &mut |run| {
                let sealed = run.owners.iter().filter(|owner| (of.first..of.next).contains(&owner.offset));
                let place = |offset| Coordinates { partition: of.partition, offset };
                owners.extend(sealed.filter_map(|owner| Some((owner.identity?, place(owner.offset)))));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        if self.has(SliceDefect::CutShort) {
            owners.truncate(owners.len() / 4 * 3);
        }
        let left = owners.first().map_or(0, |(_, owner)| owner.offset % 4);
        let slice = MemorySlice { kind: job.kind, partitions: job.partitions.clone(), owners, filter: None };
        self.sealing = job.windows().collect();
        self.task = Some(MemoryTask { job: TaskJob::Seal(job, slice), left, is_void: false });
        Ok(())
    }

    /// Whatever the time is over which the owners of the slices arrived.
    pub fn begin_filter_task(&mut self, job: &FilterJob) -> bool {
        if self.task.is_some() || self.replaced(job).is_empty() {
            return false;
        }
        let left = job.before_ms.unsigned_abs() % 4;
        self.sealing.clone_from(&job.windows);
        self.task = Some(MemoryTask { job: TaskJob::Filter(job.clone()), left, is_void: false });
        true
    }

    /// The numbers of the slices that become filters.
    fn replaced(&self, job: &FilterJob) -> Vec<usize> {
        let contents = self.lock();
        let is_of = |slice: &MemorySlice| {
            job.windows.iter().any(|window| slice.is_of(*window, contents.shares_slices))
        };
        let slices = contents.slices.iter().enumerate();
        let with_owners = slices.filter(|(_, slice)| slice.filter.is_none() && is_of(slice));
        let old = with_owners.take_while(|(_, slice)| slice.time_ms().1 < job.before_ms);
        old.map(|(at, _)| at).collect()
    }

    pub fn poll_task(&mut self) -> Result<Sealing, StoreError> {
        if let Some((window, next)) = self.unneeded.pop() {
            self.write(window, 0, |partitions, _| {
                expire_runs(partitions, window, next);
                Ok(())
            })?;
            return Ok(Sealing::Busy);
        }
        let Some(task) = &mut self.task else { return Ok(Sealing::Idle) };
        if task.left > 0 {
            task.left -= 1;
            return Ok(Sealing::Busy);
        }
        match self.task.take() {
            Some(MemoryTask { job: TaskJob::Seal(job, slice), is_void: false, .. }) => {
                let window = job.windows().next().unwrap_or_else(|| 0.into());
                self.write(window, 0, |_, slices| {
                    slices.push(Arc::new(slice));
                    Ok(())
                })?;
                let ends = job.partitions.iter().map(|of| (job.kind.window(of.partition), of.next));
                self.unneeded = ends.collect();
                Ok(Sealing::Done(job))
            }
            Some(MemoryTask { job: TaskJob::Filter(job), .. }) => {
                let (replaced, misses) = (self.replaced(&job), self.has(SliceDefect::FilterMisses));
                let window = job.windows.first().copied().unwrap_or_else(|| 0.into());
                self.write(window, 0, |_, slices| {
                    for at in replaced {
                        let Some(slice) = slices.get_mut(at) else { continue };
                        let ids = slice.owners.iter().map(|(identity, _)| *identity);
                        let kept =
                            ids.filter(|identity| !misses || !identity.0[0].is_multiple_of(4)).collect();
                        *slice = Arc::new(MemorySlice { filter: Some(kept), ..MemorySlice::clone(slice) });
                    }
                    Ok(())
                })?;
                Ok(Sealing::Busy)
            }
            _ => Ok(Sealing::Idle),
        }
    }

    /// As on disk, the head and the runs are gone also when a filter has owners that it cannot lose.
    pub fn clear_window(&mut self, window: WindowId) -> Result<(), StoreError> {
        self.removed(window, 0);
        let cleared = self.write(window, 0, |partitions, slices| {
            cut(slices, window, 0)?;
            partitions.remove(&window);
            Ok(())
        });
        if matches!(cleared, Err(StoreError::InFilter(_))) {
            self.remove_runs(window)?;
        }
        cleared
    }

    pub fn clear_windows(&mut self, windows: &[WindowId]) -> Result<(), StoreError> {
        self.end_seal();
        windows.iter().try_for_each(|window| self.remove_runs(*window))?;
        let Some(any) = windows.first() else { return Ok(()) };
        let is_shared = self.lock().shares_slices;
        self.write(*any, 0, |_, slices| {
            slices.retain(|slice| !windows.iter().any(|window| slice.is_of(*window, is_shared)));
            Ok(())
        })
    }

    fn remove_runs(&self, window: WindowId) -> Result<(), StoreError> {
        self.write(window, 0, |partitions, _| {
            partitions.remove(&window);
            Ok(())
        })
    }

    pub fn sealed_ranges(&self, window: WindowId) -> Vec<SlicePartition> {
        let contents = self.lock();
        let slices = contents.slices.iter().filter(|slice| slice.kind == window.kind());
        let mut ranges: Vec<SlicePartition> = slices.flat_map(|slice| slice.partitions.clone()).collect();
        ranges.retain(|of| of.partition == window.partition());
        ranges.sort_by_key(|of| of.first);
        ranges
    }

    pub fn places_in_slices(&self, window: WindowId, key: &IndexKey) -> SealedPlaces {
        let contents = self.lock();
        let slices = contents.slices.iter().rev().filter(|it| it.is_of(window, contents.shares_slices));
        let mut places = SealedPlaces::default();
        for slice in slices {
            if let Some(filter) = &slice.filter {
                places.filters.extend(Some(slice.time_ms()).filter(|_| filter.contains(&key.identity)));
                continue;
            }
            let owners = slice.owners.iter().filter(|(identity, _)| *identity == key.identity);
            places.owners.extend(owners.map(|(_, owner)| *owner));
        }
        places
    }
}
