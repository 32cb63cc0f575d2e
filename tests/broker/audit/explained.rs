//! What retention, a later start, kinds and forgotten ids explain, in both scopes.

use super::*;
use dedupd_audit::RecordKind;

const BOTH: [Scope; 2] = [Scope::Partition, Scope::Topic];
const HOUR: Duration = Duration::from_hours(1);
const START_MS: i64 = 1_700_000_000_000;

fn options(kafka: &Kafka, topics: [&str; 2], scope: Scope) -> audit::Options {
    let [raw, clean] = topics;
    let (window, longest_window) = (Some(HOUR), Some(HOUR));
    audit::Options { scope, window, longest_window, ..audit_options(kafka, raw, clean) }
}

#[test]
fn copies_of_records_that_retention_took_from_both_topics_are_explained() {
    let kafka = shared_kafka();
    let topics = ["cut-both-raw", "cut-both-clean"];
    let raw = raw_topic(kafka, topics[0]);
    let clean = firsts(&raw);
    kafka.create_topic(topics[1], 3, &[]);
    send(&kafka.client_config().create().unwrap(), topics[1], &clean);
    // Raw loses as many records again when it is cut later than clean.
    for later in [0, 60] {
        for partition in 0..3 {
            let own: Vec<_> = raw.iter().filter(|record| record.partition == partition).collect();
            let cut = own[own.len() / 3].offset;
            let before = |record: &&Record| record.partition == partition && record.offset < cut;
            let gone = clean.iter().filter(before).count();
            kafka.delete_records(topics[0], partition, cut + later);
            kafka.delete_records(topics[1], partition, i64::try_from(gone).unwrap());
        }
        for scope in BOTH {
            let mut options = options(kafka, topics, scope);
            let report = audited(&options);
            assert!(report.total.counts.lost > 0 && report.notes.len() == 2, "{scope:?}: {report}");
            options.allow_gone = true;
            let report = audited(&options);
            assert!(report.is_clean() && report.total.gone > 0, "{scope:?}, {later}: {report}");
        }
    }
}

/// A record with this id and type, this many seconds after the start.
fn record(id: &str, of_type: &str, seconds: i64) -> Record {
    Record {
        partition: 0,
        offset: 0,
        key: None,
        value: Some(format!(r#"{{"id":"{id}","type":"{of_type}","at":{seconds}}}"#).into_bytes()),
        headers: Vec::new(),
        timestamp_ms: Some(START_MS + seconds * 1_000),
    }
}

/// Topics with one partition and these records.
fn topics<'t>(kafka: &Kafka, names: [&'t str; 2], logs: [&[Record]; 2]) -> [&'t str; 2] {
    let producer = kafka.client_config().create().unwrap();
    for (name, log) in names.iter().zip(logs) {
        kafka.create_topic(name, 1, &[("retention.ms", "-1")]);
        send(&producer, name, log);
    }
    names
}

#[test]
fn a_later_start_is_named_with_the_flag_that_excludes_what_precedes_it() {
    let kafka = shared_kafka();
    let raw: Vec<_> = (0..10).map(|n| record(&format!("id-{}", n % 8), "x", n)).collect();
    // The group started at the fourth record, and forwarded the first copies that it saw.
    let names = topics(kafka, ["later-raw", "later-clean"], [&raw, &raw[3..]]);
    for scope in BOTH {
        let mut options = options(kafka, names, scope);
        let report = audited(&options);
        assert!(report.total.lost_at_start > 0, "{scope:?}: {report}");
        let text = report.to_string();
        assert!(
            text.contains("precede the first record of clean") && text.contains("--from 2023-"),
            "{text}"
        );
        options.range.from_ms = Some(START_MS + 3_000);
        let report = audited(&options);
        assert!(report.is_clean() && report.total.raw.decided_outside == 2, "{scope:?}: {report}");
    }
}

#[test]
fn kinds_have_ids_of_their_own_and_forgotten_ids_may_be_in_clean_again() {
    let kafka = shared_kafka();
    let all =
        [("a", "x"), ("a", "noise"), ("a", "paid"), ("a", "noise"), ("b", "x"), ("b", "paid"), ("b", "x")];
    let all: Vec<_> = all.iter().zip(0..).map(|((id, kind), at)| record(id, kind, at)).collect();
    let raw = [&all[..], &[record("a", "x", 10), record("a", "paid", 11)]].concat();
    let names = topics(kafka, ["kinds-raw", "kinds-clean"], [&raw, &all]);
    let kind = |value: &str, is_deduplicated| RecordKind {
        from: "json:/type".to_owned(),
        values: vec![value.to_owned()],
        is_deduplicated,
    };
    for scope in BOTH {
        let plain = options(kafka, names, scope);
        assert!(!audited(&plain).is_clean(), "{scope:?}");
        let with_kinds = audit::Options { kinds: vec![kind("noise", false), kind("paid", true)], ..plain };
        let report = audited(&with_kinds);
        assert_eq!(report.total.counts, Counts { duplicated: 1, ..Counts::default() }, "{scope:?}: {report}");
        assert_eq!(report.total.raw.exempt, 2, "{report}");
        assert!(report.to_string().contains("--forgotten"), "{report}");
        let forgotten = audit::Options { forgotten: vec![vec!["b".to_owned()]], ..with_kinds };
        let report = audited(&forgotten);
        assert!(report.is_clean() && report.total.raw.exempt == 5, "{scope:?}: {report}");
    }
}
