//! What is durable before owners are moved stays durable while they are moved.
//!
//! [`Lossy`] knows which bytes and directory entries were synced. Before each operation on files it makes images of what
//! a power loss would leave at that moment, opens them, and looks for every owner that was durable when the test began
//! to watch. sled's file is in one image as if the kernel had written all of it back, in the other as of its last fsync.

mod discarded;
mod sealing;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::*;
use crate::dedupe::{Coordinates, Digest, Identity, KnownOwner, OwnerRun, Sequence, StoredOwner};
use crate::ports::{Head, Store, ToForget};
use crate::store::open::{OpenSled, OpenStart, open_with};
use crate::store::segments::DIR;
use crate::store::{Binding, Opened, SledStore};

const CACHE_BYTES: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(20);

/// The files of a directory, by name.
type FileImages = BTreeMap<PathBuf, Vec<u8>>;

/// What a power loss leaves.
#[derive(Default, Clone)]
struct Durable {
    /// Synced bytes of the files.
    bytes: FileImages,
    /// Files whose directory entry was synced.
    listed: BTreeSet<PathBuf>,
    /// sled's files as of the last fsync.
    sled: FileImages,
}

#[derive(Default)]
struct Watch {
    durable: Durable,
    /// Owners that each image must have. Nothing is examined while it is empty.
    expected: BTreeSet<Sequence>,
    db: Option<sled::Db>,
    images: usize,
    deletions: usize,
    failures: Vec<String>,
}

/// A disk that knows what a power loss leaves. It has one database.
struct Lossy {
    root: tempfile::TempDir,
    watch: Mutex<Watch>,
}

impl Lossy {
    fn new(root: tempfile::TempDir, durable: Durable) -> Arc<Self> {
        let watch = Watch { durable, ..Watch::default() };
        Arc::new(Self { root, watch: Mutex::new(watch) })
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap()
    }

    fn database(&self) -> PathBuf {
        self.root.path().join("db-1")
    }

    fn open(self: &Arc<Self>) -> SledStore {
        let seen = Arc::clone(self);
        let sled = move |path: &Path| {
            let db = small_sled(path)?;
            seen.watch().db = Some(db.clone());
            Ok(db)
        };
        let disk = Arc::clone(self) as Arc<dyn Disk>;
        let opened = opened(self.root.path(), Arc::new(sled), disk);
        assert_eq!(opened.quarantined, None);
        opened.store
    }

    /// Examines the images from now on. All owners are durable.
    fn begin(&self, store: &mut SledStore) {
        self.watch().expected.clear();
        store.sync().unwrap();
        self.watch().expected = owners(store);
    }

    /// Examines what a power loss would leave now.
    fn examine(&self) {
        let mut watch = self.watch();
        let Watch { durable, expected, db, images, failures, .. } = &mut *watch;
        if expected.is_empty() {
            return;
        }
        db.as_ref().map(|db| db.flush().unwrap());
        let written = files(&self.database());
        for (name, sled) in [("sled as written", &written), ("sled as synced", &durable.sled)] {
            let image = tempfile::tempdir().unwrap();
            let blocks = image.path().join("db-1").join(DIR);
            fs::create_dir_all(&blocks).unwrap();
            for (path, bytes) in sled {
                fs::write(image.path().join("db-1").join(path), bytes).unwrap();
            }
            for file in &durable.listed {
                let bytes = durable.bytes.get(file).map_or(&[][..], |bytes| bytes);
                fs::write(blocks.join(file), bytes).unwrap();
            }
            let opened = opened(image.path(), Arc::new(small_sled), Arc::new(FileSystem));
            let has = owners(&opened.store);
            let confirmed = opened.store.head(0.into()).unwrap().map_or(0, |head| head.confirmed);
            let later = expected.last().map_or(0, |last| last + 1)..confirmed;
            let lost = expected.difference(&has).count() + later.filter(|owner| !has.contains(owner)).count();
            if let Some(quarantine) = opened.quarantined {
                failures.push(format!("{name}: {}", quarantine.reason));
            } else if lost > 0 {
                failures.push(format!("{name}: {lost} owners are lost"));
            }
            drop(opened.store.close());
            *images += 1;
        }
    }

    /// Ends the test, in which there were at least so many images and deleted files.
    fn end(&self, images: usize, deletions: usize) {
        self.examine();
        let watch = self.watch();
        println!("{} images, {} deleted files", watch.images, watch.deletions);
        assert!(watch.failures.is_empty(), "{} of {} images: {:#?}", watch.failures.len(), watch.images, {
            let some: BTreeSet<_> = watch.failures.iter().take(9).collect();
            some
        });
        assert!(watch.images >= images && watch.deletions >= deletions, "too little happened");
    }

    /// The directory as another process finds it after this one was killed: everything that it wrote, synced or not.
    fn killed(&self) -> Arc<Self> {
        let mut watch = self.watch();
        watch.db.as_ref().map(|db| db.flush().unwrap());
        let root = tempfile::tempdir().unwrap();
        let database = root.path().join("db-1");
        fs::create_dir_all(database.join(DIR)).unwrap();
        for part in ["", DIR] {
            for (name, bytes) in files(&self.database().join(part)) {
                fs::write(database.join(part).join(name), bytes).unwrap();
            }
        }
        let expected = mem::take(&mut watch.expected);
        let next = Self::new(root, watch.durable.clone());
        next.watch().expected = expected;
        next
    }
}

impl Disk for Lossy {
    fn write(&self, path: &Path, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.examine();
        FileSystem.write(path, at, bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.examine();
        let bytes = fs::read(path)?;
        self.watch().durable.bytes.insert(name(path), bytes);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.examine();
        if path.ends_with(DIR) {
            self.watch().durable.listed = files(path).into_keys().collect();
        }
        Ok(())
    }

    fn sync_sled(&self, _: &File) -> io::Result<()> {
        self.examine();
        let written = files(&self.database());
        self.watch().durable.sled = written;
        Ok(())
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        self.examine();
        let mut watch = self.watch();
        watch.durable.listed.remove(&name(path));
        watch.durable.bytes.remove(&name(path));
        watch.deletions += 1;
        FileSystem.delete(path)
    }
}

/// sled without flushes of its own and with small segments: its files are copied for each image.
fn small_sled(path: &Path) -> sled::Result<sled::Db> {
    sled::Config::new().path(path).flush_every_ms(None).segment_size(64 << 10).open()
}

fn opened(dir: &Path, sled: OpenSled, disk: Arc<dyn Disk>) -> Opened {
    let mut start = OpenStart::new(CACHE_BYTES, DEADLINE);
    (start.sled, start.disk) = (sled, disk);
    open_with(dir, &binding(), &start).unwrap()
}

fn name(path: &Path) -> PathBuf {
    path.file_name().unwrap().into()
}

fn files(dir: &Path) -> FileImages {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_file()).map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

fn binding() -> Binding {
    Binding { partitions: 1, ..Binding::default() }
}

fn append(store: &mut SledStore, numbers: Range<Sequence>) {
    append_at(store, numbers, 1_000);
}

/// A span of stream time that one run has at most, ms.
const SPAN_MS: i64 = 300_000;

/// The record that owns a number: it alternates between two partitions.
fn place(number: Sequence) -> Coordinates {
    Coordinates { partition: u32::from(number % 2 == 1), offset: number / 2 }
}

fn number_of(at: Coordinates) -> Sequence {
    at.offset * 2 + Sequence::from(at.partition)
}

fn identity(number: Sequence) -> Identity {
    Identity(u128::from(number).to_le_bytes())
}

fn append_at(store: &mut SledStore, numbers: Range<Sequence>, span: i64) {
    append_owners(store, numbers, span * SPAN_MS, identity);
}

fn append_owners(
    store: &mut SledStore,
    numbers: Range<Sequence>,
    time_ms: i64,
    identity: impl Fn(Sequence) -> Identity,
) {
    let head = Head { confirmed: numbers.end, ..Head::default() };
    let owner = |number| StoredOwner {
        at: place(number),
        time_ms,
        identity: Some(identity(number)),
        digest: Digest::NONE,
    };
    let (number, owners) = (numbers.start, numbers.map(owner).collect::<Vec<_>>());
    store
        .append(0.into(), &OwnerRun { number, times_ms: (time_ms, time_ms), owners: &owners }, &head)
        .unwrap();
}

/// The owners in runs and slices, by the numbers of their places. One that is in both, as after a crash, has the same identity in both.
fn owners(store: &SledStore) -> BTreeSet<Sequence> {
    let mut owners = BTreeMap::new();
    let mut visit = |run: &OwnerRun<'_>| {
        owners.extend(run.owners.iter().filter_map(|owner| Some((number_of(owner.at), owner.identity?))));
        Ok(())
    };
    store.scan(0.into(), &mut visit).unwrap();
    let mut visit = |_, identity: Identity, owner: KnownOwner| {
        let number = number_of(owner.at);
        let other = owners.insert(number, identity).filter(|other| *other != identity);
        assert_eq!(other, None, "{number} is in a run and in a slice");
        Ok(())
    };
    store.scan_sealed(&[0.into()], &mut visit).unwrap();
    owners.into_keys().collect()
}

/// A store with as many runs of so many identities: each run is of another time.
fn filled(runs: u64, ids: u64) -> (Arc<Lossy>, SledStore) {
    let disk = Lossy::new(tempfile::tempdir().unwrap(), Durable::default());
    let mut store = disk.open();
    (0..runs)
        .for_each(|number| append_at(&mut store, number * ids..(number + 1) * ids, number.cast_signed()));
    (disk, store)
}

fn close(disk: &Lossy, store: SledStore) {
    disk.watch().expected.clear();
    disk.watch().db = None;
    store.close().unwrap();
}

/// Writes a run again without this owner.
fn forget(disk: &Lossy, store: &mut SledStore, owner: Sequence) {
    disk.watch().expected.remove(&owner);
    let head = store.head(0.into()).unwrap().unwrap();
    let forgotten = ToForget { numbers: &[owner], identities: &[identity(owner)] };
    store.forget(0.into(), forgotten, &head).unwrap();
}

/// Undoes the owners of a partition at or beyond an offset.
fn undo(disk: &Lossy, store: &mut SledStore, from: Coordinates) {
    let is_left = |number: &Sequence| {
        let at = place(*number);
        at.partition != from.partition || at.offset < from.offset
    };
    disk.watch().expected.retain(is_left);
    let mut next = Some(0);
    while let Some(number) = next {
        next = store.undo(0.into(), &[from], number).unwrap().next;
    }
}

/// New owners are not synced, and their entries can be durable.
#[test]
fn a_power_loss_after_appends_loses_only_what_they_have_added() {
    let (disk, mut store) = filled(8, 250);
    disk.begin(&mut store);
    for number in 8..40u64 {
        // Some extend the last run, and some begin another one, and another file.
        let span = (number / 3).cast_signed();
        append_at(&mut store, number * 250..(number + 1) * 250, span);
    }
    disk.end(64, 0);
    close(&disk, store);
}

#[test]
fn a_power_loss_while_owners_are_forgotten_loses_no_other() {
    let (disk, mut store) = filled(96, 250);
    disk.begin(&mut store);
    for number in 60..96 {
        forget(&disk, &mut store, number * 250 + 7);
    }
    // The files of the moved runs are deleted.
    store.sync().unwrap();
    disk.end(80, 2);
    close(&disk, store);
}

#[test]
fn a_power_loss_while_owners_of_a_partition_are_undone_loses_none_of_the_others() {
    // More runs than are changed together.
    let (disk, mut store) = filled(240, 100);
    disk.begin(&mut store);
    for number in [239, 230, 180, 120, 60] {
        undo(&disk, &mut store, place(number * 100 + 8));
    }
    store.sync().unwrap();
    disk.end(50, 5);
    close(&disk, store);
}

#[test]
fn a_power_loss_after_owners_were_cut_loses_nothing_before_the_cut() {
    let (disk, mut store) = filled(24, 250);
    disk.begin(&mut store);
    for kept in (8..24u64).rev() {
        let from = kept * 250 - 100;
        disk.watch().expected.split_off(&from);
        store.truncate(0.into(), from).unwrap();
        // It writes to sled only.
        disk.examine();
    }
    // The files of the removed runs are deleted.
    store.sync().unwrap();
    disk.end(40, 4);
    close(&disk, store);
}

#[test]
fn a_power_loss_after_the_start_that_follows_a_kill_loses_no_durable_owner() {
    let (disk, mut store) = filled(16, 250);
    disk.begin(&mut store);
    // All runs of the first files are moved, and sled does not fsync that before the kill.
    (0..8).for_each(|number| forget(&disk, &mut store, number * 250 + 7));
    assert_eq!(disk.watch().deletions, 0);
    let next = disk.killed();
    close(&disk, store);
    let reopened = next.open();
    next.end(4, 2);
    close(&next, reopened);
}
