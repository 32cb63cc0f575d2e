//! The open database: every call of sled goes through here, and every failure is sorted here.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use sled::{Batch, IVec, Tree};

use super::error::needs_operator;
use super::guard::caught;
use super::keys::{self, Key};
use super::quarantine::condemn;
use super::record::Record;
use super::tail::{Packed, Piece, Place, Tail, range};
use crate::dedupe::{Block, BlockError, BlockView, Coordinates, HashKind, Offset, PartitionId};
use crate::ports::{Head, StoreError};

/// Most operations in one batch; sled 0.34 leaks memory with batches of several hundred.
pub(super) const BATCH: usize = 100;
/// A flush is due after so many bytes. Left alone, sled queues what is written faster than the disk
/// takes it: memory and file grow without bound (8.8 instead of 1.4 times the live bytes), and when
/// all of its seven I/O threads wait for a lock whose holder waits for an eighth task, the
/// shortening of the file, it stands still for ever.
const FLUSH_BYTES: usize = 1024 * 1024;
/// What an operation costs sled's log beside its bytes, roughly.
const OPERATION_BYTES: usize = 1024;

/// One open database.
pub(super) struct Engine {
    /// The database, for flushing.
    pub db: sled::Db,
    /// Tree of settled blocks.
    pub settled: Tree,
    /// Tree of records and waiting blocks.
    pub waiting: Tree,
    /// Bytes given to sled since the last flush, roughly.
    pub unflushed: AtomicUsize,
    /// The database's file, opened once more by us and kept open: the kernel reports a failed
    /// write-back once to every open file, so sled's own fsync cannot swallow an error of ours.
    pub file: File,
    /// Its directory.
    pub path: PathBuf,
    /// The hash of every block.
    pub hash: HashKind,
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
                Err(StoreError::Io(format!("{what} in {}: {cause}", self.path.display())))
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

    fn tails(&self) -> MutexGuard<'_, HashMap<PartitionId, Tail>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_tail(&self, partition: PartitionId) -> Result<Tail, StoreError> {
        let mut tail = Tail { record: self.record(partition)?, ..Tail::default() };
        let last = self.call("read", || self.settled.range(range(partition)).next_back().transpose())?;
        if let Some((_, bytes)) = last {
            tail.end = self.trusted(partition, &bytes)?.header.next;
        }
        let mut blocks = self.waiting.range(range(partition));
        while let Some((_, bytes)) = self.call("read", || blocks.next().transpose())? {
            let view = self.trusted(partition, &bytes)?;
            tail.end = view.header.next;
            tail.pieces.push(Piece::of(&view, bytes.len()));
        }
        Ok(tail)
    }

    /// Where the waiting blocks begin, if that is in memory.
    pub(super) fn waiting_from(&self, partition: PartitionId) -> Option<Offset> {
        let tails = self.tails();
        tails.get(&partition).map(|tail| tail.pieces.first().map_or(Offset::MAX, |piece| piece.first))
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

    /// Parses a block that was verified at opening or written by us; sled itself checks what it
    /// reads from disk.
    pub(super) fn trusted<'a>(
        &self,
        partition: PartitionId,
        bytes: &'a [u8],
    ) -> Result<BlockView<'a>, StoreError> {
        BlockView::trusted(bytes).map_err(|cause| self.bad_block(partition, 0, &cause))
    }

    /// The bytes of the block that an owner would be in, and its place.
    pub(super) fn block_of(&self, owner: Coordinates) -> Result<Option<(Place, IVec)>, StoreError> {
        let Coordinates { partition, offset } = owner;
        let places: &[Place] = match self.waiting_from(partition) {
            Some(from) if offset < from => &[Place::Settled],
            Some(_) => &[Place::Waiting],
            None => &[Place::Waiting, Place::Settled],
        };
        for place in places {
            let wanted = keys::block(partition, 0)..=keys::block(partition, offset);
            let tree = self.tree(*place);
            if let Some((_, bytes)) = self.call("read", || tree.range(wanted).next_back().transpose())? {
                return Ok(Some((*place, bytes)));
            }
        }
        Ok(None)
    }

    /// The stored block at `first`.
    pub(super) fn block(
        &self,
        place: Place,
        partition: PartitionId,
        first: Offset,
    ) -> Result<Block, StoreError> {
        let key = keys::block(partition, first);
        let found = self.call("read", || self.tree(place).get(key))?;
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
        let bytes: usize = insert.iter().map(|packed| packed.bytes.len()).sum();
        let (mut settled, mut waiting) = (Batch::default(), Batch::default());
        let mut both = false;
        for Removal { place, key, .. } in remove {
            both |= *place == Place::Settled;
            of(*place, &mut settled, &mut waiting).remove(key);
        }
        for Packed { place, key, bytes, .. } in insert {
            both |= place == Place::Settled;
            of(place, &mut settled, &mut waiting).insert(&key, bytes);
        }
        waiting.insert(&partition.to_be_bytes(), record.encode(partition));
        self.call("write", || {
            if both { self.apply(&settled, &waiting) } else { self.waiting.apply_batch(waiting) }
        })?;
        tail.record = Some(record);
        self.flush_when_due(bytes + operations * OPERATION_BYTES)
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
            self.call("flush", || self.db.flush())?;
        }
        Ok(())
    }

    /// Flushes and fsyncs. A failed fsync is never tried again: the kernel may have dropped the
    /// pages, and a second fsync would say that all is well.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.call("flush", || self.db.flush())?;
        self.file.sync_all().map_err(|cause| {
            self.condemn(StoreError::Io(format!(
                "fsync of {}: {cause}; what was written lately may be lost, restart to rebuild",
                self.path.join("db").display()
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
