use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use super::*;
use crate::dedupe::{
    Block, EntryName, HashKind, Identity, KindId, SliceMark, SlicePartition, Tail, WindowId,
};
use crate::ports::{Head, SealJob, Sealing, Store, StoreError};
use crate::store::record::WindowRecord;

const DEADLINE: Duration = Duration::from_secs(10);

type InjectedFault = Box<dyn Fn() -> sled::Result<()> + Send + Sync>;

fn binding() -> Binding {
    Binding { partitions: 1, ..Binding::default() }
}

fn plain(path: &Path) -> sled::Result<sled::Db> {
    sled::Config::new().path(path).segment_size(SEGMENT_BYTES).open()
}

/// Closes a database and waits until its lock is free: a thread of the engine, or a process that another test has just
/// forked, can hold it a little longer.
fn close(db: sled::Db, path: &Path) {
    drop(db);
    let file = File::open(path.join("db")).unwrap();
    let deadline = crate::clock::monotonic() + DEADLINE;
    while let Err(error) = fs2::FileExt::try_lock_exclusive(&file) {
        assert!(crate::clock::monotonic() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn block(owners: Range<u64>) -> Block {
    let empty = Block::empty(HashKind::Xxh3, 0.into(), owners.clone(), 0);
    let entries = owners.map(|owner| (owner, Identity([owner.to_le_bytes()[0]; 16]))).collect();
    Block { entries, ..empty }
}

fn append(store: &mut SledStore, owners: Range<u64>) -> Result<(), StoreError> {
    let number = store.next_number(0.into())?;
    store.append(&block(owners), number, Head::default())
}

/// A directory with a store of one identity.
fn filled() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    append(&mut store, 0..1).unwrap();
    store.close().unwrap();
    dir
}

/// Opens with an engine whose first call runs `first`.
fn open_after(
    dir: &Path,
    deadline: Duration,
    first: impl Fn() -> sled::Result<()> + Send + Sync + 'static,
) -> Result<Opened, OpenError> {
    let used = AtomicBool::new(false);
    let sled = move |path: &Path| {
        if !used.swap(true, Ordering::Relaxed) {
            first()?;
        }
        plain(path)
    };
    open_with(dir, &binding(), &start(deadline, sled))
}

fn start(
    deadline: Duration,
    sled: impl Fn(&Path) -> sled::Result<sled::Db> + Send + Sync + 'static,
) -> OpenStart {
    OpenStart { sled: Arc::new(sled), ..OpenStart::new(1 << 20, deadline) }
}

#[test]
fn error_panic_and_hang_of_the_engine_all_quarantine_the_database() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hang = move || {
        assert!(released.lock().unwrap().recv().is_err());
        Ok(())
    };
    let faults: [(&str, Duration, InjectedFault); 3] = [
        ("page 7", DEADLINE, Box::new(|| Err(sled::Error::ReportableBug("page 7".into())))),
        ("panicked: page 8", DEADLINE, Box::new(|| panic!("page 8"))),
        ("no progress", Duration::from_millis(500), Box::new(hang)),
    ];
    for (reason, deadline, fault) in faults {
        let dir = filled();
        let opened = open_after(dir.path(), deadline, fault).unwrap();
        let quarantine = opened.quarantined.unwrap();
        assert!(quarantine.reason.contains(reason), "{quarantine:?}");
        assert!(quarantine.path.join("db").is_file());
        let mut store = opened.store;
        assert_eq!(store.head(0.into()).unwrap(), None);
        append(&mut store, 0..1).unwrap();
        store.close().unwrap();
    }
    drop(release);
}

#[test]
fn an_open_without_a_binding_returns_after_a_hang_and_quarantines_nothing() {
    let dir = filled();
    let path = dir.path().join("db-1");
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hang = move |path: &Path| {
        assert!(released.lock().unwrap().recv().is_err());
        plain(path)
    };
    let panics = |_: &Path| -> sled::Result<sled::Db> { panic!("page 8") };
    for (start, reason) in
        [(start(Duration::from_millis(300), hang), "no progress"), (start(DEADLINE, panics), "page 8")]
    {
        let Err(OpenFailure::Unusable(cause)) = try_open(&path, None, &start) else { panic!("opened") };
        assert!(cause.contains(reason), "{cause}");
    }
    assert!(path.join("db").is_file() && fs::read_dir(dir.path()).unwrap().count() == 1);
    drop(release);
}

#[test]
fn a_full_disk_is_reported_and_the_database_is_not_moved() {
    let dir = filled();
    let full = || Err(sled::Error::Io(io::Error::from_raw_os_error(28)));
    let error = open_after(dir.path(), DEADLINE, full).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }) && error.to_string().contains("db-1"), "{error}");
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert_eq!(opened.quarantined, None);
    assert_eq!(opened.store.head(0.into()).unwrap(), Some(Head::default()));
}

#[test]
fn a_quarantined_database_does_not_stay_on_a_full_disk() {
    let dir = filled();
    let kept = dir.path().join("quarantine-0");
    fs::create_dir(&kept).unwrap();
    let full = || Err(sled::Error::Io(io::Error::from_raw_os_error(28)));
    let opened = open_after(dir.path(), DEADLINE, full).unwrap();
    assert_eq!((opened.quarantined, kept.exists()), (None, false));
}

#[test]
fn an_engine_that_fails_on_a_new_database_is_an_error() {
    let dir = filled();
    let broken = |_: &Path| -> sled::Result<sled::Db> { panic!("always") };
    let error = open_with(dir.path(), &binding(), &start(DEADLINE, broken)).unwrap_err();
    assert!(matches!(error, OpenError::Engine { .. }) && error.to_string().contains("db-2"), "{error}");
}

#[test]
fn a_failed_fsync_is_final_and_the_next_open_quarantines_the_database() {
    let dir = filled();
    let path = dir.path().join("db-1");
    let Ok(mut engine) = try_open(&path, Some(&binding()), &start(DEADLINE, plain)) else {
        panic!("does not open")
    };
    // fsync fails for this device.
    engine.file = File::open("/dev/null").unwrap();
    let mut store = SledStore::new(engine);
    append(&mut store, 1..2).unwrap();
    let failure = store.sync().unwrap_err();
    assert!(matches!(&failure, StoreError::Io(text) if text.contains("fsync")), "{failure}");
    assert_eq!(append(&mut store, 2..3), Err(failure.clone()));
    assert_eq!(store.sync(), Err(failure.clone()), "never retried");
    assert_eq!(store.close(), Err(failure));
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert!(opened.quarantined.unwrap().reason.contains("fsync"));
}

#[test]
fn a_failed_write_is_final_and_the_database_stays_as_it_was() {
    let dir = filled();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    let (files, away) = (store.path().join("owners"), store.path().join("away"));
    fs::rename(&files, &away).unwrap();
    let failure = append(&mut store, 1..1_000).unwrap_err();
    assert!(matches!(failure, StoreError::Io(_)), "{failure}");
    assert_eq!(append(&mut store, 1..2), Err(failure.clone()));
    assert_eq!(store.head(0.into()), Err(failure.clone()));
    assert_eq!(store.close(), Err(failure));
    fs::rename(&away, &files).unwrap();
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert_eq!(opened.quarantined, None);
    assert_eq!(opened.store.ids(0.into()), Ok(1));
}

#[test]
fn a_database_of_an_older_version_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db-1");
    create_private(&path).unwrap();
    let db = plain(&path).unwrap();
    db.insert(keys::BINDING, serde_json::to_vec(&binding()).unwrap()).unwrap();
    db.insert(keys::POSITIONS, &[0; 16]).unwrap();
    let runs = db.open_tree(keys::RUNS).unwrap();
    let mut record = WindowRecord::default().encode(0.into());
    record[0] -= 1;
    runs.insert(keys::record(0.into()), record).unwrap();
    drop(runs);
    close(db, &path);
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert!(opened.quarantined.unwrap().reason.contains("another version"));
}

#[test]
fn a_missing_run_is_detected() {
    let dir = filled();
    let path = dir.path().join("db-1");
    let db = plain(&path).unwrap();
    db.open_tree(keys::RUNS).unwrap().remove(keys::run(0.into(), 0)).unwrap();
    close(db, &path);
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert!(opened.quarantined.unwrap().reason.contains("should have 1 runs"));
    assert!(fs::read_dir(dir.path()).unwrap().count() >= 2);
}

/// Without the number of slices, the file of the lost one would be deleted, and copies of its owners would pass.
#[test]
fn a_missing_slice_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    for first in [0, 100] {
        let head = Head { confirmed: first + 100, ..Head::default() };
        store.append(&block(first..first + 100), first, head).unwrap();
        let mark = SliceMark { next: first + 100, count: 100, time_ms: (0, 0) };
        let range = SlicePartition { partition: 0, first, next: first + 100, marks: vec![mark] };
        let job = SealJob { kind: KindId::UNNAMED, partitions: vec![range], is_urgent: false };
        store.begin_seal(job).unwrap();
        while store.poll_seal().unwrap() != Sealing::Idle {
            std::thread::yield_now();
        }
    }
    assert_eq!(store.sealed(0.into()).len(), 2);
    store.close().unwrap();
    let path = dir.path().join("db-1");
    let db = plain(&path).unwrap();
    let slices = db.open_tree(keys::SLICES).unwrap();
    let (first, _) = slices.first().unwrap().unwrap();
    slices.remove(first).unwrap();
    drop(slices);
    close(db, &path);
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    let reason = opened.quarantined.unwrap().reason;
    assert!(reason.contains("1 slices are registered"), "{reason}");
}

#[test]
fn each_database_has_a_key_of_its_positions_and_keeps_it() {
    let position = |dir: &Path| {
        let Opened { store, quarantined } = open(dir, &binding(), 1 << 20, DEADLINE).unwrap();
        let key = store.positions().key(Identity([7; 16]));
        store.close().unwrap();
        (key, quarantined.map(|quarantined| quarantined.reason))
    };
    let (dir, other) = (filled(), filled());
    let (kept, _) = position(dir.path());
    assert_eq!(position(dir.path()), (kept, None));
    assert_ne!(position(other.path()), (kept, None));
    let path = dir.path().join("db-1");
    let db = plain(&path).unwrap();
    db.remove(keys::POSITIONS).unwrap();
    close(db, &path);
    let (new, reason) = position(dir.path());
    assert!(new != kept && reason.is_some_and(|reason| reason.contains("positions")));
}

/// Owners of a window that arrive at a time.
fn arrived(window: WindowId, owners: Range<u64>, time_ms: i64) -> Block {
    Block { window, time_first_ms: time_ms, time_last_ms: time_ms, ..block(owners) }
}

/// The name of an entry with ten offsets.
fn tail(number: u64) -> Tail {
    Tail { entry: EntryName { number, crc: 7 }, next: 10 * number, from: None }
}

/// A directory with owners of two kinds; the named kind has two runs. Returns the files of both.
fn with_kinds(named: WindowId) -> (tempfile::TempDir, [PathBuf; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    let mut confirmed_tail = None;
    for (transaction, first) in [(1, 0), (2, 10), (3, 20)] {
        let tail = Some(tail(transaction));
        let head =
            Head { confirmed: first, state_next: first / 2 + 1, tail, confirmed_tail, ..Head::default() };
        let time_ms = first.cast_signed() * 60_000;
        let windows = if transaction < 3 { vec![named, 0.into()] } else { vec![0.into()] };
        for window in windows {
            store.append(&arrived(window, first..first + 10, time_ms), first, head).unwrap();
        }
        confirmed_tail = tail;
    }
    let files = [1, 2].map(|file| store.engine.segments.path(file));
    assert_eq!([480, 720], files.each_ref().map(|file| fs::metadata(file).unwrap().len()));
    store.close().unwrap();
    (dir, files)
}

#[test]
fn a_kind_without_its_last_owners_lowers_the_head_of_all_kinds() {
    let named = KindId::named("payments").window(0);
    let (dir, [file, _]) = with_kinds(named);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 5]).unwrap();
    for _ in 0..2 {
        let Opened { store, quarantined } = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
        assert_eq!(quarantined, None);
        let tail = Some(tail(1));
        let expected = Head { confirmed: 10, state_next: 6, tail, confirmed_tail: tail, ..Head::default() };
        assert_eq!([0.into(), named].map(|window| store.head(window).unwrap()), [Some(expected); 2]);
        assert_eq!([0.into(), named].map(|window| store.ids(window).unwrap()), [30, 10]);
        store.close().unwrap();
    }
}

#[test]
fn a_run_without_its_owners_before_others_is_damage() {
    let named = KindId::named("payments").window(0);
    let (dir, [file, other]) = with_kinds(named);
    let mut bytes = fs::read(&file).unwrap();
    bytes[30] ^= 1;
    fs::write(&file, bytes).unwrap();
    fs::remove_file(other).unwrap();
    let opened = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap();
    assert!(opened.quarantined.unwrap().reason.contains("owners of partition"));
}
