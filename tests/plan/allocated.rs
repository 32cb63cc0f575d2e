//! Compares planned memory with the memory that the window and the filters allocate.

use std::time::Duration;

use dedupd::dedupe::{Bloom, BloomLimits, Identity, IndexKey, TimeSource, Window, WindowLimits};
use dedupd::tools::plan::{CapacityPlan, Workload};

/// Start of the traffic, in epoch milliseconds.
const START: i64 = 1_700_000_000_000;

fn numbered(number: u64) -> Identity {
    let low = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Identity(((u128::from(number) << 64) | u128::from(low)).to_be_bytes())
}

/// Stream time of an arrival at a rate of `ids` per hour.
fn arrival(number: u64, ids: u64) -> i64 {
    START + i64::try_from(u128::from(number) * 3_600_000 / u128::from(ids)).unwrap()
}

fn within_a_tenth(planned: u64, allocated: u64, what: &str) {
    let ratio = planned as f64 / allocated as f64;
    assert!((0.9..=1.1).contains(&ratio), "{what}: {planned} planned, {allocated} allocated");
}

#[test]
fn the_exact_index_takes_the_planned_memory() {
    let hour = Duration::from_hours(1);
    for ids in [20_000u64, 65_000, 100_000, 300_000] {
        let workload = Workload { exact: hour, bloom: hour, ..super::workload(ids as f64 / 3_600.0) };
        let planned = CapacityPlan::of(workload).memory;
        let mut window = Window::new(WindowLimits {
            exact: hour,
            max_ids: u64::MAX,
            time: TimeSource::Record,
            bloom: None,
        });
        let mut peak = 0;
        let batch = (ids / 2_000).max(1);
        for number in 0..ids * 4 {
            window.observe(Some(arrival(number, ids)), i64::MAX / 2);
            let key = window.key(numbered(number));
            window.admit(number, &key);
            if number % batch == 0 {
                window.commit(number + 1);
                peak = peak.max(window.memory_bytes() as u64);
            }
        }
        within_a_tenth(planned.exact_bytes, window.memory_bytes() as u64, &format!("{ids} ids"));
        within_a_tenth(planned.exact_peak_bytes, peak, &format!("the peak of {ids} ids"));
    }
}

#[test]
fn bloom_filters_take_the_planned_memory() {
    for (ids, slices, rate) in
        [(200_000u64, 7, 1e-9), (50_000, 7, 1e-4), (100_000, 4, 1e-6), (100_000, 11, 1e-6)]
    {
        let (exact, bloom) = (Duration::from_mins(10), Duration::from_hours(1));
        let workload = Workload {
            exact,
            bloom,
            slices,
            false_positive_rate: rate,
            ..super::workload(ids as f64 / 3_600.0)
        };
        let plan = CapacityPlan::of(workload);
        let mut filters =
            Bloom::new(BloomLimits { exact, bloom, slices, false_positive_rate: rate, max_bytes: u64::MAX });
        for number in 0..ids * 3 {
            filters.insert(&IndexKey::at(numbered(number)), arrival(number, ids));
        }
        within_a_tenth(plan.memory.bloom_bytes, filters.memory_bytes(), &format!("{ids} ids at {rate}"));
        let planned = plan.filters.unwrap();
        let full = &filters.slices()[1];
        within_a_tenth(planned.bytes, full.bytes, "a filter");
        assert!(full.ids <= planned.ids && full.filters == 1, "{full:?} {planned:?}");
    }
}
