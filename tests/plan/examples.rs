//! Example workloads with figures that were computed by hand.

use std::time::Duration;

use dedupd::app::window_memory;
use dedupd::tools::plan::{CapacityPlan, Fits, IdKind, Workload, missed, remembered};

use super::workload;

const GIB: u64 = 1 << 30;

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.01, "{found} instead of {wanted}");
}

/// The often cited figure for "90 % over an hour at 1,000 events per second" is the probability of being
/// *overwritten*. A probability of 90 % to be still known requires 22 times as many buckets.
#[test]
fn an_inverse_bloom_table_for_an_hour_at_1000_events_per_second() {
    let arrivals = 1_000 * 3_600;
    assert_eq!(remembered(0.1, arrivals), 1_563_461);
    let still_there = |buckets: u64| (1.0 - 1.0 / buckets as f64).powf(3.6e6);
    assert!((still_there(1_563_461) - 0.1).abs() < 1e-6);
    let known = remembered(0.9, arrivals);
    assert_eq!(known, 34_168_399);
    assert!((still_there(known) - 0.9).abs() < 1e-6);
    let plan = CapacityPlan::of(Workload { exact: Duration::from_hours(1), ..workload(1_000.0) });
    assert_eq!(plan.fixed_memory.buckets_for_90_percent, known);
}

/// A Redis cluster with 24 bytes per id requires 69 GB.
#[test]
fn two_million_messages_per_minute_for_a_day() {
    let input = Workload { partitions: 12, ..workload(2_000_000.0 / 60.0) };
    let plan = CapacityPlan::of(input);
    near(plan.exact_ids as f64, 2.88e9);
    near(plan.exact_ids as f64 * 24.0, 69.1e9);
    let bytes_per_id = plan.memory.exact_bytes as f64 / plan.exact_ids as f64;
    assert!((2.4..4.0).contains(&bytes_per_id), "{bytes_per_id}");
    assert_eq!((plan.memory.bloom_bytes, plan.filters, plan.false_drops_a_day), (0, None, 0.0));
    let disk = plan.disk_bytes as f64 / plan.exact_ids as f64;
    assert!((31.0..32.0).contains(&disk), "{disk} bytes per id");

    // An exact window of one hour, and filters for the rest of the day.
    let plan = CapacityPlan::of(Workload {
        exact: Duration::from_hours(1),
        bloom: Duration::from_hours(24),
        ..input
    });
    assert!(plan.memory.total_bytes < 69_000_000_000 / 4, "{}", plan.memory.total_bytes);
    near(plan.false_drops_a_day, 2.88);
}

#[test]
fn twenty_million_ids_per_day_for_a_week_at_1e_9() {
    let plan = CapacityPlan::of(Workload { bloom: Duration::from_hours(168), ..workload(20e6 / 86_400.0) });
    assert_eq!((plan.exact_ids, plan.window_ids), (20_000_000, 140_000_000));
    let filters = plan.filters.unwrap();
    // Six of seven days, less half of what waits for the next filter, and what is in the index.
    near(filters.ids as f64, 140e6 * (0.85 - 1.0 / 32.0));
    assert!((41.0..42.0).contains(&filters.bits_an_id), "{}", filters.bits_an_id);
    assert!(filters.expected_rate > 1e-10 && filters.expected_rate < 1e-9, "{}", filters.expected_rate);
    near(plan.memory.bloom_bytes as f64, filters.ids as f64 * filters.bits_an_id / 8.0);
    near(plan.false_drops_a_day, 0.02);
    assert_eq!(plan.state_topic.retention_seconds, 7 * 86_400 * 5 / 4);
}

#[test]
fn a_billion_uuids() {
    let month = Duration::from_hours(30 * 24);
    let input = Workload { bloom: month, partitions: 32, ..workload(1e9 / month.as_secs_f64()) };
    let plan = CapacityPlan::of(input);
    near(plan.window_ids as f64, 1e9);
    near(plan.exact_ids as f64, 1e9 / 30.0);
    assert!((4 * GIB..6 * GIB).contains(&plan.memory.total_bytes), "{}", plan.memory.total_bytes);
    // The index has two and a half slices of the largest size.
    let index = f64::from(1 << 23) * 2.5 / 11e6;
    let filters = plan.restore.local_seconds - index;
    assert!((12.0..16.0).contains(&filters), "{filters}");
    assert!(plan.collision == 0.0);
    let text = CapacityPlan::of(Workload { ids: IdKind::Text, ..input });
    near(text.collision, 1e18 / 2.0 / 2.0f64.powi(128));
}

#[test]
fn duplicates_reduce_the_number_of_new_ids() {
    let plan = CapacityPlan::of(Workload { duplicates: 0.25, ..workload(1_000.0) });
    near(plan.new_ids_per_second, 750.0);
    near(plan.exact_ids as f64, 750.0 * 86_400.0);
}

#[test]
fn small_blocks_take_more_space_in_the_state_topic_than_their_ids() {
    let bytes_per_id = |events, partitions| {
        let plan = CapacityPlan::of(Workload { partitions, ..workload(events) });
        plan.state_topic.bytes as f64 / plan.window_ids as f64 / 2.0
    };
    assert!((23.0..24.0).contains(&bytes_per_id(50_000.0, 12)), "{}", bytes_per_id(50_000.0, 12));
    assert!(bytes_per_id(50.0, 12) > 100.0);
}

#[test]
fn the_suggested_windows_fit_and_slightly_longer_ones_do_not() {
    for input in [workload(5_000.0), Workload { partitions: 24, duplicates: 0.3, ..workload(60_000.0) }] {
        let short = Workload { exact: Duration::from_mins(10), ..input };
        let fits = Fits::of(&short, 4 * GIB);
        let exact = fits.exact;
        let again = CapacityPlan::of(Workload { exact: exact.window, bloom: exact.window, ..input });
        assert_eq!(again.memory.total_bytes, exact.bytes);
        assert!(exact.bytes <= 4 * GIB && exact.bytes > GIB, "{fits:?}");
        let bloom = fits.bloom.unwrap();
        assert!(bloom.bytes <= 4 * GIB && bloom.bytes > 4 * GIB / 100 * 99, "{fits:?}");
        // An id of a slice with owners takes less memory than one in a filter only.
        assert!(bloom.window < exact.window, "{fits:?}");
        let longer = Workload { bloom: bloom.window * 51 / 50, ..short };
        assert!(CapacityPlan::of(longer).memory.total_bytes > 4 * GIB);
    }
    assert_eq!(Fits::of(&workload(1e6), 1 << 20).bloom, None);
}

#[test]
fn extreme_workloads_do_not_overflow() {
    let century = Duration::from_hours(100 * 365 * 24);
    let plan = CapacityPlan::of(Workload {
        bloom: century * 2,
        exact: century,
        partitions: 1_000_000,
        ..workload(1e12)
    });
    assert!(plan.memory.total_bytes > 1 << 50);
    let least = CapacityPlan::of(Workload { duplicates: 0.999, partitions: 1_000_000, ..workload(1e-6) });
    assert!(least.memory.total_bytes > 0 && !least.to_string().contains("NaN"), "{least}");
}

/// An hour at 1,000 events per second: 3.6 M ids. With one slot per id, 90 % requires 34 million slots. With two
/// buckets of eight slots, it requires 4.4 million.
#[test]
fn a_window_that_evicts_has_the_predicted_miss_rates() {
    let input =
        Workload { exact: Duration::from_hours(1), bloom: Duration::from_hours(1), ..workload(1_000.0) };
    let fixed = CapacityPlan::of(input).fixed_memory;
    near(fixed.slots_for_90_percent as f64, 3.6e6 / 0.829);
    near(fixed.slots_for_99_percent as f64, 3.6e6 / 0.702);
    let plan = CapacityPlan::of(Workload { slots: Some(3_600_000), partitions: 4, ..input });
    let misses = plan.misses.unwrap();
    near(misses.rates[3], missed(1.0));
    near(misses.rates[2], 2.6287e-2);
    assert!(misses.rates[1] < 1e-4 && misses.rates[0] < 1e-7, "{misses:?}");
    near(misses.seconds_for_99_percent, 0.702 * 3_600.0);
    near(plan.memory.total_bytes as f64, 3.6e6 * 8.0);
    assert_eq!(plan.memory.exact_peak_bytes, plan.memory.exact_bytes);
    // 524,288 ids of 56 bytes.
    assert_eq!(plan.memory.transaction_bytes, 28 << 20);
    let text = plan.to_string();
    assert!(text.contains("arriving 45m later             2.63 %"), "{text}");
}

#[test]
fn a_table_of_fixed_size_needs_its_slots_only() {
    let input = Workload { slots: Some(1_000_000), ..workload(5_000.0) };
    let memory = CapacityPlan::of(input).memory;
    assert_eq!(Fits::of(&input, 4 * GIB), Fits::of(&workload(5_000.0), 4 * GIB), "what fits if it grows");
    near(memory.window_bytes as f64, 8e6);
    assert!(memory.limit_bytes < 400 << 20, "{memory:?}");
}

#[test]
fn the_windows_of_many_partitions_need_more_than_one_window() {
    let memory = |partitions| CapacityPlan::of(Workload { partitions, ..workload(5_000.0) }).memory;
    assert_eq!(memory(1).partition_scope_bytes, memory(1).total_bytes);
    assert_eq!(memory(1_000).total_bytes, memory(1).total_bytes);
    assert!(memory(1_000).partition_scope_bytes > memory(1).total_bytes * 5 / 4);
}

#[test]
fn the_printed_plan_contains_the_workload() {
    let input =
        Workload { bloom: Duration::from_hours(720), ids: IdKind::Text, partitions: 12, ..workload(5_000.0) };
    let text = format!("{}{}", CapacityPlan::of(input), Fits::of(&input, 16 * GIB));
    for part in [
        "5000 per second, 12 partitions",
        "24h, 432,000,000 ids",
        "a filter covers at least 45h",
        "1e-9 configured",
        "retention.ms=3240000000 (37d 12h)",
        "what fits into 16.0 GiB",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.len() <= 120), "{text}");
}

#[test]
fn the_memory_limit_to_set_leaves_what_the_windows_need() {
    for (events, exact, bloom) in [(10.0, 24, 24), (1_000.0, 24, 24), (5_000.0, 24, 168), (12_000.0, 24, 24)]
    {
        let (exact, bloom) = (Duration::from_hours(exact), Duration::from_hours(bloom));
        let plan = CapacityPlan::of(Workload { exact, bloom, partitions: 12, ..workload(events) });
        let memory = plan.memory;
        let windows = memory.exact_peak_bytes + memory.bloom_bytes;
        let left = window_memory(memory.limit_bytes, 1);
        // Whole MiB, of which the smallest window gets sixteen.
        assert!(left + (1 << 20) >= windows && left < windows + (17 << 20), "{left} {memory:?}");
    }
}
