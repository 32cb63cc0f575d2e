//! What clean holds is not dropped, also where dedupd dropped nothing for some time (`dedupe.mode`).

use super::*;
use crate::{Comparison, DroppedCounts};

/// The value of a raw record of one id, and whether clean holds it: with the headers of raw, or with a mark of shadow mode.
#[derive(Debug, Clone, Copy)]
struct Raw {
    partition: PartitionId,
    value: &'static str,
    in_clean: Option<&'static str>,
}

const fn raw(partition: PartitionId, value: &'static str, in_clean: Option<&'static str>) -> Raw {
    Raw { partition, value, in_clean }
}

const SAME: Option<&str> = Some("");
const MARKED: Option<&str> = Some("duplicate");

/// A record of raw, or its copy in clean with this mark.
fn at(offset: usize, value: &str, mark: &str) -> Seen {
    let marks = [(&b"dedupd.reason"[..], Some(mark.as_bytes()))];
    let headers = if mark.is_empty() { Vec::new() } else { marks.to_vec() };
    let fields = Fields { key: Some(b"a"), value: Some(value.as_bytes()), headers, timestamp_ms: Some(9) };
    Fingerprints::new(7).seen(offset as Offset, Some(b"a"), &fields)
}

/// The counts of equal and unequal dropped records: in topic scope, and if all are in partition 0 as in partition scope.
fn dropped(gone: Gone, all: &[Raw]) -> [u64; 2] {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let options = [0, 1].map(|partition| (PartitionOptions { partition, samples: 9, gone }, rules()));
    let mut comparison = Comparison::of_topic(options, Some(WINDOW_MS), &scratch);
    let (mut of_raw, mut of_clean) = (Vec::new(), Vec::new());
    for (offset, Raw { partition, value, in_clean }) in all.iter().enumerate() {
        let record = at(offset, value, "");
        comparison.raw(*partition, &record, Part::Within).unwrap();
        of_raw.push((record, Part::Within));
        if let Some(mark) = in_clean {
            let copy = at(offset, value, mark);
            comparison.clean(*partition, &copy).unwrap();
            of_clean.push(copy);
        }
    }
    let mut total = DroppedCounts::default();
    comparison
        .finish(&mut UnmatchedRecords::new(&scratch))
        .unwrap()
        .values()
        .for_each(|it| total += it.dropped);
    if all.iter().all(|record| record.partition == 0) {
        let options = PartitionOptions { partition: 0, samples: 9, gone };
        assert_eq!(both(rules(), options, &of_raw, &of_clean).dropped, total);
    }
    assert_eq!(total.not_compared, 0);
    [total.equal, total.unequal]
}

#[test]
fn nothing_is_dropped_where_clean_holds_every_record() {
    for gone in [Gone::Nothing, Gone::Allowed { clean_trimmed: false }] {
        for again in [SAME, MARKED] {
            for all in [
                &[raw(0, "v", SAME), raw(0, "v", again), raw(0, "v", again)][..],
                &[raw(0, "v", SAME), raw(0, "w", again), raw(0, "w", again), raw(0, "x", again)],
                &[raw(0, "v", SAME), raw(1, "v", again), raw(0, "v", again), raw(1, "w", again)],
            ] {
                assert_eq!(dropped(gone, all), [0, 0], "{all:?}");
            }
        }
    }
    // The control.
    let all = [raw(0, "v", SAME), raw(0, "v", None), raw(0, "w", None)];
    assert_eq!(dropped(Gone::Nothing, &all), [1, 1]);
}

#[test]
fn of_equal_copies_as_many_are_dropped_as_clean_does_not_hold() {
    for again in [SAME, MARKED] {
        let places = [[again, None, None], [None, again, None], [None, None, again]];
        for [one, two, three] in places {
            let equal = [raw(0, "v", SAME), raw(0, "v", one), raw(0, "v", two), raw(0, "v", three)];
            assert_eq!(dropped(Gone::Nothing, &equal), [2, 0], "{equal:?}");
        }
        // One of two records with other content is in clean, the other one equals it.
        for [one, two] in [[again, None], [None, again]] {
            let unequal = [raw(0, "v", SAME), raw(0, "w", one), raw(0, "w", two)];
            assert_eq!(dropped(Gone::Nothing, &unequal), [1, 0], "{unequal:?}");
        }
    }
    // Each copy in clean counts for its own partition.
    let apart = [raw(0, "v", SAME), raw(0, "v", SAME), raw(1, "v", None), raw(1, "v", None)];
    assert_eq!(dropped(Gone::Nothing, &apart), [2, 0]);
}

#[test]
fn more_different_records_of_an_id_than_are_expected_are_not_dropped_if_clean_holds_them() {
    let values: Vec<&'static str> = (0..100).map(|n| &*format!("{n}").leak()).collect();
    let all: Vec<Raw> = values.iter().map(|value| raw(0, value, SAME)).collect();
    assert_eq!(dropped(Gone::Nothing, &all), [0, 0]);
}
