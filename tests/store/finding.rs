//! What was found in slices before a look-up never changes its result.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dedupd::dedupe::{KindId, Offset, SliceMark, SlicePartition, StoredOwner};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, ToForget};
use dedupd::store::{Binding, SledStore, open};

use crate::appending::Appending;
use crate::{CACHE_BYTES, DEADLINE, binding, block, blocks, head, identity, opened};

/// Identities of a slice.
const SLICE: u64 = 50;

/// Appends a block and seals it. Slices are merged meanwhile if there are many.
fn seal(store: &mut SledStore, first: Offset) {
    let next = first + SLICE;
    store.put(&block(0, first..next, 1, 1), head(next)).unwrap();
    let marks = vec![SliceMark { next, count: SLICE, time_ms: (0, 0) }];
    let partitions = vec![SlicePartition { partition: 0, first, next, marks }];
    store.begin_seal(SealJob { kind: KindId::UNNAMED, partitions, is_urgent: false }).unwrap();
    while store.poll_seal().unwrap() != Sealing::Idle {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Identities that are known, and some that are not.
fn lookups(store: &SledStore, ids: u64) -> Vec<SealedLookup> {
    let key = |owner| store.positions().key(identity(0, owner, 1));
    (0..ids + 200).map(|owner| SealedLookup::new(0.into(), key(owner))).collect()
}

/// Compares the look-ups with those of which nothing was found before. Returns how many have an owner.
fn known(store: &SledStore, lookups: &[SealedLookup]) -> usize {
    let mut known = 0;
    for (owner, lookup) in (0..).zip(lookups) {
        let places = store.sealed_places(lookup).unwrap();
        assert_eq!(places, store.sealed_places(&SealedLookup { found: None, ..*lookup }).unwrap(), "{owner}");
        known += places.owners.len();
        assert!(places.owners.iter().all(|place| place.offset == owner), "{owner}: {places:?}");
    }
    known
}

#[test]
fn slices_that_were_found_are_used_until_slices_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    for slices in 1..=60 {
        let ids = slices * SLICE;
        let mut found = lookups(&store, ids);
        store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
        assert_eq!(known(&store, &found) as u64, ids - SLICE);
        seal(&mut store, ids - SLICE);
        // One slice more, and from 25 on some are merged.
        assert_eq!(known(&store, &found) as u64, ids);
    }
    let mut found = lookups(&store, 60 * SLICE);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    let forgotten = [identity(0, 7, 1)];
    let forget = ToForget { owners: &[7], identities: &forgotten, before: 3_000 };
    store.forget(0.into(), forget, head(3_000)).unwrap();
    assert_eq!(known(&store, &found) as u64, 60 * SLICE - 1);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.truncate(0.into(), 1_000).unwrap();
    assert_eq!(known(&store, &found), 999);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.expire(0.into(), 1_000, 0).unwrap();
    assert_eq!(known(&store, &found), 0);
    store.close().unwrap();
}

/// The files of owners and slices that this process has open below a directory.
#[cfg(target_os = "linux")]
fn open_files(dir: &Path) -> BTreeSet<PathBuf> {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets
        .filter(|path| path.starts_with(dir) && path.components().any(|it| it.as_os_str() == "owners"))
        .collect()
}

/// With a common limit the slices were closed first, because their files have the lowest numbers, and each look-up opened one.
#[cfg(target_os = "linux")]
#[test]
fn the_file_of_a_slice_stays_open_while_many_owners_are_read() {
    const PARTITIONS: u32 = 600;
    let dir = tempfile::tempdir().unwrap();
    let binding = Binding { partitions: PARTITIONS, ..binding() };
    let mut store = open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store;
    seal(&mut store, 0);
    for partition in 1..PARTITIONS {
        store.put_all(&blocks(partition, (0, &[2_000, 2_000, 1]), 1, 1), head(4_001)).unwrap();
    }
    let of_slices = lookups(&store, SLICE);
    assert_eq!(known(&store, &of_slices) as u64, SLICE);
    let slice = open_files(dir.path());
    assert_eq!(slice.len(), 1, "{slice:?}");
    for partition in 1..PARTITIONS {
        let owned = store.owner(partition.into(), 1, None).unwrap();
        assert_eq!(owned, Some(StoredOwner { offset: 1, identity: Some(identity(partition, 1, 1)) }));
    }
    let all = open_files(dir.path());
    assert!(all.is_superset(&slice), "{slice:?} of {}", all.len());
    assert!((250..=257).contains(&all.len()), "{} open files", all.len());
    store.close().unwrap();
}
