//! Opens a store within a deadline. Damaged stored bytes never prevent that: the result is a working store.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::binding::{Binding, Relation};
use super::directory::{Generations, Quarantine, condemned, delete_quarantined, remove_half_snapshots};
use super::disk::{Disk, FileSystem};
use super::engine::Engine;
use super::error::{is_full, needs_operator};
use super::guard::{GuardFault, WorkProgress, install_hook, run_guarded};
use super::leases::SharedWindow;
use super::lock::create_private;
use super::lost::cut_lost;
use super::owners::SledStore;
use super::sealed::{SealedSlices, read_all};
use super::segments::Segments;
use super::verify::{Verified, verify};
use super::{OpenError, keys};
use crate::dedupe::Positions;
use crate::ports::StoreError;

/// Size of sled's log segments in bytes. sled holds some segments whatever is stored: five at a low write rate. A
/// message larger than a quarter of a segment is written to a file of its own, which sled does not sync; that quarter
/// is many times the size of a node of entries. With segments of 256 KiB, low write rates over many partitions
/// need more space, not less.
const SEGMENT_BYTES: usize = 512 * 1024;
/// sled gets `1 / ENGINE_CACHE_SHARE` of the cache, for the index. The rest is for the newest
/// identities.
const ENGINE_CACHE_SHARE: u64 = 8;
/// Interval of sled's own flushes, in milliseconds.
const FLUSH_EVERY_MS: u64 = 500;

/// A store whose content was verified, or a new one.
#[derive(Debug)]
pub struct Opened {
    /// Ready for use; every run is verified.
    pub store: SledStore,
    /// Set if the existing database was unusable and was replaced by a new one.
    pub quarantined: Option<Quarantine>,
}

/// Opens the store in `dir`, which the caller has locked, and verifies all of it.
///
/// A database is quarantined and replaced by a new one if it is damaged, makes the engine panic, makes no progress
/// for `deadline`, or belongs to something other than `binding`. A database made with another hash is an error,
/// because discarding it is the operator's decision. A failing disk is an error, too. `cache_bytes` limits the memory
/// of the engine's cache and of the newest identities.
pub fn open(
    dir: &Path,
    binding: &Binding,
    cache_bytes: u64,
    deadline: Duration,
) -> Result<Opened, OpenError> {
    open_with(dir, binding, &OpenStart::new(cache_bytes, deadline))
}

/// Opens the database at `path`, whatever it belongs to, and verifies all of it. An unusable database is not moved, but
/// the engine may change it while it opens it.
pub(super) fn open_any(path: &Path, cache_bytes: u64, deadline: Duration) -> Result<SledStore, OpenFailure> {
    try_open(path, None, &OpenStart::new(cache_bytes, deadline)).map(SledStore::new)
}

/// Opens sled's database at a path.
pub(super) type OpenSled = Arc<dyn Fn(&Path) -> sled::Result<sled::Db> + Send + Sync>;

/// How a database is opened.
#[derive(Clone)]
pub(super) struct OpenStart {
    cache_bytes: u64,
    deadline: Duration,
    pub sled: OpenSled,
    pub disk: Arc<dyn Disk>,
}

impl OpenStart {
    pub(super) fn new(cache_bytes: u64, deadline: Duration) -> Self {
        Self { cache_bytes, deadline, sled: engine(cache_bytes), disk: Arc::new(FileSystem) }
    }
}

fn engine(cache_bytes: u64) -> OpenSled {
    Arc::new(move |path| {
        sled::Config::new()
            .path(path)
            .cache_capacity(cache_bytes / ENGINE_CACHE_SHARE)
            .mode(sled::Mode::HighThroughput)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .use_compression(false)
            .segment_size(SEGMENT_BYTES)
            .open()
    })
}

/// Opens the store as [`open()`] does.
pub(super) fn open_with(dir: &Path, binding: &Binding, start: &OpenStart) -> Result<Opened, OpenError> {
    create_private(dir).map_err(|e| OpenError::io("create the directory", dir, &e))?;
    let mut generations = Generations::find(dir)?;
    let mut quarantined = None;
    loop {
        let path = generations.path();
        let reason = match try_open(&path, Some(binding), start) {
            Ok(engine) => return Ok(Opened { store: SledStore::new(engine), quarantined }),
            Err(OpenFailure::Unusable(reason)) if quarantined.is_none() => reason,
            Err(OpenFailure::Disk(cause)) if is_full(&cause) && delete_quarantined(dir) => continue,
            Err(failure) => {
                return Err(failure.or(&path, |cause| OpenError::Engine { path: path.clone(), cause }));
            }
        };
        quarantined = generations.quarantine(&reason)?;
        let Some(Quarantine { path: kept, .. }) = &quarantined else {
            return Err(OpenError::Engine { path, cause: reason });
        };
        tracing::warn!(path = %kept.display(), reason, "local state quarantined; rebuilding it from the state topic. \
            The quarantined copy is deleted when the directory reaches half of state.max_disk, or when the disk is full");
    }
}

/// Opens one database in its own thread. Without a binding, it may belong to anything.
fn try_open(path: &Path, binding: Option<&Binding>, start: &OpenStart) -> Result<Engine, OpenFailure> {
    install_hook();
    create_private(path).map_err(OpenFailure::Disk)?;
    remove_half_snapshots(path).map_err(|e| OpenError::io("remove a half-written snapshot in", path, &e))?;
    if let Some(reason) = condemned(path) {
        return Err(OpenFailure::Unusable(reason));
    }
    let (inside, binding, inner) = (path.to_path_buf(), binding.cloned(), start.clone());
    let open = move |progress: &WorkProgress<_>| {
        let db = (inner.sled)(&inside)?;
        progress.report();
        let mut engine = build_engine(db, inside, binding.as_ref(), inner.disk)?;
        let Verified { mut windows, lost } = verify(&engine, &|| progress.report())?;
        if let Some(lost) = lost.first().filter(|_| binding.is_none()) {
            return Err(lost.cause.clone().into());
        }
        let (sealed, slice_files) = read_all(&engine, &|| progress.report())?;
        engine.sealed = sealed;
        cut_lost(&engine, &mut windows, lost)?;
        engine.cache_bytes = inner.cache_bytes - inner.cache_bytes / ENGINE_CACHE_SHARE;
        let files = windows.values_mut().map(|index| &mut index.files);
        engine.sync_found()?;
        engine.segments.begin(files, slice_files).map_err(OpenFailure::Disk)?;
        let shared = windows.into_iter().map(|(window, index)| (window, SharedWindow::new(index)));
        engine.windows = Mutex::new(shared.collect());
        Ok(engine)
    };
    match run_guarded("store-open", start.deadline, open) {
        Ok(opened) => opened,
        Err(GuardFault::NoThread(cause)) => Err(OpenFailure::Rejected(OpenError::Io {
            attempt: "start a thread to open",
            path: path.to_path_buf(),
            cause,
            remedy: "raise the limit on processes and threads (ulimit -u, pids.max), or stop other processes",
        })),
        Err(fault) => Err(OpenFailure::Unusable(fault.to_string())),
    }
}

/// Why a database was not opened.
pub(super) enum OpenFailure {
    /// The database is damaged, hangs, or belongs to something else.
    Unusable(String),
    /// A disk operation failed.
    Disk(io::Error),
    /// Another error that an operator must resolve.
    Rejected(OpenError),
}

impl OpenFailure {
    /// The error that a caller gets who cannot quarantine the database.
    pub(super) fn or(self, path: &Path, unusable: impl FnOnce(String) -> OpenError) -> OpenError {
        match self {
            Self::Unusable(cause) => unusable(cause),
            Self::Disk(cause) => OpenError::io("open the database", path, &cause),
            Self::Rejected(error) => error,
        }
    }
}

impl From<OpenError> for OpenFailure {
    fn from(error: OpenError) -> Self {
        Self::Rejected(error)
    }
}

impl From<sled::Error> for OpenFailure {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(cause) if needs_operator(&cause) => Self::Disk(cause),
            // The engine does not report which file it was.
            sled::Error::Corruption { .. } => {
                Self::Unusable("a file of the database (conf, db or snap.*) has damaged bytes".to_owned())
            }
            other => Self::Unusable(other.to_string()),
        }
    }
}

impl From<StoreError> for OpenFailure {
    fn from(error: StoreError) -> Self {
        Self::Unusable(error.to_string())
    }
}

impl From<String> for OpenFailure {
    fn from(cause: String) -> Self {
        Self::Unusable(cause)
    }
}

impl From<&str> for OpenFailure {
    fn from(cause: &str) -> Self {
        Self::Unusable(cause.to_owned())
    }
}

fn build_engine(
    db: sled::Db,
    path: PathBuf,
    binding: Option<&Binding>,
    disk: Arc<dyn Disk>,
) -> Result<Engine, OpenFailure> {
    let runs = db.open_tree(keys::RUNS)?;
    let slices = db.open_tree(keys::SLICES)?;
    let stored = stored_binding(&db)?;
    let binding = match (binding, stored) {
        (None, Some(stored)) => stored,
        (Some(binding), None) if runs.is_empty() => bind(&db, binding.clone(), None)?,
        (Some(binding), Some(stored)) => bind(&db, kept(binding, &stored, &path)?, Some(&stored))?,
        (_, None) => return Err("it has no binding".into()),
    };
    let positions = stored_positions(&db)?;
    let file = File::open(path.join("db")).map_err(OpenFailure::Disk)?;
    let segments = Segments::open(&path, Arc::clone(&disk)).map_err(OpenFailure::Disk)?;
    Ok(Engine {
        db,
        runs,
        slices,
        sealed: SealedSlices::default(),
        segments,
        disk,
        unflushed: AtomicUsize::new(0),
        file,
        path,
        binding,
        positions,
        failed: OnceLock::new(),
        cache_bytes: 0,
        windows: Mutex::new(HashMap::new()),
        handles: AtomicU64::new(0),
    })
}

fn stored_binding(db: &sled::Db) -> Result<Option<Binding>, OpenFailure> {
    let read = |json: sled::IVec| serde_json::from_slice(&json);
    let stored = db.get(keys::BINDING)?.map(read).transpose();
    stored.map_err(|e| OpenFailure::Unusable(format!("its binding is unreadable: {e}")))
}

fn stored_positions(db: &sled::Db) -> Result<Positions, OpenFailure> {
    let stored = db.get(keys::POSITIONS)?;
    let key = stored.as_deref().and_then(|key| <[u8; 16]>::try_from(key).ok());
    key.map(Positions::keyed).ok_or_else(|| "it has no key of its positions".into())
}

/// A key that nobody else knows.
fn random_key() -> Result<[u8; 16], OpenError> {
    let (path, mut key) = (Path::new("/dev/urandom"), [0; 16]);
    let read = File::open(path).and_then(|mut random| random.read_exact(&mut key));
    read.map(|()| key).map_err(|cause| OpenError::io("read random bytes from", path, &cause))
}

/// The binding to store, if the database belongs to the configured one.
fn kept(configured: &Binding, stored: &Binding, database: &Path) -> Result<Binding, OpenFailure> {
    let dir = database.parent().unwrap_or(database).to_path_buf();
    match configured.relation(stored) {
        Relation::Ours(kept) => Ok(*kept),
        Relation::Foreign(reason) => Err(OpenFailure::Unusable(reason)),
        Relation::OtherRule(kind) => {
            let of = kind.map(|name| format!(" of kind {name:?}")).unwrap_or_default();
            let accept = configured.fingerprint().map(|all| all.to_string()).unwrap_or_default();
            Err(OpenError::Rule { dir, of, accept }.into())
        }
        Relation::OtherHash => {
            let (stored, configured) = (stored.hash_text(), configured.hash_text());
            Err(OpenError::Hash { dir, stored, configured }.into())
        }
    }
}

/// Stores a new or changed binding, the first one with a key of the positions. The write is a batch, because a batch takes the engine's process-wide write lock: if
/// a hung thread still holds that lock, the open detects it here.
fn bind(db: &sled::Db, binding: Binding, stored: Option<&Binding>) -> Result<Binding, OpenFailure> {
    if stored != Some(&binding) {
        let json = serde_json::to_vec(&binding).map_err(|e| OpenFailure::Unusable(e.to_string()))?;
        let mut batch = sled::Batch::default();
        batch.insert(keys::BINDING, json);
        if stored.is_none() {
            batch.insert(keys::POSITIONS, &random_key()?);
        }
        db.apply_batch(batch)?;
        db.flush()?;
    }
    Ok(binding)
}

#[cfg(test)]
mod tests;
