//! Writes a slice in a thread: a new one from blocks, or one that replaces others.
//!
//! The thread only reads what is registered, and writes a file that nothing refers to. The handle that started it registers the
//! slice afterwards, unless its owners have changed meanwhile.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::SliceEntry;
use super::group::{SealedSlice, SliceGroup, SliceReadError, read_slice};
use super::merging::{to_filter, to_merge};
use super::registry::{read_error, registered_error};
use crate::dedupe::{
    Coordinates, FilterBits, Identity, Offset, OwnerScan, Slice, SliceBuilder, SliceCoverage, SliceError,
    SlicePartition, WindowId,
};
use crate::ports::{FilterJob, SealJob, StoreError};
use crate::store::blocks::SledStore;
use crate::store::engine::Engine;

/// Receives the owners of a slice.
type OfferOwner<'a> = &'a mut dyn FnMut(Identity, Coordinates);

/// A slice that is being written.
pub(in crate::store) struct SealTask {
    group: SliceGroup,
    number: u32,
    source: SliceSource,
    /// Whether owners of the source were removed since it began.
    is_void: bool,
    is_cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Slice, StoreError>>>,
}

/// Where the owners of a new slice are.
#[derive(Debug, Clone)]
enum SliceSource {
    /// In blocks.
    Blocks(SealJob),
    /// In slices, which it replaces.
    Slices(OldSlices),
}

/// Whether the file of a task is used.
struct IsUsed(bool);

/// Slices that are replaced by one.
#[derive(Debug, Clone)]
struct OldSlices {
    slices: Vec<Arc<SealedSlice>>,
    /// The owners that their windows have not dropped.
    live: Vec<SlicePartition>,
    /// The bits of the new slice, if it is a filter only.
    only_filter: Option<FilterBits>,
}

impl SealTask {
    /// Starts to write a slice with these owners.
    pub fn seal(store: &SledStore, job: SealJob) -> Result<Self, StoreError> {
        let group =
            store.engine.group_of(job.kind.window(job.partitions.first().map_or(0, |of| of.partition)));
        let is_urgent = job.is_urgent;
        Self::start(store, (group, is_urgent), SliceSource::Blocks(job))
    }

    /// Starts to merge slices of a group; `None` when that is not needed. `is_urgent`: as [`SealJob::is_urgent`].
    pub fn merge(
        store: &SledStore,
        (group, is_urgent): (SliceGroup, bool),
    ) -> Result<Option<Self>, StoreError> {
        let slices = with_owners(store, group);
        let live = live_owners(store, group, &slices);
        let count = |(slice, live): (&Arc<SealedSlice>, &Vec<SlicePartition>)| {
            (slice.slice.footer().ids, live.iter().map(SlicePartition::owners).sum())
        };
        let counts: Vec<_> = slices.iter().zip(&live).map(count).collect();
        let Some(run) = to_merge(&counts) else { return Ok(None) };
        let merged = slices.get(run.clone()).unwrap_or_default().to_vec();
        let live = joined(live.get(run).unwrap_or_default());
        let source = SliceSource::Slices(OldSlices { slices: merged, live, only_filter: None });
        Self::start(store, (group, is_urgent), source).map(Some)
    }

    /// Starts to replace the oldest slices by a filter; `None` when there are none that the job allows.
    pub fn filter(store: &SledStore, job: &FilterJob) -> Result<Option<Self>, StoreError> {
        let Some(group) = job.windows.first().map(|window| store.engine.group_of(*window)) else {
            return Ok(None);
        };
        let mut slices = with_owners(store, group);
        let times: Vec<_> = slices.iter().map(|slice| slice.time_ms).collect();
        slices.truncate(to_filter(&times, (job.before_ms, job.span_ms)));
        let live = joined(&live_owners(store, group, &slices));
        if live.is_empty() {
            return Ok(None);
        }
        let source = SliceSource::Slices(OldSlices { slices, live, only_filter: Some(job.bits) });
        Self::start(store, (group, false), source).map(Some)
    }

    fn start(
        store: &SledStore,
        (group, is_urgent): (SliceGroup, bool),
        source: SliceSource,
    ) -> Result<Self, StoreError> {
        let number = store.engine.segments.allocate();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let (reader, from, cancelled) = (store.clone(), source.clone(), Arc::clone(&is_cancelled));
        let write = move || {
            if !is_urgent {
                yield_to_others();
            }
            write(&reader, (group, number), &from, &|| cancelled.load(Ordering::Relaxed))
        };
        let thread = thread::Builder::new().name("store-seal".to_owned()).spawn(write);
        let thread = thread.map_err(|e| StoreError::Io(format!("cannot start a thread: {e}")))?;
        Ok(Self { group, number, source, is_void: false, is_cancelled, thread: Some(thread) })
    }

    /// Called when the owners of a window at or beyond `from`, or one of them, are removed.
    pub fn removed(&mut self, window: WindowId, from: Offset) {
        if let SliceSource::Blocks(job) = &self.source {
            let is_cut = |of: &SlicePartition| of.partition == window.partition() && of.next > from;
            self.is_void |= job.kind == window.kind() && job.partitions.iter().any(is_cut);
        }
    }

    /// Ends the thread, and deletes what it has written.
    pub fn discard(mut self, engine: &Engine) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
        // Otherwise the next start deletes it.
        drop(engine.segments.delete(self.number));
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Registers the slice that was written, or deletes it. Returns its group, and its job if it is a new slice.
    pub fn finish(mut self, engine: &Engine) -> Result<(SliceGroup, Option<SealJob>), StoreError> {
        let (group, number) = (self.group, self.number);
        let written = self.thread.take().map(JoinHandle::join);
        let mut may_be_registered = false;
        let registered = match written {
            None => Ok(None),
            Some(Err(_)) => Err(StoreError::Io(
                "the thread that writes a slice panicked; please report this bug".to_owned(),
            )),
            // What it read may have been removed meanwhile.
            Some(Ok(_)) if self.is_void => Ok(None),
            Some(Ok(slice)) => slice.and_then(|slice| {
                let registered = self.register(engine, slice);
                // After an error sled may refer to the file. If not, the next start deletes it.
                may_be_registered = !matches!(registered, Ok(None | Some(IsUsed(false))));
                registered
            }),
        };
        if !may_be_registered {
            let deleted = engine.segments.delete(number);
            deleted.map_err(|cause| engine.file_error("delete", number, &cause))?;
        }
        let is_done = StoreError::unless_lease_lost(registered)?.flatten().is_some();
        let job = if let SliceSource::Blocks(job) = &self.source { Some(job.clone()) } else { None };
        Ok((group, job.filter(|_| is_done)))
    }

    /// Returns `None` when the slices that it replaces have changed. A slice is not used if all of its owners were forgotten.
    fn register(&self, engine: &Engine, slice: Slice) -> Result<Option<IsUsed>, StoreError> {
        let (footer, is_used) = (slice.footer_checksum(), slice.footer().ids > 0);
        let slice = Some(Arc::new(slice)).filter(|_| is_used);
        let new = |order| {
            let entry = SliceEntry { footer, order, ..SliceEntry::default() };
            slice.map(|slice| Arc::new(SealedSlice::new(self.number, slice, entry)))
        };
        let mut is_registered = false;
        engine.change_slices(self.group, |slices, _| {
            let mut changed = slices.to_vec();
            match &self.source {
                SliceSource::Blocks(_) => {
                    changed.extend(new(slices.last().map_or(0, |last| last.entry.order + 1)));
                }
                SliceSource::Slices(OldSlices { slices: old, .. }) => {
                    let first = old.first()?;
                    let at = slices.iter().position(|slice| Arc::ptr_eq(first, slice))?;
                    let run = at..at + old.len();
                    let is_same = slices.get(run.clone())?.iter().zip(old).all(|(a, b)| Arc::ptr_eq(a, b));
                    is_same.then(|| changed.splice(run, new(first.entry.order)).for_each(drop))?;
                }
            }
            is_registered = true;
            Some(changed)
        })?;
        Ok(is_registered.then_some(IsUsed(is_used)))
    }
}

impl Drop for SealTask {
    /// Waits until the thread has ended: it uses the store.
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Lowers the priority of this thread: what it does can wait, and the records of the worker cannot.
fn yield_to_others() {
    // On Linux the priority is that of one thread. Nothing depends on it.
    #[cfg(target_os = "linux")]
    {
        /// A thread of the default priority gets nine times the time on a busy core.
        const NICE: i32 = 10;
        rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE).ok();
    }
}

/// The slices of a group that have owners.
fn with_owners(store: &SledStore, group: SliceGroup) -> Vec<Arc<SealedSlice>> {
    store.engine.slices_of_group(group).iter().filter(|slice| slice.slice.has_owners()).cloned().collect()
}

/// For each of these slices, the owners that were neither removed nor dropped.
fn live_owners(
    store: &SledStore,
    group: SliceGroup,
    slices: &[Arc<SealedSlice>],
) -> Vec<Vec<SlicePartition>> {
    let dropped = store.engine.sealed.dropped();
    slices.iter().map(|slice| slice.live(group.kind, &dropped)).collect()
}

/// The owners of several slices, of which each follows the one before it.
fn joined(slices: &[Vec<SlicePartition>]) -> Vec<SlicePartition> {
    let mut all: Vec<SlicePartition> = slices.iter().flatten().cloned().collect();
    all.sort_by_key(|of| (of.partition, of.first));
    all.dedup_by(|later, earlier| {
        let is_same = later.partition == earlier.partition;
        if is_same {
            earlier.next = later.next;
            earlier.marks.append(&mut later.marks);
        }
        is_same
    });
    all
}

fn write(
    store: &SledStore,
    (group, number): (SliceGroup, u32),
    source: &SliceSource,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Slice, StoreError> {
    let engine = &*store.engine;
    let (partitions, read, only_filter) = match source {
        SliceSource::Blocks(job) => (&job.partitions, OwnerScan::Everything, None),
        SliceSource::Slices(old) => (&old.live, OwnerScan::ByPosition, old.only_filter),
    };
    let (hash, kind) = (engine.binding.hash, group.kind);
    let coverage = SliceCoverage { hash, kind, partitions: partitions.clone(), only_filter };
    let refused = |e: SliceError| StoreError::Corrupt(format!("cannot build a slice file: {e}"));
    let ids = partitions.iter().map(SlicePartition::owners).sum();
    let mut builder = SliceBuilder::new(coverage, ids, read).map_err(refused)?;
    let scan = |positions: RangeInclusive<u64>, offer: OfferOwner<'_>| match source {
        SliceSource::Blocks(job) => offer_blocks(store, job, offer, is_cancelled),
        SliceSource::Slices(OldSlices { slices, live, .. }) => slices.iter().try_for_each(|slice| {
            offer_slice(store, (group, positions.clone()), (slice, live), offer, is_cancelled)
        }),
    };
    let mut at = 0;
    let check = || check(is_cancelled, group.window());
    let mut append = |bytes: &[u8]| {
        check()?;
        let written = engine.segments.write(number, at, bytes);
        at += bytes.len() as u64;
        written.map_err(|cause| engine.file_error("write", number, &cause))
    };
    while builder.needs_pass() {
        scan(builder.positions(), &mut |identity, owner| builder.offer(identity, owner))?;
        builder.end_pass(&mut append, refused)?;
    }
    builder.finish(append)?;
    check()?;
    engine.durable(engine.segments.sync_file(number))?;
    // Read back, so that what is looked up in is what a start will find.
    read_slice(&engine.segments.path(number), check, |error| read_error(engine, number, &error))
}

fn offer_blocks(
    store: &SledStore,
    job: &SealJob,
    offer: OfferOwner<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    for of in &job.partitions {
        let (window, partition) = (job.kind.window(of.partition), of.partition);
        let mut offer = |offset, identity| offer(identity, Coordinates { partition, offset });
        store.offer_owners(window, of.first..of.next, &|| check(is_cancelled, window), &mut offer)?;
    }
    Ok(())
}

fn offer_slice(
    store: &SledStore,
    (group, positions): (SliceGroup, RangeInclusive<u64>),
    (slice, live): (&SealedSlice, &[SlicePartition]),
    offer: OfferOwner<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    let (engine, any) = (&*store.engine, group.window());
    // The worker may have dropped all owners of the slice meanwhile, and deleted the file.
    let failed = |error| registered_error(engine, any, slice.number, &error);
    let file = File::open(engine.segments.path(slice.number));
    let file = file.map_err(|cause| failed(SliceReadError::Io(cause)))?;
    let read = |at, bytes: &mut [u8]| {
        check(is_cancelled, any)?;
        file.read_exact_at(bytes, at).map_err(|cause| failed(SliceReadError::Io(cause)))
    };
    let damaged = |cause| failed(SliceReadError::Damaged(cause));
    slice.slice.scan(positions, read, damaged, |identity, owner| {
        let of = SlicePartition::find(live, owner.partition);
        let is_live = of.is_some_and(|(_, of)| (of.first..of.next).contains(&owner.offset));
        if is_live && slice.has(owner) {
            offer(identity, owner);
        }
        Ok(())
    })
}

/// An error when the task is cancelled: a stop waits for the thread. Its result is not used.
fn check(is_cancelled: &dyn Fn() -> bool, window: WindowId) -> Result<(), StoreError> {
    if is_cancelled() { Err(StoreError::LeaseLost(window)) } else { Ok(()) }
}

/// Merges all slices of a window, as the thread does if this happens between its start and its first read.
#[cfg(test)]
pub(in crate::store) fn write_merged(
    store: &mut SledStore,
    window: WindowId,
    is_cancelled: &dyn Fn() -> bool,
    meanwhile: impl FnOnce(&mut SledStore),
) -> Result<Slice, StoreError> {
    let group = store.engine.group_of(window);
    let slices = with_owners(store, group);
    let live = joined(&live_owners(store, group, &slices));
    let source = SliceSource::Slices(OldSlices { slices, live, only_filter: None });
    let number = store.engine.segments.allocate();
    meanwhile(store);
    write(store, (group, number), &source, is_cancelled)
}
