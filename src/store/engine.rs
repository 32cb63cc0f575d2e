//! The open database: every call of sled goes through here, and every failure is sorted here.

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
use super::guard::caught;
use super::keys::{self, Key};
use super::quarantine::condemn;
use super::record::Record;
use super::segments::{Readers, Segments};
use super::tail::{Packed, Piece, Place, Tail};
use crate::dedupe::{Block, BlockError, HashKind, Offset, PartitionId};
use crate::ports::{Head, StoreError};

/// Most operations in one batch; sled 0.34 leaks memory with batches of several hundred.
pub(super) const BATCH: usize = 100;
/// A flush is due after so many bytes given to sled. It writes a few times as many, because it writes nodes
/// anew, and that should stay below a few of its segments: each is a task for one of its seven I/O
/// threads, and when all of these wait for a lock whose holder waits for an eighth task, the shortening of the
/// file, it stands still for ever. (Seen with segments of 256 KiB and a flush after 1 MiB; ARCHITECTURE.md.)
const FLUSH_BYTES: usize = 128 * 1024;
/// Bytes in files count for less: a flush is due for deleting what has expired.
const FILED_SHARE: usize = 8;
/// What an operation costs sled's log beside its bytes, roughly.
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
    /// Bytes written since the last flush, roughly.
    pub unflushed: AtomicUsize,
    /// The database's file, opened once more by us and kept open: the kernel reports a failed
    /// write-back once to every open file, so sled's own fsync cannot swallow an error of ours.
    pub file: File,
    /// Its directory.
    pub path: PathBuf,
    /// The hash of every block.
    pub hash: HashKind,
    /// What all handles' caches of blocks may take together, roughly.
    pub cache_bytes: u64,
    /// The first failure after which nothing can be trusted; every later call returns it.
    pub failed: OnceLock<StoreError>,
    /// What appends remember, shared by all handles: a partition may move from one worker to
    /// another and back. Taken out while in use, so that the lock is never held over I/O.
    pub tails: Mutex<HashMap<PartitionId, Tail>>,
}

/// A stored block to remove.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal {
    /// In which tree.
    pub place: Place,
    /// Under which key.
    pub key: Key,
    /// How many identities go with it.
    pub identities: u64,
    /// Where it lies, when it is settled.
    pub entry: Option<Entry>,
}

impl Engine {
    /// Calls sled. A panic or damage condemns the database: it is set aside at the next opening.
    pub(super) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce() -> sled::Result<T>,
    ) -> Result<T, StoreError> {
        if let Some(failure) = self.failed.get() {
            return Err(failure.clone());
        }
        match caught(call) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(sled::Error::Io(cause))) if !is_damage(&cause) => {
                let (path, remedy) = (self.path.display(), remedy(&cause));
                Err(StoreError::Io(format!("{what} in {path}: {cause}; {remedy}")))
            }
            Ok(Err(cause)) => Err(self.damaged(what, &cause.to_string())),
            Err(panic) => Err(self.damaged(what, &format!("the engine panicked: {panic}"))),
        }
    }

    /// Ends the use of this database because of damage.
    pub(super) fn damaged(&self, what: &str, cause: &str) -> StoreError {
        self.condemn(StoreError::Corrupt(format!("{what} in {}: {cause}", self.path.display())))
    }

    /// Ends the use of this database.
    pub(super) fn condemn(&self, failure: StoreError) -> StoreError {
        condemn(&self.path, &failure.to_string());
        self.failed.get_or_init(|| failure).clone()
    }

    /// Damage found while decoding the block at `first`.
    pub(super) fn bad_block(&self, partition: PartitionId, first: Offset, cause: &BlockError) -> StoreError {
        self.damaged("read", &format!("block of partition {partition} at {first}: {cause}"))
    }

    /// Takes a partition's tail out, loading it when it is not in memory. Not put back after a
    /// failed call, so that the next one loads it again.
    pub(super) fn take_tail(&self, partition: PartitionId) -> Result<Tail, StoreError> {
        let taken = self.tails().remove(&partition);
        taken.map_or_else(|| self.load_tail(partition), Ok)
    }

    /// Keeps a partition's tail for the next call.
    pub(super) fn put_tail(&self, partition: PartitionId, tail: Tail) {
        self.tails().insert(partition, tail);
    }

    /// Forgets a partition's tail.
    pub(super) fn forget_tail(&self, partition: PartitionId) {
        self.tails().remove(&partition);
    }

    pub(super) fn tails(&self) -> MutexGuard<'_, HashMap<PartitionId, Tail>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_tail(&self, partition: PartitionId) -> Result<Tail, StoreError> {
        let mut tail = Tail { record: self.record(partition)?, ..Tail::default() };
        let mut settled = self.walk(Place::Settled, partition);
        while let Some(found) = settled.next()? {
            if let Some(entry) = found.removal().entry {
                tail.files.count(found.first, &entry);
            }
        }
        for file in tail.files.numbers() {
            let size = self.segments.size(file).map_err(|cause| self.refused("measure", file, &cause))?;
            tail.files.measured(file, size);
        }
        self.look_at_end(partition, &mut tail)?;
        Ok(tail)
    }

    /// Finds out where a partition ends, after blocks went from there.
    pub(super) fn look_at_end(&self, partition: PartitionId, tail: &mut Tail) -> Result<(), StoreError> {
        tail.oldest_next = 0;
        tail.pieces.clear();
        tail.end = self.walk(Place::Settled, partition).next_back()?.map_or(0, |last| last.next);
        let mut waiting = self.walk(Place::Waiting, partition);
        while let Some(found) = waiting.next()? {
            let bytes = self.bytes(&found, &mut Readers::default())?;
            tail.end = found.next;
            tail.pieces.push(Piece::of(&self.trusted(partition, &bytes)?, bytes.len()));
        }
        Ok(())
    }

    /// The tree of a place.
    pub(super) fn tree(&self, place: Place) -> &Tree {
        match place {
            Place::Settled => &self.settled,
            Place::Waiting => &self.waiting,
        }
    }

    /// The stored record.
    pub(super) fn record(&self, partition: PartitionId) -> Result<Option<Record>, StoreError> {
        let Some(bytes) = self.call("read", || self.waiting.get(partition.to_be_bytes()))? else {
            return Ok(None);
        };
        let record = Record::decode(partition, &bytes);
        let damage = || self.damaged("read", &format!("the record of partition {partition} is damaged"));
        record.map(Some).ok_or_else(damage)
    }

    /// The waiting block at `first`.
    pub(super) fn waiting_block(&self, partition: PartitionId, first: Offset) -> Result<Block, StoreError> {
        let found = self.call("read", || self.waiting.get(keys::block(partition, first)))?;
        let missing = || self.damaged("read", &format!("no block of partition {partition} at {first}"));
        Block::decode(&found.ok_or_else(missing)?).map_err(|cause| self.bad_block(partition, first, &cause))
    }

    /// Removes and inserts blocks and writes the record that fits them, in one atomic batch.
    pub(super) fn commit(
        &self,
        partition: PartitionId,
        tail: &mut Tail,
        head: Option<Head>,
        remove: &[Removal],
        insert: Vec<Packed>,
    ) -> Result<(), StoreError> {
        debug_assert!(remove.len() + insert.len() < BATCH);
        let mut record = tail.record.unwrap_or_default();
        record.head = head.unwrap_or(record.head);
        let removed: u64 = remove.iter().map(|removal| removal.identities).sum();
        let inserted: u64 = insert.iter().map(|packed| packed.piece.identities).sum();
        record.blocks = record.blocks.saturating_sub(remove.len() as u64) + insert.len() as u64;
        record.identities = record.identities.saturating_sub(removed) + inserted;

        let operations = remove.len() + insert.len() + 1;
        let weight = |packed: &Packed| match packed.place {
            Place::Settled => packed.bytes.len() / FILED_SHARE,
            Place::Waiting => packed.bytes.len(),
        };
        let bytes: usize = insert.iter().map(weight).sum();
        let entries = self.file(&tail.files, &insert)?;
        let (mut settled, mut waiting) = (Batch::default(), Batch::default());
        for Removal { place, key, .. } in remove {
            of(*place, &mut settled, &mut waiting).remove(key);
        }
        for (key, entry) in &entries {
            settled.insert(key, entry.encode());
        }
        let waits = |packed: &Packed| packed.place == Place::Waiting;
        for Packed { key, bytes, .. } in insert.into_iter().filter(waits) {
            waiting.insert(&key, bytes);
        }
        waiting.insert(&partition.to_be_bytes(), record.encode(partition));
        let both = !entries.is_empty() || remove.iter().any(|removal| removal.place == Place::Settled);
        self.call("write", || {
            if both { self.apply(&settled, &waiting) } else { self.waiting.apply_batch(waiting) }
        })?;
        tail.record = Some(record);
        // First what came: it may lie in the file that what goes would leave empty.
        for (key, entry) in &entries {
            tail.files.count(keys::first(key), entry);
        }
        for (key, entry) in remove.iter().filter_map(|removal| Some((removal.key, removal.entry?))) {
            if tail.files.discount(keys::first(&key), &entry) {
                self.segments.retire(entry.file);
            }
        }
        self.flush_when_due(bytes + operations * OPERATION_BYTES)
    }

    /// Writes the settled ones of these blocks into one of the partition's files; gives their entries.
    fn file(&self, files: &Files, blocks: &[Packed]) -> Result<Vec<(Key, Entry)>, StoreError> {
        let settled = || blocks.iter().filter(|packed| packed.place == Place::Settled);
        if settled().next().is_none() {
            return Ok(Vec::new());
        }
        let (file, begin) = files.current().unwrap_or_else(|| (self.segments.begin(), 0));
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        for Packed { key, bytes: block, piece, .. } in settled() {
            let entry = Entry {
                file,
                at: begin + bytes.len() as u64,
                bytes: u32::try_from(block.len()).unwrap_or(u32::MAX),
                crc: Block::checksum(block),
                next: piece.next,
                identities: piece.identities,
            };
            entries.push((*key, entry));
            bytes.extend_from_slice(block);
        }
        self.segments.write(file, begin, &bytes).map_err(|cause| self.refused("write", file, &cause))?;
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

    /// Writes out what sled holds back, and then deletes the files that it does not name any more.
    fn flush(&self) -> Result<(), StoreError> {
        let dead = self.segments.take_dead();
        self.call("flush", || self.db.flush())?;
        if !dead.is_empty() {
            self.durable(self.file.sync_all())?;
        }
        let delete =
            |file: u32| self.segments.delete(file).map_err(|cause| self.refused("delete", file, &cause));
        dead.into_iter().try_for_each(delete)
    }

    /// Flushes and fsyncs.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.durable(self.segments.sync())?;
        self.flush()?;
        self.durable(self.file.sync_all())
    }

    /// A failed fsync is never tried again: the kernel may have dropped the pages, and a second fsync
    /// would say that all is well.
    pub(super) fn durable(&self, synced: io::Result<()>) -> Result<(), StoreError> {
        synced.map_err(|cause| {
            self.condemn(StoreError::Io(format!(
                "fsync of {}: {cause}; what was written lately may be lost, restart to rebuild",
                self.path.display()
            )))
        })
    }
}

impl Engine {
    /// Closes the database and waits until sled has let go of it: its tasks hold the file's lock for
    /// a moment longer, and opening again at once would be refused.
    pub(super) fn close(self) -> io::Result<()> {
        let Self { db, settled, waiting, file, .. } = self;
        drop((db, settled, waiting));
        file.lock()?;
        file.unlock()
    }
}

fn of<'a>(place: Place, settled: &'a mut Batch, waiting: &'a mut Batch) -> &'a mut Batch {
    match place {
        Place::Settled => settled,
        Place::Waiting => waiting,
    }
}

/// Whether a failed call means that the stored bytes are bad, rather than that the disk refused.
fn is_damage(cause: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    !needs_operator(cause) && matches!(cause.kind(), InvalidData | InvalidInput | NotFound | UnexpectedEof)
}
