//! Looking up ids: compared with a plain model, and each possible standing.

use dedupd::dedupe::OwnerRun;
use dedupd::tools::state::{Found, Lengths, LookupResult, Standing, find, inspect, summarise};
use indicatif::ProgressBar;
use proptest::prelude::*;

use super::memory_store::MemoryStore;
use super::*;

proptest! {
    /// Runs of two partitions with few identities, so that many have several owners, and some were forgotten.
    #[test]
    fn all_owners_are_found_and_counted(
        runs in prop::collection::vec(prop::collection::vec((0u32..2, 0u8..8), 1..30), 1..12),
        wanted in 0u8..6,
        confirmed in 0u64..200,
    ) {
        let mut store = MemoryStore::new();
        let head = Head { confirmed, last_entry: entry(2), confirmed_entry: entry(1), ..Head::default() };
        let (mut model, mut number) = (Vec::new(), 0);
        for (run, owners) in runs.iter().enumerate() {
            let time_ms = T + i64::try_from(run).unwrap();
            let stored: Vec<_> = (number..).zip(owners).map(|(offset, (partition, kind))| {
                let identity = Some(Identity([*kind; 16])).filter(|_| *kind < 6);
                StoredOwner { identity, ..owner(*partition, offset, time_ms, Identity([0; 16])) }
            }).collect();
            let times_ms = (time_ms, time_ms + 5);
            store.append(7.into(), &OwnerRun { number, times_ms, owners: &stored }, &head).unwrap();
            number += stored.len() as u64;
            model.extend(stored);
        }
        let known = (0u64..).zip(&model).filter(|(_, owner)| owner.identity.is_some());
        for (trusted, is_trusted) in [(entry(1), false), (entry(2), true)] {
            let is_confirmed = |number| number < confirmed || is_trusted;
            let expected: Vec<_> = known.clone().filter(|(_, it)| it.identity == Some(Identity([wanted; 16]))).map(|(number, it)| {
                Found { at: it.at, time_ms: it.time_ms, arrived_ms: Some(it.time_ms + 5), is_confirmed: is_confirmed(number) }
            }).collect();
            prop_assert_eq!(find(&store, 7.into(), Identity([wanted; 16]), trusted).unwrap().owners, expected);
            let summary = summarise(&store, 7.into(), trusted).unwrap().unwrap();
            prop_assert_eq!((summary.ids(), summary.runs), (known.clone().count() as u64, runs.len() as u64));
            let unconfirmed = known.clone().filter(|(number, _)| !is_confirmed(*number)).count() as u64;
            prop_assert_eq!(summary.unconfirmed_ids, unconfirmed);
        }
        prop_assert_eq!(find(&store, 6.into(), Identity([wanted; 16]), None).unwrap().owners, []);
        prop_assert_eq!(summarise(&store, 6.into(), None).unwrap(), None);
    }
}

fn answer(dir: &Path, identity: Identity, only: Option<PartitionId>) -> LookupResult {
    let state = copied(dir);
    let lengths = Lengths::new(LENGTH, Vec::new());
    let answer = LookupResult::of(identity, &state, only, &lengths, &ProgressBar::hidden()).unwrap();
    state.close();
    answer
}

#[test]
fn an_id_is_exact_then_expired_and_else_absent() {
    let dir = filled();
    let standing = |number: u64| {
        let answer = answer(dir.path(), id(0, number, Hasher::Xxh3), None);
        assert_eq!(answer.found.len(), 1, "{answer:?}");
        let found = &answer.found[0];
        assert_eq!((found.partition, found.offset), (0, number));
        assert_eq!(found.time_ms, T + 1_000 * number.cast_signed());
        found.standing
    };
    for number in [35_999, 33_000, 20_000, 10_800] {
        assert_eq!(standing(number), Standing::Exact);
    }
    assert_eq!([10_798, 100].map(standing), [Standing::Expired; 2]);
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
    let after = Head { last_entry: entry(before.confirmed_entry.unwrap().number + 1), ..before.clone() };
    store.put(0.into(), &[owner(0, 36_003, before.time_ms + 7, again)], &after).unwrap();
    store.close().unwrap();
    let answer = answer(dir.path(), again, None);
    let standings: Vec<_> = answer.found.iter().map(|found| (found.offset, found.standing)).collect();
    assert_eq!(standings, [(35_000, Standing::Exact), (36_003, Standing::Unconfirmed)]);
}

#[test]
fn an_owner_that_a_limit_has_dropped_does_not_count() {
    let dir = filled();
    let mut store = opened(dir.path(), HashKind::Xxh3);
    store.expire(0.into(), 30_100, T + 30_099_000).unwrap();
    store.close().unwrap();
    // It is in the run of others that count.
    for (number, standing) in [(30_050, Standing::Exact), (29_000, Standing::Expired)] {
        let found = answer(dir.path(), id(0, number, Hasher::Xxh3), None).found;
        assert!(found.iter().all(|found| found.standing == standing), "{found:?}");
    }
}

#[test]
fn an_inspection_shows_partitions_and_windows() {
    let dir = filled();
    let state = copied(dir.path());
    let inspection = inspect(&state, &ProgressBar::hidden()).unwrap();
    assert_eq!(inspection.binding, binding(HashKind::Xxh3));
    assert!(inspection.disk_bytes > 37_800 * 40, "{}", inspection.disk_bytes);
    assert_eq!(inspection.ids, 37_800);
    let partitions: Vec<_> = inspection.partitions.iter().map(|it| (it.partition, it.next)).collect();
    assert_eq!(partitions, [(0, 36_000), (2, 1_800)]);
    assert_eq!(inspection.partitions[0].stream_time, "2023-11-15T08:13:19.000Z");
    let first = &inspection.windows[0];
    assert_eq!((first.journal, first.ids, first.unconfirmed_ids, first.state_next), (0, 36_000, 0, 3_600));
    assert_eq!((first.time_ms, first.bytes), (T + 35_999_000, 36_000 * 40));
    assert!(first.runs >= 30 && first.filters.is_empty(), "{first:?}");
    state.close();
}
