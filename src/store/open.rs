//! Opens a store within a deadline. Damaged stored bytes never prevent that: the result is a working store.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::binding::{Binding, Relation};
use super::blocks::SledStore;
use super::engine::Engine;
use super::error::needs_operator;
use super::guard::{Fault, Progress, install_hook, run_guarded};
use super::lock::create_private;
use super::quarantine::{Generations, Quarantine, condemned, remove_half_snapshots};
use super::segments::Segments;
use super::verify::verify;
use super::{OpenError, keys};
use crate::dedupe::HashKind;

/// Size of sled's log segments in bytes. sled holds some segments whatever is stored: five at a low write rate. A
/// message larger than a quarter of a segment is written to a file of its own, which sled does not sync; that quarter
/// is twice the size of a node of 20 waiting blocks. With segments of 256 KiB, low write rates over many partitions
/// need more space, not less.
const SEGMENT_BYTES: usize = 512 * 1024;
/// sled gets `1 / ENGINE_CACHE_SHARE` of the cache, for the index and the small blocks. The rest is for the blocks in
/// files.
const ENGINE_CACHE_SHARE: u64 = 8;
/// Interval of sled's own flushes, in milliseconds.
const FLUSH_EVERY_MS: u64 = 500;

/// An opened store.
#[derive(Debug)]
pub struct Opened {
    /// Ready for use; every block is verified.
    pub store: SledStore,
    /// Set if the existing database was unusable and was replaced by a new one.
    pub quarantined: Option<Quarantine>,
}

/// Opens the store in `dir`, which the caller has locked, and verifies all of it.
///
/// A database is quarantined and replaced by a new one if it is damaged, makes the engine panic, makes no progress
/// for `deadline`, or belongs to something other than `binding`. A database made with another hash is an error,
/// because discarding it is the operator's decision. A failing disk is an error, too. `cache_bytes` limits the memory
/// of the engine's cache and the block caches.
pub fn open(
    dir: &Path,
    binding: &Binding,
    cache_bytes: u64,
    deadline: Duration,
) -> Result<Opened, OpenError> {
    let mut opened = open_with(dir, binding, deadline, engine(cache_bytes))?;
    opened.store.set_cache_bytes(cache_bytes - cache_bytes / ENGINE_CACHE_SHARE);
    Ok(opened)
}

/// Opens the database at `path`, whatever it belongs to, and verifies all of it. An unusable database is an error and
/// is not moved, but the engine may change it while it opens it.
pub(super) fn open_any(path: &Path, cache_bytes: u64, deadline: Duration) -> Result<SledStore, OpenError> {
    let mut store = open_any_with(path, deadline, engine(cache_bytes))?;
    store.set_cache_bytes(cache_bytes - cache_bytes / ENGINE_CACHE_SHARE);
    Ok(store)
}

fn open_any_with(
    path: &Path,
    deadline: Duration,
    start: impl Fn(&Path) -> sled::Result<sled::Db> + Send + 'static,
) -> Result<SledStore, OpenError> {
    install_hook();
    match try_open(path, None, deadline, start)? {
        Attempt::Ready(engine) => Ok(SledStore::new(*engine)),
        Attempt::Unusable(cause) => Err(OpenError::Damaged { database: path.to_path_buf(), cause }),
    }
}

fn engine(cache_bytes: u64) -> impl Fn(&Path) -> sled::Result<sled::Db> + Clone + Send + 'static {
    move |path| {
        sled::Config::new()
            .path(path)
            .cache_capacity(cache_bytes / ENGINE_CACHE_SHARE)
            .mode(sled::Mode::HighThroughput)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .use_compression(false)
            .segment_size(SEGMENT_BYTES)
            .open()
    }
}

fn open_with(
    dir: &Path,
    binding: &Binding,
    deadline: Duration,
    start: impl Fn(&Path) -> sled::Result<sled::Db> + Clone + Send + 'static,
) -> Result<Opened, OpenError> {
    install_hook();
    create_private(dir)?;
    let mut generations = Generations::find(dir)?;
    let reason = match try_open(&generations.path(), Some(binding), deadline, start.clone())? {
        Attempt::Ready(engine) => {
            return Ok(Opened { store: SledStore::new(*engine), quarantined: None });
        }
        Attempt::Unusable(reason) => reason,
    };
    let quarantined = generations.quarantine(&reason)?;
    if let Some(Quarantine { path, reason }) = &quarantined {
        tracing::warn!(path = %path.display(), reason, "local state quarantined; rebuilding it from the state topic");
        match try_open(&generations.path(), Some(binding), deadline, start)? {
            Attempt::Ready(engine) => return Ok(Opened { store: SledStore::new(*engine), quarantined }),
            Attempt::Unusable(cause) => return Err(OpenError::Engine { path: generations.path(), cause }),
        }
    }
    Err(OpenError::Engine { path: generations.path(), cause: reason })
}

/// Result of opening one database.
enum Attempt {
    Ready(Box<Engine>),
    Unusable(String),
}

/// Opens one database in its own thread. Without a binding, it may belong to anything.
fn try_open(
    path: &Path,
    binding: Option<&Binding>,
    deadline: Duration,
    start: impl Fn(&Path) -> sled::Result<sled::Db> + Send + 'static,
) -> Result<Attempt, OpenError> {
    create_private(path)?;
    remove_half_snapshots(path).map_err(|e| OpenError::io("remove a half-written snapshot in", path, &e))?;
    if let Some(reason) = condemned(path) {
        return Ok(Attempt::Unusable(reason));
    }
    let (inside, binding) = (path.to_path_buf(), binding.cloned());
    let opened =
        run_guarded("store-open", deadline, move |progress: &Progress<Result<Engine, OpenFailure>>| {
            let db = start(&inside)?;
            progress.report();
            let engine = build_engine(db, inside, binding.as_ref())?;
            let used = verify(&engine, &|| progress.report())?;
            engine.segments.retain_only(&used).map_err(OpenFailure::Disk)?;
            Ok(engine)
        });
    match opened {
        Ok(Ok(engine)) => Ok(Attempt::Ready(Box::new(engine))),
        Ok(Err(OpenFailure::Unusable(reason))) => Ok(Attempt::Unusable(reason)),
        Ok(Err(OpenFailure::Disk(cause))) => Err(OpenError::io("open the database", path, &cause)),
        Ok(Err(OpenFailure::OtherHash { stored, configured })) => {
            let dir = path.parent().unwrap_or(path).to_path_buf();
            Err(OpenError::Hash { dir, stored, configured })
        }
        Ok(Err(OpenFailure::OtherRule { kind, stored, accept })) => {
            let dir = path.parent().unwrap_or(path).to_path_buf();
            let of = kind.map(|name| format!(" of kind {name:?}")).unwrap_or_default();
            Err(OpenError::Rule { dir, stored: format!("{stored}{of}"), accept })
        }
        Err(Fault::NoThread(cause)) => Err(OpenError::Io {
            attempt: "start a thread to open",
            path: path.to_path_buf(),
            cause,
            remedy: "raise the limit on processes and threads (ulimit -u, pids.max), or stop other processes",
        }),
        Err(fault) => Ok(Attempt::Unusable(fault.to_string())),
    }
}

/// Why a database was not opened.
pub(super) enum OpenFailure {
    /// The database is damaged, hangs, or belongs to something else.
    Unusable(String),
    /// A disk operation failed.
    Disk(std::io::Error),
    /// Its identities were computed with another hash.
    OtherHash { stored: String, configured: String },
    /// Its identities were computed by another rule.
    OtherRule { kind: Option<String>, stored: String, accept: String },
}

impl From<sled::Error> for OpenFailure {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(cause) if needs_operator(&cause) => Self::Disk(cause),
            other => Self::Unusable(other.to_string()),
        }
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

fn build_engine(db: sled::Db, path: PathBuf, binding: Option<&Binding>) -> Result<Engine, OpenFailure> {
    if db.tree_names().iter().any(|name| *name == keys::LEGACY) {
        return Err(OpenFailure::Unusable(
            "it was written by an older version of dedupd in another format".to_owned(),
        ));
    }
    let (settled, waiting) = (db.open_tree(keys::SETTLED)?, db.open_tree(keys::WAITING)?);
    let hash = match binding {
        Some(binding) => bind(&db, settled.is_empty() && waiting.is_empty(), binding)?,
        None => stored_binding(&db)?.ok_or_else(missing_binding)?.hash,
    };
    let file = File::open(path.join("db")).map_err(OpenFailure::Disk)?;
    let segments = Segments::open(&path).map_err(OpenFailure::Disk)?;
    Ok(Engine {
        db,
        settled,
        waiting,
        segments,
        unflushed: AtomicUsize::new(0),
        file,
        path,
        hash,
        cache_bytes: 0,
        failed: OnceLock::new(),
        tails: Mutex::default(),
    })
}

fn stored_binding(db: &sled::Db) -> Result<Option<Binding>, OpenFailure> {
    let read = |json: sled::IVec| serde_json::from_slice(&json);
    let stored = db.get(keys::BINDING)?.map(read).transpose();
    stored.map_err(|e| OpenFailure::Unusable(format!("its binding is unreadable: {e}")))
}

fn missing_binding() -> OpenFailure {
    OpenFailure::Unusable("it has no binding".to_owned())
}

/// Compares the stored binding with the configured one, stores what is new, and returns the hash. The write is a
/// batch, because a batch takes the engine's process-wide write lock: if a hung thread still holds that lock, the
/// open detects it here.
fn bind(db: &sled::Db, empty: bool, binding: &Binding) -> Result<HashKind, OpenFailure> {
    let stored = stored_binding(db)?;
    let kept = match &stored {
        None if empty => binding.clone(),
        None => return Err(missing_binding()),
        Some(stored) => match binding.relation(stored) {
            Relation::Ours(kept) => *kept,
            Relation::Foreign(reason) => return Err(OpenFailure::Unusable(reason)),
            Relation::OtherRule(kind, stored) => {
                let accept = binding.fingerprint().map(|all| all.to_string()).unwrap_or_default();
                return Err(OpenFailure::OtherRule { kind, stored: stored.to_string(), accept });
            }
            Relation::OtherHash(_) => {
                let (stored, configured) = (stored.hash_text(), binding.hash_text());
                return Err(OpenFailure::OtherHash { stored, configured });
            }
        },
    };
    if stored.as_ref() != Some(&kept) {
        let json = serde_json::to_vec(&kept).map_err(|e| OpenFailure::Unusable(e.to_string()))?;
        let mut batch = sled::Batch::default();
        batch.insert(keys::BINDING, json);
        db.apply_batch(batch)?;
        db.flush()?;
    }
    Ok(kept.hash)
}

#[cfg(test)]
mod tests;
