//! Export and import add, lose and change nothing.

use std::fs;

use dedupd::dedupe::{Owners, RecordTime, TimeSource, Verdict, Window, WindowLimits};
use dedupd::ports::StoreError;
use dedupd::store::{Adoption, DirectoryContents, Lock};
use dedupd::tools::state::{export, import, verify};
use indicatif::ProgressBar;

use super::*;

fn exported(dir: &Path, to: &Path) {
    let state = copied(dir);
    let done = export(&state.store, &state.binding, to, &ProgressBar::hidden()).unwrap();
    assert_eq!(done, verify(to, &ProgressBar::hidden()).unwrap());
    state.close();
}

fn imported(from: &Path, dir: &Path) {
    let _lock = Lock::acquire(dir).unwrap();
    let database = import(from, dir, CACHE_BYTES, DEADLINE, &ProgressBar::hidden()).unwrap();
    assert!(database.starts_with(dir) && database.join("db").is_file());
}

struct Stored<'a>(&'a SledStore, PartitionId);

impl Owners for Stored<'_> {
    type Error = StoreError;
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        let owner = self.0.owner(self.1.into(), number, expected)?;
        Ok(owner.expect("the window holds an owner that is not stored"))
    }
}

/// The window of a partition, as a start loads it.
fn loaded(state: &Copied, partition: PartitionId, clock_ms: i64) -> Window {
    let limits = WindowLimits { exact: LENGTH, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
    let mut window = Window::new(limits, state.store.positions());
    window.set_horizon(clock_ms);
    let mut load = |run: &dedupd::dedupe::OwnerRun<'_>| {
        window.load(run, Sequence::MAX);
        Ok(())
    };
    state.store.scan(partition.into(), &mut load).unwrap();
    window
}

#[test]
fn an_imported_state_exports_the_same_bytes_and_returns_the_same_verdicts() {
    let (dir, files, other) = (filled(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (files.path().join("first"), files.path().join("second"));
    exported(dir.path(), &first);
    imported(&first, other.path());
    exported(other.path(), &second);
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "the files differ");
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 2, "nothing half-written is left");

    let (was, is) = (copied(dir.path()), copied(other.path()));
    for (partition, seconds) in FILLED {
        let head = was.store.head(partition.into()).unwrap().unwrap();
        assert_eq!(is.store.head(partition.into()).unwrap().as_ref(), Some(&head));
        let windows = [&was, &is].map(|state| loaded(state, partition, head.time_ms));
        let time = RecordTime { own_ms: head.time_ms, stream_ms: head.time_ms };
        let at = Coordinates { partition, offset: u64::MAX };
        let mut seen = [0; 2];
        for _ in 0..20_000 {
            let identity = id(partition, fastrand::u64(..2 * seconds), Hasher::Xxh3);
            let verdict = |state: &Copied, window: &Window| {
                let key = window.key(identity);
                window.verdict(at, time, &key, &Stored(&state.store, partition)).unwrap()
            };
            let answers = [verdict(&was, &windows[0]), verdict(&is, &windows[1])];
            assert_eq!(answers[0], answers[1]);
            seen[match answers[0] {
                Verdict::New => 0,
                _ => 1,
            }] += 1;
        }
        assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
    }
    was.close();
    is.close();
}

#[test]
fn an_imported_state_can_be_used_like_any_other() {
    let (dir, files, other) = (filled(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = files.path().join("file");
    exported(dir.path(), &file);
    imported(&file, other.path());
    let mut store = opened(other.path(), HashKind::Xxh3);
    for (partition, seconds) in FILLED {
        let mut owners = 0;
        for offset in (0..seconds).step_by(89) {
            let at = Coordinates { partition, offset };
            let stored = store.identity_at(partition.into(), at).unwrap();
            assert_eq!(stored, Some(id(partition, offset, Hasher::Xxh3)));
            owners += 1;
        }
        assert!(owners > 20);
        let new = owner(partition, seconds, T, Identity([7; 16]));
        store.put(partition.into(), &[new], &head(partition, seconds + 1, T)).unwrap();
        assert_eq!(store.truncate(partition.into(), seconds - 1).unwrap().len(), 2);
        store.expire(partition.into(), seconds / 2, 0).unwrap();
    }
    store.close().unwrap();
    let state = copied(other.path());
    assert_eq!(state.store.head(0.into()).unwrap().unwrap().confirmed, 35_999);
    state.close();
}

#[test]
fn a_state_without_blocks_can_be_exported_and_imported() {
    let (dir, files, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = opened(dir.path(), HashKind::Xxh3);
    let head = Head { confirmed: 0, last_entry: entry(8), confirmed_entry: entry(7), ..head(1, 9, -4) };
    store.set_head(1.into(), &head).unwrap();
    store.close().unwrap();
    let (first, second) = (files.path().join("first"), files.path().join("second"));
    exported(dir.path(), &first);
    imported(&first, other.path());
    exported(other.path(), &second);
    assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    let store = opened(other.path(), HashKind::Xxh3);
    assert_eq!(store.head(1.into()).unwrap(), Some(head));
    store.close().unwrap();
}

#[test]
fn a_killed_import_leaves_no_state_and_does_not_prevent_the_next_one() {
    let (dir, files, other) = (filled(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = files.path().join("file");
    exported(dir.path(), &file);
    let adoption = Adoption::begin(other.path(), &binding(HashKind::Xxh3), CACHE_BYTES, DEADLINE).unwrap();
    drop(adoption);
    assert_eq!(DirectoryContents::of(other.path()).unwrap().ours.len(), 1);
    assert!(open_copy(other.path(), &std::env::temp_dir(), CACHE_BYTES, DEADLINE).is_err());
    std::thread::sleep(Duration::from_millis(200)); // sled releases the file's lock a moment later
    imported(&file, other.path());
    let names: Vec<_> = fs::read_dir(other.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the lock and the database: {names:?}");
}

#[test]
fn an_export_does_not_replace_a_file() {
    let (dir, files) = (filled(), tempfile::tempdir().unwrap());
    let file = files.path().join("file");
    fs::write(&file, "mine").unwrap();
    let output = dedupd(dir.path(), &["export", "--to", file.to_str().unwrap()]);
    assert!(output.code == 4 && output.err.contains("already exists"), "{output:?}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}
