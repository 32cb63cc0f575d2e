//! The owners of small blocks are joined in one run, appended alone or together.

use std::ops::ControlFlow;
use std::time::Duration;

use dedupd::dedupe::{Block, OwnerRun};
use dedupd::ports::Store;
use dedupd::store::{Joining, SledStore};

use crate::appending::Appending;
use crate::{block, blocks, contents, head, opened, reopened};

/// A store in which owners are joined within this span, with `ids` blocks of one identity. `at_once` of them are appended
/// together; then the visitor sees the number of identities so far.
fn of_single_identities(
    span: Duration,
    ids: u64,
    at_once: usize,
    mut visit: impl FnMut(&mut SledStore, u64),
) -> (tempfile::TempDir, SledStore) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store.joining(Joining::new(span, []));
    for first in (0..ids).step_by(at_once) {
        let blocks = blocks(0, (first, &vec![1; at_once]), 1, 1);
        let next = blocks.last().unwrap().next;
        store.put_all(&blocks, head(next)).unwrap();
        visit(&mut store, next);
    }
    (dir, store)
}

#[test]
fn single_identities_are_joined_in_large_runs() {
    for at_once in [1, 7, 500, 5_000] {
        let (_dir, store) = of_single_identities(Duration::from_hours(24), 10_000, at_once, |_, _| ());
        let (mut runs, mut identities) = (0, 0);
        let mut count = |run: &OwnerRun<'_>| {
            runs += 1;
            identities += run.owners.len();
            Ok(())
        };
        store.scan(0.into(), &mut count).unwrap();
        assert!(identities >= 10_000);
        // One in each file, which are small at first.
        assert!(runs <= 20, "{runs} runs");
        assert_eq!(contents(&store, 0).len(), identities);
    }
}

#[test]
fn owners_are_not_joined_across_a_span_of_stream_time() {
    for at_once in [1, 50, 3_000] {
        let (_dir, store) = of_single_identities(Duration::from_secs(1), 3_000, at_once, |store, next| {
            if next % 700 == 0 {
                store.expire(0.into(), next / 2, 0).unwrap();
            }
        });
        let mut widest = 0;
        let mut measure = |run: &OwnerRun<'_>| {
            widest = widest.max(run.times_ms.1 - run.times_ms.0);
            Ok(())
        };
        store.scan(0.into(), &mut measure).unwrap();
        assert!((900..1_000 + 5).contains(&widest), "{widest} ms");
    }
}

/// The search for an id reads on where it has stopped. It found owners a second time when their run had grown.
#[test]
fn a_scan_that_continues_visits_each_owner_once_although_its_run_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let (mut from, mut visited, mut runs) = (0, Vec::new(), 0);
    for first in (0..100).step_by(10) {
        store.put(&block(0, first..first + 10, 1, 1), head(first + 10)).unwrap();
        let begin = from;
        let mut visit = |run: &OwnerRun<'_>| {
            assert_eq!(run.number, begin);
            visited.extend(run.owners.iter().map(|owner| owner.offset));
            from = run.number + run.owners.len() as u64;
            Ok(ControlFlow::Continue(()))
        };
        assert_eq!(store.scan_from(0.into(), begin, &mut visit), Ok(None));
    }
    assert_eq!(visited, (0..100).collect::<Vec<_>>());
    let mut count = |_: &OwnerRun<'_>| {
        runs += 1;
        Ok(())
    };
    store.scan(0.into(), &mut count).unwrap();
    assert_eq!(runs, 1);
}

/// Offsets without owners were stored as a run with a number. A window that was loaded did not see it, and began with 0, which the store rejected.
#[test]
fn offsets_without_owners_take_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let empty = |covered| Block { entries: Vec::new(), ..block(0, covered, 1, 1) };
    store.append(&empty(0..10), 7, head(10)).unwrap();
    store.append(&block(0, 10..20, 1, 1), 7, head(20)).unwrap();
    assert_eq!(store.next_number(0.into()), Ok(17));
    // A part of the run is covered, and has no owner.
    store.append(&block(0, 30..40, 1, 1), 17, head(40)).unwrap();
    store.truncate(0.into(), 25).unwrap();
    store.append(&empty(25..50), 17, head(50)).unwrap();
    store.expire(0.into(), 50, 0).unwrap();
    store.append(&empty(50..60), 17, head(60)).unwrap();
    assert_eq!((store.next_number(0.into()), store.ids(0.into())), (Ok(0), Ok(0)));
    store.close().unwrap();
    let mut store = reopened(dir.path());
    assert_eq!(store.next_number(0.into()), Ok(0));
    store.append(&block(0, 60..70, 1, 1), 0, head(70)).unwrap();
    assert_eq!(contents(&store, 0).len(), 10);
}
