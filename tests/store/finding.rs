//! What was found in slices before a look-up never changes its result.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dedupd::dedupe::{Coordinates, SealedRange, Sequence, SliceMark};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, ToForget};
use dedupd::store::{Binding, SledStore, open};

use crate::appending::Appending;
use crate::{CACHE_BYTES, DEADLINE, binding, head, identity, opened, owner, owners};

/// Identities of a slice.
const SLICE: u64 = 50;

/// Appends owners and seals them. Slices are merged meanwhile if there are many.
fn seal(store: &mut SledStore, first: Sequence) {
    let next = first + SLICE;
    store.put(0.into(), &owners(0, first..next, 1), &head(next)).unwrap();
    let marks = vec![SliceMark { next, count: SLICE, time_ms: (0, 0) }];
    let range = SealedRange { first, next, marks };
    store.begin_seal(SealJob { window: 0.into(), range, is_urgent: false }).unwrap();
    while store.poll_seal().unwrap() != Sealing::Idle {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Identities that are known, and some that are not.
fn lookups(store: &SledStore, ids: u64) -> Vec<SealedLookup> {
    let key = |number| store.positions().key(identity(0, number, 1));
    (0..ids + 200).map(|number| SealedLookup::new(0.into(), key(number))).collect()
}

/// Compares the look-ups with those of which nothing was found before. Returns how many have an owner.
fn known(store: &SledStore, lookups: &[SealedLookup]) -> usize {
    let mut known = 0;
    for (number, lookup) in (0..).zip(lookups) {
        let places = store.sealed_places(lookup).unwrap();
        assert_eq!(
            places,
            store.sealed_places(&SealedLookup { found: None, ..*lookup }).unwrap(),
            "{number}"
        );
        known += places.owners.len();
        assert!(places.owners.iter().all(|found| found.at == owner(0, number, 1).at), "{number}: {places:?}");
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
    let identities = &[identity(0, 7, 1)];
    store.forget(0.into(), ToForget { identities, ..ToForget::default() }, &head(3_000)).unwrap();
    assert_eq!(known(&store, &found) as u64, 60 * SLICE - 1);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.undo(0.into(), &[Coordinates { partition: 2, offset: 0 }], 0).unwrap();
    assert_eq!(known(&store, &found) as u64, 40 * SLICE - 1);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.expire(0.into(), 60 * SLICE, 0).unwrap();
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
    const JOURNALS: u32 = 600;
    let dir = tempfile::tempdir().unwrap();
    let binding = Binding { partitions: JOURNALS, ..binding() };
    let mut store = open(dir.path(), &binding, CACHE_BYTES, DEADLINE).unwrap().store;
    seal(&mut store, 0);
    for journal in 1..JOURNALS {
        store.put(journal.into(), &owners(journal, 0..4_001, 1), &head(4_001)).unwrap();
    }
    let of_slices = lookups(&store, SLICE);
    assert_eq!(known(&store, &of_slices) as u64, SLICE);
    let slice = open_files(dir.path());
    assert_eq!(slice.len(), 1, "{slice:?}");
    for journal in 1..JOURNALS {
        assert_eq!(store.owner(journal.into(), 1, None), Ok(Some(owner(journal, 1, 1))));
    }
    let all = open_files(dir.path());
    assert!(all.is_superset(&slice), "{slice:?} of {}", all.len());
    assert!((250..=257).contains(&all.len()), "{} open files", all.len());
    store.close().unwrap();
}
