//! Writes a slice in a thread: a new one from runs, or one that replaces others.
//!
//! The thread only reads what is registered, and writes a file that nothing refers to. The handle that started it registers the
//! slice afterwards, unless its owners have changed meanwhile.

use std::fs::File;
use std::iter;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::SliceEntry;
use super::group::{SealedSlice, SliceGroup, SliceReadError, read_slice};
use super::merging::{to_filter, to_merge};
use super::registry::registered_error;
use crate::dedupe::{
    Coordinates, FilterBits, Identity, Offset, OwnerScan, Slice, SliceBuilder, SliceCoverage, SliceError,
    SlicePartition, WindowId,
};
use crate::ports::{FilterJob, SealJob, StoreError};
use crate::store::engine::Engine;
use crate::store::owners::SledStore;

/// Receives the owners of the sources of a slice; `None` for one that does not count any more.
type OfferOwner<'a> = &'a mut dyn FnMut(Identity, Option<Coordinates>);

/// A slice that is being written.
pub(in crate::store) struct SealTask {
    group: SliceGroup,
    number: u32,
    source: SliceSource,
    /// Whether owners of the source were removed since it began.
    is_void: bool,
    is_cancelled: Arc<AtomicBool>,
    /// `None` if the system had no thread.
    thread: Option<JoinHandle<Result<Slice, StoreError>>>,
}

/// What became of a task.
pub(in crate::store) struct EndedTask {
    pub group: SliceGroup,
    /// Whether it sealed owners in runs, and did not replace slices.
    pub is_new: bool,
    /// What it has done, if it has sealed owners; or why its file was discarded.
    pub done: Result<Option<SealJob>, StoreError>,
}

/// Where the owners of a new slice are.
#[derive(Debug, Clone)]
enum SliceSource {
    /// In runs.
    Runs(SealJob),
    /// In slices, which it replaces.
    Slices(OldSlices),
}

/// Bytes of an identity in a slice file, at most, with its part of the filter; and in one that is a filter only.
const BYTES_OF_ID: u64 = 32;
const BYTES_IN_FILTER: u64 = 8;

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
    pub fn seal(store: &SledStore, job: SealJob) -> Self {
        let group =
            store.engine.group_of(job.kind.window(job.partitions.first().map_or(0, |of| of.partition)));
        let is_urgent = job.is_urgent;
        Self::start(store, group, is_urgent, SliceSource::Runs(job))
    }

    /// Starts to merge slices of a group; `None` when that is not needed. `is_urgent`: as [`SealJob::is_urgent`].
    pub fn merge(store: &SledStore, group: SliceGroup, is_urgent: bool) -> Option<Self> {
        let slices = with_owners(store, group);
        let live = live_owners(store, group, &slices);
        let count = |(slice, live): (&Arc<SealedSlice>, &Vec<SlicePartition>)| {
            let live: u64 = live.iter().map(SlicePartition::owners).sum();
            // Of these, some may have been dropped.
            let left = live.saturating_sub(slice.entry.forgotten.len() as u64);
            (slice.slice.footer().ids, left.max(u64::from(live > 0)))
        };
        let counts: Vec<_> = slices.iter().zip(&live).map(count).collect();
        let run = to_merge(&counts)?;
        let merged = slices.get(run.clone()).unwrap_or_default().to_vec();
        let live = joined(live.get(run).unwrap_or_default());
        let source = SliceSource::Slices(OldSlices { slices: merged, live, only_filter: None });
        Some(Self::start(store, group, is_urgent, source))
    }

    /// Starts to replace the oldest slices by a filter; `None` when there are none that the job allows.
    pub fn filter(store: &SledStore, job: &FilterJob) -> Option<Self> {
        let group = job.windows.first().map(|window| store.engine.group_of(*window))?;
        let mut slices = with_owners(store, group);
        let times: Vec<_> = slices.iter().map(|slice| slice.time_ms).collect();
        slices.truncate(to_filter(&times, (job.before_ms, job.span_ms)));
        let live = joined(&live_owners(store, group, &slices));
        if live.is_empty() {
            return None;
        }
        let source = SliceSource::Slices(OldSlices { slices, live, only_filter: Some(job.bits) });
        Some(Self::start(store, group, false, source))
    }

    fn start(store: &SledStore, group: SliceGroup, is_urgent: bool, source: SliceSource) -> Self {
        let number = store.engine.segments.allocate();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let (reader, from, cancelled) = (store.clone(), source.clone(), Arc::clone(&is_cancelled));
        let write = move || {
            if !is_urgent {
                yield_to_others();
            }
            let written = write(&reader, (group, number), &from, &|| cancelled.load(Ordering::Relaxed));
            if written.is_err() {
                // At once: on a full disk the worker needs its space.
                drop(reader.engine.segments.delete(number));
            }
            written
        };
        let thread = thread::Builder::new().name("store-seal".to_owned()).spawn(write).ok();
        Self { group, number, source, is_void: false, is_cancelled, thread }
    }

    /// Called when the owners of a window at or beyond `from`, or one of them, are removed.
    pub fn removed(&mut self, window: WindowId, from: Offset) {
        if let SliceSource::Runs(job) = &self.source {
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

    /// Registers the slice that was written, or deletes it. An error is one of sled or of a registered file.
    pub fn finish(mut self, engine: &Engine) -> Result<EndedTask, StoreError> {
        let failed = |cause: &str| Err(StoreError::Io(cause.to_owned()));
        let written = match self.thread.take().map(JoinHandle::join) {
            None => {
                failed("the system has no thread that writes a slice; raise its limit (ulimit -u, pids.max)")
            }
            Some(Err(_)) => failed("the thread that writes a slice panicked; please report this bug"),
            Some(Ok(written)) => written,
        };
        engine.check()?;
        // What it read may have been removed meanwhile.
        let written = if self.is_void { Ok(None) } else { StoreError::unless_lease_lost(written) };
        // After an error of sled it may refer to the file. If not, the next start deletes it.
        let registered = written.map(|slice| slice.map_or(Ok(None), |slice| self.register(engine, slice)));
        let registered = registered.map_or_else(|cause| Ok(Err(cause)), |registered| registered.map(Ok))?;
        if !matches!(registered, Ok(Some(IsUsed(true)))) {
            drop(engine.segments.delete(self.number));
        }
        let job = if let SliceSource::Runs(job) = &self.source { Some(job.clone()) } else { None };
        let (group, is_new) = (self.group, job.is_some());
        Ok(EndedTask {
            group,
            is_new,
            done: registered.map(|registered| job.filter(|_| registered.is_some())),
        })
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
                SliceSource::Runs(_) => {
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
        SliceSource::Runs(job) => (&job.partitions, OwnerScan::Everything, None),
        SliceSource::Slices(old) => (&old.live, OwnerScan::ByPosition, old.only_filter),
    };
    let ids: u64 = partitions.iter().map(SlicePartition::owners).sum();
    let (hash, kind) = (engine.binding.hash, group.kind);
    let file = fastrand::u64(..);
    let coverage = SliceCoverage { file, hash, kind, partitions: partitions.clone(), only_filter };
    let refused = |e: SliceError| StoreError::Io(format!("slice file {number} is not used: {e}"));
    let bytes = ids.saturating_mul(if only_filter.is_some() { BYTES_IN_FILTER } else { BYTES_OF_ID });
    let file_error = |what, cause| engine.file_error(what, number, &cause);
    engine.segments.has_room(bytes).map_err(|cause| file_error("write", cause))?;
    let mut builder = SliceBuilder::new(coverage, engine.positions, ids, read).map_err(refused)?;
    let scan = |positions: RangeInclusive<u64>, offer: OfferOwner<'_>| match source {
        SliceSource::Runs(job) => offer_runs(store, job, offer, is_cancelled),
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
        written.map_err(|cause| file_error("write", cause))
    };
    while builder.needs_pass() {
        scan(builder.positions(), &mut |identity, owner| builder.offer(identity, owner))?;
        builder.end_pass(&mut append, refused)?;
    }
    if builder.offered() < promised(store, group, source)? {
        return Err(refused(SliceError::Inconsistent("its sources have fewer owners than they promise")));
    }
    builder.finish(append)?;
    check()?;
    engine.segments.sync_bytes(number).map_err(|cause| file_error("fsync", cause))?;
    // The directory has registered files too.
    engine.durable(engine.segments.sync_entry(number))?;
    // Read back, so that what is looked up in is what a start will find.
    read_slice(&engine.segments.path(number), check, |error| match error {
        SliceReadError::Io(cause) => file_error("read", cause),
        SliceReadError::Damaged(cause) => refused(cause),
    })
}

/// Number of owners that the sources have: those in registered slices, or as the marks count those in runs.
fn promised(store: &SledStore, group: SliceGroup, source: &SliceSource) -> Result<u64, StoreError> {
    let job = match source {
        SliceSource::Slices(old) => return Ok(old.slices.iter().map(|slice| slice.slice.footer().ids).sum()),
        SliceSource::Runs(job) => job,
    };
    let mut promised = 0;
    for of in &job.partitions {
        // The worker may have dropped the oldest ones meanwhile.
        let stored = store.first_stored(group.kind.window(of.partition))?;
        let firsts = iter::once(of.first).chain(of.marks.iter().map(|mark| mark.next));
        let marks = of.marks.iter().zip(firsts).filter(|(_, first)| *first >= stored);
        promised += marks.map(|(mark, _)| mark.count).sum::<u64>();
    }
    Ok(promised)
}

fn offer_runs(
    store: &SledStore,
    job: &SealJob,
    offer: OfferOwner<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    for of in &job.partitions {
        let (window, partition) = (job.kind.window(of.partition), of.partition);
        let mut offer = |offset, identity| offer(identity, Some(Coordinates { partition, offset }));
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
        offer(identity, Some(owner).filter(|owner| is_live && slice.has(*owner)));
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
