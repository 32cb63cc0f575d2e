//! Sealed slices of the store in memory: lists of owners.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use dedupd::dedupe::{Coordinates, Identity, IndexKey, KindId, Offset, SlicePartition, WindowId};
use dedupd::ports::{SealJob, Sealing, Store, StoreError};

use super::{MemoryStore, damaged, expire_blocks};

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
}

/// A sealed slice: its owners, in no order.
#[derive(Debug, Clone)]
pub struct MemorySlice {
    pub kind: KindId,
    pub partitions: Vec<SlicePartition>,
    pub owners: Vec<(Identity, Coordinates)>,
}

#[derive(Debug)]
pub struct MemoryTask {
    pub job: SealJob,
    pub slice: MemorySlice,
    /// Number of times that it is still reported as busy.
    pub left: u64,
    pub is_void: bool,
}

impl MemoryTask {
    pub fn removed(&mut self, window: WindowId, from: Offset) {
        let is_cut = |of: &SlicePartition| of.partition == window.partition() && of.next > from;
        self.is_void |= self.job.kind == window.kind() && self.job.partitions.iter().any(is_cut);
    }
}

impl MemorySlice {
    /// Removes the owners of a window that `is_removed` returns true for, and shortens its range to `end`.
    pub fn without(&self, window: WindowId, end: Offset, is_removed: impl Fn(Offset) -> bool) -> Self {
        let mut left = self.clone();
        if self.kind != window.kind() {
            return left;
        }
        left.owners.retain(|(_, owner)| owner.partition != window.partition() || !is_removed(owner.offset));
        for of in left.partitions.iter_mut().filter(|of| of.partition == window.partition()) {
            of.next = of.next.min(end);
            of.marks.retain(|mark| mark.next - mark.count.min(mark.next) < end);
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

/// Removes the owners of a window at or beyond `from`.
pub fn cut(slices: &mut Slices, window: WindowId, from: Offset) {
    change(slices, |slice| slice.without(window, from, |offset| offset >= from));
    slices.retain(|slice| !slice.owners.is_empty());
}

impl MemoryStore {
    pub fn begin_task(&mut self, job: SealJob) -> Result<(), StoreError> {
        if self.task.is_some() {
            return Ok(());
        }
        let mut owners = Vec::new();
        for of in &job.partitions {
            self.scan(job.kind.window(of.partition), &mut |view| {
                let mut take = |offset, identity| {
                    if (of.first..of.next).contains(&offset) {
                        owners.push((identity, Coordinates { partition: of.partition, offset }));
                    }
                };
                view.for_each(&mut take).map_err(damaged)
            })?;
        }
        if self.has(SliceDefect::CutShort) {
            owners.truncate(owners.len() / 4 * 3);
        }
        let left = owners.first().map_or(0, |(_, owner)| owner.offset % 4);
        let slice = MemorySlice { kind: job.kind, partitions: job.partitions.clone(), owners };
        self.task = Some(MemoryTask { job, slice, left, is_void: false });
        Ok(())
    }

    pub fn poll_task(&mut self) -> Result<Sealing, StoreError> {
        if let Some((window, next)) = self.unneeded.pop() {
            self.write(window, 0, |partitions, _| expire_blocks(partitions, window, next))?;
            return Ok(Sealing::Busy);
        }
        let Some(task) = &mut self.task else { return Ok(Sealing::Idle) };
        if task.left > 0 {
            task.left -= 1;
            return Ok(Sealing::Busy);
        }
        let Some(MemoryTask { job, slice, is_void: false, .. }) = self.task.take() else {
            return Ok(Sealing::Idle);
        };
        let window = job.windows().next().unwrap_or_else(|| 0.into());
        self.write(window, 0, |_, slices| {
            slices.push(Arc::new(slice));
            Ok(())
        })?;
        self.unneeded = job.partitions.iter().map(|of| (job.kind.window(of.partition), of.next)).collect();
        Ok(Sealing::Done(job))
    }

    pub fn sealed_ranges(&self, window: WindowId) -> Vec<SlicePartition> {
        let contents = self.lock();
        let slices = contents.slices.iter().filter(|slice| slice.kind == window.kind());
        let mut ranges: Vec<SlicePartition> = slices.flat_map(|slice| slice.partitions.clone()).collect();
        ranges.retain(|of| of.partition == window.partition());
        ranges.sort_by_key(|of| of.first);
        ranges
    }

    pub fn owners_in_slices(&self, window: WindowId, key: &IndexKey) -> Vec<Coordinates> {
        let contents = self.lock();
        let slices = contents.slices.iter().rev().filter(|slice| slice.kind == window.kind());
        let owners = slices.flat_map(|slice| &slice.owners).filter(|(identity, _)| *identity == key.identity);
        let is_shared = |owner: &Coordinates| contents.shares_slices || owner.partition == window.partition();
        owners.map(|(_, owner)| *owner).filter(is_shared).collect()
    }
}
