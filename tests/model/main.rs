//! Checks the window against a model of crashes and other faults: 0 lost, 0 duplicated.
//!
//! A history is a list of events on a raw log with few ids: batches that commit, abort or crash between
//! any two effects, hosts that return with an old local store, wiped stores, rewound groups, offsets
//! delivered twice, records compacted away before they were committed. Afterwards an auditor compares
//! raw and clean. Two plausible but wrong rules run through the same histories and must fail. Otherwise
//! the histories prove nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod auditor;
mod local;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use world::{End, Raw, Rule, Seen, Settings, Total, World};

const NOW: i64 = 1_700_000_000_000;
const FOR_EVER: Settings =
    Settings { rule: Rule::Claims, exact_ms: i64::MAX / 2, max_ids: u64::MAX, evicts: false };

#[derive(Debug, Clone)]
enum Step {
    Arrive(Vec<(u8, Option<i64>)>),
    Batch { size: u64, again: u64, end: End },
    Crash,
    MoveHost,
    Wipe,
    Compact(usize),
    Rewind { back: u64, skip: bool },
}

/// Timestamps advance by up to a second per record. Some are late, absent, zero or invalid.
fn arrivals(ids: u8) -> impl Strategy<Value = Step> {
    let stamp = prop_oneof![
        12 => (0..1_000i64).prop_map(|step| Some(NOW - 1_000_000 + step)),
        1 => Just(Some(NOW - 5_000_000)),
        1 => prop_oneof![Just(None), Just(Some(-1)), Just(Some(0))],
    ];
    proptest::collection::vec((0..ids, stamp), 1..6).prop_map(Step::Arrive)
}

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        6 => Just(End::Commit),
        2 => Just(End::Abort),
        1 => Just(End::CrashBeforeStore),
        3 => Just(End::CrashBeforeCommit),
        2 => Just(End::CrashAfterCommit),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compaction {
    Never,
    Sometimes,
}

fn histories(ids: u8, compaction: Compaction) -> impl Strategy<Value = Vec<Step>> {
    let holes = if compaction == Compaction::Sometimes { 3 } else { 0 };
    let crash = if compaction == Compaction::Sometimes {
        (0..8usize).prop_map(Step::Compact).boxed()
    } else {
        Just(Step::Crash).boxed()
    };
    let step = prop_oneof![
        8 => arrivals(ids),
        12 => (1..6u64, prop_oneof![3 => Just(0), 1 => 1..4u64], ends())
            .prop_map(|(size, again, end)| Step::Batch { size, again, end }),
        1 + holes => crash,
        1 => Just(Step::MoveHost),
        1 => Just(Step::Wipe),
        1 => (1..8u64, any::<bool>()).prop_map(|(back, skip)| Step::Rewind { back, skip }),
    ];
    proptest::collection::vec(step, 4..60)
}

fn run(settings: Settings, history: &[Step]) -> (Vec<String>, Seen) {
    let mut world = World::new(settings);
    for step in history {
        match step {
            Step::Arrive(records) => {
                for (id, stamp) in records {
                    // Each record is a little later than the previous one, so that time passes.
                    let late = 500 * i64::try_from(world.raw.len()).unwrap();
                    let timestamp =
                        stamp.map(|stamp| if stamp > NOW - 2_000_000 { stamp + late } else { stamp });
                    world.raw.push(Raw { id: *id, timestamp, exists: true });
                }
            }
            Step::Batch { size, again, end } => world.batch(*size, *again, *end),
            Step::Crash => world.crash(),
            Step::MoveHost => world.move_host(),
            Step::Wipe => world.wipe(),
            Step::Compact(place) => world.compact(*place),
            Step::Rewind { back, skip } => world.rewind(*back, *skip),
        }
    }
    world.judge()
}

/// Runs many histories, shrinks the first that fails, and returns the events of all of them.
fn assert_nothing_lost_or_duplicated(settings: Settings, ids: u8, compaction: Compaction) -> Seen {
    let total = Total::default();
    let config =
        Config { cases: Config::default().cases.max(20_000), failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&histories(ids, compaction), |history| {
        let (violations, seen) = run(settings, &history);
        total.add(&seen);
        prop_assert!(violations.is_empty(), "{:#?}", violations);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    total.get()
}

/// In how many of a fixed set of histories a rule violates the guarantee.
fn histories_broken(rule: Rule, compaction: Compaction) -> usize {
    let mut runner = TestRunner::deterministic();
    let strategy = histories(3, compaction);
    let broken = (0..5_000).filter(|_| {
        let history = strategy.new_tree(&mut runner).unwrap().current();
        !run(Settings { rule, ..FOR_EVER }, &history).0.is_empty()
    });
    broken.count()
}

#[test]
fn crashes_aborts_moves_and_rewinds_lose_and_duplicate_nothing() {
    let seen = assert_nothing_lost_or_duplicated(FOR_EVER, 6, Compaction::Never);
    assert!(seen.duplicates > 1_000 && seen.retries > 100 && seen.claims > 100, "{seen:?}");
    assert!(seen.stale > 100 && seen.restored > 1_000 && seen.undone > 1_000, "{seen:?}");
}

#[test]
fn records_compacted_away_before_the_commit_lose_and_duplicate_nothing() {
    let seen = assert_nothing_lost_or_duplicated(FOR_EVER, 3, Compaction::Sometimes);
    assert!(seen.duplicates > 1_000 && seen.claims > 100, "{seen:?}");
}

#[test]
fn a_short_window_loses_and_duplicates_nothing() {
    let seen =
        assert_nothing_lost_or_duplicated(Settings { exact_ms: 10_000, ..FOR_EVER }, 12, Compaction::Never);
    assert!(seen.expired > 1_000 && seen.duplicates > 1_000, "{seen:?}");
}

#[test]
fn a_small_window_loses_and_duplicates_nothing() {
    let seen =
        assert_nothing_lost_or_duplicated(Settings { max_ids: 8, ..FOR_EVER }, 16, Compaction::Sometimes);
    assert!(seen.expired > 1_000 && seen.duplicates > 1_000, "{seen:?}");
}

/// The first record has no time, so its owner counts as late as the commit that drops it: later than owners behind it.
#[test]
fn an_owner_that_a_limit_drops_takes_no_newer_one_with_it() {
    let arrive = |ids: &[u8], stamp| Step::Arrive(ids.iter().map(|id| (*id, stamp)).collect());
    let timed = Some(NOW - 1_000_000);
    let commit = |size| Step::Batch { size, again: 0, end: End::Commit };
    let history = [
        arrive(&[0, 0], None),
        arrive(&[3, 5, 3, 12, 8, 13, 3, 0], timed),
        commit(1),
        arrive(&[6, 1, 7, 1, 1, 0, 0, 5], timed),
    ];
    let (violations, _) = run(Settings { max_ids: 8, ..FOR_EVER }, &history);
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn a_small_window_that_evicts_loses_nothing() {
    let setting = Settings { max_ids: 16, evicts: true, ..FOR_EVER };
    let seen = assert_nothing_lost_or_duplicated(setting, 40, Compaction::Sometimes);
    assert!(seen.evicted > 1_000 && seen.duplicates > 1_000, "{seen:?}");
}

#[test]
fn a_large_window_that_evicts_loses_no_id() {
    let setting = Settings { max_ids: 4_096, evicts: true, exact_ms: 10_000, ..FOR_EVER };
    let seen = assert_nothing_lost_or_duplicated(setting, 12, Compaction::Never);
    assert!(seen.evicted == 0 && seen.expired > 1_000 && seen.duplicates > 1_000, "{seen:?}");
}

#[test]
fn the_model_detects_trust_in_state_ahead_of_the_committed_offset() {
    assert_eq!(histories_broken(Rule::Claims, Compaction::Never), 0);
    let broken = histories_broken(Rule::Trusted, Compaction::Never);
    assert!(broken > 250, "only {broken} of 5,000");
}

#[test]
fn the_model_detects_the_bare_owner_rule_when_records_can_vanish() {
    assert_eq!(histories_broken(Rule::Claims, Compaction::Sometimes), 0);
    let broken = histories_broken(Rule::BareOwner, Compaction::Sometimes);
    assert!(broken > 10, "only {broken} of 5,000");
}
