//! The open database. Every sled call goes through this module, and every failure is classified here.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Batch, Tree};

use super::entry::Entry;
use super::error::{needs_operator, remedy};
use super::files::Files;
use super::guard::catch_panic;
use super::keys::{self, Key};
use super::quarantine::condemn;
use super::record::Record;
use super::segments::{Readers, Segments};
use super::tail::{BlockMeta, EncodedBlock, Place, Tail};
use crate::dedupe::{Block, BlockError, HashKind, Offset, WindowId};
use crate::ports::{Head, StoreError};

/// Maximum operations in one batch. sled 0.34 leaks memory with batches of several hundred.
pub(super) const BATCH: usize = 100;
/// A flush is due after this many bytes were passed to sled. A flush writes a few times as many bytes, because sled
/// rewrites whole nodes. The written bytes should stay below a few sled segments: each segment is a task for one of
/// sled's seven I/O threads. When all seven wait for a lock whose holder waits for an eighth task (the truncation of
/// the file), sled deadlocks. (Observed with segments of 256 KiB and a flush after 1 MiB; see ARCHITECTURE.md.)
const FLUSH_BYTES: usize = 128 * 1024;
/// Bytes in block files count `1 / FILE_DIVISOR` towards the next flush: for them, a flush is needed only to delete
/// expired files.
const FILE_DIVISOR: usize = 8;
/// Approximate overhead of one operation in sled's log, in bytes.
const OPERATION_BYTES: usize = 1024;

/// One open database.
pub(super) struct Engine {
    /// The database, for flushing.
    pub db: sled::Db,
    /// Tree of entries, one for each settled block.
    pub settled: Tree,
    /// Tree of records and waiting blocks.
    pub waiting: Tree,
    /// The files of the settled blocks.
    pub segments: Segments,
    /// Approximate bytes written since the last flush.
    pub unflushed: AtomicUsize,
    /// A second handle of the database's file, kept open: the kernel reports a failed write-back once to every open
    /// file, so sled's own fsync cannot consume an error before we see it.
    pub file: File,
    /// Directory of the database.
    pub path: PathBuf,
    /// The hash of the identities in all blocks.
    pub hash: HashKind,
    /// Approximate memory limit of the block caches of all handles together, in bytes.
    pub cache_bytes: u64,
    /// The first failure after which nothing can be trusted. Every later call returns it.
    pub failed: OnceLock<StoreError>,
    /// The tails that appends keep in memory, shared by all handles: a window may move from one worker to another
    /// and back. A tail is taken out while in use, so that the lock is never held during I/O.
    pub tails: Mutex<HashMap<WindowId, Tail>>,
}

/// A stored block to remove.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal {
    /// The tree that holds it.
    pub place: Place,
    /// Its key.
    pub key: Key,
    /// Number of identities in it.
    pub identities: u64,
    /// Its index entry, if it is settled.
    pub entry: Option<Entry>,
}

impl Engine {
    /// Calls sled. A panic or damage condemns the database: the next open quarantines it.
    pub(super) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> sled::Result<T>,
    ) -> Result<T, StoreError> {
        if let Some(failure) = self.failed.get() {
            return Err(failure.clone());
        }
        match catch_panic(call) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(sled::Error::Io(cause))) if !is_damage(&cause) => {
                let (path, remedy) = (self.path.display(), remedy(&cause));
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

    /// Condemns the database: no further call succeeds.
    pub(super) fn condemn(&self, failure: StoreError) -> StoreError {
        condemn(&self.path, &failure.to_string());
        self.failed.get_or_init(|| failure).clone()
    }

    /// Damage found while decoding the block at `first`.
    pub(super) fn bad_block(&self, window: WindowId, first: Offset, cause: &BlockError) -> StoreError {
        self.damaged("read", &format!("block of partition {window} at {first}: {cause}"))
    }

    /// Takes a window's tail, and loads it if it is not in memory. The tail is not put back after a failed call,
    /// so that the next call loads it again.
    pub(super) fn take_tail(&self, window: WindowId) -> Result<Tail, StoreError> {
        let taken = self.tails().remove(&window);
        taken.map_or_else(|| self.load_tail(window), Ok)
    }

    /// Stores a window's tail for the next call.
    pub(super) fn put_tail(&self, window: WindowId, tail: Tail) {
        self.tails().insert(window, tail);
    }

    /// Drops a window's tail.
    pub(super) fn forget_tail(&self, window: WindowId) {
        self.tails().remove(&window);
    }

    pub(super) fn tails(&self) -> MutexGuard<'_, HashMap<WindowId, Tail>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_tail(&self, window: WindowId) -> Result<Tail, StoreError> {
        let mut tail = Tail { record: self.record(window)?, ..Tail::default() };
        let mut settled = self.blocks(Place::Settled, window);
        while let Some(found) = settled.next()? {
            if let Some(entry) = found.removal().entry {
                tail.files.add(found.first, &entry);
            }
        }
        for file in tail.files.numbers() {
            let size = self.segments.size(file).map_err(|cause| self.file_error("measure", file, &cause))?;
            tail.files.set_size(file, size);
        }
        self.reload_end(window, &mut tail)?;
        Ok(tail)
    }

    /// Reloads the end of a window after blocks were removed there.
    pub(super) fn reload_end(&self, window: WindowId, tail: &mut Tail) -> Result<(), StoreError> {
        tail.oldest_next = 0;
        tail.waiting_blocks.clear();
        tail.end = self.blocks(Place::Settled, window).next_back()?.map_or(0, |last| last.next);
        let mut waiting = self.blocks(Place::Waiting, window);
        while let Some(found) = waiting.next()? {
            let bytes = self.bytes(&found, &mut Readers::default())?;
            tail.end = found.next;
            tail.waiting_blocks.push(BlockMeta::of(&self.trusted(window, &bytes)?, bytes.len()));
        }
        Ok(())
    }

    /// Returns the tree of a place.
    pub(super) fn tree(&self, place: Place) -> &Tree {
        match place {
            Place::Settled => &self.settled,
            Place::Waiting => &self.waiting,
        }
    }

    /// The stored record.
    pub(super) fn record(&self, window: WindowId) -> Result<Option<Record>, StoreError> {
        let Some(bytes) = self.call("read", || self.waiting.get(window.number().to_be_bytes()))? else {
            return Ok(None);
        };
        let record = Record::decode(window, &bytes);
        let damage = || self.damaged("read", &format!("the record of partition {window} is damaged"));
        record.map(Some).ok_or_else(damage)
    }

    /// The waiting block at `first`.
    pub(super) fn waiting_block(&self, window: WindowId, first: Offset) -> Result<Block, StoreError> {
        let found = self.call("read", || self.waiting.get(keys::block(window, first)))?;
        let missing = || self.damaged("read", &format!("no block of partition {window} at {first}"));
        Block::decode(&found.ok_or_else(missing)?).map_err(|cause| self.bad_block(window, first, &cause))
    }

    /// Removes and inserts blocks and writes the matching record, in one atomic batch.
    pub(super) fn commit(
        &self,
        window: WindowId,
        tail: &mut Tail,
        head: Option<Head>,
        remove: &[Removal],
        insert: Vec<EncodedBlock>,
    ) -> Result<(), StoreError> {
        debug_assert!(remove.len() + insert.len() < BATCH);
        let mut record = tail.record.unwrap_or_default();
        record.head = head.unwrap_or(record.head);
        let removed: u64 = remove.iter().map(|removal| removal.identities).sum();
        let inserted: u64 = insert.iter().map(|encoded| encoded.meta.identities).sum();
        record.blocks = record.blocks.saturating_sub(remove.len() as u64) + insert.len() as u64;
        record.identities = record.identities.saturating_sub(removed) + inserted;

        let operations = remove.len() + insert.len() + 1;
        let weight = |encoded: &EncodedBlock| match encoded.place {
            Place::Settled => encoded.bytes.len() / FILE_DIVISOR,
            Place::Waiting => encoded.bytes.len(),
        };
        let bytes: usize = insert.iter().map(weight).sum();
        let entries = self.write_settled(&tail.files, &insert)?;
        let (mut settled, mut waiting) = (Batch::default(), Batch::default());
        for Removal { place, key, .. } in remove {
            batch_of(*place, &mut settled, &mut waiting).remove(key);
        }
        for (key, entry) in &entries {
            settled.insert(key, entry.encode());
        }
        let waits = |encoded: &EncodedBlock| encoded.place == Place::Waiting;
        for EncodedBlock { key, bytes, .. } in insert.into_iter().filter(waits) {
            waiting.insert(&key, bytes);
        }
        waiting.insert(&window.number().to_be_bytes(), record.encode(window));
        let both = !entries.is_empty() || remove.iter().any(|removal| removal.place == Place::Settled);
        self.call("write", || {
            if both { self.apply(&settled, &waiting) } else { self.waiting.apply_batch(waiting) }
        })?;
        tail.record = Some(record);
        // Add first: a new block may be in the file that the removals would otherwise leave empty.
        for (key, entry) in &entries {
            tail.files.add(keys::first(key), entry);
        }
        for (key, entry) in remove.iter().filter_map(|removal| Some((removal.key, removal.entry?))) {
            if tail.files.remove(keys::first(&key), &entry) {
                self.segments.retire(entry.file);
            }
        }
        self.flush_when_due(bytes + operations * OPERATION_BYTES)
    }

    /// Writes the settled blocks to one of the window's files and returns their entries.
    fn write_settled(&self, files: &Files, blocks: &[EncodedBlock]) -> Result<Vec<(Key, Entry)>, StoreError> {
        let settled = || blocks.iter().filter(|encoded| encoded.place == Place::Settled);
        if settled().next().is_none() {
            return Ok(Vec::new());
        }
        let (file, begin) = files.current().unwrap_or_else(|| (self.segments.allocate(), 0));
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        for EncodedBlock { key, bytes: block, meta, .. } in settled() {
            let entry = Entry {
                file,
                at: begin + bytes.len() as u64,
                bytes: u32::try_from(block.len()).unwrap_or(u32::MAX),
                crc: Block::checksum(block),
                next: meta.next,
                identities: meta.identities,
            };
            entries.push((*key, entry));
            bytes.extend_from_slice(block);
        }
        self.segments.write(file, begin, &bytes).map_err(|cause| self.file_error("write", file, &cause))?;
        Ok(entries)
    }

    fn apply(&self, settled: &Batch, waiting: &Batch) -> sled::Result<()> {
        let trees = (&self.settled, &self.waiting);
        let result = trees.transaction(|(into_settled, into_waiting)| {
            into_settled.apply_batch(settled)?;
            into_waiting.apply_batch(waiting)?;
            Ok::<(), ConflictableTransactionError<sled::Error>>(())
        });
        result.map_err(|error| match error {
            TransactionError::Abort(cause) | TransactionError::Storage(cause) => cause,
        })
    }

    fn flush_when_due(&self, bytes: usize) -> Result<(), StoreError> {
        if self.unflushed.fetch_add(bytes, Ordering::Relaxed) + bytes >= FLUSH_BYTES {
            self.unflushed.store(0, Ordering::Relaxed);
            self.flush()?;
        }
        Ok(())
    }

    /// Flushes sled, then deletes the files that its index no longer refers to.
    fn flush(&self) -> Result<(), StoreError> {
        let retired = self.segments.take_retired();
        self.call("flush", || self.db.flush())?;
        if !retired.is_empty() {
            self.durable(self.file.sync_all())?;
        }
        let delete =
            |file: u32| self.segments.delete(file).map_err(|cause| self.file_error("delete", file, &cause));
        retired.into_iter().try_for_each(delete)
    }

    /// Flushes and fsyncs.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.durable(self.segments.sync())?;
        self.flush()?;
        self.durable(self.file.sync_all())
    }

    /// A failed fsync is never retried: the kernel may have dropped the pages, and a second fsync would report
    /// success.
    pub(super) fn durable(&self, synced: io::Result<()>) -> Result<(), StoreError> {
        synced.map_err(|cause| {
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
        let Self { db, settled, waiting, file, .. } = self;
        drop((db, settled, waiting));
        file.lock()?;
        file.unlock()
    }
}

fn batch_of<'a>(place: Place, settled: &'a mut Batch, waiting: &'a mut Batch) -> &'a mut Batch {
    match place {
        Place::Settled => settled,
        Place::Waiting => waiting,
    }
}

/// Whether a failed call means damaged stored bytes rather than a failing disk.
fn is_damage(cause: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    !needs_operator(cause) && matches!(cause.kind(), InvalidData | InvalidInput | NotFound | UnexpectedEof)
}
