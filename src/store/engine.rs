//! The open database. After the start (`open`, `verify`), every sled call goes through this module, which classifies each failure.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Batch, IVec, Tree};

use super::binding::Binding;
use super::directory::{condemn, delete_quarantined};
use super::disk::Disk;
use super::entry::{BlockEntry, BlockPlace, FoundBlock, Location};
use super::error::{is_damage, is_full, is_missing_data, remedy};
use super::files::Files;
use super::guard::catch_panic;
use super::index::{BlockIndex, Indexed};
use super::keys;
use super::parts::EncodedBlock;
use super::sealed::SealedSlices;
use super::segments::{Readers, Segments};
use crate::dedupe::{Block, BlockView, Offset, Positions, WindowId};
use crate::ports::{Head, StoreError};

/// Maximum operations in one batch. sled 0.34 leaks memory with batches of several hundred.
pub(super) const BATCH: usize = 100;
/// A flush is due after this many bytes were passed to sled. A flush writes a few times as many bytes, because sled
/// rewrites whole nodes. The written bytes should stay below a few sled segments: each segment is a task for one of
/// sled's seven I/O threads. When all seven wait for a lock whose holder waits for an eighth task (the truncation of
/// the file), sled deadlocks. (Observed with segments of 256 KiB and a flush after 1 MiB; see docs/pitfalls.md.)
const FLUSH_BYTES: usize = 128 * 1024;
/// Bytes in block files count `1 / FILE_DIVISOR` towards the next flush: for them, a flush is needed only to delete
/// expired files.
const FILE_DIVISOR: usize = 8;
/// Approximate overhead of one operation in sled's log, in bytes.
pub(super) const OPERATION_BYTES: usize = 1024;

pub(super) struct Engine {
    /// The database, for flushing.
    pub db: sled::Db,
    /// Tree of entries, one for each filed block.
    pub entries: Tree,
    /// Tree of records and waiting blocks.
    pub waiting: Tree,
    /// Tree of sealed slices.
    pub slices: Tree,
    /// The sealed slices.
    pub sealed: SealedSlices,
    /// The files of the filed blocks and of the slices.
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
    /// The index of each window. Locked while the window is changed, and never while a visitor runs.
    pub windows: Mutex<HashMap<WindowId, SharedIndex>>,
}

/// The index of one window, shared by all handles: a window may move from one worker to another and back.
pub(super) type SharedIndex = Arc<Mutex<BlockIndex>>;

/// A change of one window.
#[derive(Debug, Default)]
pub(super) struct WindowChange {
    /// The head to set, if it changes.
    pub head: Option<Head>,
    /// First offsets of the blocks to remove.
    pub remove: Vec<Offset>,
    /// Blocks to add. A block replaces the one with the same first offset.
    pub insert: Vec<EncodedBlock>,
}

impl WindowChange {
    /// Sets the head only.
    pub(super) fn head(head: Head) -> Self {
        Self { head: Some(head), ..Self::default() }
    }

    /// Whether it moves a block of a file: one that is compacted or shortened keeps its first offset.
    fn moves_filed(&self, index: &BlockIndex) -> bool {
        let is_filed =
            |block: &EncodedBlock| index.get(block.first).is_some_and(|old| old.location().is_some());
        self.insert.iter().any(is_filed)
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

    /// An error of the file system on a block file.
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

    /// Damage found in a block.
    pub(super) fn bad_block(&self, found: &FoundBlock, cause: &dyn fmt::Display) -> StoreError {
        let FoundBlock { window, first, entry } = found;
        let place = entry.location().map(|Location { file, at, .. }| format!(", in file {file} at {at}"));
        let place = place.unwrap_or_default();
        self.damaged("read", &format!("block of partition {window} at {first}{place}: {cause}"))
    }

    /// The index of a window.
    pub(super) fn index(&self, window: WindowId) -> SharedIndex {
        let mut windows = self.lock_windows();
        let index = windows.entry(window).or_insert_with(|| Arc::new(Mutex::new(BlockIndex::new(window))));
        Arc::clone(index)
    }

    pub(super) fn lock_windows(&self) -> MutexGuard<'_, HashMap<WindowId, SharedIndex>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the bytes of a block. Bytes read from a file are verified; sled itself checks what it reads from disk. The
    /// inner error describes a block that is missing or damaged.
    pub(super) fn read(
        &self,
        found: &FoundBlock,
        readers: &mut Readers,
    ) -> Result<Result<IVec, String>, StoreError> {
        let Some(location) = found.entry.location() else {
            let bytes = self.call("read", || self.waiting.get(keys::block(found.window, found.first)))?;
            return Ok(bytes.ok_or_else(|| "it is missing".to_owned()));
        };
        Ok(match readers.read(&self.segments, &found.entry, location) {
            Ok(bytes) => found.verify(bytes).map(|()| IVec::from(bytes)),
            Err(cause) if is_missing_data(&cause) => Err(cause.to_string()),
            Err(cause) => return Err(self.file_error("read", location.file, &cause)),
        })
    }

    /// Reads the bytes of a block while its index is locked: one that cannot be read is damaged.
    pub(super) fn bytes(&self, found: &FoundBlock, readers: &mut Readers) -> Result<IVec, StoreError> {
        self.read(found, readers)?.map_err(|cause| self.bad_block(found, &cause))
    }

    /// Reads and decodes a block while its index is locked.
    pub(super) fn block(&self, found: &FoundBlock) -> Result<Block, StoreError> {
        let bytes = self.bytes(found, &mut Readers::default())?;
        Block::decode(&bytes).map_err(|cause| self.bad_block(found, &cause))
    }

    /// Parses a block that was verified when it was read or when the store was opened, or that this process wrote.
    pub(super) fn view<'a>(&self, found: &FoundBlock, bytes: &'a [u8]) -> Result<BlockView<'a>, StoreError> {
        BlockView::trusted(bytes).map_err(|cause| self.bad_block(found, &cause))
    }

    /// Applies a change in batches: removals in their order, then insertions, and the head with the last batch. Each
    /// batch is atomic and contains the matching record.
    pub(super) fn commit(&self, index: &mut BlockIndex, mut change: WindowChange) -> Result<(), StoreError> {
        let (mut remove, mut insert) = (change.remove.into_iter(), change.insert.into_iter());
        while remove.len() + insert.len() > 0 || change.head.is_some() {
            let remove_now: Vec<_> = remove.by_ref().take(BATCH - 1).collect();
            let insert_now: Vec<_> = insert.by_ref().take(BATCH - 1 - remove_now.len()).collect();
            let head = if remove.len() + insert.len() == 0 { change.head.take() } else { None };
            self.commit_batch(index, WindowChange { head, remove: remove_now, insert: insert_now })?;
        }
        Ok(())
    }

    /// The index is changed before sled. This is safe because a failed write is final: nothing reads the index after it.
    fn commit_batch(&self, index: &mut BlockIndex, change: WindowChange) -> Result<(), StoreError> {
        let window = index.window;
        let mut weight = (change.remove.len() + change.insert.len() + 1) * OPERATION_BYTES;
        let places = self.write_filed(&index.files, &change.insert)?;
        if change.moves_filed(index) {
            self.sync_places(&places)?;
        }
        let mut batches = Batches::default();
        for first in change.remove {
            if let Some(old) = index.remove(first) {
                batches.of(old.place).remove(&keys::block(window, first));
            }
        }
        for (block, place) in change.insert.into_iter().zip(places) {
            let (key, bytes) = (keys::block(window, block.first), block.bytes.len());
            let EncodedBlock { next, identities, .. } = block;
            let entry =
                BlockEntry { next, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), identities, place };
            let view = BlockView::trusted(&block.bytes)
                .map_err(|cause| self.damaged("write", &cause.to_string()))?;
            if let Some(old) = index.insert(block.first, Indexed::cached(entry, &view)) {
                batches.of(old.place).remove(&key);
            }
            let (value, bytes) = match place {
                BlockPlace::File(location) => (entry.encode(location), bytes / FILE_DIVISOR),
                BlockPlace::Waiting { .. } => (block.bytes, bytes),
            };
            batches.of(place).insert(&key, value);
            weight += bytes;
        }
        index.head = Some(change.head.or(index.head).unwrap_or_default());
        batches.waiting.insert(&keys::record(window), index.record().encode(window));
        self.write("write", || self.apply(batches))?;
        index.limit_cached(self.cache_bytes / self.lock_windows().len().max(1) as u64);
        // After the insertions: a new block may be in a file that the removals would otherwise leave empty.
        self.segments.retire(index.files.take_empty());
        self.flush_when_due(weight)
    }

    /// Makes the files of these blocks durable.
    ///
    /// sled makes an entry durable at any time after the change: it flushes every 500 ms, and in every thread. If the entry of
    /// a moved block came first, a power loss would leave neither the new bytes nor an entry for the old ones. Other blocks
    /// need no sync (docs/decisions/0039).
    fn sync_places(&self, places: &[BlockPlace]) -> Result<(), StoreError> {
        let file = places.iter().find_map(|place| match place {
            BlockPlace::File(Location { file, .. }) => Some(*file),
            BlockPlace::Waiting { .. } => None,
        });
        file.map_or(Ok(()), |file| self.durable(self.segments.sync_file(file)))
    }

    /// Writes the filed blocks to one of the window's files. Returns where each block is.
    fn write_filed(&self, files: &Files, blocks: &[EncodedBlock]) -> Result<Vec<BlockPlace>, StoreError> {
        let target = blocks.iter().any(|block| block.goes_to_file).then(|| files.current());
        let target = target.map(|current| current.unwrap_or_else(|| (self.segments.allocate(), 0)));
        let size = blocks.iter().filter(|block| block.goes_to_file).map(|block| block.bytes.len()).sum();
        let (mut bytes, mut places) = (Vec::with_capacity(size), Vec::with_capacity(blocks.len()));
        for block in blocks {
            let Some((file, begin)) = target.filter(|_| block.goes_to_file) else {
                places.push(BlockPlace::Waiting { time_ms: block.time_ms });
                continue;
            };
            let (at, crc) = (begin + bytes.len() as u64, Block::checksum(&block.bytes));
            places.push(BlockPlace::File(Location { file, at, crc }));
            bytes.extend_from_slice(&block.bytes);
        }
        if let Some((file, begin)) = target {
            let written = self.segments.write(file, begin, &bytes);
            written.map_err(|cause| self.fail(self.file_error("write", file, &cause)))?;
        }
        Ok(places)
    }

    fn apply(&self, batches: Batches) -> sled::Result<()> {
        let Batches { entries, waiting } = batches;
        let Some(entries) = entries else { return self.waiting.apply_batch(waiting) };
        let result = (&self.entries, &self.waiting).transaction(|(into_entries, into_waiting)| {
            into_entries.apply_batch(&entries)?;
            into_waiting.apply_batch(&waiting)?;
            Ok::<(), ConflictableTransactionError<sled::Error>>(())
        });
        result.map_err(|error| match error {
            TransactionError::Abort(cause) | TransactionError::Storage(cause) => cause,
        })
    }

    /// Deletes the record of a window without blocks.
    pub(super) fn delete_record(&self, window: WindowId) -> Result<(), StoreError> {
        self.write("write", || self.waiting.remove(keys::record(window))).map(drop)
    }

    pub(super) fn flush_when_due(&self, bytes: usize) -> Result<(), StoreError> {
        if self.unflushed.fetch_add(bytes, Ordering::Relaxed) + bytes >= FLUSH_BYTES {
            self.unflushed.store(0, Ordering::Relaxed);
            self.flush()?;
        }
        Ok(())
    }

    /// Flushes and syncs sled, then deletes the files that its index no longer refers to. Blocks that were moved from them were
    /// synced before their entries changed ([`Engine::sync_places`]).
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

    /// Makes the index and the names of the block files durable, as they were found. A killed process may have moved blocks
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
        let Self { db, entries, waiting, slices, file, .. } = self;
        drop((db, entries, waiting, slices));
        file.lock()?;
        file.unlock()
    }
}

/// The operations of one atomic batch, by tree.
#[derive(Default)]
struct Batches {
    entries: Option<Batch>,
    waiting: Batch,
}

impl Batches {
    fn of(&mut self, place: BlockPlace) -> &mut Batch {
        match place {
            BlockPlace::File(_) => self.entries.get_or_insert_default(),
            BlockPlace::Waiting { .. } => &mut self.waiting,
        }
    }
}
