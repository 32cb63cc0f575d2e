//! Dropped records are compared with the one that clean holds: planted differences are found, and equal ones are not.

use std::collections::BTreeMap;

use super::*;
use crate::{CompareRule, Comparison, DroppedCounts, IdRule, UnequalPair};

/// A raw record.
#[derive(Debug, Clone, Copy)]
struct Raw {
    partition: PartitionId,
    id: &'static str,
    value: Option<&'static str>,
    ms: i64,
    part: Part,
    forced: bool,
    is_in_clean: bool,
}

fn kept(partition: PartitionId, value: Option<&'static str>, ms: i64) -> Raw {
    let (part, forced, is_in_clean) = (Part::Within, false, true);
    Raw { partition, id: "a", value, ms: 10_000 + ms, part, forced, is_in_clean }
}

fn dropped(partition: PartitionId, value: Option<&'static str>, ms: i64) -> Raw {
    Raw { is_in_clean: false, ..kept(partition, value, ms) }
}

/// The record at its offset, which is its number in its partition.
fn at(raw: &[Raw], number: usize, compare: &[&str]) -> Seen {
    let Raw { partition, id, value, ms, forced, .. } = raw[number];
    let offset = raw[..number].iter().filter(|other| other.partition == partition).count();
    let fields = Fields { value: value.map(str::as_bytes), timestamp_ms: Some(ms), ..Fields::default() };
    let prints = Fingerprints::new(7);
    let seen = prints.seen(offset as Offset, Some(id.as_bytes()), &fields);
    let texts: Vec<String> = compare.iter().map(|text| (*text).to_owned()).collect();
    let rule = CompareRule::new(&texts, &IdRule::parse(&["key"]).unwrap()).unwrap();
    Seen { forced, digest: rule.digest(&seen, &fields, &prints).unwrap(), ..seen }
}

/// The outcome of both partitions compared together. If all records are in partition 0, it is also that of the partition alone.
fn audited(gone: Gone, compare: &[&str], raw: &[Raw]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let options = [0, 1].map(|partition| (PartitionOptions { partition, samples: 9, gone }, rules()));
    let mut comparison = Comparison::of_topic(options, Some(WINDOW_MS), &scratch);
    let all: Vec<_> = (0..raw.len()).map(|number| (raw[number], at(raw, number, compare))).collect();
    for (Raw { partition, part, is_in_clean, .. }, seen) in &all {
        comparison.raw(*partition, seen, *part).unwrap();
        if *is_in_clean {
            comparison.clean(*partition, seen).unwrap();
        }
    }
    let mut total = Outcome::default();
    let outcomes: BTreeMap<_, _> = comparison.finish(&mut UnmatchedRecords::new(&scratch)).unwrap();
    for outcome in outcomes.values() {
        total.add(outcome, 9);
    }
    assert_eq!(total.counts, Counts::default(), "{total:?}");
    if raw.iter().all(|record| record.partition == 0) {
        let clean: Vec<_> = all.iter().filter(|(raw, _)| raw.is_in_clean).map(|(_, seen)| *seen).collect();
        let raw: Vec<_> = all.iter().map(|(raw, seen)| (*seen, raw.part)).collect();
        let alone = both(rules(), PartitionOptions { partition: 0, samples: 9, gone }, &raw, &clean);
        assert_eq!((alone.dropped, &alone.unequal), (total.dropped, &total.unequal));
    }
    total
}

/// The counts of equal, unequal and not compared records, and the unequal pairs: partition and offset of both.
fn found(compare: &[&str], raw: &[Raw]) -> ([u64; 3], Vec<[u64; 4]>) {
    let Outcome { dropped, unequal, .. } = audited(Gone::Nothing, compare, raw);
    let DroppedCounts { equal, unequal: different, not_compared } = dropped;
    let pair =
        |it: &UnequalPair| [it.partition.into(), it.offset, it.owner_partition.into(), it.owner_offset];
    ([equal, different, not_compared], unequal.iter().map(pair).collect())
}

const VALUE: [&str; 1] = ["value"];

#[test]
fn an_unequal_copy_in_the_same_partition_is_found() {
    let raw =
        [kept(0, Some("v"), 0), dropped(0, Some("v"), 1), dropped(0, Some("w"), 2), dropped(0, Some("v"), 3)];
    assert_eq!(found(&VALUE, &raw), ([2, 1, 0], vec![[0, 2, 0, 0]]));
    let equal = [raw[0], raw[1], raw[3]];
    assert_eq!(found(&VALUE, &equal), ([2, 0, 0], vec![]));
    assert_eq!(found(&[], &raw), ([0, 0, 3], vec![]), "nothing is compared");
    let others = [kept(0, Some("v"), 0), Raw { id: "b", ..kept(0, Some("w"), 1) }];
    assert_eq!(found(&VALUE, &others), ([0, 0, 0], vec![]), "nothing is dropped");
}

#[test]
fn an_unequal_copy_in_another_partition_is_found_whichever_was_forwarded() {
    for (value, is_equal) in [("w", false), ("v", true)] {
        let counts = [is_equal.into(), (!is_equal).into(), 0];
        let pairs = |pair| if is_equal { vec![] } else { vec![pair] };
        let later = [kept(0, Some("v"), 0), dropped(1, Some(value), 5)];
        assert_eq!(found(&VALUE, &later), (counts, pairs([1, 0, 0, 0])));
        let earlier = [dropped(0, Some(value), 0), kept(1, Some("v"), 5)];
        assert_eq!(found(&VALUE, &earlier), (counts, pairs([0, 0, 1, 0])));
    }
}

#[test]
fn null_differs_from_empty() {
    let of = |owner, copy| found(&VALUE, &[kept(0, owner, 0), dropped(0, copy, 1)]).0;
    assert_eq!([of(None, Some("")), of(Some(""), None)], [[0, 1, 0]; 2]);
    assert_eq!([of(None, None), of(Some(""), Some(""))], [[1, 0, 0]; 2]);
}

#[test]
fn only_the_parts_of_identity_compare_count() {
    let raw = [
        kept(0, Some(r#"{"amount":1,"sent":1}"#), 0),
        dropped(1, Some(r#"{"sent":2,"amount":1}"#), 1),
        dropped(0, Some(r#"{"amount":2,"sent":1}"#), 2),
        dropped(0, Some(r#"{"sent":1}"#), 3),
    ];
    assert_eq!(found(&["json:/amount"], &raw), ([1, 1, 1], vec![[0, 1, 0, 0]]));
    assert_eq!(found(&["json:/amount", "json:/sent"], &raw).0, [0, 2, 1]);
    assert_eq!(found(&VALUE, &raw).0, [0, 3, 0]);
}

#[test]
fn a_dropped_record_is_compared_with_the_last_one_before_it_that_clean_holds() {
    let raw = [
        kept(0, Some("v"), 0),
        dropped(0, Some("v"), 1),
        kept(0, Some("w"), 2 * WINDOW_MS),
        dropped(0, Some("w"), 2 * WINDOW_MS + 1),
        dropped(0, Some("v"), 2 * WINDOW_MS + 2),
    ];
    assert_eq!(found(&VALUE, &raw), ([2, 1, 0], vec![[0, 4, 0, 2]]));
    // A forced record is no owner while the window has another one.
    let forced = [
        raw[0],
        Raw { forced: true, ..kept(0, Some("w"), 1) },
        dropped(0, Some("v"), 2),
        dropped(0, Some("w"), 3),
    ];
    assert_eq!(found(&VALUE, &forced), ([1, 1, 0], vec![[0, 3, 0, 0]]));
    // The one of the other partition was read first: that before the dropped one had expired.
    let expired = [
        raw[0],
        dropped(0, Some("w"), 4 * WINDOW_MS),
        kept(1, Some("w"), 4 * WINDOW_MS + 1),
        dropped(1, Some("v"), 4 * WINDOW_MS + 2),
    ];
    assert_eq!(found(&VALUE, &expired), ([1, 1, 0], vec![[1, 1, 1, 0]]));
}

#[test]
fn a_record_whose_owner_is_not_there_is_not_compared() {
    // Before the range, where clean is not read.
    let before = Raw { part: Part::Before, is_in_clean: false, ..kept(0, Some("v"), 0) };
    assert_eq!(found(&VALUE, &[before, dropped(0, Some("w"), 1)]), ([0, 0, 1], vec![]));
    // Deleted from raw: clean has it in another partition, or in the same one.
    let allowed = Gone::Allowed { clean_trimmed: false };
    for partition in [0, 1] {
        let raw = [kept(0, Some("v"), 0), dropped(partition, Some("w"), 1), dropped(partition, Some("x"), 2)];
        assert_eq!(audited(allowed, &VALUE, &raw).dropped.unequal, 2);
        for copies in [2, 1] {
            assert_eq!(
                deleted_owner(&raw[..=copies]),
                DroppedCounts { not_compared: copies as u64, ..DroppedCounts::default() }
            );
        }
    }
}

/// The counts if raw does not have the first of these records any more.
fn deleted_owner(raw: &[Raw]) -> DroppedCounts {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let gone = Gone::Allowed { clean_trimmed: false };
    let options = [0, 1].map(|partition| (PartitionOptions { partition, samples: 9, gone }, rules()));
    let mut comparison = Comparison::of_topic(options, Some(WINDOW_MS), &scratch);
    comparison.clean(raw[0].partition, &at(raw, 0, &VALUE)).unwrap();
    for number in 1..raw.len() {
        comparison.raw(raw[number].partition, &at(raw, number, &VALUE), Part::Within).unwrap();
    }
    let outcomes = comparison.finish(&mut UnmatchedRecords::new(&scratch)).unwrap();
    let mut total = Outcome::default();
    for outcome in outcomes.values() {
        total.add(outcome, 9);
    }
    assert_eq!(total.counts, Counts::default(), "{total:?}");
    total.dropped
}

#[test]
fn a_lost_record_is_not_a_dropped_one() {
    let raw = [with_id("a", 1), with_id("b", 2)];
    let outcome = compare(&raw, &raw[1..]);
    assert_eq!((outcome.counts.lost, outcome.dropped), (1, DroppedCounts::default()));
}

#[test]
fn the_first_five_pairs_are_reported() {
    let copies = (1..9).map(|ms| dropped(u32::from(ms % 2 == 0), Some("w"), ms));
    let raw: Vec<_> = std::iter::once(kept(0, Some("v"), 0)).chain(copies).collect();
    let first = vec![[0, 1, 0, 0], [0, 2, 0, 0], [0, 3, 0, 0], [0, 4, 0, 0], [1, 0, 0, 0]];
    assert_eq!(found(&VALUE, &raw), ([0, 8, 0], first));
}
