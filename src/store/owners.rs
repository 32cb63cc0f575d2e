//! A handle of the store, and what it reads and writes in runs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::binding::Binding;
use super::directory::file_bytes;
use super::engine::Engine;
use super::guard::run_guarded;
use super::index::WindowIndex;
use super::joining::Joining;
use super::leases::SharedWindow;
use super::run::{OWNER_BYTES, Run, decoded, is_intact};
use super::sealed::HandleSealing;
use super::segments::Readers;
use crate::dedupe::{Identity, OwnerRun, Sequence, StoredOwner, WindowId};
use crate::ports::{StoreError, VisitRun};

/// How long closing waits for the engine's threads.
const CLOSE_SILENCE: Duration = Duration::from_secs(10);
/// Most files of owners that all handles keep open for look-ups. A process may often open only 1,024 files.
const MAX_OPEN_FILES: usize = 256;

/// A handle of the open database. Clones share the database, and the leases: a thread of a worker can read with one. Each window
/// is changed by one handle at a time.
pub struct SledStore {
    pub(super) engine: Arc<Engine>,
    /// By which it holds windows ([`SledStore::another`]). Without one it needs no leases: no other handle writes.
    pub(super) id: Option<u64>,
    pub(super) joining: Joining,
    /// The windows that this handle has used before.
    windows: RefCell<HashMap<WindowId, Arc<SharedWindow>>>,
    pub(super) readers: RefCell<Readers>,
    pub(super) sealing: HandleSealing,
}

impl Clone for SledStore {
    fn clone(&self) -> Self {
        Self { id: self.id, ..Self::of(Arc::clone(&self.engine), self.joining.clone()) }
    }
}

impl SledStore {
    pub(super) fn new(engine: Engine) -> Self {
        Self::of(Arc::new(engine), Joining::default())
    }

    fn of(engine: Arc<Engine>, joining: Joining) -> Self {
        let (windows, readers, sealing) = Default::default();
        Self { engine, id: None, joining, windows, readers, sealing }
    }

    pub(super) fn shared(&self, window: WindowId) -> Arc<SharedWindow> {
        let mut windows = self.windows.borrow_mut();
        Arc::clone(windows.entry(window).or_insert_with(|| self.engine.window(window)))
    }

    /// A handle for another worker, which can change only windows that it has taken.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { id: Some(self.engine.handles.fetch_add(1, Ordering::Relaxed)), ..self.clone() }
    }

    /// Runs `run` with the locked index of a window.
    pub(super) fn with<T>(
        &self,
        window: WindowId,
        run: impl FnOnce(&Engine, &mut WindowIndex) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (engine, mut windows) = (&*self.engine, self.windows.borrow_mut());
        let index = windows.entry(window).or_insert_with(|| engine.window(window)).index.lock();
        // A panic may have interrupted a change.
        let mut index =
            index.map_err(|_| engine.damaged("lock", "a thread panicked while it used the store"))?;
        engine.check()?;
        run(engine, &mut index)
    }

    /// Reads the owners of a run while its index is not locked. If the index has changed meanwhile, another worker has
    /// taken the window and may have deleted the file. Otherwise an unreadable run is damaged.
    fn read(
        &self,
        window: WindowId,
        run: &Run,
        readers: &mut Readers,
    ) -> Result<Vec<StoredOwner>, StoreError> {
        self.engine.read(run, readers)?.or_else(|cause| {
            self.with(window, |engine, index| match index.run_of(run.number) {
                Some(known) if (known.file, known.at) == (run.file, run.at) => {
                    Err(engine.bad_run(window, run, &cause))
                }
                _ => Err(StoreError::LeaseLost(window)),
            })
        })
    }

    /// The number of the first stored owner of a window.
    pub(in crate::store) fn first_stored(&self, window: WindowId) -> Result<Sequence, StoreError> {
        self.with(window, |_, index| Ok(index.run_from(0).map_or(Sequence::MAX, |run| run.number)))
    }

    /// As `Store::scan_from`.
    pub(super) fn scan_runs(
        &self,
        window: WindowId,
        mut from: Sequence,
        visit: VisitRun<'_>,
    ) -> Result<Option<Sequence>, StoreError> {
        let mut readers = Readers::default();
        // The visitor may use the store, so the index is not locked meanwhile.
        while let Some(run) = self.with(window, |_, index| Ok(index.run_from(from)))? {
            let owners = self.read(window, &run, &mut readers)?;
            // Owners may have been added to a run that was visited before.
            let number = run.number.max(from);
            let visited = usize::try_from(number - run.number).unwrap_or(usize::MAX);
            let owners = owners.get(visited..).unwrap_or_default();
            from = run.end();
            if visit(&OwnerRun { number, times_ms: run.times_ms, owners })?.is_break() {
                return Ok(Some(from));
            }
        }
        Ok(None)
    }

    /// As `Store::owner`.
    pub(super) fn stored_owner(
        &self,
        window: WindowId,
        number: Sequence,
        expected: Option<Identity>,
    ) -> Result<Option<StoredOwner>, StoreError> {
        let found = self.with(window, |_, index| {
            Ok(index.run_of(number).map(|run| (index.recent(number, run.rule), run)))
        })?;
        let Some((recent, run)) = found else { return Ok(None) };
        if recent.is_some() {
            return Ok(recent);
        }
        let mut readers = self.readers.borrow_mut();
        readers.most = self.share_of(MAX_OPEN_FILES);
        if expected.is_some() {
            let found = self.alone(&run, number, &mut readers);
            if let Some(owner) = found.filter(|owner| owner.identity == expected) {
                return Ok(Some(owner));
            }
        }
        let owners = self.read(window, &run, &mut readers)?;
        let place = usize::try_from(number - run.number).unwrap_or(usize::MAX);
        Ok(owners.get(place).copied())
    }

    /// Reads an owner of a run without the others; `None` if it is damaged. Another one may be at its place, after damage to the place itself,
    /// so its identity has to be the expected one.
    fn alone(&self, run: &Run, number: Sequence, readers: &mut Readers) -> Option<StoredOwner> {
        let mut bytes = [0; OWNER_BYTES];
        readers.fill(&self.engine.segments, run.file, run.place_of(number), &mut bytes).ok()?;
        is_intact(&bytes).then(|| decoded(&bytes, run.rule))
    }

    /// The share of this handle in a number of open files. If there are several, the first one is only cloned and reads nothing.
    pub(super) fn share_of(&self, files: usize) -> usize {
        files / Arc::strong_count(&self.engine).saturating_sub(1).max(1)
    }

    /// Sets the limits within which the owners of small transactions are joined in one run (default: 5 minutes of stream time).
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
    pub fn binding(&self) -> &Binding {
        &self.engine.binding
    }

    /// Bytes that the database's files use on disk.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let path = &self.engine.path;
        file_bytes(path).map_err(|e| StoreError::Io(format!("read the directory {}: {e}", path.display())))
    }

    /// Flushes and syncs, and closes the database if this is its last handle. After an earlier failure nothing is
    /// flushed, and that failure is returned again.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.sealing.end(&self.engine);
        let synced = self.engine.check().and_then(|()| self.engine.sync());
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
