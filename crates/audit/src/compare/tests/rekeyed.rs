//! Several raw topics behind `rekey`: a model of both stages has no findings, and planted faults are reported with their
//! coordinates.

use super::*;
use crate::id::{SOURCE_HEADER, by_source};
use crate::{Comparison, Report};

/// The raw logs: partitions of two topics.
const LOGS: [(&str, u32); 4] = [("a", 0), ("a", 1), ("b", 0), ("b", 1)];
/// Number of partitions of clean.
const CLEAN: usize = 3;

/// The place of a raw record: number of its log, and index there.
type At = (usize, usize);

/// A clean record: what it holds, and the raw record that it names.
type Named = (Written, At);

fn source((log, at): At) -> String {
    let (topic, partition) = LOGS[log];
    format!("{topic}/{partition}@{}#-.0", 2 * at)
}

/// A record as `rekey` writes it.
fn rekeyed(offset: usize, written: &Written, source: &str, missing: MissingId) -> Seen {
    let fields = Fields {
        key: written.key.map(str::as_bytes),
        value: Some(written.value.as_bytes()),
        headers: vec![(b"name", written.header.map(str::as_bytes)), (SOURCE_HEADER, Some(source.as_bytes()))],
        timestamp_ms: Some(written.timestamp_ms),
    };
    let prints = Fingerprints::new(42);
    if let Some(id) = &written.id {
        return prints.seen(offset as Offset, Some(id.as_bytes()), &fields);
    }
    let seen = prints.seen(offset as Offset, by_source(&fields).as_deref(), &fields);
    Seen { has_id: missing == MissingId::Identified, ..seen }
}

/// What an audit of raw and clean prints of findings, and its result.
fn audited(
    rules: Rules,
    raw: &[Vec<(Written, Part)>],
    clean: &[Vec<(Written, String)>],
) -> (Vec<String>, Outcome) {
    audited_with([Gone::Nothing; 7], rules, raw, clean)
}

/// As [`audited`]; for each log, which records may be missing.
fn audited_with(
    gone: [Gone; 7],
    rules: Rules,
    raw: &[Vec<(Written, Part)>],
    clean: &[Vec<(Written, String)>],
) -> (Vec<String>, Outcome) {
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(dir.path(), 0);
    let number = |number: usize| PartitionId::try_from(number).unwrap();
    let options = |at| PartitionOptions { partition: number(at), samples: 9, gone: gone[at] };
    let logs = (0..raw.len() + clean.len()).map(|at| (options(at), rules));
    let mut comparison = Comparison::behind_rekey(logs, rules.window_ms, &scratch);
    for (partition, log) in clean.iter().enumerate() {
        for (at, (record, source)) in log.iter().enumerate() {
            let seen = rekeyed(at, record, source, rules.missing_id);
            comparison.clean(number(raw.len() + partition), &seen).unwrap();
        }
    }
    for (log, records) in raw.iter().enumerate() {
        for (at, (record, part)) in records.iter().enumerate() {
            let seen = rekeyed(2 * at, record, &source((log, at)), rules.missing_id);
            let forced = record.header == Some("force");
            comparison.raw(number(log), &Seen { forced, ..seen }, *part).unwrap();
        }
    }
    let mut unmatched = UnmatchedRecords::new(&scratch);
    let names = LOGS.into_iter().chain((0..3).map(|partition| ("clean", partition)));
    let mut report = Report {
        logs: names.map(|(topic, partition)| (topic.to_owned(), partition)).collect(),
        ..Report::default()
    };
    for outcome in comparison.finish(&mut unmatched).unwrap().values() {
        report.total.add(outcome, 9);
    }
    let text = report.to_string();
    let findings = text.lines().take_while(|line| !line.starts_with("raw: "));
    let is_finding =
        |line: &&str| !["hint: ", "note: ", "nothing was compared"].iter().any(|it| line.starts_with(it));
    let findings = findings.filter(is_finding).map(ToOwned::to_owned);
    (findings.collect(), report.total)
}

fn within(raw: &[Vec<Written>]) -> Vec<Vec<(Written, Part)>> {
    raw.iter().map(|log| log.iter().map(|record| (record.clone(), Part::Within)).collect()).collect()
}

fn findings(raw: &[Vec<Written>], clean: &[Vec<Named>]) -> Vec<String> {
    audited(rules(), &within(raw), &named(clean)).0
}

fn named(clean: &[Vec<Named>]) -> Vec<Vec<(Written, String)>> {
    let log = |log: &Vec<Named>| log.iter().map(|(record, at)| (record.clone(), source(*at))).collect();
    clean.iter().map(log).collect()
}

/// Copies of some ids in several topics and partitions, which differ, and records that are alone.
fn some_logs() -> Vec<Vec<Written>> {
    let copy = |id: &str, ms: i64| with_id(id, 10_000 + ms);
    vec![
        vec![copy("x", 0), copy("a", 1), copy("x", 2), without_id("none", 3)],
        vec![copy("b", 1), copy("y", 2)],
        vec![copy("c", 5), copy("x", 6), without_id("none", 3)],
        vec![copy("y", 9), copy("d", 9)],
    ]
}

/// A right clean topic of these. Its order and its choice of copies are none of a single partition of raw.
fn right(raw: &[Vec<Written>]) -> Vec<Vec<Named>> {
    let of = |places: &[At]| places.iter().map(|(log, at)| (raw[*log][*at].clone(), (*log, *at))).collect();
    vec![of(&[(3, 1), (0, 2), (0, 1)]), of(&[(2, 0), (0, 3), (1, 0)]), of(&[(2, 2), (3, 0)])]
}

#[test]
fn any_copy_of_an_id_may_be_in_any_partition_at_any_place() {
    let raw = some_logs();
    let (found, outcome) = audited(rules(), &within(&raw), &named(&right(&raw)));
    assert_eq!((found, outcome.counts), (Vec::new(), Counts::default()), "{outcome:?}");
    assert_eq!((outcome.raw.records, outcome.clean_records), (11, 8));
    assert_eq!((outcome.raw.ids, outcome.raw.duplicates, outcome.raw.without_id), (6, 3, 2));
}

#[test]
fn a_copy_that_shadow_mode_has_marked_is_not_dropped_whichever_it_is() {
    let x = with_id("x", 1);
    let raw = [vec![x.clone()], vec![x.clone()], vec![x.clone()], vec![]];
    let marked = Written { header: Some("marked"), ..x.clone() };
    for (clean, dropped) in [(vec![], 2), (vec![(marked.clone(), (1, 0))], 1)] {
        for copies in [clean.clone(), [&clean[..], &[(marked.clone(), (2, 0))]].concat()] {
            let left = dropped - (copies.len() - clean.len()) as u64;
            let clean = [vec![(x.clone(), (0, 0))], copies, vec![]];
            assert_eq!(audited(rules(), &within(&raw), &named(&clean)).1.dropped.sum(), left);
        }
    }
}

#[test]
fn each_fault_is_found_with_its_coordinates() {
    type Plant = fn(&mut Vec<Vec<Named>>);
    let raw = some_logs();
    let cases: [(Plant, &str); 10] = [
        (|clean| drop(clean[0].remove(2)), "lost: raw record a/0@2"),
        (|clean| drop(clean[0].remove(1)), "lost: raw record a/0@0"),
        (|clean| drop(clean[1].remove(1)), "lost: raw record a/0@6"),
        (
            |clean| {
                let again = clean[1][0].clone();
                clean[2].push(again);
            },
            "duplicated: raw record b/0@0, clean record clean/2@2",
        ),
        (
            // Another copy of x.
            |clean| clean[2].push((some_logs()[2][1].clone(), (2, 1))),
            "duplicated: raw record b/0@2, clean record clean/2@2",
        ),
        (
            |clean| clean[0][1].0.value.push('!'),
            "altered: raw record a/0@4, clean record clean/0@1, different in value",
        ),
        (
            |clean| clean[2][0].0.value.push('!'),
            "altered: raw record b/0@4, clean record clean/2@0, different in value",
        ),
        (
            |clean| clean[0][2].0.header = None,
            "altered: raw record a/0@2, clean record clean/0@2, different in headers",
        ),
        (|clean| clean[1].push((with_id("never", 10_000), (1, 0))), "phantom: clean record clean/1@3"),
        (
            // It names a record without that id.
            |clean| clean[0][1].1 = (1, 0),
            "altered: raw record a/0@4, clean record clean/0@1, different in headers",
        ),
    ];
    for (plant, expected) in cases {
        let mut clean = right(&raw);
        plant(&mut clean);
        assert_eq!(findings(&raw, &clean), [expected]);
    }
    // It names another copy of the id, which differs.
    let mut clean = right(&raw);
    clean[0][1].1 = (2, 1);
    let text = "altered: raw record b/0@2, clean record clean/0@1, different in value, timestamp";
    assert_eq!(findings(&raw, &clean), [text]);
}

#[test]
fn a_record_without_an_id_is_due_at_least_once_or_exactly_once() {
    let raw = within(&some_logs());
    let mut clean = right(&some_logs());
    let again = clean[1][1].clone();
    clean[2].push(again);
    let audited_as =
        |missing_id, clean: &[Vec<Named>]| audited(Rules { missing_id, ..rules() }, &raw, &named(clean)).0;
    assert!(audited_as(MissingId::Forwarded, &clean).is_empty());
    let twice = ["duplicated: raw record a/0@6, clean record clean/2@2"];
    assert_eq!(audited_as(MissingId::Identified, &clean), twice);
    let withheld = ["phantom: clean record clean/1@1", "phantom: clean record clean/2@0"];
    assert_eq!(audited_as(MissingId::Withheld, &right(&some_logs())), withheld);
}

#[test]
fn copies_are_outside_the_range_if_another_one_is() {
    let mut raw = within(&some_logs());
    let mut clean = right(&some_logs());
    // x is in clean as a record of the range. Instead, the copy before or behind the range is there.
    clean[0].remove(1);
    for part in [Part::Before, Part::Behind] {
        raw[0][2].1 = part;
        let (found, outcome) = audited(rules(), &raw, &named(&clean));
        assert!(found.is_empty() && outcome.raw.decided_outside == 2, "{found:?} {outcome:?}");
    }
}

#[test]
fn what_retention_removed_is_counted_apart_if_it_is_allowed() {
    let allowed = |clean_trimmed| Gone::Allowed { clean_trimmed };
    let found = |gone: [Gone; 7], raw: &[Vec<Written>], clean: &[Vec<Named>]| {
        let (found, outcome) = audited_with(gone, rules(), &within(raw), &named(clean));
        (found.into_iter().filter(|line| !line.contains("explained by")).collect::<Vec<_>>(), outcome.gone)
    };
    let (mut raw, mut clean) = (some_logs(), right(&some_logs()));
    // x has another raw record; two records have none any more.
    raw[0].clear();
    assert_eq!(found([allowed(false); 7], &raw, &clean), (Vec::new(), 3));
    assert_eq!(found([Gone::Nothing; 7], &raw, &clean).0.len(), 3);
    // The first records of one partition of clean: lost ones up to the time of the first that it still has.
    raw = some_logs();
    raw[3].push(with_id("z", 20_000));
    clean[2].remove(0);
    let mut gone = [allowed(false); 7];
    gone[6] = allowed(true);
    assert_eq!(found(gone, &raw, &clean), (vec!["lost: raw record b/1@4".to_owned()], 1));
}

#[test]
fn ids_further_apart_than_the_window_may_be_in_clean_again() {
    let raw = vec![
        vec![with_id("x", 10_000), with_id("late", 10_000 + 9 * WINDOW_MS)],
        vec![with_id("x", 10_001 + WINDOW_MS)],
        vec![with_id("x", 10_000 + 9 * WINDOW_MS)],
        vec![],
    ];
    let of = |at: At| (raw[at.0][at.1].clone(), at);
    let all = [of((0, 0)), of((1, 0)), of((2, 0))];
    for held in [&all[..], &all[..1], &all[2..], &all[..2]] {
        let clean = vec![held.to_vec(), vec![of((0, 1))], vec![]];
        assert!(findings(&raw, &clean).is_empty(), "{held:?}");
    }
    let none = vec![vec![], vec![of((0, 1))], vec![]];
    assert_eq!(findings(&raw, &none), ["lost: raw record a/0@0"]);
    // The record before a late one may be in another partition of the target, and not move its stream time.
    let [y, x, z] = [&raw[0][1], &raw[0][0], &raw[2][0]].map(Clone::clone);
    let late = vec![vec![y.clone(), x.clone()], vec![], vec![z.clone()], vec![]];
    let clean = vec![vec![(y, (0, 0))], vec![(x, (0, 1)), (z, (2, 0))], vec![]];
    assert!(findings(&late, &clean).is_empty());
}

#[test]
fn the_record_that_clean_names_is_found_among_many_copies() {
    let copies = |log: i64| (0..3_000).map(|n| with_id("hot", 10_000 + log + n % 7)).collect::<Vec<_>>();
    let raw: Vec<_> = (0..4).map(copies).collect();
    for at in [(0, 0), (1, 2_999), (3, 1_700)] {
        let clean = vec![vec![(raw[at.0][at.1].clone(), at)], vec![], vec![]];
        assert!(findings(&raw, &clean).is_empty(), "{at:?}");
        let mut changed = clean.clone();
        changed[0][0].0.key = None;
        let name = source(at);
        let place = name.split('#').next().unwrap();
        let expected = format!("altered: raw record {place}, clean record clean/0@0, different in key");
        assert_eq!(findings(&raw, &changed), [expected]);
    }
}

/// Both stages: `rekey` reads the logs in any order and repeats stretches, then the first record of each id is forwarded.
fn forward(raw: &[Vec<Written>], random: &mut fastrand::Rng) -> Vec<Vec<Named>> {
    let mut target: Vec<At> = Vec::new();
    let mut next = vec![0; raw.len()];
    while (0..raw.len()).any(|log| next[log] < raw[log].len()) {
        let log = random.usize(..raw.len());
        let end = raw[log].len().min(next[log] + random.usize(1..30));
        target.extend((next[log]..end).map(|at| (log, at)));
        // After a crash it continues at an earlier offset.
        next[log] = if random.u8(..8) == 0 { end.saturating_sub(random.usize(..20)) } else { end };
    }
    let mut known = std::collections::HashSet::new();
    let mut clean = vec![Vec::new(); CLEAN];
    for at in target {
        let record = &raw[at.0][at.1];
        let is_forced = record.header == Some("force");
        if record.id.as_ref().is_none_or(|id| known.insert(id.clone())) || is_forced {
            let partition = record.id.as_ref().map_or(at.0, |id| id.len() + usize::from(id.as_bytes()[0]));
            clean[partition % CLEAN].push((record.clone(), at));
        }
    }
    clean
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_both_stages_write_has_no_findings_and_a_lost_id_is_found(
        all in prop::collection::vec((0..4usize, prop::option::weighted(0.9, 0..60u8), 0..40i64, 0..20u8), 1..400),
        seed: u64,
        at: Index,
    ) {
        // Without any id nothing is proven, which is no finding of a record.
        prop_assume!(all.iter().any(|(_, id, ..)| id.is_some()));
        let mut raw = vec![Vec::new(); 4];
        let mut now_ms = 5_000;
        for (log, id, step_ms, kind) in all {
            now_ms += step_ms;
            let mut record = id.map_or_else(|| without_id("same", 7), |id| with_id(&id.to_string(), now_ms / 200 * 200));
            record.header = (kind == 0 && id.is_some()).then_some("force");
            raw[log].push(record);
        }
        let mut clean = forward(&raw, &mut fastrand::Rng::with_seed(seed));
        let forever = Rules { window_ms: None, ..rules() };
        let (found, _) = audited(forever, &within(&raw), &named(&clean));
        prop_assert!(found.is_empty(), "{found:?}");
        let held: Vec<_> = clean.iter().flatten().map(|(record, at)| (record.id.clone(), *at)).collect();
        let lost = held[at.index(held.len())].clone();
        let is_lost = |(record, at): &Named| record.id == lost.0 && (lost.0.is_some() || *at == lost.1);
        for log in &mut clean {
            log.retain(|record| !is_lost(record));
        }
        let (_, outcome) = audited(forever, &within(&raw), &named(&clean));
        prop_assert!(outcome.counts.lost > 0 && outcome.counts == only(Kind::Lost, outcome.counts.lost), "{outcome:?}");
    }
}
