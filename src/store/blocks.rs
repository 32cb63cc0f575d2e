//! The store as the pipeline sees it.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sled::IVec;

use super::append::append;
use super::binding::Binding;
use super::cache::{Cache, Said};
use super::cut::{clear, cut, expire, forget};
use super::engine::Engine;
use super::guard::guarded;
use super::joining::Joining;
use super::keys;
use super::segments::Readers;
use super::tail::{Place, consistent};
use super::walk::{Content, Found};
use crate::dedupe::{Block, Coordinates, Identity, Offset, PartitionId};
use crate::ports::{Head, Store, StoreError, Visit};

/// How long closing waits for the engine's threads.
const CLOSE_SILENCE: Duration = Duration::from_secs(10);

/// A handle on the open database. Clones share it; each partition is used by one of them at a time.
pub struct SledStore {
    pub(super) engine: Arc<Engine>,
    joining: Joining,
    cache: RefCell<Cache>,
    readers: RefCell<Readers>,
}

/// What a look at a block gave.
enum Answer {
    /// The identity that was expected.
    Expected,
    /// The whole block.
    Block(IVec),
}

impl Clone for SledStore {
    fn clone(&self) -> Self {
        let (engine, joining) = (Arc::clone(&self.engine), self.joining.clone());
        Self { engine, joining, cache: RefCell::default(), readers: RefCell::default() }
    }
}

impl SledStore {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine: Arc::new(engine),
            joining: Joining::default(),
            cache: RefCell::default(),
            readers: RefCell::default(),
        }
    }

    /// Gives the caches of all handles so much together; before they are made.
    pub(super) fn keep_in_memory(&mut self, cache_bytes: u64) {
        if let Some(engine) = Arc::get_mut(&mut self.engine) {
            engine.cache_bytes = cache_bytes;
        }
    }

    /// Whether a block says that an owner has this identity, where that can be told without all of it.
    /// Otherwise the block itself, which has been read and verified.
    fn ask(&self, found: &Found, owner: Offset, expected: Option<Identity>) -> Result<Answer, StoreError> {
        let Content::Filed(entry) = &found.content else {
            return self.engine.bytes(found, &mut self.readers.borrow_mut()).map(Answer::Block);
        };
        // The handles share what the cache may take; of several the first one only hands out others.
        let handles = Arc::strong_count(&self.engine).saturating_sub(1).max(1);
        let most_bytes = self.engine.cache_bytes / handles as u64;
        let at = (entry.file, entry.at);
        match self.cache.borrow_mut().ask(at, most_bytes) {
            Said::Here(bytes) => return Ok(Answer::Block(bytes)),
            Said::Not if expected.is_some() => {
                let mut readers = self.readers.borrow_mut();
                if readers.glimpse(&self.engine.segments, entry, (found.first, owner)) == expected {
                    return Ok(Answer::Expected);
                }
            }
            Said::Not | Said::Wanted => {}
        }
        let bytes = self.engine.bytes(found, &mut self.readers.borrow_mut())?;
        self.cache.borrow_mut().put(at, bytes.clone(), most_bytes);
        Ok(Answer::Block(bytes))
    }

    /// The identity that an owner has, or just that it is the expected one.
    fn look_up(
        &self,
        owner: Coordinates,
        expected: Option<Identity>,
    ) -> Result<Option<Identity>, StoreError> {
        let found = self.engine.block_of(owner)?.filter(|found| owner.offset < found.next);
        let Some(found) = found else { return Ok(None) };
        let bytes = match self.ask(&found, owner.offset, expected)? {
            Answer::Expected => return Ok(expected),
            Answer::Block(bytes) => bytes,
        };
        let bad = |cause| self.engine.bad_block(owner.partition, found.first, &cause);
        self.engine.trusted(owner.partition, &bytes)?.identity_of(owner.offset).map_err(bad)
    }

    /// Joins small blocks only so far (default: 5 minutes).
    #[must_use]
    pub fn joining(mut self, joining: Joining) -> Self {
        self.joining = joining;
        self
    }

    /// The directory of the database.
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// What the store belongs to.
    pub fn binding(&self) -> Result<Binding, StoreError> {
        let stored = self.engine.call("read", || self.engine.db.get(keys::BINDING))?;
        let binding = stored.and_then(|json| serde_json::from_slice(&json).ok());
        binding.ok_or_else(|| self.engine.damaged("read", "what the store belongs to is unreadable"))
    }

    /// Bytes that the database's files take up.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let path = &self.engine.path;
        file_bytes(path).map_err(|e| StoreError::Io(format!("read the directory {}: {e}", path.display())))
    }

    /// Flushes, syncs, and closes the database once this is its last handle. After a failure there
    /// is nothing to flush, and the failure is returned again.
    pub fn close(self) -> Result<(), StoreError> {
        let synced = match self.engine.failed.get() {
            None => self.engine.sync(),
            Some(failure) => Err(failure.clone()),
        };
        let path = self.engine.path.clone();
        let refused = |cause: &dyn fmt::Display| StoreError::Io(format!("close {}: {cause}", path.display()));
        let last = Arc::into_inner(self.engine);
        // Closing joins the engine's threads, and never returns when one of them has died.
        let closed = guarded("store-close", CLOSE_SILENCE, move |_| last.map_or(Ok(()), Engine::close));
        synced.and(closed.map_err(|fault| refused(&fault))?.map_err(|cause| refused(&cause)))
    }
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("path", &self.engine.path).finish_non_exhaustive()
    }
}

impl Store for SledStore {
    fn head(&self, partition: PartitionId) -> Result<Option<Head>, StoreError> {
        Ok(self.engine.record(partition)?.map(|record| record.head))
    }

    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError> {
        let (engine, partition) = (&*self.engine, block.partition);
        if !consistent(block) || block.hash != engine.hash {
            let (first, next) = (block.first, block.next);
            return Err(StoreError::Corrupt(format!(
                "refused a block of partition {partition} for {first}..{next}: its owners are out of order or \
                 its hash is another than the store's"
            )));
        }
        let mut tail = engine.take_tail(partition)?;
        if block.first < tail.end {
            cut(engine, &mut tail, partition, block.first, &mut |_, _| ())?;
        }
        append(engine, &mut tail, block, head, self.joining.of(partition))?;
        engine.put_tail(partition, tail);
        Ok(())
    }

    fn set_head(&mut self, partition: PartitionId, head: Head) -> Result<(), StoreError> {
        let mut tail = self.engine.take_tail(partition)?;
        self.engine.commit(partition, &mut tail, Some(head), &[], Vec::new())?;
        self.engine.put_tail(partition, tail);
        Ok(())
    }

    fn scan_from(
        &self,
        partition: PartitionId,
        from: Offset,
        visit: Visit<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        let mut readers = Readers::default();
        for place in [Place::Settled, Place::Waiting] {
            let mut blocks = self.engine.walk_from(place, partition, from);
            while let Some(found) = blocks.next()? {
                let bytes = self.engine.bytes(&found, &mut readers)?;
                if visit(&self.engine.trusted(partition, &bytes)?)?.is_break() {
                    return Ok(Some(found.first + 1));
                }
            }
        }
        Ok(None)
    }

    fn ids(&self, partition: PartitionId) -> Result<u64, StoreError> {
        Ok(self.engine.record(partition)?.map_or(0, |record| record.identities))
    }

    fn truncate(
        &mut self,
        partition: PartitionId,
        from: Offset,
    ) -> Result<Vec<(Offset, Identity)>, StoreError> {
        let mut removed = Vec::new();
        let mut tail = self.engine.take_tail(partition)?;
        cut(&self.engine, &mut tail, partition, from, &mut |owner, identity| {
            removed.push((owner, identity));
        })?;
        self.engine.put_tail(partition, tail);
        removed.sort_unstable();
        Ok(removed)
    }

    fn forget(&mut self, partition: PartitionId, owners: &[Offset], head: Head) -> Result<(), StoreError> {
        forget(&self.engine, partition, owners, head)
    }

    fn expire(&mut self, partition: PartitionId, first: Offset) -> Result<(), StoreError> {
        let mut tail = self.engine.take_tail(partition)?;
        if first >= tail.oldest_next {
            // What is deleted must not stay open.
            self.readers.get_mut().close();
            expire(&self.engine, &mut tail, partition, first)?;
        }
        self.engine.put_tail(partition, tail);
        Ok(())
    }

    fn identity_of(&self, owner: Coordinates) -> Result<Option<Identity>, StoreError> {
        self.look_up(owner, None)
    }

    fn owns(&self, owner: Coordinates, identity: Identity) -> Result<Option<bool>, StoreError> {
        Ok(self.look_up(owner, Some(identity))?.map(|known| known == identity))
    }

    fn clear(&mut self, partition: PartitionId) -> Result<(), StoreError> {
        clear(&self.engine, partition)?;
        self.engine.forget_tail(partition);
        Ok(())
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Self::disk_bytes(self).map(Some)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.engine.sync()
    }
}

/// Bytes of all files below a directory.
pub(super) fn file_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => file_bytes(&entry.path())?,
            Ok(metadata) => metadata.len(),
            // The engine deletes files in the background.
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e),
        };
    }
    Ok(bytes)
}
