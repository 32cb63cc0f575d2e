//! Looking up ids: compared with a plain model, and each possible standing.

use dedupd::tools::state::{Lengths, LookupResult, Owned, Standing, find, inspect, summarise};
use indicatif::ProgressBar;
use proptest::prelude::*;

use super::memory_store::MemoryStore;
use super::*;

proptest! {
    /// Blocks with random gaps and few identities, so that many identities have several owners.
    #[test]
    fn the_newest_owner_in_the_range_is_found(
        lengths in prop::collection::vec((0u64..5, 1u64..30), 1..12),
        wanted in 0u8..6,
        from in 0u64..200,
        length in 0u64..200,
        confirmed in 0u64..200,
        writing in any::<u64>(),
    ) {
        let mut store = MemoryStore::new();
        let (mut model, mut next, mut ids, mut with_owners, mut first_owned) = (Vec::new(), 0, 0, 0, None);
        let identity = |kind: u8| Identity([kind; 16]);
        for (number, (gap, length)) in lengths.iter().enumerate() {
            let first = next + gap;
            next = first + length;
            let owner = |at: u64| (at, ((at ^ writing).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 % 8);
            let owners: Vec<_> = (first..next).map(owner).filter(|(_, kind)| *kind < 6).collect();
            let time = T + i64::try_from(number).unwrap();
            ids += owners.len() as u64;
            with_owners += u64::from(!owners.is_empty());
            first_owned = first_owned.or(Some(first).filter(|_| !owners.is_empty()));
            model.extend(owners.iter().map(|(at, kind)| (*at, *kind, time)));
            let entries = owners.iter().map(|(at, kind)| (*at, identity(*kind))).collect();
            let block = Block { hash: HashKind::Xxh3, window: 7.into(), first, next, time_first_ms: time, time_last_ms: time + 5, entries };
            store.put(&block, head(confirmed, T)).unwrap();
        }
        let range = from..from + length;
        let expected = model.iter().rfind(|(at, kind, _)| *kind == wanted && range.contains(at));
        let expected = expected.map(|(at, _, time)| Owned { offset: *at, time_first_ms: *time, time_last_ms: *time + 5 });
        prop_assert_eq!(find(&store, 7.into(), identity(wanted), range).unwrap(), expected);
        prop_assert_eq!(find(&store, 6.into(), identity(wanted), 0..u64::MAX).unwrap(), None);
        let summary = summarise(&store, HashKind::Xxh3, &[6.into(), 7.into()]).unwrap();
        let summary = summary[&7.into()];
        prop_assert_eq!((summary.ids, summary.runs), (ids, with_owners));
        let beyond = model.iter().filter(|(at, _, _)| *at >= confirmed).count() as u64;
        // What has no owner belongs to the run before.
        prop_assert_eq!((summary.unconfirmed_ids, summary.covered), (beyond, first_owned.map(|first| (first, next))));
        prop_assert_eq!(summarise(&store, HashKind::Xxh3, &[6.into()]).unwrap().len(), 0);
    }
}

fn lengths(limits: WindowLimits) -> Lengths {
    Lengths::new(limits, Vec::new())
}

fn answer(dir: &Path, identity: Identity, only: Option<PartitionId>) -> LookupResult {
    let state = copied(dir);
    let answer =
        LookupResult::of(identity, &state, only, &lengths(limits()), &ProgressBar::hidden()).unwrap();
    state.close();
    answer
}

#[test]
fn an_id_is_exact_then_expired_and_else_absent() {
    let dir = filled();
    let standing = |number: u64| {
        let answer = answer(dir.path(), id(0, number, Hasher::Xxh3), None);
        assert_eq!((answer.found.len(), answer.found[0].partition), (1, 0), "{answer:?}");
        let owned = answer.found[0].owned;
        let arrived = T + 1_000 * number.cast_signed();
        assert_eq!(owned.offset, number);
        assert!((owned.time_first_ms..=owned.time_last_ms).contains(&arrived), "{owned:?} for {arrived}");
        assert!(owned.time_last_ms - owned.time_first_ms < BATCH.cast_signed() * 1_000);
        (answer.found[0].standing.clone(), owned)
    };
    assert_eq!(standing(35_999).0, Standing::Exact);
    assert_eq!(standing(33_000).0, Standing::Exact);
    for number in [30_000, 20_000, 12_000] {
        assert_eq!(standing(number).0, Standing::Exact, "blocks have the owners beyond the exact part, too");
    }
    assert_eq!(standing(100).0, Standing::Expired);
    let absent = answer(dir.path(), id(0, 36_000, Hasher::Xxh3), None);
    assert!(!absent.is_found() && absent.in_filters.is_empty(), "{absent:?}");
    assert!(!answer(dir.path(), id(0, 35_999, Hasher::Xxh3), Some(2)).is_found(), "in another partition");
}

#[test]
fn an_unconfirmed_owner_is_reported_beside_a_confirmed_one() {
    let dir = filled();
    let mut store = opened(dir.path(), HashKind::Xxh3);
    let before = store.head(0.into()).unwrap().unwrap();
    let again = id(0, 35_000, Hasher::Xxh3);
    let block = Block {
        hash: HashKind::Xxh3,
        window: 0.into(),
        first: 36_000,
        next: 36_010,
        time_first_ms: before.stream_time_ms,
        time_last_ms: before.stream_time_ms + 7,
        entries: vec![(36_003, again)],
    };
    store.put(&block, before).unwrap();
    store.close().unwrap();
    let answer = answer(dir.path(), again, None);
    let standings: Vec<_> = answer.found.iter().map(|found| (found.owned.offset, &found.standing)).collect();
    assert_eq!(standings, [(35_000, &Standing::Exact), (36_003, &Standing::Unconfirmed)]);
}

#[test]
fn an_inspection_shows_the_partitions() {
    let dir = filled();
    let state = copied(dir.path());
    let inspection = inspect(&state, &ProgressBar::hidden()).unwrap();
    assert_eq!(inspection.binding, binding(HashKind::Xxh3));
    assert!(inspection.disk_bytes > 37_800 * 24, "{}", inspection.disk_bytes);
    assert_eq!(inspection.ids, 37_800);
    assert_eq!(inspection.partitions.iter().map(|p| p.partition).collect::<Vec<_>>(), [0, 2]);
    let first = &inspection.partitions[0];
    assert_eq!((first.confirmed, first.ids, first.unconfirmed_ids), (36_000, 36_000, 0));
    assert_eq!((first.first, first.next, first.state_next), (Some(0), Some(36_000), 3_600));
    assert_eq!(first.stream_time_ms, T + 35_999_000);
    assert_eq!(first.stream_time, "2023-11-15T08:13:19.000Z");
    assert!(first.bytes == 36_000 * 24 && first.runs >= 30, "{first:?}");
    assert!(inspection.partitions.iter().all(|partition| partition.slices.is_empty()));
    state.close();
}
