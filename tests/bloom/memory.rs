//! Memory: proportional to the number of ids, smaller again after a peak, never above the limit.

use dedupd::dedupe::bloom::sizing::Density;
use dedupd::dedupe::{Bloom, BloomLimits};

use super::{HOUR, START, key, week};

/// Inserts ids evenly over each day and returns the memory at the end of the day.
struct Traffic {
    bloom: Bloom,
    day: i64,
    number: u64,
}

impl Traffic {
    fn new(limits: BloomLimits) -> Self {
        Self { bloom: Bloom::new(limits), day: 0, number: 0 }
    }

    fn day(&mut self, ids: u64) -> u64 {
        let begin = START + self.day * 24 * HOUR;
        for id in 0..ids {
            self.bloom.insert(&key(self.number), begin + i64::try_from(id * 86_400_000 / ids).unwrap());
            self.number += 1;
        }
        self.day += 1;
        self.bloom.expire(begin + 24 * HOUR - 1);
        self.bloom.memory_bytes()
    }
}

#[test]
fn steady_traffic_takes_at_most_11_percent_more_than_the_theoretical_minimum() {
    let limits = week(1e-6);
    let mut traffic = Traffic::new(limits);
    let days: Vec<u64> = (0..24).map(|_| traffic.day(50_000)).collect();
    assert!(days[9..].windows(2).all(|pair| pair[0] == pair[1]), "columns are not reused: {days:?}");
    let slices = traffic.bloom.slices();
    assert!(slices.iter().all(|slice| slice.filters == 1), "{slices:#?}");
    let bits_per_id = days[23] as f64 * 8.0 / 400_000.0;
    let least = Density::at_rate(limits.shares().of(0)).bits_an_id();
    assert!(bits_per_id >= least && bits_per_id < least * 1.11, "{bits_per_id} bits, {least} in theory");
}

#[test]
fn a_first_slice_starts_small_and_grows_geometrically() {
    let mut traffic = Traffic::new(week(1e-6));
    assert!(traffic.day(10) < 10_000);
    let mut traffic = Traffic::new(week(1e-6));
    let memory = traffic.day(300_000);
    assert!(traffic.bloom.slices()[0].filters <= 5, "{:#?}", traffic.bloom.slices());
    assert!(memory < 300_000 * 12, "{memory}");
}

#[test]
fn memory_shrinks_again_after_a_peak() {
    let mut traffic = Traffic::new(week(1e-6));
    let before = (0..16).map(|_| traffic.day(5_000)).last().unwrap();
    let peak = (0..3).map(|_| traffic.day(100_000)).last().unwrap();
    assert!(peak > before * 4, "{before} {peak}");
    let after = (0..18).map(|_| traffic.day(5_000)).last().unwrap();
    assert!(after <= before * 3 / 2, "{before} before, {peak} in the peak, {after} after");
    // One busy day adds a filter, and does not determine the size of later days.
    let single = traffic.day(100_000);
    let after = traffic.day(5_000);
    assert!(single > before * 3 && after < single + before, "{single} {after}");
}

#[test]
fn at_the_memory_limit_the_oldest_ids_are_dropped_first() {
    let limits = BloomLimits { max_bytes: 1_000_000, ..week(1e-6) };
    let mut traffic = Traffic::new(limits);
    for day in 0..20 {
        let memory = traffic.day(60_000);
        assert!(memory <= 1_000_000, "{memory} on day {day}");
    }
    // About 25 % less than eight slices of 60,000 ids with at least 38 bits each.
    let held = traffic.bloom.ids();
    assert!(held > 120_000, "{held}");
    let forgotten = traffic.bloom.dropped_ms().unwrap();
    let now = START + 20 * 24 * HOUR - 1;
    assert!(forgotten > now - 168 * HOUR && forgotten < now - 24 * HOUR, "{}", (now - forgotten) / HOUR);
    let times = START..i64::MAX;
    assert!(
        (traffic.number - held / 2..traffic.number)
            .all(|n| traffic.bloom.probably(&key(n), &times).is_some())
    );
    assert!(traffic.bloom.false_positive_rate(&times) <= 1e-6 * 8.0 / 7.0);
}

#[test]
fn a_limit_too_small_for_any_filter_stores_nothing_and_reports_it() {
    let mut bloom = Bloom::new(BloomLimits { max_bytes: 1_000, ..week(1e-6) });
    (0..10).for_each(|number| bloom.insert(&key(number), START));
    assert_eq!((bloom.memory_bytes(), bloom.dropped_ms()), (0, Some(START)));
}
