//! The local store of a process in a history: one in memory, or in few histories the real one.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dedupd::dedupe::HashKind;
use dedupd::ports::{FilterJob, SealJob, Sealing, Store, StoreError};
use dedupd::store::{Binding, SledStore, open};
use fastrand::Rng;

use crate::memory_store::MemoryStore;

/// A handle.
#[derive(Clone)]
pub enum SimDisk {
    Memory(MemoryStore),
    Real(Box<RealStore>),
}

/// The real store, in a directory of its own.
#[derive(Clone)]
pub struct RealStore {
    store: SledStore,
    /// Since a job began, until a poll finds none: its thread may write a file.
    job: Option<Arc<()>>,
    directory: Arc<Directory>,
}

/// Is deleted with its last handle.
struct Directory {
    dir: tempfile::TempDir,
    binding: Binding,
    /// Each handle with a job has a clone.
    jobs: Arc<()>,
}

impl Directory {
    fn new(binding: Binding) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.exists() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { dir: dir.unwrap(), binding, jobs: Arc::default() }
    }
}

impl RealStore {
    fn open(directory: Directory) -> Self {
        let opened = open(directory.dir.path(), &directory.binding, 1 << 20, Duration::from_mins(1)).unwrap();
        // A copy of a damaged one is quarantined.
        Self { store: opened.store, job: None, directory: Arc::new(directory) }
    }

    fn begin_job(&mut self) {
        self.job = Some(Arc::clone(&self.directory.jobs));
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.store.path().join("owners"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
    }

    /// Another store with what this one has now.
    fn copied(&self) -> Self {
        let mut store = self.store.clone();
        // It is broken, and so is its copy.
        drop(store.sync());
        let directory = Directory::new(self.directory.binding.clone());
        let to = directory.dir.path().join("db-1");
        fs::create_dir_all(to.join("owners")).unwrap();
        for path in [self.files(), vec![store.path().join("db"), store.path().join("conf")]].concat() {
            fs::copy(&path, to.join(path.strip_prefix(store.path()).unwrap())).unwrap();
        }
        Self::open(directory)
    }
}

impl SimDisk {
    /// An empty store in memory.
    pub fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    /// An empty store on disk.
    pub fn real(topic_scope: bool, hash: HashKind) -> Self {
        let binding = Binding { hash, topic_scope, ..Binding::default() };
        Self::on_disk(binding)
    }

    fn on_disk(binding: Binding) -> Self {
        Self::Real(Box::new(RealStore::open(Directory::new(binding))))
    }

    /// A handle for another worker, which can change only windows that it has taken.
    pub fn another(&self) -> Self {
        match self {
            Self::Memory(store) => Self::Memory(store.another()),
            Self::Real(store) => {
                let RealStore { store, directory, .. } = &**store;
                let (store, directory) = (store.another(), Arc::clone(directory));
                Self::Real(Box::new(RealStore { store, job: None, directory }))
            }
        }
    }

    /// A store that is as empty as a new one, of the same kind.
    pub fn another_empty(&self) -> Self {
        match self {
            Self::Memory(_) => Self::memory(),
            Self::Real(store) => Self::on_disk(store.directory.binding.clone()),
        }
    }

    /// Whether a start with this hash does not use it.
    pub fn has_other_hash(&self, hash: HashKind) -> bool {
        matches!(self, Self::Real(store) if store.directory.binding.hash != hash)
    }

    /// A copy that does not change with this one.
    pub fn snapshot(&self) -> Self {
        match self {
            Self::Memory(store) => Self::Memory(store.snapshot()),
            Self::Real(store) => Self::Real(Box::new(store.copied())),
        }
    }

    /// Whether this handle has a job.
    pub fn is_sealing(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_sealing(),
            Self::Real(store) => store.job.is_some(),
        }
    }

    /// Whether a thread of any handle may write a file.
    pub fn is_written(&self) -> bool {
        matches!(self, Self::Real(store) if Arc::strong_count(&store.directory.jobs) > 1)
    }

    /// Damages stored owners: a run in memory cannot be read any more, and in the real store a bit of a file is flipped.
    pub fn rot(&self, rng: &mut Rng, bit: Option<usize>) {
        let store = match self {
            Self::Memory(store) => {
                store.rot(|runs| rng.usize(0..runs));
                return;
            }
            Self::Real(store) => store,
        };
        let files = store.files();
        if !files.is_empty() {
            let file = &files[rng.usize(..files.len())];
            let mut bytes = fs::read(file).unwrap();
            let bit = bit.unwrap_or_else(|| rng.usize(..)) % (bytes.len() * 8).max(1);
            bytes.get_mut(bit / 8).into_iter().for_each(|byte| *byte ^= 1 << (bit % 8));
            fs::write(file, bytes).unwrap();
        }
    }

    /// The one in memory.
    pub fn in_memory(&self) -> Option<&MemoryStore> {
        if let Self::Memory(store) = self { Some(store) } else { None }
    }
}

impl Deref for SimDisk {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self {
            Self::Memory(store) => store,
            Self::Real(store) => &store.store,
        }
    }
}

impl DerefMut for SimDisk {
    fn deref_mut(&mut self) -> &mut (dyn Store + 'static) {
        match self {
            Self::Memory(store) => store,
            Self::Real(store) => &mut store.store,
        }
    }
}

impl SimDisk {
    /// As [`Store::begin_seal`].
    pub fn begin_seal(&mut self, job: SealJob) -> Result<(), StoreError> {
        if let Self::Real(store) = self {
            store.begin_job();
        }
        (**self).begin_seal(job)
    }

    /// As [`Store::begin_filter`].
    pub fn begin_filter(&mut self, job: &FilterJob) -> Result<bool, StoreError> {
        let begins = (**self).begin_filter(job)?;
        if let Self::Real(store) = self
            && begins
        {
            store.begin_job();
        }
        Ok(begins)
    }

    /// As [`Store::poll_seal`]. Waits for the thread of the real store: a seed is one history.
    pub fn poll_seal(&mut self) -> Result<Sealing, StoreError> {
        let Self::Real(real) = self else { return (**self).poll_seal() };
        let RealStore { store, job, .. } = &mut **real;
        loop {
            match store.poll_seal()? {
                Sealing::Busy => std::thread::yield_now(),
                Sealing::Failed | Sealing::Paused => panic!("a slice was discarded"),
                polled => {
                    job.take_if(|_| polled == Sealing::Idle);
                    return Ok(polled);
                }
            }
        }
    }
}
