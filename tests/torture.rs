//! Random kills and freezes of instances and brokers under load on a real Apache Kafka: the result is exactly once,
//! and every instance recovers by itself.
//!
//! `cargo test` runs one short round. `make torture` runs many long ones. [`recipe::Plan`] documents its variables.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "torture/evidence.rs"]
mod evidence;
#[path = "torture/faults.rs"]
mod faults;
#[path = "torture/process.rs"]
mod process;
#[path = "torture/program.rs"]
mod program;
#[path = "torture/programs.rs"]
mod programs;
#[path = "torture/progress.rs"]
mod progress;
#[path = "torture/recipe.rs"]
mod recipe;
#[path = "torture/rekeyed.rs"]
mod rekeyed;
#[path = "torture/round.rs"]
mod round;
#[path = "torture/sides.rs"]
mod sides;
#[path = "torture/sources.rs"]
mod sources;
mod support;
#[path = "torture/verdict.rs"]
mod verdict;

use recipe::{Plan, Recipe};
use sides::Expected;
use support::chain::SOURCE;
use support::{ChainAudit, Record, TopicAudit};
use verdict::Verdict;

#[test]
fn random_faults_lose_and_duplicate_nothing_and_every_partition_recovers() {
    let plan = Plan::from_environment();
    let mut verdicts = Vec::new();
    for seed in plan.seeds() {
        let recipe = Recipe::of(seed, &plan);
        println!("{recipe}");
        let verdict = std::panic::catch_unwind(|| round::run(&recipe, &plan.dir))
            .unwrap_or_else(|panic| Verdict::of_panic(&recipe, panic.as_ref()));
        verdict.append_to(&plan.dir.join("rounds.jsonl"));
        println!("{verdict}");
        verdicts.push(verdict);
    }
    println!("{}", verdict::summary(&verdicts));
    let failed: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.passed()).collect();
    assert!(!verdicts.is_empty() && failed.is_empty(), "{} rounds failed:\n{}", failed.len(), {
        let lines: Vec<String> = failed.iter().map(|verdict| format!("replay: {}", verdict.replay)).collect();
        lines.join("\n")
    });
}

#[test]
fn the_audit_of_topic_scope_finds_each_kind_of_error() {
    let record = |partition, offset, id: &str| Record {
        partition,
        offset,
        key: None,
        value: Some(format!("{{\"id\":\"{id}\"}}").into_bytes()),
        timestamp_ms: Some(0),
        headers: Vec::new(),
    };
    let raw = [
        vec![record(0, 0, "a"), record(0, 1, "b"), record(0, 2, "a"), record(0, 3, "c")],
        vec![record(1, 0, "d"), record(1, 1, "a"), record(1, 2, "b")],
    ];
    let errors = |clean: [Vec<Record>; 2]| {
        let mut audit = TopicAudit::default();
        for (raw, clean) in raw.iter().zip(&clean) {
            audit.add(raw, clean);
        }
        let found = audit.finish();
        assert_eq!((found.raw, found.repeats, found.elsewhere), (7, 3, 2));
        [found.lost, found.duplicated, found.out_of_order, found.altered, found.phantom]
    };
    // It does not matter which of the partitions an id is forwarded in.
    let first = || vec![record(0, 0, "b"), record(0, 1, "c")];
    let second = || vec![record(1, 0, "d"), record(1, 1, "a")];
    let altered = vec![record(1, 0, "d"), Record { key: Some(vec![1]), ..record(1, 1, "a") }];
    let phantom = vec![record(1, 0, "d"), record(1, 1, "a"), record(1, 2, "c")];
    let out_of_order = vec![record(1, 0, "a"), record(1, 1, "d")];
    let cases = [
        ([first(), second()], [0, 0, 0, 0, 0]),
        ([vec![record(0, 0, "a"), record(0, 1, "b"), record(0, 2, "c")], second()], [0, 1, 0, 0, 0]),
        ([first(), vec![record(1, 0, "d")]], [1, 0, 0, 0, 0]),
        ([first(), out_of_order], [0, 0, 1, 0, 0]),
        ([first(), altered], [0, 0, 0, 1, 0]),
        ([first(), phantom], [0, 0, 0, 0, 1]),
    ];
    for (clean, expected) in cases {
        assert_eq!(errors(clean), expected);
    }
}

#[test]
fn the_audit_of_side_topics_finds_each_kind_of_error() {
    let raw = |offset, value: &str| Record {
        partition: 3,
        offset,
        key: None,
        value: Some(value.into()),
        timestamp_ms: Some(0),
        headers: Vec::new(),
    };
    let written = |offset: i64, outside: bool| {
        let number = |number: i64| Some(number.to_string().into_bytes());
        let mut headers =
            vec![("dedupd.partition".to_owned(), number(3)), ("dedupd.offset".to_owned(), number(offset))];
        headers.extend(outside.then(|| ("dedupd.outside".to_owned(), Some(b"true".to_vec()))));
        Record { partition: 0, headers, ..raw(0, "") }
    };
    let mut expected = Expected::default();
    let id = "{\"id\":\"a\"}";
    expected.add(&[raw(0, id), raw(1, "without an id"), raw(2, id), raw(3, id)], &[0].into());
    let errors = |more: &[Record]| {
        let duplicates = [&[written(2, false), written(3, true)], more].concat();
        let found = expected.findings(&[written(1, false)], &duplicates);
        assert_eq!((found.records, found.foreign), (3 + more.len(), 0));
        assert_eq!(found.is_clean(1), found.lost + found.twice + found.unexpected == 0);
        assert_eq!(found.is_clean(0), found.is_clean(1) && found.outside == 0);
        [found.lost, found.twice, found.unexpected, found.outside]
    };
    assert_eq!(errors(&[]), [0, 0, 0, 0]);
    assert_eq!(errors(&[written(2, false)]), [0, 1, 0, 0]);
    assert_eq!(errors(&[written(2, true)]), [0, 0, 0, 1]);
    assert_eq!(errors(&[written(3, true), written(3, false)]), [0, 0, 0, 2]);
    assert_eq!(errors(&[written(0, false)]), [0, 0, 1, 0]);
    assert_eq!(errors(&[written(0, true), written(1, true)]), [0, 0, 0, 2]);
    assert_eq!(errors(&[written(0, false), written(0, true)]), [0, 0, 1, 1]);
    let none = expected.findings(&[], &[written(3, false)]);
    assert_eq!((none.lost, none.is_clean(1)), (2, false));
}

#[test]
fn the_audit_of_rekey_and_run_finds_each_kind_of_error() {
    let record = |partition, offset, value: &str| Record {
        partition,
        offset,
        key: None,
        value: Some(value.into()),
        timestamp_ms: Some(0),
        headers: vec![(SOURCE.to_owned(), Some(b"older".to_vec()))],
    };
    let (a, b, none) = ("{\"id\":\"a\"}", "{\"id\":\"b\"}", "without an id");
    let sources = [
        ("x", vec![record(0, 0, a), record(0, 1, none), record(0, 3, a)]),
        ("x", vec![record(1, 0, a), record(1, 1, none)]),
        ("y", vec![record(0, 0, b), record(0, 1, a)]),
    ];
    let written = |source: &str, value: &str| {
        let mut written = record(2, 0, value);
        written.headers.push((SOURCE.to_owned(), Some(format!("{source}#nqYpoLGXRbKCwtRsrH4MnA.0").into())));
        written
    };
    let errors = |clean: &[Record]| {
        let mut audit = ChainAudit::default();
        for (topic, records) in &sources {
            audit.add_source(topic, records);
        }
        audit.add_clean(clean);
        let found = audit.finish();
        assert_eq!((found.raw, found.repeats, found.elsewhere), (7, 3, 2));
        [found.lost, found.duplicated, found.out_of_order, found.altered, found.phantom]
    };
    let all =
        |first: Record| vec![first, written("y/0@0", b), written("x/0@1", none), written("x/1@1", none)];
    let exact = || all(written("x/0@0", a));
    // It does not matter which topic an id is from.
    for source in ["x/0@0", "x/1@0", "y/0@1"] {
        assert_eq!(errors(&all(written(source, a))), [0, 0, 0, 0, 0]);
    }
    assert_eq!(errors(&exact()[1..]), [1, 0, 0, 0, 0]);
    assert_eq!(errors(&exact()[..3]), [1, 0, 0, 0, 0], "a record without an id");
    for source in ["x/0@0", "x/0@1", "y/0@1"] {
        let twice = written(source, if source == "x/0@1" { none } else { a });
        assert_eq!(errors(&[exact(), vec![twice]].concat()), [0, 1, 0, 0, 0]);
    }
    assert_eq!(errors(&all(written("x/0@3", a))), [0, 0, 1, 0, 0]);
    for altered in [
        Record { key: Some(vec![1]), ..written("x/0@0", a) },
        Record { value: Some(b"{\"id\":\"a\" }".to_vec()), ..written("x/0@0", a) },
        Record { timestamp_ms: Some(1), ..written("x/0@0", a) },
        Record { headers: written("x/0@0", a).headers[1..].to_vec(), ..written("x/0@0", a) },
    ] {
        assert_eq!(errors(&all(altered)), [0, 0, 0, 1, 0]);
    }
    // Not in the source, not visible in it, without a position.
    for phantom in [written("z/0@0", a), written("x/0@2", none), record(2, 0, a)] {
        assert_eq!(errors(&[exact(), vec![phantom]].concat()), [0, 0, 0, 0, 1]);
    }
}
