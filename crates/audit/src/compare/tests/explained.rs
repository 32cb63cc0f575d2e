//! Differences that deleted records, a later start, kinds or forgotten ids explain.

use super::topic::{Logs, compare_logs, compare_parts, record};
use super::*;
use crate::Exempt;

#[test]
fn a_copy_of_a_record_that_retention_deleted_from_both_logs_is_not_lost() {
    let allowed = |clean_trimmed| Gone::Allowed { clean_trimmed };
    let cut = |context_cut| Rules { context_cut, ..rules() };
    let last = |at: usize| with_id(&format!("last-{at}"), 5 * WINDOW_MS);
    // Raw has every id again; clean has the first ones. Both lost those before `x`.
    let copies: Vec<_> = (0..4).map(|n| with_id(&format!("id-{n}"), 100 + n)).collect();
    let x = with_id("x", 50);
    let raw = [std::slice::from_ref(&x), &copies, &[last(0), last(1)]].concat();
    let clean = [x.clone(), last(0), last(1)];
    let outcome = compare_by(cut(true), allowed(true), &raw, &clean);
    assert!(outcome.counts.is_clean() && outcome.gone == 4, "{outcome:?}");
    assert_eq!(compare_by(cut(true), Gone::Nothing, &raw, &clean).counts, only(Kind::Lost, 4));
    // Raw was cut later: clean still has the originals, and they explain the copies.
    let older = [&some_ids(4)[..], &clean].concat();
    let outcome = compare_by(cut(false), allowed(false), &raw, &older);
    assert!(outcome.counts.is_clean() && outcome.gone >= 4, "{outcome:?}");
    let outcome = compare_by(cut(true), allowed(true), &raw, &older[2..]);
    assert!(outcome.counts.is_clean() && outcome.gone >= 4, "{outcome:?}");
    // A loss that is further behind the deleted start than an id is kept is found.
    let outcome = compare_by(cut(true), allowed(true), &raw, &[x, last(1)]);
    assert_eq!((outcome.counts, outcome.gone), (only(Kind::Lost, 1), 4), "{outcome:?}");
}

#[test]
fn lost_records_before_the_first_clean_one_are_counted_apart() {
    let raw = some_ids(6);
    let outcome = compare(&raw, &[raw[2].clone(), raw[4].clone(), raw[5].clone()]);
    assert_eq!(outcome.counts, only(Kind::Lost, 3));
    assert_eq!((outcome.lost_at_start, outcome.starts_ms), (2, Some(2)));
    let outcome = compare(&raw, &raw[..5]);
    assert_eq!((outcome.counts.lost, outcome.lost_at_start, outcome.starts_ms), (1, 0, None));
    let outcome = compare(&raw, &[]);
    assert_eq!((outcome.counts.lost, outcome.lost_at_start), (6, 0), "no record shows where it started");
}

#[test]
fn exempt_records_are_due_whatever_the_policy_and_those_of_forgotten_ids_are_optional() {
    let withheld = Rules { missing_id: MissingId::Withheld, ..rules() };
    let options = PartitionOptions { partition: 0, samples: 5, gone: Gone::Nothing };
    let record = |at: usize, exempt| {
        let plain = seen(at, &without_id(if at < 2 { "same" } else { "other" }, 1));
        Seen { exempt, ..plain }
    };
    let run = |exempt: Exempt, kept: &[usize]| {
        let raw: Vec<_> = (0..3).map(|at| (record(at, exempt), Part::Within)).collect();
        let clean: Vec<_> = kept.iter().map(|at| record(*at, exempt)).collect();
        let outcome = both(withheld, options, &raw, &clean);
        assert_eq!((outcome.raw.exempt, outcome.raw.without_id), (3, 0));
        outcome.counts
    };
    assert!(run(Exempt::Kind, &[0, 1, 2]).is_clean());
    assert_eq!(run(Exempt::Kind, &[0, 1]), only(Kind::Lost, 1));
    for kept in [&[][..], &[0], &[0, 1], &[1, 2], &[0, 1, 2]] {
        assert!(run(Exempt::Forgotten, kept).is_clean(), "{kept:?}");
    }
}

#[test]
fn a_copy_of_a_deleted_record_is_explained_wherever_that_one_was() {
    let gone = [Gone::Allowed { clean_trimmed: false }; 3];
    let record = |id: &str| record(id, 0);
    for (owner, copy) in [(0, 1), (1, 0), (2, 0), (2, 1), (0, 2)] {
        let of = |partition: usize| record(&format!("p-{partition}"));
        let mut clean: Logs = (0..3).map(|partition| vec![of(partition)]).collect();
        let mut raw = clean.clone();
        // Raw has lost the record of x that clean holds, by retention or compaction.
        clean[owner].insert(0, record("x"));
        raw[copy].insert(0, record("x"));
        // This one is nowhere in clean.
        raw[copy].push(record("lost"));
        let (outcome, moved) = compare_logs(rules(), &gone, &raw, &clean);
        assert_eq!((outcome.counts, moved), (only(Kind::Lost, 1), 0), "{owner} {copy}: {outcome:?}");
        assert_eq!((outcome.samples[0].raw, outcome.gone), (Some(4), 1), "{owner} {copy}: {outcome:?}");
        assert_eq!(outcome.dropped.sum(), 1, "{owner} {copy}: {outcome:?}");
        let (outcome, _) = compare_logs(rules(), &[Gone::Nothing; 3], &raw, &clean);
        assert_eq!(
            outcome.counts,
            Counts { lost: 2, phantom: 1, ..Counts::default() },
            "unless it is allowed"
        );
        // Several copies of it.
        let mut several = raw.clone();
        several[copy].extend([record("x"), record("x")]);
        let (outcome, _) = compare_logs(rules(), &gone, &several, &clean);
        assert_eq!((outcome.counts, outcome.gone), (only(Kind::Lost, 1), 1), "{owner} {copy}: {outcome:?}");
        // A forced record is due whatever clean holds.
        let mut parts: Vec<Vec<_>> = raw
            .iter()
            .map(|log| log.iter().enumerate().map(|(at, r)| (seen(2 * at, r), Part::Within)).collect())
            .collect();
        parts[copy][0].0.forced = true;
        let (outcome, _) = compare_parts(rules(), &gone, &parts, &clean);
        assert_eq!(outcome.counts, only(Kind::Lost, 2), "{owner} {copy}: {outcome:?}");
    }
}

#[test]
fn a_record_that_is_new_again_after_the_window_is_no_duplicate_of_a_deleted_one() {
    let gone = [Gone::Allowed { clean_trimmed: false }; 2];
    // Raw has lost the first record of x. One was dropped for it, and one was new again.
    for again_ms in [WINDOW_MS, WINDOW_MS + 1, 3 * WINDOW_MS] {
        let clean = vec![
            vec![record("x", 0), record("a", 1), record("x", again_ms)],
            vec![record("b", 0), record("lost", 1)],
        ];
        let mut raw = vec![clean[0][1..].to_vec(), clean[1].clone()];
        let both = Counts { duplicated: u64::from(again_ms <= WINDOW_MS), ..Counts::default() };
        let alone = compare_by(rules(), gone[0], &raw[0], &clean[0]);
        assert_eq!((alone.counts, alone.gone), (both, 1 - both.duplicated), "{again_ms}: {alone:?}");
        let (outcome, _) = compare_logs(rules(), &gone, &raw, &clean);
        assert_eq!((outcome.counts, outcome.gone), (both, 1 - both.duplicated), "{again_ms}: {outcome:?}");
        raw[1].push(record("x", WINDOW_MS / 2));
        let (outcome, _) = compare_logs(rules(), &gone, &raw, &clean);
        assert_eq!((outcome.counts, outcome.gone), (both, 1 - both.duplicated), "{again_ms}: {outcome:?}");
        let less = vec![clean[0].clone(), clean[1][..1].to_vec()];
        let (outcome, _) = compare_logs(rules(), &gone, &raw, &less);
        assert_eq!(outcome.counts, Counts { lost: 1, ..both }, "{again_ms}: {outcome:?}");
    }
}
