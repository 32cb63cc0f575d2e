//! An error of a slice that is not registered yet discards its file, and nothing else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::dedupe::{SealedRange, SliceFooter, SliceMark, SlicePage};
use crate::ports::{SealedLookup, Sealing, StoreError};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Write(i32),
    Sync(i32),
    /// Of the directory, which has registered files too.
    SyncDirectory(i32),
    /// A bit is flipped on the way to the disk.
    Altered,
    Panic,
}

/// A disk on which what the thread of a task does fails.
#[derive(Default)]
struct Faulty {
    fault: Mutex<Option<Fault>>,
    /// The number of slice files before the first one that fails.
    spared: AtomicUsize,
}

impl Faulty {
    fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
    }

    fn is_task() -> bool {
        thread::current().name() == Some("store-seal")
    }

    fn fault(&self) -> Option<Fault> {
        let fault = *self.fault.lock().unwrap();
        fault.filter(|_| Self::is_task() && self.spared.load(Ordering::SeqCst) == 0)
    }
}

impl Disk for Faulty {
    fn write(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.to_vec();
        match self.fault() {
            Some(Fault::Write(errno)) => {
                FileSystem.write(path, at, &bytes[..bytes.len() / 2])?;
                return Err(io::Error::from_raw_os_error(errno));
            }
            Some(Fault::Panic) => panic!("a bug"),
            Some(Fault::Altered) => bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 1),
            _ => {}
        }
        FileSystem.write(path, at, &bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        if let Some(Fault::Sync(errno)) = self.fault() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let spared = self.spared.load(Ordering::SeqCst);
        self.spared.store(spared.saturating_sub(Self::is_task().into()), Ordering::SeqCst);
        FileSystem.sync_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match self.fault() {
            Some(Fault::SyncDirectory(errno)) => Err(io::Error::from_raw_os_error(errno)),
            _ => FileSystem.sync_directory(path),
        }
    }

    fn sync_sled(&self, file: &File) -> io::Result<()> {
        FileSystem.sync_sled(file)
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        FileSystem.delete(path)
    }
}

/// A store with 6,000 owners in runs.
struct Filled {
    root: tempfile::TempDir,
    disk: Arc<Faulty>,
    store: SledStore,
}

impl Filled {
    fn new() -> Self {
        let (root, disk) = (tempfile::tempdir().unwrap(), Arc::<Faulty>::default());
        let mut store = opened(root.path(), Arc::new(small_sled), Arc::clone(&disk) as Arc<dyn Disk>).store;
        (0..24).for_each(|number| append(&mut store, number * 250..(number + 1) * 250));
        Self { root, disk, store }
    }

    /// Begins to seal, with marks of 100 owners, and polls until that has ended.
    fn seal(&mut self, numbers: Range<Sequence>) -> Result<Sealing, StoreError> {
        self.begin(numbers, 100);
        self.ended()
    }

    fn begin(&mut self, numbers: Range<Sequence>, of_mark: u64) {
        let ends = numbers.clone().step_by(100).map(|first| first + 100);
        let marks = ends.map(|next| SliceMark { next, count: of_mark, time_ms: (0, 0) }).collect();
        sealing::begin(&mut self.store, SealedRange { first: numbers.start, next: numbers.end, marks });
    }

    fn ended(&mut self) -> Result<Sealing, StoreError> {
        loop {
            match self.store.poll_seal()? {
                Sealing::Busy => thread::yield_now(),
                ended => return Ok(ended),
            }
        }
    }

    fn slice_files(&self) -> Vec<PathBuf> {
        let blocks = self.store.path().join("owners");
        let is_slice = |path: &PathBuf| fs::read(path).unwrap().ends_with(b"DDS3");
        let mut paths: Vec<_> = files(&blocks).into_keys().map(|name| blocks.join(name)).collect();
        paths.retain(is_slice);
        paths.sort_by_key(|path| name(path).to_str().unwrap().parse::<u32>().unwrap());
        paths
    }

    /// All owners from here on are in runs or slices, and look-ups find the sealed ones.
    fn has_all_from(&self, first: Sequence) {
        assert!(owners(&self.store).is_superset(&(first..6_000).collect()));
        for range in self.store.sealed(0.into()) {
            for number in range.first.max(first)..range.next {
                let key = self.store.positions().key(identity(number));
                let places = self.store.sealed_places(&SealedLookup::new(0.into(), key)).unwrap();
                assert!(places.owners.iter().any(|owner| owner.at == place(number)), "{number}");
            }
        }
    }

    fn is_condemned(&self) -> bool {
        self.store.path().join("CONDEMNED").exists()
    }

    fn end_pauses(&mut self) {
        self.store.sealing.retries.iter_mut().for_each(|retry| retry.until = None);
    }

    /// Whether the next start quarantines it.
    fn quarantines(self) -> bool {
        drop(self.store.close());
        opened(self.root.path(), Arc::new(small_sled), Arc::new(FileSystem)).quarantined.is_some()
    }
}

const DISCARDED: [Fault; 6] = [
    Fault::Write(ENOSPC),
    Fault::Write(EIO),
    Fault::Sync(EIO),
    Fault::Sync(ENOSPC),
    Fault::Altered,
    Fault::Panic,
];

#[test]
fn an_error_of_a_slice_that_is_not_registered_discards_its_file_and_nothing_else() {
    for fault in DISCARDED {
        let mut filled = Filled::new();
        filled.disk.set(Some(fault));
        assert_eq!(filled.seal(0..1_000), Ok(Sealing::Failed), "{fault:?}");
        filled.disk.set(None);
        assert!(filled.slice_files().is_empty(), "{fault:?}");
        filled.has_all_from(0);
        append(&mut filled.store, 6_000..6_250);
        // The pause.
        filled.begin(0..1_000, 100);
        assert_eq!(filled.store.poll_seal(), Ok(Sealing::Paused), "{fault:?}");
        filled.end_pauses();
        assert_eq!(filled.ended(), Ok(Sealing::Idle), "{fault:?}: it was begun in the pause");
        assert!(matches!(filled.seal(0..1_000), Ok(Sealing::Done(_))), "{fault:?}");
        assert_eq!(filled.ended(), Ok(Sealing::Idle));
        filled.has_all_from(0);
        assert!(!filled.is_condemned() && !filled.quarantines(), "{fault:?}");
    }
}

/// A merge that fails leaves the slices that it would replace, and does not keep owners from being sealed.
#[test]
fn an_error_of_a_merge_discards_its_file_and_nothing_else() {
    for fault in DISCARDED {
        let mut filled = before_merge();
        let old = filled.slice_files().remove(0);
        // The new slice is written, and the merge that follows at once fails.
        filled.disk.spared.store(1, Ordering::SeqCst);
        filled.disk.set(Some(fault));
        assert!(matches!(filled.seal(1_000..1_100), Ok(Sealing::Done(_))), "{fault:?}");
        assert_eq!(filled.ended(), Ok(Sealing::Failed), "{fault:?}");
        filled.disk.set(None);
        filled.has_all_from(600);
        assert!(matches!(filled.seal(1_100..1_300), Ok(Sealing::Done(_))), "{fault:?}");
        assert_eq!((filled.ended(), filled.slice_files().len()), (Ok(Sealing::Idle), 3));
        filled.end_pauses();
        assert!(matches!(filled.seal(1_300..1_400), Ok(Sealing::Done(_))), "{fault:?}");
        assert_eq!(filled.ended(), Ok(Sealing::Idle), "{fault:?}");
        filled.store.sync().unwrap();
        assert!(!old.exists(), "{fault:?}: it was not merged");
        filled.has_all_from(600);
        assert!(!filled.is_condemned() && !filled.quarantines(), "{fault:?}");
    }
}

/// A store in which a merge is due after the next slice, because most identities of the only one were forgotten.
fn before_merge() -> Filled {
    let mut filled = Filled::new();
    assert!(matches!(filled.seal(0..1_000), Ok(Sealing::Done(_))));
    assert_eq!(filled.ended(), Ok(Sealing::Idle));
    let identities: Vec<_> = (0..600).map(identity).collect();
    let forgotten = ToForget { identities: &identities, ..ToForget::default() };
    let head = filled.store.head(0.into()).unwrap().unwrap();
    filled.store.forget(0.into(), forgotten, &head).unwrap();
    filled
}

#[test]
fn a_registered_slice_that_cannot_be_read_is_not_merged_and_one_that_is_damaged_is_quarantined() {
    let mut filled = before_merge();
    let slice = filled.slice_files().remove(0);
    let aside = filled.root.path().join("aside");
    // As after an I/O error: the file is there, and cannot be read.
    fs::rename(&slice, &aside).unwrap();
    fs::create_dir(&slice).unwrap();
    assert!(matches!(filled.seal(1_000..1_100), Ok(Sealing::Done(_))));
    assert_eq!(filled.ended(), Ok(Sealing::Failed));
    fs::remove_dir(&slice).unwrap();
    fs::rename(&aside, &slice).unwrap();
    filled.has_all_from(600);
    assert!(!filled.is_condemned() && !filled.quarantines());

    let mut filled = before_merge();
    let slice = filled.slice_files().remove(0);
    let mut bytes = fs::read(&slice).unwrap();
    bytes[100] ^= 1;
    fs::write(&slice, bytes).unwrap();
    assert!(matches!(filled.seal(1_000..1_100), Ok(Sealing::Done(_))));
    assert!(matches!(filled.ended(), Err(StoreError::Corrupt(_))));
    assert!(filled.is_condemned() && filled.quarantines());
}

#[test]
fn an_error_of_the_directory_is_one_of_registered_files_too() {
    let mut filled = Filled::new();
    filled.disk.set(Some(Fault::SyncDirectory(EIO)));
    assert!(matches!(filled.seal(0..1_000), Err(StoreError::Io(_))));
    assert!(filled.is_condemned() && filled.quarantines());
}

#[test]
fn a_slice_with_fewer_owners_than_its_sources_promise_is_discarded() {
    let mut filled = Filled::new();
    filled.begin(0..1_000, 101);
    assert_eq!(filled.ended(), Ok(Sealing::Failed), "runs have fewer owners than the marks count");
    filled.has_all_from(0);

    let mut filled = before_merge();
    let slice = filled.slice_files().remove(0);
    let mut bytes = fs::read(&slice).unwrap();
    let (_, end) = bytes.split_last_chunk().unwrap();
    let begin = bytes.len() - end.len() - SliceFooter::length(end).unwrap();
    let footer = SliceFooter::decode(&bytes[begin..]).unwrap();
    // A correct page without entries.
    let mut page = Vec::new();
    let place = SlicePage::place(footer.file, 1);
    SlicePage::encode(&footer.owners, place, std::iter::empty(), &mut page).unwrap();
    bytes[page.len()..2 * page.len()].copy_from_slice(&page);
    fs::write(&slice, bytes).unwrap();
    assert!(matches!(filled.seal(1_000..1_100), Ok(Sealing::Done(_))));
    assert_eq!(filled.ended(), Ok(Sealing::Failed));
    assert_eq!(filled.slice_files().len(), 2);
    assert!(!filled.is_condemned());
}

/// As when a limit shortens the window at that moment.
#[test]
fn owners_that_are_dropped_while_they_are_sealed_are_not_missed() {
    for dropped in [250, 1_000, 1_500] {
        let mut filled = Filled::new();
        // Before the thread reads the first run.
        filled.store.expire(0.into(), dropped, 0).unwrap();
        assert!(matches!(filled.seal(0..1_000), Ok(Sealing::Done(_))), "{dropped}");
    }
}

/// Quarantined state is for an operator who looks into it. It is deleted before the process fails because of its size.
#[test]
fn quarantined_state_is_deleted_when_the_disk_is_full() {
    let mut filled = Filled::new();
    let kept = filled.root.path().join("quarantine-9");
    fs::create_dir(&kept).unwrap();
    filled.disk.set(Some(Fault::Write(EIO)));
    assert_eq!(filled.seal(0..1_000), Ok(Sealing::Failed));
    assert!(kept.exists());
    filled.end_pauses();
    filled.disk.set(Some(Fault::Write(ENOSPC)));
    assert_eq!(filled.seal(0..1_000), Ok(Sealing::Failed));
    assert!(!kept.exists());
    assert!(!filled.quarantines());
}
