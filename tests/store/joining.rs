//! The owners of small transactions are joined in one run.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use dedupd::dedupe::{OwnerRun, Sequence};
use dedupd::ports::Store;
use dedupd::store::{Joining, SledStore};

use crate::appending::Appending;
use crate::{contents, head, opened, owners, reopened};

/// A store in which owners are joined within this span, with `ids` owners. `at_once` of them are appended together; then the visitor sees the number
/// of owners so far.
fn of_appended(
    span: Duration,
    ids: u64,
    at_once: u64,
    mut visit: impl FnMut(&mut SledStore, u64),
) -> (tempfile::TempDir, SledStore) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store.joining(Joining::new(span, []));
    for first in (0..ids).step_by(usize::try_from(at_once).unwrap()) {
        let next = first + at_once;
        store.put(0.into(), &owners(0, first..next, 1), &head(next)).unwrap();
        visit(&mut store, next);
    }
    (dir, store)
}

#[test]
fn small_transactions_are_joined_in_large_runs() {
    for at_once in [1, 7, 500, 5_000] {
        let (_dir, store) = of_appended(Duration::from_hours(24), 10_000, at_once, |_, _| ());
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
    for at_once in [1, 50] {
        let (_dir, store) = of_appended(Duration::from_secs(1), 3_000, at_once, |store, next| {
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
        store.put(0.into(), &owners(0, first..first + 10, 1), &head(first + 10)).unwrap();
        let begin = from;
        let mut visit = |run: &OwnerRun<'_>| {
            assert_eq!(run.number, begin);
            visited.extend(run.owners.iter().copied());
            from = run.number + run.owners.len() as u64;
            Ok(ControlFlow::Continue(()))
        };
        assert_eq!(store.scan_from(0.into(), begin, &mut visit), Ok(None));
    }
    assert_eq!(visited, owners(0, 0..100, 1));
    let mut count = |_: &OwnerRun<'_>| {
        runs += 1;
        Ok(())
    };
    store.scan(0.into(), &mut count).unwrap();
    assert_eq!(runs, 1);
}

/// A transaction without owners was stored as a run with a number. A window that was loaded did not see it, and began with 0, which the store rejected.
#[test]
fn what_is_appended_without_owners_takes_no_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(dir.path()).store;
    let mut append = |numbers: Range<Sequence>, confirmed| {
        let (number, owners) = (numbers.start, owners(0, numbers, 1));
        let run = OwnerRun { number, times_ms: (0, 0), owners: &owners };
        store.append(0.into(), &run, &head(confirmed)).unwrap();
        assert_eq!(store.head(0.into()), Ok(Some(head(confirmed))));
        store.next_number(0.into()).unwrap()
    };
    assert_eq!(append(7..7, 10), 0);
    assert_eq!(append(7..17, 20), 17);
    assert_eq!(append(40..40, 50), 17);
    store.expire(0.into(), 17, 0).unwrap();
    store.close().unwrap();
    let mut store = reopened(dir.path());
    assert_eq!((store.next_number(0.into()), store.ids(0.into())), (Ok(17), Ok(0)));
    store.put(0.into(), &owners(0, 17..27, 1), &head(70)).unwrap();
    assert_eq!(contents(&store, 0).len(), 10);
}
