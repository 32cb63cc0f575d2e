//! Slices of ids that were crafted against their filters.

#![allow(clippy::cast_possible_truncation, reason = "halves of numbers, and few ids")]

use std::time::Duration;

use dedupd::dedupe::{Identity, SealedRange, SliceMark, StoredOwner};
use dedupd::ports::{SealJob, SealedLookup, Sealing, Store};

use crate::appending::Appending;
use crate::crafted::{one_place, pairs, seeds};
use crate::{head, opened, owner};

/// Other ids of the slice.
const OTHERS: u64 = 65_600;
const APPENDED: usize = 2_000;

/// Seals a slice with these ids and others, and looks all of them up.
fn check(crafted: &[Identity], case: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let mut ids = crafted.to_vec();
    ids.extend((0..OTHERS).map(|_| Identity(fastrand::u128(..).to_le_bytes())));
    let count = ids.len() as u64;
    let owner = |(number, id): (u64, &Identity)| StoredOwner { identity: Some(*id), ..owner(0, number, 1) };
    let owners: Vec<_> = (0..).zip(&ids).map(owner).collect();
    for part in owners.chunks(APPENDED) {
        store.put(0.into(), part, &head(0)).unwrap();
    }
    let range =
        SealedRange { first: 0, next: count, marks: vec![SliceMark { next: count, count, time_ms: (0, 0) }] };
    store.begin_seal(SealJob { window: 0.into(), range, is_urgent: true }).unwrap();
    while store.poll_seal().unwrap_or_else(|error| panic!("{case}: {error}")) != Sealing::Idle {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(store.sealed(0.into()).len(), 1, "{case}");
    let key = |id: &Identity| SealedLookup::new(0.into(), store.positions().key(*id));
    let lost = owners.iter().zip(&ids).filter(|(owner, id)| {
        let found = store.sealed_places(&key(id)).unwrap().owners;
        found.iter().map(|found| (found.at, found.time_ms)).ne([(owner.at, owner.time_ms)])
    });
    assert_eq!(lost.count(), 0, "{case}");
}

#[test]
fn ids_that_were_crafted_for_computable_positions_are_as_any_others() {
    let random = &mut fastrand::Rng::new();
    check(&one_place(random, 65, false), "65 ids in one place");
    let mut cycles = one_place(random, 66, true);
    cycles.extend(one_place(random, 66, true));
    cycles.extend(pairs(random, seeds().take(1)));
    check(&cycles, "two cycles and a pair");
    let twice = seeds().take(1_000).chain(seeds().take(1_000));
    check(&pairs(random, twice), "two pairs for each seed");
}
