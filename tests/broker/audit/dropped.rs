//! Dropped records that differ from the one that clean holds are read again and named with their differences.

use super::*;
use crate::support::{Draft, Pipe, now_ms};

/// A record of this partition.
fn record(partition: i32, id: &str, value: Option<&str>) -> Record {
    Record {
        partition,
        offset: 0,
        key: Some(id.as_bytes().to_vec()),
        value: value.map(|value| value.as_bytes().to_vec()),
        headers: Vec::new(),
        timestamp_ms: Some(1_700_000_000_000),
    }
}

#[test]
fn unequal_copies_are_named_with_their_differences_and_are_findings_if_required() {
    let kafka = shared_kafka();
    let raw = [
        record(0, "a", Some(r#"{"amount":1,"sent":1}"#)),
        record(0, "a", Some(r#"{"amount":1,"sent":2}"#)),
        record(1, "a", Some(r#"{"amount":7,"sent":1}"#)),
        record(0, "n", None),
        record(0, "n", Some("")),
        record(1, "t", Some("text")),
        record(1, "t", Some("text")),
    ];
    let clean = [raw[0].clone(), raw[3].clone(), raw[5].clone()];
    let producer = kafka.client_config().create().unwrap();
    for (name, log) in [("dropped-raw", &raw[..]), ("dropped-clean", &clean[..])] {
        kafka.create_topic(name, 2, &[("retention.ms", "-1")]);
        send(&producer, name, log);
    }
    let of = |compare: &[&str], require_equal| {
        let options = audit::Options {
            scope: Scope::Topic,
            id: vec!["key".to_owned()],
            compare: compare.iter().map(|source| (*source).to_owned()).collect(),
            require_equal,
            ..audit_options(kafka, "dropped-raw", "dropped-clean")
        };
        audited(&options)
    };
    let report = of(&["value"], false);
    let text = report.to_string();
    let listed: Vec<_> = text.lines().filter(|line| line.starts_with("not equal: ")).collect();
    assert_eq!(
        listed,
        [
            "not equal: partition 0, raw offset 1, dropped for partition 0, raw offset 0: /sent: 2 instead of 1",
            "not equal: partition 0, raw offset 3, dropped for partition 0, raw offset 2: value from byte 0 on: '' (0 bytes \
             in total) instead of null",
            "not equal: partition 1, raw offset 0, dropped for partition 0, raw offset 0: /amount: 7 instead of 1",
        ],
        "{text}"
    );
    assert!(report.is_clean() && text.contains(": 1 equal, 3 not equal, 0 not compared"), "{text}");
    assert_eq!(report.to_json()["unequal"][2]["differences"][0]["at"], "/amount");
    assert!(!of(&["value"], true).is_clean());

    let parts = of(&["json:/amount"], true);
    let counts = parts.total.dropped;
    assert_eq!((counts.equal, counts.unequal, counts.not_compared), (1, 1, 2), "{parts}");
    assert!(parts.to_string().contains(": json:/amount: 7 instead of 1\n"), "{parts}");
    // Without a comparison nothing is proven: what is required fails.
    let off = of(&[], false);
    assert!(off.is_clean() && off.total.dropped.not_compared == 4, "{off}");
    assert!(!of(&[], true).is_clean());
}

#[test]
fn what_bypass_or_shadow_mode_has_forwarded_is_not_counted_as_dropped() {
    let now = now_ms();
    for (mode, dropped) in [("bypass", 2), ("shadow", 3)] {
        let pipe = Pipe::new(shared_kafka(), &format!("dropped-{mode}"), 1);
        let drafts = |ids: &[&str]| ids.iter().map(|id| Draft::id(0, id).at(now)).collect::<Vec<_>>();
        let counts = || {
            let found = [Scope::Topic, Scope::Partition].map(|scope| {
                let options = audit::Options { scope, ..audit_options(pipe.kafka, &pipe.raw, &pipe.clean) };
                audited(&options).total.dropped
            });
            assert_eq!(found[0], found[1], "{mode}");
            [found[0].equal, found[0].unequal, found[0].not_compared]
        };
        pipe.kafka.send(&pipe.raw, &drafts(&["a", "a", "b", "a"]));
        pipe.through(1, &pipe.sidecar("a").with("DEDUPD_DEDUPE__MODE", mode));
        assert_eq!(pipe.kafka.ended_records(&pipe.clean).len(), 4);
        assert_eq!(counts(), [0, 0, 0], "{mode}");
        // The control. A window has no ids of the time in bypass mode.
        pipe.kafka.send(&pipe.raw, &drafts(&["a"; 3]));
        pipe.through(1, &pipe.sidecar("a"));
        assert_eq!(counts(), [dropped, 0, 0], "{mode}");
    }
}
