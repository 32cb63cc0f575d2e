//! The open database. After the start (`open`, `verify`), every sled call goes through this module, which classifies each failure.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sled::{Batch, Tree};

use super::binding::Binding;
use super::directory::{condemn, delete_quarantined};
use super::disk::Disk;
use super::error::{is_damage, is_full, is_missing_data, remedy};
use super::guard::catch_panic;
use super::index::WindowIndex;
use super::keys;
use super::leases::SharedWindow;
use super::record;
use super::run::Run;
use super::sealed::SealedSlices;
use super::segments::{Readers, Segments};
use crate::dedupe::{Positions, Sequence, StoredOwner, WindowId};
use crate::locked::Locked;
use crate::ports::{Head, StoreError};

/// Maximum operations in one batch. sled 0.34 leaks memory with batches of several hundred.
pub(super) const BATCH: usize = 100;
/// A flush is due after this many bytes were passed to sled. A flush writes a few times as many bytes, because sled
/// rewrites whole nodes. The written bytes should stay below a few sled segments: each segment is a task for one of
/// sled's seven I/O threads. When all seven wait for a lock whose holder waits for an eighth task (the truncation of
/// the file), sled deadlocks. (Observed with segments of 256 KiB and a flush after 1 MiB; see docs/pitfalls.md.)
const FLUSH_BYTES: usize = 128 * 1024;
/// Approximate overhead of one operation in sled's log, in bytes.
pub(super) const OPERATION_BYTES: usize = 1024;

pub(super) struct Engine {
    /// The database, for flushing.
    pub db: sled::Db,
    /// Tree of records and entries of runs.
    pub runs: Tree,
    /// Tree of sealed slices.
    pub slices: Tree,
    /// The sealed slices.
    pub sealed: SealedSlices,
    /// The files of the runs and of the slices.
    pub segments: Segments,
    /// The operations on files.
    pub disk: Arc<dyn Disk>,
    /// Approximate bytes written since the last flush.
    pub unflushed: AtomicUsize,
    /// A second handle of the database's file, kept open: the kernel reports a failed write-back once to every open
    /// file, so sled's own fsync cannot consume an error before we see it.
    pub file: File,
    /// Directory of the database.
    pub path: PathBuf,
    /// What the database belongs to.
    pub binding: Binding,
    pub positions: Positions,
    /// The first failure after which nothing can be trusted. Every later call returns it.
    pub failed: OnceLock<StoreError>,
    /// Most bytes of identities in memory. The windows have equal shares.
    pub cache_bytes: u64,
    /// The windows, each with its index.
    pub windows: Mutex<HashMap<WindowId, Arc<SharedWindow>>>,
    /// Number of handles with leases so far.
    pub handles: AtomicU64,
}

/// A change of one window.
#[derive(Debug, Default)]
pub(super) struct WindowChange {
    /// The head to set, if it changes.
    pub head: Option<Head>,
    /// The next number to set, if owners are removed from the end.
    pub next_number: Option<Sequence>,
    /// Numbers of the first owners of the runs to remove.
    pub remove: Vec<Sequence>,
    /// Runs to add. A run replaces the one with the same first number.
    pub insert: Vec<Run>,
}

impl WindowChange {
    /// Sets the head only.
    pub(super) fn head(head: Head) -> Self {
        Self { head: Some(head), ..Self::default() }
    }
}

impl Engine {
    /// Returns the first failure after which nothing can be trusted.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.failed.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Calls sled. A panic or damage condemns the database: the next open quarantines it.
    pub(super) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> sled::Result<T>,
    ) -> Result<T, StoreError> {
        self.check()?;
        match catch_panic(call) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(sled::Error::Io(cause))) if !is_damage(&cause) => {
                let (path, remedy) = (self.path.display(), self.remedy(&cause));
                Err(StoreError::Io(format!("{what} in {path}: {cause}; {remedy}")))
            }
            Ok(Err(cause)) => Err(self.damaged(what, &cause.to_string())),
            Err(panic) => Err(self.damaged(what, &format!("the engine panicked: {panic}"))),
        }
    }

    /// Condemns the database because of damage.
    pub(super) fn damaged(&self, what: &str, cause: &str) -> StoreError {
        self.condemn(StoreError::Corrupt(format!("{what} in {}: {cause}", self.path.display())))
    }

    /// Condemns the database: no further call succeeds, and the next open quarantines it.
    fn condemn(&self, failure: StoreError) -> StoreError {
        condemn(&self.path, &failure.to_string());
        self.fail(failure)
    }

    /// Makes a failure final: no further call succeeds.
    pub(super) fn fail(&self, failure: StoreError) -> StoreError {
        self.failed.get_or_init(|| failure).clone()
    }

    /// Calls sled to change the database. Every failure is final, because index and database may differ after it.
    pub(super) fn write<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> sled::Result<T>,
    ) -> Result<T, StoreError> {
        self.call(what, call).map_err(|failure| self.fail(failure))
    }

    /// An error of the file system on a file of owners or a slice.
    pub(super) fn file_error(&self, what: &str, file: u32, cause: &io::Error) -> StoreError {
        let path = self.segments.path(file);
        StoreError::Io(format!("{what} {}: {cause}; {}", path.display(), self.remedy(cause)))
    }

    /// What the operator can do about an error. On a full disk, quarantined databases are deleted.
    fn remedy(&self, cause: &io::Error) -> &'static str {
        if is_full(cause) {
            self.path.parent().map(delete_quarantined);
        }
        remedy(cause)
    }

    /// Damage found in a run.
    pub(super) fn bad_run(&self, window: WindowId, run: &Run, cause: &str) -> StoreError {
        let Run { number, file, at, .. } = run;
        let owners = format!("owners of journal {window} from number {number} on");
        self.damaged("read", &format!("{owners}, in file {file} at {at}: {cause}"))
    }

    /// What all handles share of a window.
    pub(super) fn window(&self, window: WindowId) -> Arc<SharedWindow> {
        let mut windows = self.windows.locked();
        Arc::clone(windows.entry(window).or_insert_with(|| SharedWindow::new(WindowIndex::new(window))))
    }

    /// Reads and verifies the owners of a run. The inner error describes owners that are missing or damaged.
    pub(super) fn read(
        &self,
        run: &Run,
        readers: &mut Readers,
    ) -> Result<Result<Vec<StoredOwner>, String>, StoreError> {
        let mut bytes = vec![0; run.bytes()];
        match readers.fill(&self.segments, run.file, run.at, &mut bytes) {
            Ok(()) => Ok(run.verified(&bytes)),
            Err(cause) if is_missing_data(&cause) => Ok(Err(cause.to_string())),
            Err(cause) => Err(self.file_error("read", run.file, &cause)),
        }
    }

    /// Reads the owners of a run while its index is locked: those that cannot be read are damaged.
    pub(super) fn owners(
        &self,
        window: WindowId,
        run: &Run,
        readers: &mut Readers,
    ) -> Result<Vec<StoredOwner>, StoreError> {
        self.read(run, readers)?.map_err(|cause| self.bad_run(window, run, &cause))
    }

    /// Writes owners to a file. They count once their run is committed.
    pub(super) fn write_owners(&self, file: u32, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.segments.write(file, at, bytes);
        written.map_err(|cause| self.fail(self.file_error("write", file, &cause)))
    }

    /// Most bytes of the newest owners of a window in memory.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cache_bytes / self.windows.locked().len().max(1) as u64
    }

    /// Applies a change in batches: removals in their order, then insertions, and the head and the next number with the last batch. Each
    /// batch is atomic and contains the matching record.
    pub(super) fn commit(&self, index: &mut WindowIndex, change: WindowChange) -> Result<(), StoreError> {
        let WindowChange { mut head, mut next_number, remove, insert } = change;
        let (mut remove, mut insert) = (remove.into_iter(), insert.into_iter());
        while remove.len() + insert.len() > 0 || head.is_some() || next_number.is_some() {
            let mut batch = Batch::default();
            let mut left = BATCH - 1;
            for number in remove.by_ref().take(left) {
                index.remove(number);
                batch.remove(&keys::run(index.window, number));
                left -= 1;
            }
            for run in insert.by_ref().take(left) {
                batch.insert(&keys::run(index.window, run.number), run.encode(index.window));
                index.insert(run);
                left -= 1;
            }
            if remove.len() + insert.len() == 0 {
                index.next_number = next_number.take().unwrap_or(index.next_number);
                index.head = head.take().or(index.head.take());
            }
            self.commit_batch(index, batch, BATCH - 1 - left)?;
        }
        Ok(())
    }

    /// Writes the record of a window of which only that has changed.
    pub(super) fn commit_record(&self, index: &mut WindowIndex) -> Result<(), StoreError> {
        self.commit_batch(index, Batch::default(), 0)
    }

    /// Writes changes of so many runs together with the record. The index is changed before sled. This is safe because a failed write is
    /// final: nothing reads the index after it.
    fn commit_batch(&self, index: &mut WindowIndex, mut batch: Batch, runs: usize) -> Result<(), StoreError> {
        let counts = index.counts();
        let record = record::encode(index.window, index.head.get_or_insert_default(), &counts);
        let weight = (runs + 1) * OPERATION_BYTES + record.len();
        batch.insert(&keys::record(index.window), record);
        self.write("write", || self.runs.apply_batch(batch))?;
        // After the insertions: a new run may be in a file that the removals would otherwise leave empty.
        self.segments.retire(index.files.take_empty());
        self.flush_when_due(weight)
    }

    /// Deletes the record of a window without owners.
    pub(super) fn delete_record(&self, window: WindowId) -> Result<(), StoreError> {
        self.write("write", || self.runs.remove(keys::record(window))).map(drop)
    }

    pub(super) fn flush_when_due(&self, bytes: usize) -> Result<(), StoreError> {
        if self.unflushed.fetch_add(bytes, Ordering::Relaxed) + bytes >= FLUSH_BYTES {
            self.unflushed.store(0, Ordering::Relaxed);
            self.flush()?;
        }
        Ok(())
    }

    /// Flushes and syncs sled, then deletes the files that its index no longer refers to.
    fn flush(&self) -> Result<(), StoreError> {
        let retired = self.segments.take_retired();
        self.write("flush", || self.db.flush())?;
        if !retired.is_empty() {
            self.durable(self.disk.sync_sled(&self.file))?;
        }
        let delete =
            |file: u32| self.segments.delete(file).map_err(|cause| self.file_error("delete", file, &cause));
        retired.into_iter().try_for_each(delete)
    }

    /// Makes the index and the names of the files durable, as they were found. A killed process may have written
    /// after the last sync of sled: then only the kernel's memory has the index that was verified, and the one on disk refers
    /// to files that look unused.
    pub(super) fn sync_found(&self) -> Result<(), StoreError> {
        self.durable(self.disk.sync_sled(&self.file))?;
        self.durable(self.segments.sync())
    }

    /// Makes all earlier writes durable, in the segment files and in sled.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.durable(self.segments.sync())?;
        self.flush()?;
        self.durable(self.disk.sync_sled(&self.file))
    }

    /// A failed fsync is never retried: the kernel may have dropped the pages, and a second fsync would report
    /// success.
    pub(super) fn durable(&self, synced: io::Result<()>) -> Result<(), StoreError> {
        synced.map_err(|cause| {
            self.remedy(&cause);
            self.condemn(StoreError::Io(format!(
                "fsync of {}: {cause}; recent writes may be lost; restart to rebuild the state",
                self.path.display()
            )))
        })
    }
}

impl Engine {
    /// Closes the database and waits until sled has released the file's lock. sled's tasks hold it for a moment
    /// longer, and opening the database again immediately would fail.
    pub(super) fn close(self) -> io::Result<()> {
        let Self { db, runs, slices, file, .. } = self;
        drop((db, runs, slices));
        file.lock()?;
        file.unlock()
    }
}
