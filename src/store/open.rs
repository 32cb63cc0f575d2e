//! Opening: whatever is wrong with the stored bytes ends in a working store, within a deadline.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::binding::{Binding, Relation};
use super::blocks::SledStore;
use super::engine::Engine;
use super::error::needs_operator;
use super::guard::{Progress, guarded, install_hook};
use super::lock::create_private;
use super::quarantine::{Generations, Quarantine, condemned, remove_half_snapshots};
use super::segments::Segments;
use super::verify::verify;
use super::{OpenError, keys};
use crate::dedupe::HashKind;

/// Size of sled's log segments, some of which are in hand whatever is stored: five at a trickle. A message above
/// a quarter of it goes into a file of its own, which sled does not sync; that is twice a node of 20 waiting
/// blocks. With 256 KiB a trickle over many partitions takes more room, not less.
const SEGMENT_BYTES: usize = 512 * 1024;
/// sled holds the index and the small blocks; most of the cache is for the blocks in files.
const ENGINE_CACHE_SHARE: u64 = 8;
/// How often sled writes out on its own, in milliseconds.
const FLUSH_EVERY_MS: u64 = 500;

/// An opened store.
#[derive(Debug)]
pub struct Opened {
    /// Ready for use, every block verified.
    pub store: SledStore,
    /// Set when the database found was not fit for use and a fresh one takes its place.
    pub quarantined: Option<Quarantine>,
}

/// Opens the store in `dir`, which the caller has locked, and verifies all of it.
///
/// A database that is damaged, makes the engine panic, or shows no sign of life for `deadline`, or
/// that belongs to something else than `binding`, is set aside and a fresh one opened. One made
/// with another hash is an error: forgetting it is the operator's decision. So is a disk that
/// refuses. `cache_bytes` bounds the engine's cache.
pub fn open(
    dir: &Path,
    binding: &Binding,
    cache_bytes: u64,
    deadline: Duration,
) -> Result<Opened, OpenError> {
    let mut opened = open_with(dir, binding, deadline, engine(cache_bytes))?;
    opened.store.keep_in_memory(cache_bytes - cache_bytes / ENGINE_CACHE_SHARE);
    Ok(opened)
}

/// Opens the database at `path`, whatever it belongs to, and verifies all of it. One that is not fit
/// for use is an error and stays where it is, but what the engine does while opening can change it.
pub(super) fn open_any(path: &Path, cache_bytes: u64, deadline: Duration) -> Result<SledStore, OpenError> {
    open_any_with(path, deadline, engine(cache_bytes))
}

fn open_any_with(
    path: &Path,
    deadline: Duration,
    start: impl Fn(&Path) -> sled::Result<sled::Db> + Send + 'static,
) -> Result<SledStore, OpenError> {
    install_hook();
    match attempt(path, None, deadline, start)? {
        Attempt::Ready(engine) => Ok(SledStore::new(*engine)),
        Attempt::Unfit(cause) => Err(OpenError::Damaged { database: path.to_path_buf(), cause }),
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
    let reason = match attempt(&generations.path(), Some(binding), deadline, start.clone())? {
        Attempt::Ready(engine) => {
            return Ok(Opened { store: SledStore::new(*engine), quarantined: None });
        }
        Attempt::Unfit(reason) => reason,
    };
    let quarantined = generations.set_aside(&reason)?;
    if let Some(Quarantine { path, reason }) = &quarantined {
        tracing::warn!(path = %path.display(), reason, "local state set aside; it is rebuilt from the state topic");
        match attempt(&generations.path(), Some(binding), deadline, start)? {
            Attempt::Ready(engine) => return Ok(Opened { store: SledStore::new(*engine), quarantined }),
            Attempt::Unfit(cause) => return Err(OpenError::Engine { path: generations.path(), cause }),
        }
    }
    Err(OpenError::Engine { path: generations.path(), cause: reason })
}

/// What became of one database.
enum Attempt {
    Ready(Box<Engine>),
    Unfit(String),
}

/// Opens one database in a thread of its own; without a binding, whatever it belongs to.
fn attempt(
    path: &Path,
    binding: Option<&Binding>,
    deadline: Duration,
    start: impl Fn(&Path) -> sled::Result<sled::Db> + Send + 'static,
) -> Result<Attempt, OpenError> {
    create_private(path)?;
    remove_half_snapshots(path).map_err(|e| OpenError::io("remove a half-written snapshot in", path, &e))?;
    if let Some(reason) = condemned(path) {
        return Ok(Attempt::Unfit(reason));
    }
    let (inside, binding) = (path.to_path_buf(), binding.cloned());
    let opened = guarded("store-open", deadline, move |progress: &Progress<Result<Engine, Refusal>>| {
        let db = start(&inside)?;
        progress.alive();
        let engine = assemble(db, inside, binding.as_ref())?;
        let used = verify(&engine, &|| progress.alive())?;
        engine.segments.keep_only(&used).map_err(Refusal::Disk)?;
        Ok(engine)
    });
    match opened {
        Ok(Ok(engine)) => Ok(Attempt::Ready(Box::new(engine))),
        Ok(Err(Refusal::Unfit(reason))) => Ok(Attempt::Unfit(reason)),
        Ok(Err(Refusal::Disk(cause))) => Err(OpenError::io("open the database", path, &cause)),
        Ok(Err(Refusal::OtherHash { stored, configured })) => {
            let dir = path.parent().unwrap_or(path).to_path_buf();
            Err(OpenError::Hash { dir, stored, configured })
        }
        Ok(Err(Refusal::OtherRule { kind, stored, accept })) => {
            let dir = path.parent().unwrap_or(path).to_path_buf();
            let of = kind.map(|name| format!(" of kind {name:?}")).unwrap_or_default();
            Err(OpenError::Rule { dir, stored: format!("{stored}{of}"), accept })
        }
        Err(fault) => Ok(Attempt::Unfit(fault.to_string())),
    }
}

/// Why a database is not opened.
pub(super) enum Refusal {
    /// It is not fit for use.
    Unfit(String),
    /// The disk does not let us.
    Disk(std::io::Error),
    /// Its identities are of another hash.
    OtherHash { stored: String, configured: String },
    /// Its identities are of another rule.
    OtherRule { kind: Option<String>, stored: String, accept: String },
}

impl From<sled::Error> for Refusal {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(cause) if needs_operator(&cause) => Self::Disk(cause),
            other => Self::Unfit(other.to_string()),
        }
    }
}

impl From<String> for Refusal {
    fn from(cause: String) -> Self {
        Self::Unfit(cause)
    }
}

impl From<&str> for Refusal {
    fn from(cause: &str) -> Self {
        Self::Unfit(cause.to_owned())
    }
}

fn assemble(db: sled::Db, path: PathBuf, binding: Option<&Binding>) -> Result<Engine, Refusal> {
    if db.tree_names().iter().any(|name| *name == keys::FORMER) {
        return Err(Refusal::Unfit("an older version of dedupd wrote it, in another form".to_owned()));
    }
    let (settled, waiting) = (db.open_tree(keys::SETTLED)?, db.open_tree(keys::WAITING)?);
    let hash = match binding {
        Some(binding) => bind(&db, settled.is_empty() && waiting.is_empty(), binding)?,
        None => stored_binding(&db)?.ok_or_else(nameless)?.hash,
    };
    let file = File::open(path.join("db")).map_err(Refusal::Disk)?;
    let segments = Segments::open(&path).map_err(Refusal::Disk)?;
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

fn stored_binding(db: &sled::Db) -> Result<Option<Binding>, Refusal> {
    let read = |json: sled::IVec| serde_json::from_slice(&json);
    let stored = db.get(keys::BINDING)?.map(read).transpose();
    stored.map_err(|e| Refusal::Unfit(format!("what it belongs to is unreadable: {e}")))
}

fn nameless() -> Refusal {
    Refusal::Unfit("it does not say what it belongs to".to_owned())
}

/// Compares the stored binding with ours and writes what is new; gives the hash. Written as a batch,
/// because that takes the engine's process-wide write lock: if a hung thread still holds it, it shows here.
fn bind(db: &sled::Db, empty: bool, binding: &Binding) -> Result<HashKind, Refusal> {
    let stored = stored_binding(db)?;
    let kept = match &stored {
        None if empty => binding.clone(),
        None => return Err(nameless()),
        Some(stored) => match binding.relation(stored) {
            Relation::Ours(kept) => *kept,
            Relation::Foreign(reason) => return Err(Refusal::Unfit(reason)),
            Relation::OtherRule(kind, stored) => {
                let accept = binding.fingerprint().map(|all| all.to_string()).unwrap_or_default();
                return Err(Refusal::OtherRule { kind, stored: stored.to_string(), accept });
            }
            Relation::OtherHash(_) => {
                let (stored, configured) = (stored.hash_text(), binding.hash_text());
                return Err(Refusal::OtherHash { stored, configured });
            }
        },
    };
    if stored.as_ref() != Some(&kept) {
        let json = serde_json::to_vec(&kept).map_err(|e| Refusal::Unfit(e.to_string()))?;
        let mut batch = sled::Batch::default();
        batch.insert(keys::BINDING, json);
        db.apply_batch(batch)?;
        db.flush()?;
    }
    Ok(kept.hash)
}

#[cfg(test)]
mod tests;
