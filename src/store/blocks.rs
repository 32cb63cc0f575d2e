//! The store as the pipeline uses it.

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
use super::cache::{Cache, Cached};
use super::cut::{clear, expire, forget, truncate};
use super::engine::Engine;
use super::guard::run_guarded;
use super::joining::Joining;
use super::keys;
use super::segments::Readers;
use super::tail::{Place, consistent};
use super::walk::{Content, StoredBlock};
use crate::dedupe::{Block, Identity, Offset, WindowId};
use crate::ports::{Head, Store, StoreError, Visit};

/// How long closing waits for the engine's threads.
const CLOSE_SILENCE: Duration = Duration::from_secs(10);

/// A handle of the open database. Clones share the database; each window is used by one handle at a time.
pub struct SledStore {
    pub(super) engine: Arc<Engine>,
    joining: Joining,
    cache: RefCell<Cache>,
    readers: RefCell<Readers>,
}

/// Result of reading a block.
enum BlockRead {
    /// The owner's identity is the expected one. The rest of the block was not read.
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

    /// Sets the memory limit that the block caches of all handles share, in bytes. Must be called before the first
    /// clone.
    pub(super) fn set_cache_bytes(&mut self, cache_bytes: u64) {
        if let Some(engine) = Arc::get_mut(&mut self.engine) {
            engine.cache_bytes = cache_bytes;
        }
    }

    /// Checks whether the owner has the expected identity without reading the whole block, where that is possible.
    /// Otherwise reads and verifies the block and returns it.
    fn read_block(
        &self,
        found: &StoredBlock,
        owner: Offset,
        expected: Option<Identity>,
    ) -> Result<BlockRead, StoreError> {
        let Content::InFile(entry) = &found.content else {
            return self.engine.bytes(found, &mut self.readers.borrow_mut()).map(BlockRead::Block);
        };
        // The handles share the cache limit. If there are several, the first one is only cloned and reads nothing.
        let handles = Arc::strong_count(&self.engine).saturating_sub(1).max(1);
        let max_bytes = self.engine.cache_bytes / handles as u64;
        let at = (entry.file, entry.at);
        match self.cache.borrow_mut().look_up(at, max_bytes) {
            Cached::Hit(bytes) => return Ok(BlockRead::Block(bytes)),
            Cached::Skip if expected.is_some() => {
                let mut readers = self.readers.borrow_mut();
                if readers.read_identity(&self.engine.segments, entry, (found.first, owner)) == expected {
                    return Ok(BlockRead::Expected);
                }
            }
            Cached::Skip | Cached::Load => {}
        }
        let bytes = self.engine.bytes(found, &mut self.readers.borrow_mut())?;
        self.cache.borrow_mut().put(at, bytes.clone(), max_bytes);
        Ok(BlockRead::Block(bytes))
    }

    /// The identity of an owner. Where possible, only compares it with the expected one.
    fn look_up(
        &self,
        (window, owner): (WindowId, Offset),
        expected: Option<Identity>,
    ) -> Result<Option<Identity>, StoreError> {
        let found = self.engine.block_of(window, owner)?.filter(|found| owner < found.next);
        let Some(found) = found else { return Ok(None) };
        let bytes = match self.read_block(&found, owner, expected)? {
            BlockRead::Expected => return Ok(expected),
            BlockRead::Block(bytes) => bytes,
        };
        let bad = |cause| self.engine.bad_block(window, found.first, &cause);
        self.engine.trusted(window, &bytes)?.identity_of(owner).map_err(bad)
    }

    /// Sets the limits within which small blocks are merged (default: 5 minutes of stream time).
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
        binding.ok_or_else(|| self.engine.damaged("read", "the stored binding is unreadable"))
    }

    /// Bytes that the database's files use on disk.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let path = &self.engine.path;
        file_bytes(path).map_err(|e| StoreError::Io(format!("read the directory {}: {e}", path.display())))
    }

    /// Flushes and syncs, and closes the database if this is its last handle. After an earlier failure nothing is
    /// flushed, and that failure is returned again.
    pub fn close(self) -> Result<(), StoreError> {
        let synced = match self.engine.failed.get() {
            None => self.engine.sync(),
            Some(failure) => Err(failure.clone()),
        };
        let path = self.engine.path.clone();
        let failed = |cause: &dyn fmt::Display| StoreError::Io(format!("close {}: {cause}", path.display()));
        let last = Arc::into_inner(self.engine);
        // Closing waits for the engine's threads and never returns if one of them has died.
        let closed = run_guarded("store-close", CLOSE_SILENCE, move |_| last.map_or(Ok(()), Engine::close));
        synced.and(closed.map_err(|fault| failed(&fault))?.map_err(|cause| failed(&cause)))
    }
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("path", &self.engine.path).finish_non_exhaustive()
    }
}

impl Store for SledStore {
    fn head(&self, window: WindowId) -> Result<Option<Head>, StoreError> {
        Ok(self.engine.record(window)?.map(|record| record.head))
    }

    fn append(&mut self, block: &Block, head: Head) -> Result<(), StoreError> {
        let (engine, window) = (&*self.engine, block.window);
        if !consistent(block) || block.hash != engine.hash {
            let (first, next) = (block.first, block.next);
            return Err(StoreError::Corrupt(format!(
                "rejected a block of partition {window} for {first}..{next}: its owners are out of order or \
                 its hash differs from the store's"
            )));
        }
        let mut tail = engine.take_tail(window)?;
        if block.first < tail.end {
            truncate(engine, &mut tail, window, block.first, &mut |_, _| ())?;
        }
        append(engine, &mut tail, block, head, self.joining.of(window))?;
        engine.put_tail(window, tail);
        Ok(())
    }

    fn set_head(&mut self, window: WindowId, head: Head) -> Result<(), StoreError> {
        let mut tail = self.engine.take_tail(window)?;
        self.engine.commit(window, &mut tail, Some(head), &[], Vec::new())?;
        self.engine.put_tail(window, tail);
        Ok(())
    }

    fn scan_from(
        &self,
        window: WindowId,
        from: Offset,
        visit: Visit<'_>,
    ) -> Result<Option<Offset>, StoreError> {
        let mut readers = Readers::default();
        for place in [Place::Settled, Place::Waiting] {
            let mut blocks = self.engine.blocks_from(place, window, from);
            while let Some(found) = blocks.next()? {
                let bytes = self.engine.bytes(&found, &mut readers)?;
                if visit(&self.engine.trusted(window, &bytes)?)?.is_break() {
                    return Ok(Some(found.first + 1));
                }
            }
        }
        Ok(None)
    }

    fn ids(&self, window: WindowId) -> Result<u64, StoreError> {
        Ok(self.engine.record(window)?.map_or(0, |record| record.identities))
    }

    fn truncate(&mut self, window: WindowId, from: Offset) -> Result<Vec<(Offset, Identity)>, StoreError> {
        let mut removed = Vec::new();
        let mut tail = self.engine.take_tail(window)?;
        truncate(&self.engine, &mut tail, window, from, &mut |owner, identity| {
            removed.push((owner, identity));
        })?;
        self.engine.put_tail(window, tail);
        removed.sort_unstable();
        Ok(removed)
    }

    fn forget(&mut self, window: WindowId, owners: &[Offset], head: Head) -> Result<(), StoreError> {
        forget(&self.engine, window, owners, head)
    }

    fn expire(&mut self, window: WindowId, first: Offset) -> Result<(), StoreError> {
        let mut tail = self.engine.take_tail(window)?;
        if first >= tail.oldest_next {
            // Deleted files must not stay open, or their space is not freed.
            self.readers.get_mut().close();
            expire(&self.engine, &mut tail, window, first)?;
        }
        self.engine.put_tail(window, tail);
        Ok(())
    }

    fn identity_of(&self, window: WindowId, owner: Offset) -> Result<Option<Identity>, StoreError> {
        self.look_up((window, owner), None)
    }

    fn owns(&self, window: WindowId, owner: Offset, identity: Identity) -> Result<Option<bool>, StoreError> {
        Ok(self.look_up((window, owner), Some(identity))?.map(|known| known == identity))
    }

    fn clear(&mut self, window: WindowId) -> Result<(), StoreError> {
        clear(&self.engine, window)?;
        self.engine.forget_tail(window);
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
