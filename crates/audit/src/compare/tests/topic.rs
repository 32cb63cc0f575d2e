//! Planted faults in topic scope: each is reported with its kind and its coordinates, and nothing else is.

use std::collections::BTreeMap;

use super::*;
use crate::Comparison;

/// The longest time that an id of the window of the tests may be kept, ms.
pub(super) const KEPT_MS: i64 = WINDOW_MS + WINDOW_MS / 256 + WINDOW_MS / 32 + 1;

/// Records of each partition.
pub(super) type Logs = Vec<Vec<Written>>;

/// The sum of all partitions, and how many lost records are phantoms in another one. Only even offsets are used.
pub(super) fn compare_logs(rules: Rules, gone: &[Gone], raw: &Logs, clean: &Logs) -> (Outcome, u64) {
    let raw: Vec<Vec<_>> = raw
        .iter()
        .map(|log| log.iter().enumerate().map(|(at, record)| (seen(2 * at, record), Part::Within)).collect())
        .collect();
    compare_parts(rules, gone, &raw, clean)
}

/// As [`compare_logs`], with the part of the log of each raw record.
pub(super) fn compare_parts(
    rules: Rules,
    gone: &[Gone],
    raw: &[Vec<(Seen, Part)>],
    clean: &Logs,
) -> (Outcome, u64) {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let numbers = 0..PartitionId::try_from(raw.len()).unwrap();
    let options = numbers
        .clone()
        .zip(gone)
        .map(|(partition, gone)| (PartitionOptions { partition, samples: 9, gone: *gone }, rules));
    let mut comparison = Comparison::of_topic(options, rules.window_ms, &scratch);
    for (partition, log) in numbers.clone().zip(clean) {
        for (at, record) in log.iter().enumerate() {
            comparison.clean(partition, &seen(2 * at, record)).unwrap();
        }
    }
    for (partition, log) in numbers.zip(raw) {
        log.iter().try_for_each(|(record, part)| comparison.raw(partition, record, *part)).unwrap();
    }
    let mut unmatched = UnmatchedRecords::new(&scratch);
    let outcomes: BTreeMap<_, _> = comparison.finish(&mut unmatched).unwrap();
    assert_eq!(outcomes.len(), raw.len());
    let mut total = Outcome::default();
    for outcome in outcomes.values() {
        total.add(outcome, 9);
    }
    (total, unmatched.moved().unwrap())
}

fn findings(raw: &Logs, clean: &Logs) -> Vec<String> {
    let (outcome, _) = compare_logs(rules(), &vec![Gone::Nothing; raw.len()], raw, clean);
    let count: u64 = Kind::ALL.into_iter().map(|kind| outcome.counts.of(kind)).sum();
    assert_eq!(count, outcome.samples.len() as u64, "{outcome:?}");
    outcome.samples.iter().map(ToString::to_string).collect()
}

pub(super) fn record(id: &str, ms: i64) -> Written {
    with_id(id, 10_000 + ms)
}

/// Records of one id in two partitions, this far apart, between records that are only in one.
fn two_copies(distance_ms: i64) -> Logs {
    vec![
        vec![record("a", 0), record("x", 0), record("b", 1), record("c", 2)],
        vec![record("d", distance_ms), record("x", distance_ms), record("e", distance_ms)],
    ]
}

fn without(logs: &Logs, dropped: &[(usize, usize)]) -> Logs {
    let keep = |partition, log: &Vec<Written>| {
        let kept = log.iter().enumerate().filter(|(at, _)| !dropped.contains(&(partition, *at)));
        kept.map(|(_, record)| record.clone()).collect()
    };
    logs.iter().enumerate().map(|(partition, log)| keep(partition, log)).collect()
}

#[test]
fn either_of_two_copies_in_different_partitions_may_be_in_clean_but_not_both() {
    for distance_ms in [-WINDOW_MS, -1, 0, 1, WINDOW_MS] {
        let raw = two_copies(distance_ms);
        let none: [String; 0] = [];
        assert_eq!(findings(&raw, &without(&raw, &[(0, 1)])), none, "{distance_ms}");
        assert_eq!(findings(&raw, &without(&raw, &[(1, 1)])), none, "{distance_ms}");
        let later = if distance_ms < 0 { "partition 0" } else { "partition 1" };
        let twice = format!("duplicated: {later}, raw offset 2, clean offset 2");
        assert_eq!(findings(&raw, &raw), [twice], "{distance_ms}");
    }
    let (outcome, _) = compare_logs(
        rules(),
        &[Gone::Nothing; 2],
        &two_copies(WINDOW_MS),
        &without(&two_copies(WINDOW_MS), &[(0, 1)]),
    );
    assert_eq!((outcome.raw.ids, outcome.raw.duplicates, outcome.clean_records), (6, 1, 6));
}

#[test]
fn between_the_window_and_the_longest_time_the_later_copy_may_be_in_clean_or_not() {
    for distance_ms in [WINDOW_MS + 1, KEPT_MS] {
        let raw = two_copies(distance_ms);
        for dropped in [&[][..], &[(0, 1)], &[(1, 1)]] {
            assert!(findings(&raw, &without(&raw, dropped)).is_empty(), "{distance_ms} {dropped:?}");
        }
    }
    let raw = two_copies(KEPT_MS + 1);
    assert!(findings(&raw, &raw).is_empty());
    assert_eq!(findings(&raw, &without(&raw, &[(0, 1)])), ["lost: partition 0, raw offset 2"]);
    assert_eq!(findings(&raw, &without(&raw, &[(1, 1)])), ["lost: partition 1, raw offset 2"]);
}

#[test]
fn a_late_copy_may_be_in_clean_or_not_and_is_counted_apart() {
    let outcome = |raw: &Logs, clean: &Logs| compare_logs(rules(), &[Gone::Nothing; 2], raw, clean).0;
    for own_ms in [-WINDOW_MS, 0, WINDOW_MS, WINDOW_MS + 1] {
        // The second record of x arrives three windows after the first one, in another partition or in the same one.
        let arrival = [record("d", 3 * WINDOW_MS), record("x", own_ms), record("e", 3 * WINDOW_MS)];
        let other = vec![vec![record("x", 0), record("a", 1)], arrival.to_vec()];
        let same = vec![[&other[0][..], &arrival].concat(), vec![record("b", 1)]];
        for (raw, dropped) in [(other, (1, 1)), (same, (0, 3))] {
            let both = outcome(&raw, &raw);
            assert!(both.counts.is_clean(), "{own_ms}: {both:?}");
            assert_eq!(both.late_or_twice, u64::from(own_ms <= WINDOW_MS), "{own_ms}");
            let one = outcome(&raw, &without(&raw, &[dropped]));
            assert_eq!((one.counts.lost, one.late_or_twice), (0, 0), "{own_ms}");
        }
    }
    // By its stream time, too: a duplicate.
    let raw = vec![vec![record("d", WINDOW_MS), record("x", 0)], vec![record("x", 1)]];
    let twice = outcome(&raw, &raw);
    assert_eq!((twice.counts, twice.late_or_twice), (only(Kind::Duplicated, 1), 0));
}

#[test]
fn a_lost_id_is_one_finding_however_many_copies_raw_has() {
    let raw = two_copies(5);
    assert_eq!(findings(&raw, &without(&raw, &[(0, 1), (1, 1)])), ["lost: partition 0, raw offset 2"]);
    assert_eq!(findings(&raw, &without(&raw, &[(1, 0), (0, 1)])), ["lost: partition 1, raw offset 0"]);
    let mut hot = raw.clone();
    hot[0].extend((0..50).map(|ms| record("x", ms)));
    let clean = [without(&raw, &[(0, 1)])[0].clone(), without(&raw, &[(1, 1)])[1].clone()].to_vec();
    assert_eq!(findings(&hot, &clean), ["lost: partition 0, raw offset 2"]);
}

#[test]
fn a_second_copy_in_the_same_partition_is_found_and_one_beyond_the_window_is_right() {
    let raw = vec![vec![record("a", 0), record("b", 1), record("a", WINDOW_MS)], vec![record("c", 3)]];
    assert!(findings(&raw, &without(&raw, &[(0, 2)])).is_empty());
    assert_eq!(findings(&raw, &raw).len(), 1, "{:?}", findings(&raw, &raw));
    assert!(findings(&raw, &without(&raw, &[(0, 0)])).iter().any(|text| text.contains("raw offset 0")));
    let raw = vec![vec![record("a", 0), record("b", 1), record("a", KEPT_MS + 1)], vec![record("c", 3)]];
    assert!(findings(&raw, &raw).is_empty());
    assert_eq!(findings(&raw, &without(&raw, &[(0, 2)])), ["lost: partition 0, raw offset 4"]);
    // The same raw record twice.
    let mut twice = raw.clone();
    twice[0].insert(1, raw[0][0].clone());
    let found = findings(&raw, &twice);
    assert!(found.len() == 1 && found[0].starts_with("duplicated: partition 0, raw offset 0"), "{found:?}");
}

#[test]
fn a_copy_is_explained_by_one_within_the_window_only() {
    // The first of partition 0 was dropped for the one of partition 1, which is outside of the window of the second.
    let raw = vec![
        vec![record("x", 0), record("a", 1), record("x", WINDOW_MS - 10)],
        vec![record("x", -WINDOW_MS + 5), record("b", 0)],
    ];
    assert!(findings(&raw, &without(&raw, &[(0, 0)])).is_empty());
    assert_eq!(
        findings(&raw, &without(&raw, &[(0, 0), (1, 0)])),
        ["lost: partition 1, raw offset 0"],
        "partition 0 would be explained by that"
    );
}

#[test]
fn a_later_copy_in_the_partition_explains_an_earlier_one_whose_owner_was_undone() {
    // The first of partition 0 was dropped for the one of partition 1. The transaction of that was torn and undone, and the last
    // one of partition 0 was read before it. The copies of partition 0 differ, or are equal.
    for is_equal in [false, true] {
        let mut raw = vec![
            vec![record("x", 0), record("a", 1), record("x", 20), record("b", 21)],
            vec![record("c", 9), record("x", 10)],
        ];
        if is_equal {
            raw[0][2] = raw[0][0].clone();
        }
        assert!(findings(&raw, &without(&raw, &[(0, 0), (1, 1)])).is_empty(), "equal: {is_equal}");
        let lost = findings(&raw, &without(&raw, &[(0, 0), (0, 2), (1, 1)]));
        assert_eq!(lost, ["lost: partition 0, raw offset 0"]);
        let twice = findings(&raw, &without(&raw, &[(1, 1)]));
        assert!(twice.len() == 1 && twice[0].starts_with("duplicated: partition 0, raw offset"), "{twice:?}");
    }
    // Without a copy in another partition, the first must be there.
    let raw = vec![vec![record("x", 0), record("a", 1), record("x", 20)], vec![record("c", 9)]];
    assert_eq!(findings(&raw, &without(&raw, &[(0, 0)])), ["lost: partition 0, raw offset 0"]);
}

#[test]
fn a_changed_record_is_altered_and_one_in_the_wrong_partition_has_moved() {
    let raw = two_copies(5);
    let mut clean = without(&raw, &[(0, 1)]);
    clean[1][1].value.push('!');
    clean[0][0].header = None;
    assert_eq!(
        findings(&raw, &clean),
        [
            "altered: partition 0, raw offset 0, clean offset 0, different in headers",
            "altered: partition 1, raw offset 2, clean offset 2, different in value"
        ]
    );
    // An id that raw has only in the other partition; instead of the right record, and in addition to it.
    let mut clean = without(&raw, &[(0, 1), (0, 3)]);
    clean[1].push(raw[0][3].clone());
    let (outcome, moved) = compare_logs(rules(), &[Gone::Nothing; 2], &raw, &clean);
    assert_eq!((outcome.counts, moved), (Counts { lost: 1, phantom: 1, ..Counts::default() }, 1));
    let clean = without(&raw, &[(0, 1)]);
    let extra = vec![[&clean[0][..], &raw[1][..1]].concat(), clean[1].clone()];
    assert_eq!(findings(&raw, &extra), ["phantom: partition 0, clean offset 6"]);
    // The content of the copy in the other partition.
    let mut other = without(&raw, &[(0, 1)]);
    other[1][1] = raw[0][1].clone();
    let found = findings(&raw, &other);
    assert_eq!(found, ["altered: partition 1, raw offset 2, clean offset 2, different in value, timestamp"]);
}

#[test]
fn order_and_phantoms_are_those_of_each_partition() {
    let raw = two_copies(5);
    let mut clean = without(&raw, &[(0, 1)]);
    clean[1].swap(0, 1);
    let found = findings(&raw, &clean);
    assert!(found.len() == 1 && found[0].starts_with("out of order: partition 1"), "{found:?}");
    clean[1].swap(0, 1);
    clean[0].insert(1, record("never", 3));
    assert_eq!(findings(&raw, &clean), ["phantom: partition 0, clean offset 2"]);
}

#[test]
fn forced_records_are_due_and_no_duplicates() {
    let mut raw: Vec<Vec<_>> = two_copies(5)
        .iter()
        .map(|log| log.iter().enumerate().map(|(at, r)| (seen(2 * at, r), Part::Within)).collect())
        .collect();
    raw[1][1].0.forced = true;
    let counts = |clean: &Logs| compare_parts(rules(), &[Gone::Nothing; 2], &raw, clean).0.counts;
    let all = two_copies(5);
    assert!(counts(&all).is_clean());
    assert!(counts(&without(&all, &[(0, 1)])).is_clean(), "partition 1 was read first");
    assert_eq!(counts(&without(&all, &[(1, 1)])), only(Kind::Lost, 1));
}

#[test]
fn a_record_of_a_forced_one_in_its_partition_is_a_duplicate() {
    let logs = vec![vec![record("x", 0), record("a", 1), record("x", 2)], vec![record("b", 0)]];
    let mut raw: Vec<Vec<_>> = logs
        .iter()
        .map(|log| log.iter().enumerate().map(|(at, r)| (seen(2 * at, r), Part::Within)).collect())
        .collect();
    raw[0][0].0.forced = true;
    let counts = |clean: &Logs| compare_parts(rules(), &[Gone::Nothing; 2], &raw, clean).0.counts;
    assert!(counts(&without(&logs, &[(0, 2)])).is_clean());
    assert_eq!(counts(&logs).duplicated, 1);
}

#[test]
fn records_without_an_id_are_those_of_each_partition() {
    let same = || without_id("same", 5);
    let raw = vec![vec![same(), record("a", 1), same()], vec![same(), same()], vec![same()]];
    assert!(findings(&raw, &raw).is_empty());
    assert_eq!(findings(&raw, &without(&raw, &[(1, 1), (2, 0)])).len(), 2);
    let withheld = Rules { missing_id: MissingId::Withheld, ..rules() };
    let none = without(&raw, &[(0, 0), (0, 2), (1, 0), (1, 1), (2, 0)]);
    assert!(compare_logs(withheld, &[Gone::Nothing; 3], &raw, &none).0.counts.is_clean());
    assert_eq!(compare_logs(withheld, &[Gone::Nothing; 3], &raw, &raw).0.counts, only(Kind::Phantom, 5));
}

#[test]
fn a_timestamp_in_the_future_in_one_partition_loses_nothing() {
    let mut raw = two_copies(5);
    raw[1].insert(0, record("future", 50 * WINDOW_MS));
    // Partition 1 was read first, at a stream time that the clock had limited.
    assert!(findings(&raw, &without(&raw, &[(0, 1)])).is_empty());
    assert!(findings(&raw, &without(&raw, &[(1, 2)])).is_empty());
    assert_eq!(findings(&raw, &without(&raw, &[(0, 1), (1, 2)])), ["lost: partition 0, raw offset 2"]);
}

#[test]
fn what_depends_on_records_outside_the_range_is_counted_apart() {
    let logs = two_copies(5);
    let parts = |outside: (usize, usize), part| -> Vec<Vec<(Seen, Part)>> {
        let seen = |p: usize, at: usize, record: &Written| {
            let is_outside = p == outside.0 && (part == Part::Before) == (at <= outside.1);
            (seen(2 * at, record), if is_outside { part } else { Part::Within })
        };
        let log = |(p, log): (usize, &Vec<Written>)| {
            log.iter().enumerate().map(|(at, record)| seen(p, at, record)).collect()
        };
        logs.iter().enumerate().map(log).collect()
    };
    let cases = [
        // The copy of partition 0 is before the range; that of partition 1 was dropped for it, or not.
        (parts((0, 1), Part::Before), without(&logs, &[(0, 0), (0, 1), (1, 1)])),
        (parts((0, 1), Part::Before), without(&logs, &[(0, 0), (0, 1)])),
        // The copy of partition 1 is behind the range, but was read first, or not.
        (parts((1, 0), Part::Behind), without(&logs, &[(0, 1), (1, 1), (1, 2)])),
        (parts((1, 0), Part::Behind), without(&logs, &[(1, 1), (1, 2)])),
    ];
    for (raw, clean) in cases {
        let (outcome, _) = compare_parts(rules(), &[Gone::Nothing; 2], &raw, &clean);
        assert!(outcome.counts.is_clean() && outcome.raw.decided_outside == 1, "{outcome:?}");
    }
}

#[test]
fn deleted_records_explain_copies_in_other_partitions() {
    let raw = two_copies(5);
    let allowed = |clean_trimmed| Gone::Allowed { clean_trimmed };
    // Raw of partition 0 lost its first records, clean has them all.
    let shorter = vec![raw[0][2..].to_vec(), raw[1].clone()];
    let clean = without(&raw, &[(1, 1)]);
    let (outcome, _) = compare_logs(rules(), &[allowed(false); 2], &shorter, &clean);
    assert!(outcome.counts.is_clean() && outcome.gone == 2, "{outcome:?}");
    let (outcome, _) = compare_logs(rules(), &[Gone::Nothing; 2], &shorter, &clean);
    assert_eq!(outcome.counts, Counts { lost: 1, phantom: 2, ..Counts::default() }, "unless it is allowed");
    // Both lost them: a record of partition 1 may be a copy of a deleted one.
    let rules = Rules { context_cut: true, ..rules() };
    let clean = vec![raw[0][2..].to_vec(), vec![raw[1][0].clone(), raw[1][2].clone()]];
    let gone = [allowed(true), allowed(false)];
    let (outcome, _) = compare_logs(rules, &gone, &shorter, &clean);
    assert!(outcome.counts.is_clean() && outcome.gone == 1, "{outcome:?}");
    // A copy that raw still has.
    let clean = vec![raw[0][2..].to_vec(), vec![raw[1][0].clone(), raw[1][2].clone()]];
    let (outcome, _) = compare_logs(super::rules(), &gone, &raw, &clean);
    assert!(outcome.counts.is_clean() && outcome.gone == 2, "{outcome:?}");
    // A later loss is a loss, and a second record of an id is a duplicate.
    let clean = vec![raw[0][1..3].to_vec(), raw[1].clone()];
    let (outcome, _) = compare_logs(super::rules(), &gone, &raw, &clean);
    assert_eq!(outcome.counts, Counts { lost: 1, duplicated: 1, ..Counts::default() });
}
