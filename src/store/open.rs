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
use super::verify::verify;
use super::{OpenError, keys};
use crate::dedupe::HashKind;

/// Size of sled's log segments. A message above a quarter of it goes into a file of its own, which
/// sled does not sync; a quarter of this holds a node of 20 full blocks.
const SEGMENT_BYTES: usize = 2 * 1024 * 1024;
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
    open_with(dir, binding, deadline, engine(cache_bytes))
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
            .cache_capacity(cache_bytes)
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
        verify(&engine.settled, &engine.waiting, engine.hash, &|| progress.alive())
            .map_err(Refusal::Unfit)?;
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
        Err(fault) => Ok(Attempt::Unfit(fault.to_string())),
    }
}

/// Why a database is not opened.
enum Refusal {
    /// It is not fit for use.
    Unfit(String),
    /// The disk does not let us.
    Disk(std::io::Error),
    /// Its identities are of another hash.
    OtherHash { stored: String, configured: String },
}

impl From<sled::Error> for Refusal {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(cause) if needs_operator(&cause) => Self::Disk(cause),
            other => Self::Unfit(other.to_string()),
        }
    }
}

fn assemble(db: sled::Db, path: PathBuf, binding: Option<&Binding>) -> Result<Engine, Refusal> {
    let (settled, waiting) = (db.open_tree(keys::SETTLED)?, db.open_tree(keys::WAITING)?);
    let hash = match binding {
        Some(binding) => bind(&db, settled.is_empty() && waiting.is_empty(), binding)?,
        None => stored_binding(&db)?.ok_or_else(nameless)?.hash,
    };
    let file = File::open(path.join("db")).map_err(Refusal::Disk)?;
    Ok(Engine {
        db,
        settled,
        waiting,
        unflushed: AtomicUsize::new(0),
        file,
        path,
        hash,
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
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;
    use crate::dedupe::{Block, Identity};
    use crate::ports::{Head, Store, StoreError};

    const DEADLINE: Duration = Duration::from_secs(10);

    type Fault = Box<dyn Fn() -> sled::Result<()> + Send + Sync>;

    fn binding() -> Binding {
        Binding {
            cluster_id: "c".into(),
            raw: "r".into(),
            clean: "l".into(),
            state: "s".into(),
            group: "g".into(),
            partitions: 1,
            hash: HashKind::Xxh3,
            raw_id: None,
            clean_id: None,
            state_id: None,
            kinds: Vec::new(),
        }
    }

    fn plain(path: &Path) -> sled::Result<sled::Db> {
        sled::Config::new().path(path).segment_size(SEGMENT_BYTES).open()
    }

    fn append(store: &mut SledStore, first: u64) -> Result<(), StoreError> {
        let block = Block {
            hash: HashKind::Xxh3,
            partition: 0,
            first,
            next: first + 1,
            time_first_ms: 0,
            time_last_ms: 0,
            entries: vec![(first, Identity([1; 16]))],
        };
        store.append(&block, Head::default())
    }

    /// A directory with a store of one identity.
    fn filled() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
        append(&mut store, 0).unwrap();
        store.close().unwrap();
        dir
    }

    /// Opens with an engine that misbehaves the first time.
    fn open_after(
        dir: &Path,
        deadline: Duration,
        first: impl Fn() -> sled::Result<()> + Send + Sync + 'static,
    ) -> Result<Opened, OpenError> {
        let (first, used) = (Arc::new(first), Arc::new(AtomicBool::new(false)));
        open_with(dir, &binding(), deadline, move |path| {
            if !used.swap(true, Ordering::Relaxed) {
                first()?;
            }
            plain(path)
        })
    }

    #[test]
    fn error_panic_and_hang_of_the_engine_end_alike() {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let hang = move || {
            assert!(released.lock().unwrap().recv().is_err());
            Ok(())
        };
        let faults: [(&str, Duration, Fault); 3] = [
            ("page 7", DEADLINE, Box::new(|| Err(sled::Error::ReportableBug("page 7".into())))),
            ("panicked: page 8", DEADLINE, Box::new(|| panic!("page 8"))),
            ("no sign of life", Duration::from_millis(500), Box::new(hang)),
        ];
        for (reason, deadline, fault) in faults {
            let dir = filled();
            let opened = open_after(dir.path(), deadline, fault).unwrap();
            let quarantine = opened.quarantined.unwrap();
            assert!(quarantine.reason.contains(reason), "{quarantine:?}");
            assert!(quarantine.path.join("db").is_file());
            let mut store = opened.store;
            assert_eq!(store.head(0).unwrap(), None);
            append(&mut store, 0).unwrap();
            store.close().unwrap();
        }
        drop(release);
    }

    #[test]
    fn a_look_at_a_database_comes_back_from_a_hang_and_sets_nothing_aside() {
        let dir = filled();
        let path = dir.path().join("db-1");
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let hang = move |path: &Path| {
            assert!(released.lock().unwrap().recv().is_err());
            plain(path)
        };
        let error = open_any_with(&path, Duration::from_millis(300), hang).unwrap_err();
        assert!(
            matches!(&error, OpenError::Damaged { cause, .. } if cause.contains("no sign of life")),
            "{error}"
        );
        let panics = |_: &Path| -> sled::Result<sled::Db> { panic!("page 8") };
        let error = open_any_with(&path, DEADLINE, panics).unwrap_err();
        assert!(matches!(&error, OpenError::Damaged { cause, .. } if cause.contains("page 8")), "{error}");
        assert!(path.join("db").is_file() && fs::read_dir(dir.path()).unwrap().count() == 1);
        drop(release);
    }

    #[test]
    fn a_full_disk_is_reported_and_the_database_left_where_it_is() {
        let dir = filled();
        let full = || Err(sled::Error::Io(std::io::Error::from_raw_os_error(28)));
        let error = open_after(dir.path(), DEADLINE, full).unwrap_err();
        assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("db-1"), "{error}");
        let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
        assert_eq!(opened.quarantined, None);
        assert_eq!(opened.store.head(0).unwrap(), Some(Head::default()));
    }

    #[test]
    fn an_engine_that_fails_on_a_fresh_database_is_an_error() {
        let dir = filled();
        let broken = |_: &Path| -> sled::Result<sled::Db> { panic!("always") };
        let error = open_with(dir.path(), &binding(), DEADLINE, broken).unwrap_err();
        assert!(matches!(error, OpenError::Engine { .. }) && error.to_string().contains("db-2"), "{error}");
    }

    #[test]
    fn a_failed_fsync_is_final_and_the_next_opening_sets_the_database_aside() {
        let dir = filled();
        let path = dir.path().join("db-1");
        let Attempt::Ready(mut engine) = attempt(&path, Some(&binding()), DEADLINE, plain).unwrap() else {
            panic!("does not open")
        };
        // The kernel has no fsync for this device.
        engine.file = File::open("/dev/null").unwrap();
        let mut store = SledStore::new(*engine);
        append(&mut store, 1).unwrap();
        let failure = store.sync().unwrap_err();
        assert!(matches!(&failure, StoreError::Io(text) if text.contains("fsync")), "{failure}");
        assert_eq!(append(&mut store, 2), Err(failure.clone()));
        assert_eq!(store.sync(), Err(failure.clone()), "never tried again");
        assert_eq!(store.close(), Err(failure));
        let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
        assert!(opened.quarantined.unwrap().reason.contains("fsync"));
    }

    #[test]
    fn a_hole_in_the_blocks_is_noticed() {
        let dir = filled();
        let db = plain(&dir.path().join("db-1")).unwrap();
        db.open_tree(keys::WAITING).unwrap().remove(keys::block(0, 0)).unwrap();
        drop(db);
        let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
        assert!(opened.quarantined.unwrap().reason.contains("should have 1 blocks"));
        assert!(fs::read_dir(dir.path()).unwrap().count() >= 2);
    }
}
