//! Writes a slice in a thread: a new one from runs, or one that replaces others.
//!
//! The thread only reads what is registered, and writes a file that nothing refers to. The handle that started it registers the
//! slice afterwards, unless its owners have changed meanwhile.

use std::fs::File;
use std::iter;
use std::ops::{ControlFlow, RangeInclusive};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::SliceEntry;
use super::merging::{to_filter, to_merge};
use super::registry::registered_error;
use super::slices::{SealedSlice, SliceReadError, read_slice};
use crate::dedupe::{
    FilterBits, Identity, KnownOwner, OwnerRun, OwnerScan, SealedRange, Sequence, Slice, SliceBuilder,
    SliceCover, SliceCoverage, SliceError, StoredOwner, WindowId,
};
use crate::ports::{FilterJob, SealJob, StoreError};
use crate::store::engine::Engine;
use crate::store::owners::SledStore;

/// Receives the owners of the sources of a slice; `None` for one that does not count any more.
type OfferOwner<'a> = &'a mut dyn FnMut(Identity, Option<KnownOwner>);

/// A slice that is being written.
pub(in crate::store) struct SealTask {
    window: WindowId,
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
    pub window: WindowId,
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
const BYTES_OF_ID: u64 = 40;
const BYTES_IN_FILTER: u64 = 8;

/// Whether the file of a task is used.
struct IsUsed(bool);

/// Slices that are replaced by one; each follows the one before it.
#[derive(Debug, Clone)]
struct OldSlices {
    slices: Vec<Arc<SealedSlice>>,
    /// The bits of the new slice, if it is a filter only.
    only_filter: Option<FilterBits>,
}

impl OldSlices {
    /// Their owners.
    fn range(&self) -> SealedRange {
        let ranges: Vec<_> = self.slices.iter().map(|slice| slice.range()).collect();
        let first = ranges.first().map_or(0, |range| range.first);
        let next = ranges.last().map_or(0, |range| range.next);
        SealedRange { first, next, marks: ranges.into_iter().flat_map(|range| range.marks).collect() }
    }

    fn cover(&self) -> SliceCover {
        let mut cover = SliceCover::default();
        for slice in &self.slices {
            slice.partitions().for_each(|of| cover.add(of));
            let (first, last) = slice.owner_time_ms();
            cover.add_times(first, last);
            cover.add_rule(slice.footer().owners.cover().rule);
        }
        cover
    }
}

impl SealTask {
    /// Starts to write a slice with these owners.
    pub fn seal(store: &SledStore, job: SealJob) -> Self {
        let (window, is_urgent) = (job.window, job.is_urgent);
        Self::start(store, window, is_urgent, SliceSource::Runs(job))
    }

    /// Starts to merge slices of a window; `None` when that is not needed. `is_urgent`: as [`SealJob::is_urgent`].
    pub fn merge(store: &SledStore, window: WindowId, is_urgent: bool) -> Option<Self> {
        let slices = with_owners(store, window);
        // Others may have been undone.
        let counts: Vec<_> = slices.iter().map(|slice| (slice.footer().ids, slice.ids().max(1))).collect();
        let slices = slices.get(to_merge(&counts)?)?.to_vec();
        let source = SliceSource::Slices(OldSlices { slices, only_filter: None });
        Some(Self::start(store, window, is_urgent, source))
    }

    /// Starts to replace the oldest slices by a filter; `None` when there are none that the job allows.
    pub fn filter(store: &SledStore, job: &FilterJob) -> Option<Self> {
        let mut slices = with_owners(store, job.window);
        let times: Vec<_> = slices.iter().map(|slice| slice.footer().range.time_ms()).collect();
        slices.truncate(to_filter(&times, job.before_ms, job.span_ms));
        if slices.is_empty() {
            return None;
        }
        let source = SliceSource::Slices(OldSlices { slices, only_filter: Some(job.bits) });
        Some(Self::start(store, job.window, false, source))
    }

    fn start(store: &SledStore, window: WindowId, is_urgent: bool, source: SliceSource) -> Self {
        let number = store.engine.segments.allocate();
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let (reader, from, cancelled) = (store.clone(), source.clone(), Arc::clone(&is_cancelled));
        let write = move || {
            if !is_urgent {
                yield_to_others();
            }
            let written = write(&reader, window, number, &from, &|| cancelled.load(Ordering::Relaxed));
            if written.is_err() {
                // At once: on a full disk the worker needs its space.
                drop(reader.engine.segments.delete(number));
            }
            written
        };
        let thread = thread::Builder::new().name("store-seal".to_owned()).spawn(write).ok();
        Self { window, number, source, is_void: false, is_cancelled, thread }
    }

    /// Called when owners of a window with these numbers or higher ones are removed from runs.
    pub fn removed(&mut self, window: WindowId, from: Sequence) {
        if let SliceSource::Runs(job) = &self.source {
            self.is_void |= job.window == window && job.range.next > from;
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
        let (window, is_new) = (self.window, job.is_some());
        let done = registered.map(|registered| job.filter(|_| registered.is_some()));
        Ok(EndedTask { window, is_new, done })
    }

    /// Returns `None` when the slices that it replaces have changed. A slice is not used if all of its owners were forgotten.
    fn register(&self, engine: &Engine, slice: Slice) -> Result<Option<IsUsed>, StoreError> {
        let (footer, is_used) = (slice.footer_checksum(), slice.footer().ids > 0);
        let entry = SliceEntry { footer, ..SliceEntry::default() };
        let new = SealedSlice { number: self.number, slice: Arc::new(slice), entry };
        let new = is_used.then(|| Arc::new(new));
        let mut is_registered = false;
        engine.change_slices(self.window, |slices| {
            let mut changed = slices.to_vec();
            match &self.source {
                SliceSource::Runs(_) => changed.extend(new),
                SliceSource::Slices(OldSlices { slices: old, .. }) => {
                    let first = old.first()?;
                    let at = slices.iter().position(|slice| Arc::ptr_eq(first, slice))?;
                    let run = at..at + old.len();
                    let is_same = slices.get(run.clone())?.iter().zip(old).all(|(a, b)| Arc::ptr_eq(a, b));
                    is_same.then(|| changed.splice(run, new).for_each(drop))?;
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

/// The slices of a window that have owners.
fn with_owners(store: &SledStore, window: WindowId) -> Vec<Arc<SealedSlice>> {
    store.engine.slices_of(window).iter().filter(|slice| slice.slice.has_owners()).cloned().collect()
}

fn write(
    store: &SledStore,
    window: WindowId,
    number: u32,
    source: &SliceSource,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Slice, StoreError> {
    let engine = &*store.engine;
    let (range, cover, read, only_filter) = match source {
        SliceSource::Runs(job) => (job.range.clone(), SliceCover::default(), OwnerScan::Everything, None),
        SliceSource::Slices(old) => (old.range(), old.cover(), OwnerScan::ByPosition, old.only_filter),
    };
    let (ids, hash, file) = (range.owners(), engine.binding.hash, fastrand::u64(..));
    let coverage = SliceCoverage { file, hash, window, range, cover, only_filter };
    let refused = |e: SliceError| StoreError::Io(format!("slice file {number} is not used: {e}"));
    let bytes = ids.saturating_mul(if only_filter.is_some() { BYTES_IN_FILTER } else { BYTES_OF_ID });
    let file_error = |what, cause| engine.file_error(what, number, &cause);
    engine.segments.has_room(bytes).map_err(|cause| file_error("write", cause))?;
    let mut builder = SliceBuilder::new(coverage, engine.positions, read);
    let scan = |positions: RangeInclusive<u64>, offer: OfferOwner<'_>| match source {
        SliceSource::Runs(job) => offer_runs(store, job, offer, is_cancelled),
        SliceSource::Slices(old) => old
            .slices
            .iter()
            .try_for_each(|slice| offer_slice(engine, window, slice, positions.clone(), offer, is_cancelled)),
    };
    let mut at = 0;
    let check = || check(is_cancelled, window);
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
    if builder.offered() < promised(store, source)? {
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
fn promised(store: &SledStore, source: &SliceSource) -> Result<u64, StoreError> {
    let SealJob { window, range, .. } = match source {
        SliceSource::Slices(old) => return Ok(old.slices.iter().map(|slice| slice.footer().ids).sum()),
        SliceSource::Runs(job) => job,
    };
    // The worker may have dropped the oldest ones meanwhile.
    let stored = store.first_stored(*window)?;
    let firsts = iter::once(range.first).chain(range.marks.iter().map(|mark| mark.next));
    let marks = range.marks.iter().zip(firsts).filter(|(_, first)| *first >= stored);
    Ok(marks.map(|(mark, _)| mark.count).sum())
}

fn offer_runs(
    store: &SledStore,
    SealJob { window, range, .. }: &SealJob,
    offer: OfferOwner<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    let visit = &mut |run: &OwnerRun<'_>| {
        check(is_cancelled, *window)?;
        for (_, StoredOwner { at, time_ms, identity, digest }) in (run.number..range.next).zip(run.owners) {
            if let Some(identity) = *identity {
                offer(identity, Some(KnownOwner { at: *at, time_ms: *time_ms, digest: *digest }));
            }
        }
        Ok(if run.end() < range.next { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    };
    store.scan_runs(*window, range.first, visit).map(drop)
}

fn offer_slice(
    engine: &Engine,
    window: WindowId,
    slice: &SealedSlice,
    positions: RangeInclusive<u64>,
    offer: OfferOwner<'_>,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    // The worker may have dropped all owners of the slice meanwhile, and deleted the file.
    let failed = |error| registered_error(engine, window, slice.number, &error);
    let file = File::open(engine.segments.path(slice.number));
    let file = file.map_err(|cause| failed(SliceReadError::Io(cause)))?;
    let read = |at, bytes: &mut [u8]| {
        check(is_cancelled, window)?;
        file.read_exact_at(bytes, at).map_err(|cause| failed(SliceReadError::Io(cause)))
    };
    let damaged = |cause| failed(SliceReadError::Damaged(cause));
    slice.slice.scan(positions, read, damaged, |identity, owner| {
        offer(identity, Some(owner).filter(|owner| slice.has(identity, *owner)));
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
    let source = SliceSource::Slices(OldSlices { slices: with_owners(store, window), only_filter: None });
    let number = store.engine.segments.allocate();
    meanwhile(store);
    write(store, window, number, &source, is_cancelled)
}
