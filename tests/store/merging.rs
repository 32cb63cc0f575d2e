//! Small blocks are merged, appended alone or together.

use std::time::Duration;

use dedupd::dedupe::BlockView;
use dedupd::ports::Store;
use dedupd::store::{Joining, SledStore};

use crate::{blocks, contents, head, opened};

/// A store in which blocks are merged within this span, with `ids` blocks of one identity. `at_once` of them are appended
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
        store.append_all(&blocks, head(next)).unwrap();
        visit(&mut store, next);
    }
    (dir, store)
}

#[test]
fn single_identities_are_merged_into_large_blocks() {
    for at_once in [1, 7, 500, 5_000] {
        let (_dir, store) = of_single_identities(Duration::from_hours(24), 10_000, at_once, |_, _| ());
        let (mut blocks, mut identities) = (0, 0);
        let mut count = |view: &BlockView<'_>| {
            blocks += 1;
            identities += view.count();
            Ok(())
        };
        store.scan(0.into(), &mut count).unwrap();
        assert!(identities >= 10_000);
        assert!(blocks <= 64, "{blocks} blocks");
        assert_eq!(contents(&store, 0).len(), identities);
    }
}

#[test]
fn small_blocks_are_not_merged_across_a_span_of_stream_time() {
    for at_once in [1, 50, 3_000] {
        let (_dir, store) = of_single_identities(Duration::from_secs(1), 3_000, at_once, |store, next| {
            if next % 700 == 0 {
                store.expire(0.into(), next / 2).unwrap();
            }
        });
        let mut widest = 0;
        let mut measure = |view: &BlockView<'_>| {
            widest = widest.max(view.header.time_last_ms - view.header.time_first_ms);
            Ok(())
        };
        store.scan(0.into(), &mut measure).unwrap();
        assert!((900..1_000 + 5).contains(&widest), "{widest} ms");
    }
}
