//! Injected faults are reported with the correct kind, and nothing else is reported.

use proptest::prelude::*;
use proptest::sample::Index;

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::Offset;
use crate::record::{Fields, Fingerprints};
use crate::{Comparison, Counts, Kind, MissingId, Part, Rules, Seen};

mod agreement;
mod dropped;
mod explained;
mod forwarded;
mod interleaved;
mod longest;
mod model;
mod rekeyed;
mod topic;
mod unordered;

const WINDOW_MS: i64 = 1_000;

/// A record written by a test.
#[derive(Debug, Clone, PartialEq)]
struct Written {
    id: Option<String>,
    value: String,
    key: Option<&'static str>,
    header: Option<&'static str>,
    timestamp_ms: i64,
}

fn with_id(id: &str, timestamp_ms: i64) -> Written {
    let value = format!("value of {id} at {timestamp_ms}");
    Written { id: Some(id.to_owned()), value, key: Some("k"), header: Some("h"), timestamp_ms }
}

fn without_id(value: &str, timestamp_ms: i64) -> Written {
    Written { id: None, value: value.to_owned(), key: None, header: None, timestamp_ms }
}

fn seen(offset: usize, written: &Written) -> Seen {
    let fields = Fields {
        key: written.key.map(str::as_bytes),
        value: Some(written.value.as_bytes()),
        headers: vec![(b"name", written.header.map(str::as_bytes))],
        timestamp_ms: Some(written.timestamp_ms),
    };
    Fingerprints::new(42).seen(offset as Offset, written.id.as_deref().map(str::as_bytes), &fields)
}

fn rules() -> Rules {
    Rules {
        window_ms: Some(WINDOW_MS),
        longest_ms: Some(WINDOW_MS),
        latest_ms: 1_000_000,
        missing_id: MissingId::Forwarded,
        due_below: Offset::MAX,
        whole_from: 0,
        context_cut: false,
        from_ms: None,
    }
}

/// Runs both comparisons, with so little memory that the streaming one uses files, also as one of a group, and returns their
/// common outcome.
fn both(rules: Rules, options: PartitionOptions, raw: &[(Seen, Part)], clean: &[Seen]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let outcome = model::compare(rules, options, raw, clean);
    let number = options.partition;
    for mut comparison in
        [Comparison::new(options, rules, &scratch), Comparison::in_group(options, rules, &scratch, 1)]
    {
        raw.iter().try_for_each(|(record, part)| comparison.raw(number, record, *part)).unwrap();
        clean.iter().try_for_each(|record| comparison.clean(number, record)).unwrap();
        let outcomes = comparison.finish(&mut UnmatchedRecords::new(&scratch)).unwrap();
        assert_eq!(outcomes, BTreeMap::from([(number, outcome.clone())]));
    }
    outcome
}

/// Only even offsets are used, as if transaction markers were in between.
fn compare_by(rules: Rules, gone: Gone, raw: &[Written], clean: &[Written]) -> Outcome {
    let seen = |(at, record)| seen(2 * at, record);
    let raw: Vec<_> = raw.iter().enumerate().map(seen).map(|record| (record, Part::Within)).collect();
    let clean: Vec<_> = clean.iter().enumerate().map(seen).collect();
    both(rules, PartitionOptions { partition: 3, samples: 5, gone }, &raw, &clean)
}

fn compare(raw: &[Written], clean: &[Written]) -> Outcome {
    compare_by(rules(), Gone::Nothing, raw, clean)
}

fn some_ids(count: i64) -> Vec<Written> {
    (0..count).map(|n| with_id(&format!("id-{n}"), n)).collect()
}

fn only(kind: Kind, count: u64) -> Counts {
    let mut counts = Counts::default();
    match kind {
        Kind::Lost => counts.lost = count,
        Kind::Duplicated => counts.duplicated = count,
        Kind::OutOfOrder => counts.out_of_order = count,
        Kind::Altered => counts.altered = count,
        Kind::Phantom => counts.phantom = count,
    }
    counts
}

#[test]
fn clean_without_the_duplicates_of_raw_has_no_findings() {
    let mut raw = some_ids(5);
    raw.insert(3, with_id("id-1", 700));
    raw.push(with_id("id-0", 900));
    let outcome = compare(&raw, &[&some_ids(5)[..]].concat());
    assert!(outcome.counts.is_clean(), "{outcome:?}");
    assert_eq!((outcome.raw.records, outcome.raw.ids, outcome.raw.duplicates), (7, 5, 2));
    assert_eq!(outcome.clean_records, 5);
    assert!(compare(&[], &[]).counts.is_clean());
}

#[test]
fn findings_name_both_offsets_and_the_fields() {
    let raw = some_ids(4);
    let mut clean = raw.clone();
    clean[2].header = None;
    clean[2].timestamp_ms += 1;
    clean.remove(0);
    let outcome = compare(&raw, &clean);
    let listed: Vec<String> = outcome.samples.iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        [
            "altered: partition 3, raw offset 4, clean offset 2, different in headers, timestamp",
            "lost: partition 3, raw offset 0"
        ]
    );
}

#[test]
fn each_field_that_changes_is_an_alteration() {
    type Change = fn(&mut Written);
    let raw = some_ids(3);
    let changes: [(&str, Change); 5] = [
        ("key", |record| record.key = None),
        ("key", |record| record.key = Some("")),
        ("value", |record| record.value.push(' ')),
        ("headers", |record| record.header = None),
        ("timestamp", |record| record.timestamp_ms = 0),
    ];
    for (field, change) in changes {
        let mut clean = raw.clone();
        change(&mut clean[1]);
        let outcome = compare(&raw, &clean);
        assert_eq!(outcome.counts, only(Kind::Altered, 1));
        assert_eq!(outcome.samples[0].fields.names().collect::<Vec<_>>(), [field]);
    }
}

#[test]
fn a_later_duplicate_instead_of_the_first_record_is_a_finding() {
    let raw = [with_id("a", 1), with_id("b", 2), with_id("a", 3)];
    let outcome = compare(&raw, &[raw[1].clone(), raw[2].clone()]);
    assert_eq!(outcome.counts, Counts { altered: 1, out_of_order: 1, ..Counts::default() });
}

#[test]
fn one_record_out_of_place_is_one_finding_however_far_it_moved() {
    let raw = some_ids(1_000);
    let mut early = raw.clone();
    let last = early.pop().unwrap();
    early.insert(0, last);
    assert_eq!(compare(&raw, &early).counts, only(Kind::OutOfOrder, 1));
    let mut late = raw.clone();
    let first = late.remove(0);
    late.push(first);
    assert_eq!(compare(&raw, &late).counts, only(Kind::OutOfOrder, 1));
}

#[test]
fn a_series_of_records_written_twice_is_reported_as_duplicates_only() {
    let raw = some_ids(100);
    let clean = [&raw[..60], &raw[20..60], &raw[60..]].concat();
    assert_eq!(compare(&raw, &clean).counts, only(Kind::Duplicated, 40));
}

#[test]
fn an_empty_clean_topic_lost_every_record() {
    let outcome = compare(&some_ids(20), &[]);
    assert_eq!(outcome.counts, only(Kind::Lost, 20));
    assert_eq!(outcome.samples.len(), 5);
    assert_eq!(compare(&[], &some_ids(7)).counts, only(Kind::Phantom, 7));
}

#[test]
fn repeats_after_the_window_are_optional_and_start_a_window_of_their_own() {
    let raw = [
        with_id("a", 1),
        with_id("a", WINDOW_MS + 1), // exactly the window: still in it
        with_id("a", WINDOW_MS + 2),
        with_id("b", WINDOW_MS + 3),
        with_id("a", 2 * WINDOW_MS + 2),
        with_id("a", 2 * WINDOW_MS + 3),
    ];
    let pick = |places: &[usize]| places.iter().map(|at| raw[*at].clone()).collect::<Vec<_>>();
    for correct in [&[0, 3][..], &[0, 2, 3], &[0, 3, 4], &[0, 3, 5], &[0, 2, 3, 5]] {
        let outcome = compare(&raw, &pick(correct));
        assert!(outcome.counts.is_clean(), "{correct:?}: {outcome:?}");
        assert_eq!((outcome.raw.duplicates, outcome.raw.beyond_window), (1, 3));
    }
    for twice in [&[0, 1, 3][..], &[0, 2, 3, 4], &[0, 3, 4, 5]] {
        assert_eq!(compare(&raw, &pick(twice)).counts, only(Kind::Duplicated, 1), "{twice:?}");
    }
    assert_eq!(compare(&raw, &pick(&[2, 3])).counts, only(Kind::Lost, 1), "the first is never optional");
    assert_eq!(compare(&raw, &pick(&[0, 0, 3, 5])).counts, only(Kind::Duplicated, 1));
    let forever = Rules { window_ms: None, ..rules() };
    let outcome = compare_by(forever, Gone::Nothing, &raw, &pick(&[0, 2, 3]));
    assert_eq!(outcome.counts, only(Kind::Duplicated, 1));
}

#[test]
fn one_timestamp_in_the_far_future_expires_no_id() {
    let raw = [with_id("a", 1), with_id("b", i64::MAX), with_id("a", 2)];
    let rules = Rules { latest_ms: 500, ..rules() };
    assert_eq!(compare_by(rules, Gone::Nothing, &raw, &raw).counts, only(Kind::Duplicated, 1));
}

#[test]
fn records_without_an_id_are_all_due_or_all_forbidden() {
    let raw = [without_id("x", 1), with_id("a", 1), without_id("x", 1), without_id("y", 2)];
    assert!(compare(&raw, &raw).counts.is_clean());
    assert_eq!(compare(&raw, &raw[..3]).counts, only(Kind::Lost, 1));
    let first_gone = compare(&raw, &raw[1..]);
    assert_eq!(first_gone.counts, only(Kind::Lost, 1));
    assert_eq!(first_gone.samples[0].raw, Some(0), "the record before the neighbours that are in clean");
    let mut changed = raw.clone();
    changed[3].value.push('!');
    assert_eq!(compare(&raw, &changed).counts, only(Kind::Altered, 1));
    let withheld = Rules { missing_id: MissingId::Withheld, ..rules() };
    assert!(compare_by(withheld, Gone::Nothing, &raw, &raw[1..2]).counts.is_clean());
    assert_eq!(compare_by(withheld, Gone::Nothing, &raw, &raw).counts, only(Kind::Phantom, 3));
}

#[test]
fn records_that_arrive_during_the_audit_are_neither_due_nor_phantoms() {
    let raw = some_ids(6);
    let rules = Rules { due_below: 8, ..rules() };
    for correct in [&raw[..4], &raw[..5], &raw[..]] {
        assert!(compare_by(rules, Gone::Nothing, &raw, correct).counts.is_clean());
    }
    assert_eq!(compare_by(rules, Gone::Nothing, &raw, &raw[..3]).counts, only(Kind::Lost, 1));
}

#[test]
fn what_retention_or_compaction_explains_is_counted_separately() {
    let raw = some_ids(6);
    let allowed = |clean_trimmed| Gone::Allowed { clean_trimmed };
    // Raw lost its first records; clean lost its first ones.
    let outcome = compare_by(rules(), allowed(false), &raw[2..], &raw);
    assert!(outcome.counts.is_clean() && outcome.gone == 2, "{outcome:?}");
    assert_eq!(compare(&raw[2..], &raw).counts, only(Kind::Phantom, 2), "unless it is allowed");
    let outcome = compare_by(rules(), allowed(true), &raw, &raw[2..]);
    assert!(outcome.counts.is_clean() && outcome.gone == 2, "{outcome:?}");
    assert_eq!(compare_by(rules(), allowed(false), &raw, &raw[2..]).counts, only(Kind::Lost, 2));
    // Compaction left the later copy of `a`, clean has the first.
    let (b, a) = (with_id("b", 2), with_id("a", 3));
    let outcome = compare_by(rules(), allowed(false), &[b.clone(), a], &[with_id("a", 1), b.clone()]);
    assert!(outcome.counts.is_clean() && outcome.gone == 1, "{outcome:?}");
    // Losses and repeats stay what they are.
    let clean = [&raw[..2], &raw[3..], &raw[5..]].concat();
    let outcome = compare_by(rules(), allowed(true), &raw, &clean);
    assert_eq!(outcome.counts, Counts { lost: 1, duplicated: 1, ..Counts::default() });
}

/// A raw record and, if it repeats an id after the window, whether the pipeline forwarded it.
fn raw_record() -> impl Strategy<Value = (Option<u8>, i64, bool)> {
    (prop_oneof![1 => Just(None), 4 => (0..40u8).prop_map(Some)], 0..120i64, any::<bool>())
}

/// A raw log, its correct clean log, and which records of that are due.
fn log_and_copy(drawn: &[(Option<u8>, i64, bool)]) -> (Vec<Written>, Vec<(Written, bool)>) {
    let (mut raw, mut copy) = (Vec::new(), Vec::new());
    let mut owners: HashMap<u8, i64> = HashMap::new();
    let mut now_ms = 7; // the timestamp of the records without an id
    for (id, step_ms, forwarded_again) in drawn {
        now_ms += step_ms;
        let (record, forwarded, due) = match id {
            // Only two contents, so that records without an id are often equal.
            None => (without_id(if *step_ms % 2 == 0 { "even" } else { "odd" }, 7), true, true),
            Some(id) => {
                let owner = owners.get(id).copied();
                let new = owner.is_none_or(|then_ms| now_ms - then_ms > WINDOW_MS && *forwarded_again);
                if new {
                    owners.insert(*id, now_ms);
                }
                let mut record = with_id(&id.to_string(), now_ms);
                record.value = format!("{} {}", record.value, raw.len());
                (record, new, owner.is_none())
            }
        };
        raw.push(record.clone());
        if forwarded {
            copy.push((record, due));
        }
    }
    (raw, copy)
}

fn inject(
    kind: Kind,
    raw: &[Written],
    copy: &[(Written, bool)],
    at: Index,
    to: Index,
) -> Option<Vec<Written>> {
    let mut clean: Vec<Written> = copy.iter().map(|(record, _)| record.clone()).collect();
    if clean.len() < 2 {
        return None;
    }
    let at = at.index(clean.len() - 1);
    let to = at + 1 + to.index(clean.len() - at);
    match kind {
        Kind::Lost => {
            copy[at].1.then_some(())?;
            clean.remove(at);
        }
        Kind::Duplicated => clean.insert(to.min(clean.len()), clean[at].clone()),
        Kind::OutOfOrder => {
            let moved = clean.remove(at);
            clean.insert(to.min(clean.len()), moved);
            // Moving a record past equal records changes nothing.
            copy.iter().map(|(record, _)| record).ne(&clean).then_some(())?;
        }
        Kind::Altered => {
            let same = raw.iter().filter(|record| **record == clean[at]).count();
            // A changed record that is not due cannot be distinguished from a duplicate.
            (same == 1 && copy[at].1).then_some(())?;
            clean[at].value.push('!');
        }
        Kind::Phantom => clean.insert(at, with_id("never in raw", 5)),
    }
    Some(clean)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_correct_clean_log_has_no_findings(drawn in prop::collection::vec(raw_record(), 0..200)) {
        let (raw, copy) = log_and_copy(&drawn);
        let clean: Vec<_> = copy.into_iter().map(|(record, _)| record).collect();
        let outcome = compare(&raw, &clean);
        prop_assert!(outcome.counts.is_clean(), "{outcome:?}");
    }

    #[test]
    fn one_injected_fault_is_reported_with_its_kind(
        drawn in prop::collection::vec(raw_record(), 2..120),
        kind in prop::sample::select(&Kind::ALL[..]),
        at: Index,
        to: Index,
    ) {
        let (raw, copy) = log_and_copy(&drawn);
        let clean = inject(kind, &raw, &copy, at, to);
        prop_assume!(clean.is_some());
        let outcome = compare(&raw, &clean.unwrap());
        let mut counts = outcome.counts;
        if kind == Kind::OutOfOrder && raw.iter().any(|record| raw.iter().filter(|r| *r == record).count() > 1) {
            // Of several equal records, which one moved is unknown, and so is how many others it passed.
            counts.out_of_order = counts.out_of_order.min(1);
        }
        prop_assert_eq!(counts, only(kind, 1));
    }
}
