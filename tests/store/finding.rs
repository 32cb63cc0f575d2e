//! What was found in slices before a look-up never changes its result.

use std::time::Duration;

use dedupd::dedupe::{IndexKey, KindId, Offset, SliceMark, SlicePartition};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store, ToForget};
use dedupd::store::SledStore;

use crate::{block, head, identity, opened};

/// Identities of a slice.
const SLICE: u64 = 50;

/// Appends a block and seals it. Slices are merged meanwhile if there are many.
fn seal(store: &mut SledStore, first: Offset) {
    let next = first + SLICE;
    store.append(&block(0, first..next, 1, 1), head(next)).unwrap();
    let marks = vec![SliceMark { next, count: SLICE, time_ms: (0, 0) }];
    let partitions = vec![SlicePartition { partition: 0, first, next, marks }];
    store.begin_seal(SealJob { kind: KindId::UNNAMED, partitions }).unwrap();
    while store.poll_seal().unwrap() != Sealing::Idle {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Identities that are known, and some that are not.
fn lookups(ids: u64) -> Vec<SealedLookup> {
    (0..ids + 200).map(|owner| SealedLookup::new(0.into(), IndexKey::at(identity(0, owner, 1)))).collect()
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
        let mut found = lookups(ids);
        store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
        assert_eq!(known(&store, &found) as u64, ids - SLICE);
        seal(&mut store, ids - SLICE);
        // One slice more, and from 25 on some are merged.
        assert_eq!(known(&store, &found) as u64, ids);
    }
    let mut found = lookups(60 * SLICE);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    let forgotten = [identity(0, 7, 1)];
    let forget = ToForget { owners: &[7], identities: &forgotten, before: 3_000 };
    store.forget(0.into(), forget, head(3_000)).unwrap();
    assert_eq!(known(&store, &found) as u64, 60 * SLICE - 1);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.truncate(0.into(), 1_000).unwrap();
    assert_eq!(known(&store, &found), 999);
    store.find_sealed(&mut found.iter_mut().collect::<Vec<_>>());
    store.expire(0.into(), 1_000).unwrap();
    assert_eq!(known(&store, &found), 0);
    store.close().unwrap();
}
