//! The false-positive rate of a look-up in all slices: at most the configured rate, and reported correctly.

use std::ops::Range;

use dedupd::dedupe::{Bloom, BloomLimits, FilterLayout};

use super::{HOUR, START, absent, key, week};

/// Fills eight slices, all but the newest completely, which is the worst case. Returns the time range of a look-up.
fn filled(bloom: &mut Bloom, ids_per_slice: &[u64]) -> Range<i64> {
    let mut number = 0;
    for (day, ids) in (0..).zip(ids_per_slice) {
        for id in 0..*ids {
            let time = i64::try_from(id).unwrap() * 24 * HOUR / i64::try_from(*ids).unwrap();
            bloom.insert(&key(number), START + day * 24 * HOUR + time);
            number += 1;
        }
    }
    let now = START + i64::try_from(ids_per_slice.len()).unwrap() * 24 * HOUR - 1;
    bloom.expire(now);
    bloom.queried(now)
}

fn measured(bloom: &Bloom, times: &Range<i64>, probes: u64) -> f64 {
    let passed = absent(probes).filter(|key| bloom.probably(key, times).is_some()).count();
    passed as f64 / probes as f64
}

/// Upper bound of a measurement of `rate`: four standard deviations above it.
fn bound(rate: f64, probes: u64) -> f64 {
    rate + 4.0 * (rate / probes as f64).sqrt()
}

#[test]
fn the_rate_of_a_look_up_in_all_slices_is_at_most_the_configured_one() {
    for (rate, probes) in [(1e-2, 300_000), (1e-4, 2_000_000), (1e-6, 4_000_000)] {
        // Without an exact part, a look-up covers all eight slices.
        let mut bloom = Bloom::new(BloomLimits { exact: std::time::Duration::ZERO, ..week(rate) });
        let times = filled(&mut bloom, &[60_000; 16]);
        assert_eq!(bloom.slices().len(), 8);
        let (found, reported) = (measured(&bloom, &times, probes), bloom.false_positive_rate(&times));
        assert!(found <= bound(rate, probes), "{found} measured, {rate} configured");
        assert!(reported <= rate * 1.1, "{reported} reported, {rate} configured");
        assert!(found <= bound(reported * 1.15, probes), "{found} measured, {reported} reported");
        if rate > 1e-5 {
            assert!(found > reported * 0.8, "{found} measured, {reported} reported");
        }
    }
}

#[test]
fn a_slice_that_outgrows_its_design_keeps_the_rate() {
    let rate = 1e-4;
    let mut bloom = Bloom::new(BloomLimits { exact: std::time::Duration::ZERO, ..week(rate) });
    let times = filled(&mut bloom, &[3_000, 3_000, 40_000, 9_000, 150_000, 20_000, 60_000, 150_000]);
    let slices = bloom.slices();
    assert!(slices.iter().all(|slice| slice.false_positive_rate < rate / 8.0 * 1.1), "{slices:#?}");
    assert!(slices.iter().any(|slice| slice.filters > 2), "no slice grew: {slices:#?}");
    let (found, reported) = (measured(&bloom, &times, 2_000_000), bloom.false_positive_rate(&times));
    assert!(found <= bound(rate, 2_000_000) && reported <= rate, "{found} measured, {reported} reported");
    assert!(found > reported * 0.7 && reported > rate * 0.1, "{found} measured, {reported} reported");
}

/// In small filters, a single crowded block has a large effect.
#[test]
fn small_partitions_keep_the_rate() {
    let rate = 1e-4;
    for ids in [1, 40, 700, 2_500] {
        let mut bloom = Bloom::new(week(rate));
        let times = filled(&mut bloom, &[ids; 12]);
        let reported = bloom.false_positive_rate(&times);
        assert!(reported <= rate, "{reported} reported with {ids} per slice");
        assert!(measured(&bloom, &times, 400_000) <= bound(reported, 400_000), "with {ids} per slice");
    }
}

/// Fills filters to their full capacity, each with other ids. The rate reported is
/// exact for filters as small as these.
#[test]
fn a_full_small_filter_keeps_the_rate_for_every_set_of_ids() {
    for (rate, ids) in
        [(1e-4, 300), (1e-4, 2_000), (1e-4, 16_000), (1e-9, 300), (1e-9, 2_000), (1e-9, 16_000)]
    {
        for seed in 0..40 {
            let mut bloom = Bloom::new(week(rate));
            bloom.follow(&FilterLayout {
                bloom_ms: 168 * HOUR,
                slice_ms: 24 * HOUR,
                open: START / (24 * HOUR),
                held: vec![ids],
                grids: Vec::new(),
            });
            (0..ids * 2 + 1_000).for_each(|number| bloom.insert(&key(seed * 100_000 + number), START + HOUR));
            let slice = &bloom.slices()[0];
            assert!(slice.filters > 1, "it was never full: {slice:?}");
            assert!(slice.false_positive_rate <= rate / 7.0, "{rate} {ids} {seed}: {slice:?}");
        }
    }
}

#[test]
fn the_rate_covers_only_the_slices_of_the_time_range() {
    let mut bloom = Bloom::new(week(1e-2));
    let times = filled(&mut bloom, &[5_000; 8]);
    let all = bloom.false_positive_rate(&(0..i64::MAX));
    let some = bloom.false_positive_rate(&times);
    let none = bloom.false_positive_rate(&(0..START));
    assert!(some < all && some > 0.0 && none == 0.0, "{none} {some} {all}");
}
