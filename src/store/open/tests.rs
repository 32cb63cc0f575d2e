use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use super::*;
use crate::dedupe::{
    Coordinates, Digest, EntryName, Identity, KindId, OwnerRun, SealedRange, SliceMark, StoredOwner, WindowId,
};
use crate::ports::{Covered, Head, SealJob, Sealing, Store, StoreError};
use crate::store::OWNER_BYTES;
use crate::store::record::{self, Counts};

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
    while let Err(error) = file.try_lock() {
        assert!(crate::clock::monotonic() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn append(store: &mut SledStore, numbers: Range<u64>) -> Result<(), StoreError> {
    append_to(store, 0.into(), numbers, 0, &Head::default())
}

/// Appends owners with these numbers that arrive at a time.
fn append_to(
    store: &mut SledStore,
    window: WindowId,
    numbers: Range<u64>,
    time_ms: i64,
    head: &Head,
) -> Result<(), StoreError> {
    let owner = |offset: u64| StoredOwner {
        at: Coordinates { partition: 0, offset },
        time_ms,
        identity: Some(Identity([offset.to_le_bytes()[0]; 16])),
        digest: Digest::NONE,
    };
    let number = numbers.start;
    let owners: Vec<_> = numbers.map(owner).collect();
    store.append(window, &OwnerRun { number, times_ms: (time_ms, time_ms), owners: &owners }, head)
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
        ("conf, db or snap.*", DEADLINE, Box::new(|| Err(sled::Error::Corruption { at: None, bt: () }))),
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
    let mut record = record::encode(0.into(), &Head::default(), &Counts::default());
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
        append_to(&mut store, 0.into(), first..first + 100, 0, &head).unwrap();
        let mark = SliceMark { next: first + 100, count: 100, time_ms: (0, 0) };
        let range = SealedRange { first, next: first + 100, marks: vec![mark] };
        store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
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

fn entry(number: u64) -> Option<EntryName> {
    Some(EntryName { number, crc: 7 }).filter(|_| number > 0)
}

/// The head behind an entry, of a window with so many owners.
fn behind(number: u64, confirmed: u64) -> Head {
    let (last_entry, state_next) = (entry(number), number * 5 + 1);
    Head { confirmed, state_next, last_entry, confirmed_entry: last_entry, ..Head::default() }
}

/// Appends ten owners of an entry, of which is not known yet whether it is committed.
fn append_entry(store: &mut SledStore, window: WindowId, number: u64, time_ms: i64) {
    let first = store.next_number(window).unwrap();
    let covered = [(0, Covered { next: 7, time_ms })].into();
    let head = Head { last_entry: entry(number), covered, ..behind(number - 1, first) };
    append_to(store, window, first..first + 10, time_ms, &head).unwrap();
}

/// The time of an entry whose owners are a run of their own.
fn apart_ms(number: u64) -> i64 {
    number.cast_signed() * 600_000
}

/// A directory with owners of two kinds; the named kind has two runs. Returns the files of both.
fn with_kinds(named: WindowId) -> (tempfile::TempDir, [PathBuf; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    for number in 1..=3 {
        if number < 3 {
            append_entry(&mut store, named, number, apart_ms(number));
        }
        append_entry(&mut store, 0.into(), number, apart_ms(number));
    }
    let files = [1, 2].map(|file| store.engine.segments.path(file));
    assert_eq!([800, 1_200], files.each_ref().map(|file| fs::metadata(file).unwrap().len()));
    store.close().unwrap();
    (dir, files)
}

/// Removes the end of a file, and one byte more than so many runs of ten owners.
fn cut_runs(file: &Path, runs: usize) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() - runs * 10 * OWNER_BYTES - 1]).unwrap();
}

/// Opens a directory twice whose windows have these numbers of owners, and heads behind this entry.
fn opens_cut_back(dir: &Path, number: u64, windows: &[(WindowId, u64)]) {
    for _ in 0..2 {
        let Opened { store, quarantined } = open(dir, &binding(), 1 << 20, DEADLINE).unwrap();
        assert_eq!(quarantined, None);
        for (window, owners) in windows {
            let head = store.head(*window).unwrap().unwrap();
            assert_eq!(head, behind(number, *owners), "{window}");
            assert_eq!((store.next_number(*window), store.ids(*window)), (Ok(*owners), Ok(*owners)));
        }
        store.close().unwrap();
    }
}

#[test]
fn a_kind_without_its_last_owners_takes_all_kinds_back() {
    let named = KindId::named("payments").window(0);
    let (dir, [file, _]) = with_kinds(named);
    cut_runs(&file, 0);
    opens_cut_back(dir.path(), 1, &[(0.into(), 10), (named, 10)]);
}

/// The only run of the unnamed kind has owners of all entries. The third kind has owners of the first entry only.
#[test]
fn a_run_of_several_entries_takes_all_kinds_back_to_its_begin() {
    let [named, third] = ["payments", "orders"].map(|name| KindId::named(name).window(0));
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    append_entry(&mut store, third, 1, 0);
    for number in 2..=5 {
        append_entry(&mut store, named, number, apart_ms(number));
        append_entry(&mut store, 0.into(), number, 0);
    }
    let file = store.engine.segments.path(2);
    store.close().unwrap();
    cut_runs(&file, 0);
    opens_cut_back(dir.path(), 4, &[(0.into(), 30), (named, 30)]);
    cut_runs(&file, 1);
    opens_cut_back(dir.path(), 1, &[(0.into(), 0), (named, 0)]);
    let store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    assert_eq!(store.ids(third), Ok(10), "all of them are of the first entry");
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
    assert!(opened.quarantined.unwrap().reason.contains("owners of journal"));
}

/// An owner that does not fit would be another one when it is read.
#[test]
fn an_owner_that_does_not_fit_is_rejected_and_changes_nothing() {
    let dir = filled();
    let mut store = open(dir.path(), &binding(), 1 << 20, DEADLINE).unwrap().store;
    for (offset, time_ms) in [(1 << 56, 0), (1, -1), (1, 1 << 47)] {
        let at = Coordinates { partition: 0, offset };
        let owners = [StoredOwner { at, time_ms, identity: None, digest: Digest::NONE }];
        let run = OwnerRun { number: 1, times_ms: (0, 0), owners: &owners };
        let rejected = store.append(0.into(), &run, &behind(1, 2)).unwrap_err();
        assert!(matches!(&rejected, StoreError::Corrupt(cause) if cause.contains("does not fit")));
    }
    assert_eq!(store.head(0.into()), Ok(Some(Head::default())));
    append(&mut store, 1..2).unwrap();
}
