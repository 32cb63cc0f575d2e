//! Runs the worker through thousands of short histories of crashes and faults. Each history follows from a seed.
//!
//! `DEDUPD_SIM_SEEDS=n` runs n seeds, starting at `DEDUPD_SIM_FROM`. `DEDUPD_SIM_SEED=n` runs one seed and logs every call.
#![allow(
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "support/memory_store.rs"]
mod memory_store;
mod sim;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dedupd::metrics::Metrics;
use dedupd::pipeline::Safeguard;
use sim::controls::{CONTROLS, RARE, TOPIC_CONTROLS};
use sim::total::{Total, described};
use sim::{
    CAUGHT_UP, COMMIT_FAULTS, COMPARED, Counts, EVICTED, FILTER_HITS, FORGOTTEN, Fault, HANDED_OVER, JOINED,
    Marked, Outcome, SEALED, SEALED_HITS, SEALED_ON_DISK, Sabotage, Setting, SlowSearch, TOPIC_SEEDS,
    after_an_outage, compact_the_last_record, count, evidence_over_a_slow_link, expire_idle_partitions,
    follow_an_undone_transaction, forget_before_a_restore, forget_what_was_undone, limit_an_idle_partition,
    load_slowly, open_a_foreign_transaction, over_a_slow_link, read_unevenly, replace_the_producer_in_a_wait,
    restore_a_limited_partition, restore_a_long_log, restore_forgotten_slowly, restore_the_edge_of_a_window,
    run, seal_the_first_block, search_slowly, tear_the_first_transaction, undo_a_transaction,
    undo_two_transactions,
};

/// Number of seeds unless `DEDUPD_SIM_SEEDS` is set.
const SEEDS: u64 = 12_000;
/// Seeds that have found a fault which few histories reach. What a seed draws changes with the simulation.
const FOUND: [u64; 12] =
    [551, 675, 1_106, 1_438, 3_050, 108_005, 108_934, 409_718, 514_050, 3_059_022, 4_086_164, 4_115_033];
/// The same in topic scope.
const FOUND_IN_TOPIC_SCOPE: [u64; 16] = [
    45, 67, 578, 3_588, 3_905, 108_988, 114_196, 117_215, 124_861, 127_663, 203_555, 213_363, 221_024,
    312_431, 411_571, 622_577,
];
/// Number of seeds within which the audit must detect each sabotage.
const CONTROL_SEEDS: u64 = 800;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {value:?}")))
}

/// Runs a seed. A panic counts as a violation.
fn history(seed: u64, setting: &Setting) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(seed, setting))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome {
            counts: Counts::new(),
            raw: 0,
            clean: 0,
            violations: vec![format!("panic: {}", text.unwrap_or_default())],
        }
    })
}

/// Runs the seeds on all cores, until a violation begins with `sought`. Each history runs on one thread.
fn histories(seeds: Range<u64>, sabotage: Sabotage, sought: Option<&str>) -> Total {
    let next = AtomicU64::new(seeds.start);
    let take = || {
        let setting = Setting { sabotage, metrics: Metrics::new() };
        let mut total = Total::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return total;
            }
            let outcome = history(seed, &setting);
            if sought.is_some_and(|what| outcome.violations.iter().any(|text| text.starts_with(what))) {
                next.store(seeds.end, Ordering::Relaxed);
            }
            total.add(seed, outcome);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).fold(Total::default(), Total::join)
    })
}

/// Logs every call.
fn trace() {
    let log = tracing_subscriber::fmt().without_time().with_ansi(false).with_test_writer();
    log.with_max_level(tracing::Level::TRACE).init();
}

#[test]
fn no_fault_loses_duplicates_reorders_or_alters_a_record() {
    if let Some(seed) = variable("DEDUPD_SIM_SEED") {
        trace();
        let outcome = history(seed, &Setting::sound());
        println!("{} raw, {} clean, {:#?}", outcome.raw, outcome.clean, outcome.counts);
        assert!(outcome.violations.is_empty(), "seed {seed}:\n{}", outcome.violations.join("\n"));
        return;
    }
    let seeds = variable("DEDUPD_SIM_SEEDS").unwrap_or(SEEDS);
    let from = variable("DEDUPD_SIM_FROM").unwrap_or(0);
    let half = |from: u64, seeds: u64| histories(from..from + seeds, Sabotage::Nothing, None);
    let total = half(from, seeds / 2).join(half(TOPIC_SEEDS + from, seeds - seeds / 2));
    println!("{seeds} histories, {} raw records, {} clean, {:#?}", total.raw, total.clean, total.counts);
    let failed = total.failed.len();
    assert!(failed == 0, "{failed} of {seeds} histories failed:\n{}", described(&total.failed));
    if seeds >= SEEDS {
        for fault in Fault::ALL {
            assert!(total.counts.contains_key(fault.name()), "no history had the fault {}", fault.name());
        }
        let kinds_of_owners = [FORGOTTEN, JOINED, SEALED, SEALED_ON_DISK, SEALED_HITS, FILTER_HITS, EVICTED];
        let expected = kinds_of_owners.into_iter().chain([CAUGHT_UP, HANDED_OVER]).chain(COMPARED);
        for what in expected {
            assert!(total.counts.get(what).is_some_and(|count| *count > 0), "no history had: {what}");
        }
        assert!(total.clean > 0 && total.clean < total.raw, "no record was forwarded, or none was dropped");
    }
}

#[test]
fn the_faults_that_were_found_last_are_absent() {
    for seed in FOUND.into_iter().chain(FOUND_IN_TOPIC_SCOPE.map(|seed| TOPIC_SEEDS + seed)) {
        let outcome = history(seed, &Setting::sound());
        assert!(outcome.violations.is_empty(), "seed {seed}:\n{}", outcome.violations.join("\n"));
    }
}

#[test]
fn ids_that_came_with_the_first_block_are_sealed_without_another_one() {
    if variable("DEDUPD_SIM_SEED").is_some() {
        trace();
    }
    let (sealed, violations) = seal_the_first_block(&Setting::sound());
    assert!(sealed >= 20, "{sealed}");
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn one_seed_is_one_history() {
    let setting = Setting::sound();
    // What reads a flipped bit depends on the random key of its store.
    let is_compared = |it: &Outcome| !it.counts.contains_key(Fault::BitRot.name());
    let compare = |seed: &u64| {
        let (first, second) = (history(*seed, &setting), history(*seed, &setting));
        let kept = |it: Outcome| (it.counts, it.raw, it.clean);
        let is_compared = is_compared(&first) && is_compared(&second);
        assert!(!is_compared || kept(first) == kept(second), "seed {seed}");
        is_compared
    };
    let compared = (0..24).filter(compare).count();
    println!("{compared} of 24 seeds compared; in the stores of the others a bit was flipped");
    assert!(compared >= 12);
}

#[test]
fn a_load_of_many_minutes_neither_stops_the_loop_nor_other_partitions() {
    if variable("DEDUPD_SIM_SEED").is_some() {
        trace();
    }
    let slow = load_slowly(&Setting::sound());
    println!("{slow:?}");
    assert!(slow.violations.is_empty(), "{:?}", slow.violations);
    assert!(slow.took > Duration::from_mins(8), "{:?}", slow.took);
    assert!(slow.longest < Duration::from_secs(2), "an iteration took {:?}", slow.longest);
    assert!(slow.forwarded > 2_000, "{} records of the other partition", slow.forwarded);
    assert!(slow.progress.len() > 50, "{:?}", slow.progress);
}

#[test]
fn a_forgotten_id_stays_forgotten_after_a_restore_that_evicts_its_older_owner() {
    if variable("DEDUPD_SIM_SEED").is_some() {
        trace();
    }
    let setting = Setting::sound();
    let (forgotten, violations) = forget_before_a_restore(&setting);
    assert!(forgotten > 0, "no id was forgotten");
    assert!(violations.is_empty(), "{forgotten} ids forgotten: {violations:?}");
}

#[test]
fn an_id_is_forgotten_by_what_was_committed_only() {
    if variable("DEDUPD_SIM_SEED").is_some() {
        trace();
    }
    let of = |sabotage, undoes_records| {
        forget_what_was_undone(&Setting { sabotage, metrics: Metrics::new() }, undoes_records)
    };
    for undoes_records in [false, true] {
        assert_eq!(of(Sabotage::Nothing, undoes_records), [""; 0], "records are undone: {undoes_records}");
    }
    let stale = of(Sabotage::Without(Safeguard::UndoneState), true);
    // The first record with the id is lost.
    assert!(stale.iter().any(|what| what.starts_with("not the first")), "{stale:?}");
}

#[test]
fn a_torn_first_transaction_of_any_number_of_blocks_is_repaired_from_its_start() {
    if variable("DEDUPD_SIM_SEED").is_some() {
        trace();
    }
    let setting = Setting::sound();
    for marked in [Marked::State, Marked::Clean] {
        for records in [20, 99, 101, 250, 1_000] {
            let violations = tear_the_first_transaction(&setting, records, marked);
            let (count, first) = (violations.len(), violations.first());
            assert!(violations.is_empty(), "{records} blocks, marker in {marked:?}: {count}, {first:?}");
        }
        let sabotage = Sabotage::Without(Safeguard::WholeTransactions);
        let partly = tear_the_first_transaction(&Setting { sabotage, metrics: Metrics::new() }, 250, marked);
        assert!(!partly.is_empty(), "the history does not depend on it, with the marker in {marked:?}");
    }
}

/// Asserts that the long work of one partition neither stopped the loop nor the other partition.
fn assert_other_partition_ran(slow: &SlowSearch) {
    println!("{slow:?}");
    assert!(slow.violations.is_empty(), "{:?}", slow.violations);
    assert!(slow.took > Duration::from_secs(40), "{:?}", slow.took);
    assert!(slow.longest < Duration::from_secs(1), "an iteration took {:?}", slow.longest);
    assert!(slow.forwarded > 100, "{} records of the other partition", slow.forwarded);
}

#[test]
fn a_search_of_many_seconds_neither_stops_the_loop_nor_other_partitions() {
    let slow = search_slowly(&Setting::sound());
    assert_other_partition_ran(&slow);
}

#[test]
fn a_restore_that_searches_forgotten_ids_neither_stops_the_loop_nor_other_partitions() {
    let slow = restore_forgotten_slowly(&Setting::sound());
    assert_other_partition_ran(&slow);
}

#[test]
fn over_a_slow_link_the_evidence_of_many_partitions_is_read_in_several_iterations() {
    let setting = Setting::sound();
    let slow = evidence_over_a_slow_link(&setting);
    println!("{slow:?}");
    assert!(slow.violations.is_empty(), "{:?}", slow.violations);
    assert!(slow.took > Duration::from_mins(2), "{:?}", slow.took);
    assert!(slow.longest < Duration::from_secs(25), "an iteration took {:?}", slow.longest);
    assert!(slow.silent < Duration::from_secs(15), "{:?} without progress", slow.silent);
}

#[test]
fn over_a_slow_link_iterations_stay_short_and_every_record_is_committed() {
    for ms in [1, 20, 100, 200, 250, 300, 500, 1_000] {
        let setting = Setting::sound();
        let slow = over_a_slow_link(&setting, Duration::from_millis(ms));
        println!("{ms} ms per record: {slow:?}");
        assert!(slow.violations.is_empty(), "{:?}", slow.violations);
        assert_eq!(slow.clean, 2_000, "with {ms} ms per record");
        // The first transactions time out, after ten seconds. Later a commit takes half of that.
        assert!(slow.longest < Duration::from_secs(13), "an iteration took {:?}", slow.longest);
        assert!(slow.silent < Duration::from_secs(11), "{:?} without progress", slow.silent);
        // A transaction has few records here: two records for each, and at most as many ends of entries.
        assert!(slow.took < Duration::from_millis(ms) * 6_000 + Duration::from_mins(2), "{:?}", slow.took);
    }
}

#[test]
fn a_record_that_compaction_has_removed_does_not_count_as_aborted() {
    let of = |sabotage| compact_the_last_record(&Setting { sabotage, metrics: Metrics::new() });
    assert_eq!(of(Sabotage::Nothing), [""; 0]);
    assert!(!of(Sabotage::CompactedIsAborted).is_empty(), "the history does not depend on it");
}

#[test]
fn a_copy_that_follows_an_undone_transaction_keeps_what_its_records_need() {
    let of = |sabotage| follow_an_undone_transaction(&Setting { sabotage, metrics: Metrics::new() });
    assert_eq!(of(Sabotage::Nothing), 1, "how often the id was forwarded");
    assert_eq!(of(Sabotage::Without(Safeguard::StandbyExpiry)), 2, "the history does not depend on it");
}

#[test]
fn after_undone_transactions_owners_count_as_before_them() {
    assert_eq!(undo_two_transactions(&Setting::sound()), [""; 0]);
    assert_eq!(undo_a_transaction(&Setting::sound()), [1, 1], "how often the id was forwarded");
}

#[test]
fn every_record_and_transaction_is_counted_once_whatever_happens_to_its_commit() {
    let (faults, with_repairs) = (&COMMIT_FAULTS[..5], &COMMIT_FAULTS);
    let (mut results, mut repairs) = ([0; 3], 0);
    for (seed, faults, are_long) in
        (0..40).flat_map(|seed| [(seed, faults, false), (seed, faults, true), (seed, with_repairs, false)])
    {
        let (counted, violations) = count(seed, faults, are_long);
        println!("{seed}: {counted:?}");
        assert!(violations.is_empty(), "seed {seed}: {violations:?}");
        assert_eq!(counted.records, counted.raw, "seed {seed}");
        assert_eq!(counted.durations, counted.transactions.iter().sum::<u64>(), "seed {seed}");
        results.iter_mut().zip(counted.transactions).for_each(|(sum, count)| *sum += count);
        if faults == with_repairs {
            repairs += counted.commits - counted.transactions[0];
            continue;
        }
        assert_eq!((counted.transactions[0], counted.transactions[2]), (counted.commits, 0), "seed {seed}");
        // A transaction lasts from its first record to its last marker, which is written after the response to the commit.
        assert!(counted.duration_ms >= counted.open_ms, "seed {seed}: {counted:?}");
    }
    println!("{results:?}, {repairs} repairs");
    assert!(results[0] > 1_000 && results[1] > 100 && repairs > 20, "too little happened");
}

#[test]
fn a_minute_after_an_outage_the_rate_is_the_one_before() {
    let minute = Duration::from_mins(1);
    for (commit_ms, outage_s) in [(1_000, 30), (1_300, 30), (1_300, 90), (3_000, 90)] {
        let setting = Setting::sound();
        let commit_time = Duration::from_millis(commit_ms);
        let rates = after_an_outage(&setting, commit_time, (Duration::from_secs(outage_s), minute));
        println!("commits of {commit_ms} ms, outage of {outage_s} s: {rates:?}");
        assert!(rates.after > 0.9 * rates.before, "{rates:?} with commits of {commit_ms} ms");
    }
}

#[test]
fn a_foreign_transaction_in_clean_does_not_disturb_other_workers() {
    let setting = Setting::sound();
    let all: Vec<_> = (0..40).filter_map(|seed| open_a_foreign_transaction(&setting, seed)).collect();
    assert!(all.len() > 3, "too few histories: {}", all.len());
    for beside in all {
        assert!(beside.violations.is_empty(), "{beside:?}");
        assert!(beside.initialised == 0 && beside.forwarded > 50, "{beside:?}");
    }
}

#[test]
fn a_partition_that_waits_for_a_rejected_record_does_not_stop_the_others() {
    let (took, violations) = replace_the_producer_in_a_wait(&Setting::sound());
    assert_eq!(violations, [""; 0]);
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn copies_in_partitions_that_are_read_unevenly_count_within_the_window_exactly() {
    let of = |sabotage, seed, has_standby| {
        read_unevenly(&Setting { sabotage, metrics: Metrics::new() }, seed, has_standby)
    };
    for seed in 0..20 {
        for has_standby in [false, true] {
            let wrong = of(Sabotage::Nothing, seed, has_standby);
            assert_eq!(wrong, [""; 0], "seed {seed}, with a standby: {has_standby}");
        }
    }
    let without = |safeguard, has_standby| {
        (0..5).map(|seed| of(Sabotage::Without(safeguard), seed, has_standby).len()).sum::<usize>()
    };
    let fastest = without(Safeguard::SlowestClock, false);
    assert!(fastest > 20, "the history does not depend on the slowest clock: {fastest} ids");
    let by_own_clock = without(Safeguard::StandbyExpiry, true);
    assert!(by_own_clock > 20, "the history does not depend on the horizon: {by_own_clock} ids");
}

/// The state topic has far more than a window.
#[test]
fn a_restore_keeps_only_what_the_windows_need() {
    let (forwarded, stored) = restore_a_long_log(&Setting::sound());
    println!("{stored} of {forwarded} ids");
    assert!(stored > 20 && stored < forwarded / 3, "{stored} of {forwarded} ids");
    assert_eq!(restore_the_edge_of_a_window(&Setting::sound()), 2, "each by its own time");
}

#[test]
fn a_partition_without_new_records_holds_no_owners_for_longer() {
    let (forwarded, stored) = expire_idle_partitions(&Setting::sound());
    println!("{stored} of {forwarded} ids");
    assert!(forwarded > 400 && stored == 0, "{stored} of {forwarded} ids");
}

#[test]
fn limits_apply_to_a_partition_without_new_records() {
    let stored = limit_an_idle_partition(&Setting::sound());
    assert!((45..60).contains(&stored.0) && (45..70).contains(&stored.1), "{stored:?}");
    let forwarded = restore_a_limited_partition(&Setting::sound());
    assert!((40..56).contains(&forwarded), "{forwarded} ids had been dropped");
}

#[test]
fn the_audit_detects_every_sabotage() {
    let all = CONTROLS.iter().map(|control| (0, control));
    for (from, (sabotage, what)) in all.chain(TOPIC_CONTROLS.iter().map(|control| (TOPIC_SEEDS, control))) {
        let seeds = if RARE.contains(sabotage) { CONTROL_SEEDS * 10 } else { CONTROL_SEEDS };
        let total = histories(from..from + seeds, *sabotage, Some(what));
        let all = total.failed.iter().flat_map(|(_, violations)| violations);
        let found = all.filter(|violation| violation.starts_with(what)).count();
        println!("{sabotage:?} from {from}: {what} after {} of at most {seeds} histories", total.histories);
        assert!(found > 0, "the audit does not detect {sabotage:?}: {}", described(&total.failed));
    }
}
