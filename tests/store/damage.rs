//! Any damage is detected or harmless, and never causes a hang.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dedupd::clock::monotonic;
use dedupd::dedupe::{
    Coordinates, Identity, Owner, OwnerRun, Owners, PartitionId, RecordTime, Sequence, StoredOwner,
    TimeSource, Verdict, Window, WindowId, WindowLimits,
};
use dedupd::ports::{Store, StoreError};
use dedupd::store::{Binding, OWNER_BYTES, Opened, SledStore, open};

use super::appending::Appending;
use super::{CACHE_BYTES, DEADLINE, binding, contents, head, identity, owners};

/// The owners of a journal by their numbers.
type Stored = BTreeMap<Sequence, StoredOwner>;

/// What a damaged store may contain: for each journal and number, every owner that ever had it.
type Written = BTreeMap<(PartitionId, Sequence), Vec<StoredOwner>>;

/// A closed store with some history, and an older copy of it.
struct History {
    dir: tempfile::TempDir,
    written: Written,
    older: PathBuf,
}

impl History {
    /// `writing` is the number of the first write of an instance, so that no two instances write the same identities.
    fn create(binding: &Binding, writing: u64, random: &mut fastrand::Rng) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let reopen = || {
            let Opened { store, quarantined } = open(dir.path(), binding, CACHE_BYTES, DEADLINE).unwrap();
            assert_eq!(quarantined, None, "a store that was closed cleanly opens again");
            store
        };
        let (mut written, mut store, older) = (Written::new(), reopen(), dir.path().join("older"));
        let rounds = random.u64(20..160);
        for round in 0..rounds {
            let journal = random.u32(0..3);
            let mut first = store.next_number(journal.into()).unwrap();
            if random.u32(0..20) == 0 {
                first = first.saturating_sub(random.u64(0..500));
                store.truncate(journal.into(), first).unwrap();
            }
            let length = if random.u32(0..3) == 0 { random.u64(500..4_000) } else { random.u64(1..60) };
            let (next, owners) = (first + length, owners(journal, first..first + length, writing + round));
            for (number, owner) in (first..).zip(&owners) {
                written.entry((journal, number)).or_default().push(*owner);
            }
            store.put(journal.into(), &owners, &head(next)).unwrap();
            store.expire(journal.into(), next.saturating_sub(20_000), 0).unwrap();
            if round == rounds / 2 {
                store.close().unwrap();
                copy(&database(dir.path()), &older);
                store = reopen();
            }
        }
        store.close().unwrap();
        Self { dir, written, older }
    }

    fn database(&self) -> PathBuf {
        database(self.dir.path())
    }

    fn wrote_all_of(&self, journal: PartitionId, stored: &Stored) -> bool {
        let known = |(number, owner): (&Sequence, &StoredOwner)| {
            self.written.get(&(journal, *number)).is_some_and(|all| all.contains(owner))
        };
        stored.iter().all(known)
    }
}

pub fn database(dir: &Path) -> PathBuf {
    let mut databases = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    databases.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("db-")).unwrap()
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Damages a closed store in one of eleven ways and describes the damage. `other` is the store of another instance.
fn damage(ours: &History, other: &History, random: &mut fastrand::Rng) -> String {
    let database = ours.database();
    let files: Vec<_> =
        files(&database).into_iter().filter(|file| fs::metadata(file).unwrap().len() > 0).collect();
    let target =
        if random.bool() { database.join("db") } else { files[random.usize(0..files.len())].clone() };
    let name = target.file_name().unwrap().to_string_lossy().into_owned();
    let mut bytes = fs::read(&target).unwrap();
    let at = random.usize(0..bytes.len());
    match random.u32(0..12) {
        0 => {
            bytes.truncate(at);
            fs::write(&target, bytes).unwrap();
            format!("{name} truncated to {at}")
        }
        1 | 2 => {
            bytes[at] ^= 1 << random.u32(0..8);
            fs::write(&target, bytes).unwrap();
            format!("a bit of {name} flipped at {at}")
        }
        3 => {
            let end = bytes.len().min(at + 4096);
            bytes[at..end].fill(0);
            fs::write(&target, bytes).unwrap();
            format!("a page of {name} zeroed at {at}")
        }
        4 => {
            fs::remove_file(&target).unwrap();
            format!("{name} deleted")
        }
        5 => {
            bytes.truncate(at);
            fs::write(database.join("snap.0000000000FFFFFF.generating"), &bytes).unwrap();
            format!("a half-written snapshot of {at} bytes")
        }
        6 => {
            let end = bytes.len().min(at + random.usize(1..65_536));
            bytes[at..end].iter_mut().for_each(|byte| *byte = random.u8(..));
            fs::write(&target, bytes).unwrap();
            format!("random bytes in {name} from {at} to {end}")
        }
        7 => {
            for file in &files {
                fs::remove_file(file).unwrap();
            }
            format!("all {} files deleted", files.len())
        }
        8 => {
            fs::copy(ours.older.join("db"), database.join("db")).unwrap();
            "an older copy of db beside newer files".to_owned()
        }
        9 => {
            fs::copy(other.database().join("db"), database.join("db")).unwrap();
            "another instance's db beside our files".to_owned()
        }
        10 => {
            fs::remove_dir_all(&database).unwrap();
            copy(&other.database(), &database);
            "another instance's directory in its place".to_owned()
        }
        _ => {
            fs::remove_dir_all(&database).unwrap();
            copy(&ours.older, &database);
            "an older copy in its place".to_owned()
        }
    }
}

/// A window of a store.
struct Of<'a>(&'a SledStore, WindowId);

impl Owners for Of<'_> {
    type Error = StoreError;
    fn owner(&self, number: Sequence, expected: Option<Identity>) -> Result<StoredOwner, StoreError> {
        let owner = self.0.owner(self.1, number, expected)?;
        Ok(owner.expect("the window holds an owner that is not stored"))
    }
}

/// A window loaded from the store returns `Duplicate` for every stored identity and `New` for others.
fn check_verdicts(store: &SledStore, journal: PartitionId, stored: &Stored, case: &str) {
    let (exact, time) = (Duration::from_hours(1_000), TimeSource::Record);
    let limits = WindowLimits { exact, max_ids: u64::MAX, time, bloom: None };
    let mut window = Window::new(limits, store.positions());
    let load = &mut |run: &OwnerRun<'_>| {
        window.load(run, Sequence::MAX);
        Ok(())
    };
    store.scan(journal.into(), load).unwrap();
    let (at, time) = (Coordinates { partition: 3, offset: 0 }, RecordTime { own_ms: 1, stream_ms: 1 });
    let verdict = |identity| window.verdict(at, time, &window.key(identity), &Of(store, journal.into()));
    for (number, StoredOwner { at, time_ms, identity: found, digest }) in stored.iter().step_by(7) {
        let found = found.unwrap();
        let owner = Owner { at: *at, time_ms: *time_ms, identity: found, digest: *digest };
        assert_eq!(verdict(found), Ok(Verdict::Duplicate { owner }), "{case}: {number} of journal {journal}");
        assert_eq!(verdict(identity(journal, *number, u64::MAX >> 16)), Ok(Verdict::New), "{case}");
    }
}

/// Opens one damaged store: it must be opened or quarantined in time, contain only written owners, and be usable.
fn open_damaged(seed: u64) -> (String, bool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let ours = History::create(&binding(), 0, &mut random);
    // The other instance has the same group, or another group on the same topics.
    let same_group = random.bool();
    let group = if same_group { binding().group } else { "another".to_owned() };
    let other = History::create(&Binding { group, ..binding() }, 10_000, &mut random);
    let damage_done = damage(&ours, &other, &mut random);
    let case = format!("STORE_SEED={seed}: {damage_done}");
    let start = monotonic();
    let Opened { mut store, quarantined } = match open(ours.dir.path(), &binding(), CACHE_BYTES, DEADLINE) {
        Ok(opened) => opened,
        Err(error) => panic!("{case}: {error}"),
    };
    assert!(start.elapsed() < DEADLINE + Duration::from_secs(5), "{case}: took {:?}", start.elapsed());
    let all: Vec<_> = (0..3).map(|journal| contents(&store, journal)).collect();
    let wrote_all =
        |history: &History| (0..).zip(&all).all(|(journal, stored)| history.wrote_all_of(journal, stored));
    assert!(
        wrote_all(&ours) || (same_group && wrote_all(&other)),
        "{case}: an owner that was never written, or of two histories at once"
    );
    for (journal, stored) in (0..).zip(&all) {
        check_verdicts(&store, journal, stored, &case);
        // Everything that a head confirms is stored without holes, except for expired owners.
        if let (Some(head), Some((first, _))) =
            (store.head(journal.into()).unwrap(), stored.first_key_value())
        {
            assert_eq!(
                stored.range(..head.confirmed).count() as u64,
                head.confirmed - first,
                "{case}: a hole"
            );
        }
        let next = store.next_number(journal.into()).unwrap();
        store.put(journal.into(), &owners(journal, next..next + 3_000, 1_000), &head(next)).unwrap();
        assert_eq!(contents(&store, journal).len(), stored.len() + 3_000, "{case}");
    }
    store.close().unwrap();
    drop(super::reopened(ours.dir.path()));
    (damage_done, quarantined.is_some())
}

#[test]
fn a_damaged_store_opens_or_is_quarantined_and_never_invents_an_identity() {
    if let Ok(seed) = std::env::var("STORE_SEED") {
        println!("{:?}", open_damaged(seed.parse().unwrap()));
        return;
    }
    let base: u64 = std::env::var("STORE_BASE").map_or(20_261_120, |base| base.parse().unwrap());
    let cases = std::env::var("STORE_CASES").map_or(72, |cases| cases.parse().unwrap());
    let mut quarantined_cases = 0;
    for seed in base..base + cases {
        let (damage_done, quarantined) = open_damaged(seed);
        println!("seed {seed}: {damage_done}: {}", if quarantined { "quarantined" } else { "opened" });
        quarantined_cases += u64::from(quarantined);
    }
    println!("{quarantined_cases} of {cases} quarantined");
    assert!(
        quarantined_cases > cases / 10 && quarantined_cases < cases,
        "some damage must lead to a quarantine, but not all"
    );
}

/// Owners are verified when the store is opened. Later disk damage must not lead to a wrong result for an identity.
#[test]
fn a_bit_flipped_in_an_open_store_is_detected_or_harmless() {
    const OWNERS: u64 = 3_000;
    let mut random = fastrand::Rng::with_seed(20_261_121);
    for case in 0..80u64 {
        let dir = tempfile::tempdir().unwrap();
        // Memory for 224 owners: a look-up of another one reads the file.
        let mut store = open(dir.path(), &binding(), 8 << 10, DEADLINE).unwrap().store;
        let written = owners(0, 0..OWNERS, case);
        store.put(0.into(), &written, &head(OWNERS)).unwrap();
        let of_owners = |file: &PathBuf| file.parent().unwrap().ends_with("owners");
        let file = files(dir.path()).into_iter().find(of_owners).expect("a file of owners");
        let mut bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len(), written.len() * OWNER_BYTES);
        // Not only the identity decides: the place makes a record a retry, the time the length of the window, the digest a conflict.
        let (damaged, byte) = (random.usize(..2_600), random.usize(..OWNER_BYTES));
        let at = damaged * OWNER_BYTES + byte;
        bytes[at] ^= 1 << random.u32(..8);
        fs::write(&file, bytes).unwrap();
        let look_up = |number, expected| store.owner(0.into(), number, Some(expected));
        for (place, right) in written.iter().enumerate() {
            match look_up(place as u64, right.identity.unwrap()) {
                Ok(Some(found)) => {
                    assert_eq!(found, *right, "case {case}: owner {place}");
                    assert_ne!(place, damaged, "case {case}: the damaged owner is found");
                }
                Err(StoreError::Corrupt(_)) if place == damaged => break,
                other => panic!("case {case}: a bit flipped at {at}, and owner {place} is {other:?}"),
            }
        }
        // A look-up that does not find what it expects verifies all owners of the run.
        let other = look_up(1, identity(0, 0, case));
        assert!(matches!(other, Err(StoreError::Corrupt(_))), "case {case}: {other:?}");
    }
}
