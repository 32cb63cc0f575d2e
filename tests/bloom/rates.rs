//! The false-positive rate of a look-up as a whole: within the promise, and told as it is.

use std::ops::Range;

use dedupd::dedupe::{Bloom, BloomLimits};

use super::{HOUR, START, absent, look, week};

/// Eight slices alive, all but the newest full: the worst moment. Gives the time asked about.
fn filled(bloom: &mut Bloom, ids_a_slice: &[u64]) -> Range<i64> {
    let mut number = 0;
    for (day, ids) in (0..).zip(ids_a_slice) {
        for id in 0..*ids {
            let time = i64::try_from(id).unwrap() * 24 * HOUR / i64::try_from(*ids).unwrap();
            bloom.insert(&look(number), START + day * 24 * HOUR + time);
            number += 1;
        }
    }
    let now = START + i64::try_from(ids_a_slice.len()).unwrap() * 24 * HOUR - 1;
    bloom.expire(now);
    bloom.asked(now)
}

fn measured(bloom: &Bloom, asked: &Range<i64>, probes: u64) -> f64 {
    let passed = absent(probes).filter(|look| bloom.probably(look, asked).is_some()).count();
    passed as f64 / probes as f64
}

/// What may be measured of `rate` by chance: four standard deviations more.
fn bound(rate: f64, probes: u64) -> f64 {
    rate + 4.0 * (rate / probes as f64).sqrt()
}

#[test]
fn the_rate_of_a_look_up_over_all_slices_is_within_the_promise() {
    for (rate, probes) in [(1e-2, 300_000), (1e-4, 2_000_000), (1e-6, 4_000_000)] {
        // Nothing exact: all eight slices are asked.
        let mut bloom = Bloom::new(BloomLimits { exact: std::time::Duration::ZERO, ..week(rate) });
        let asked = filled(&mut bloom, &[60_000; 16]);
        assert_eq!(bloom.slices().len(), 8);
        let (found, told) = (measured(&bloom, &asked, probes), bloom.false_positive_rate(&asked));
        assert!(found <= bound(rate, probes), "{found} measured, {rate} promised");
        assert!(told <= rate * 1.1, "{told} told, {rate} promised");
        assert!(found <= bound(told * 1.15, probes), "{found} measured, {told} told");
        if rate > 1e-5 {
            assert!(found > told * 0.8, "{found} measured, {told} told");
        }
    }
}

#[test]
fn a_slice_that_outgrows_its_design_keeps_the_promise() {
    let rate = 1e-4;
    let mut bloom = Bloom::new(BloomLimits { exact: std::time::Duration::ZERO, ..week(rate) });
    let asked = filled(&mut bloom, &[3_000, 3_000, 40_000, 9_000, 150_000, 20_000, 60_000, 150_000]);
    let slices = bloom.slices();
    assert!(slices.iter().all(|slice| slice.false_positive_rate < rate / 8.0 * 1.1), "{slices:#?}");
    assert!(slices.iter().any(|slice| slice.filters > 2), "nothing grew: {slices:#?}");
    let (found, told) = (measured(&bloom, &asked, 2_000_000), bloom.false_positive_rate(&asked));
    assert!(found <= bound(rate, 2_000_000) && told <= rate, "{found} measured, {told} told");
    assert!(found > told * 0.7 && told > rate * 0.1, "{found} measured, {told} told");
}

/// Single crowded blocks weigh in small filters.
#[test]
fn small_partitions_keep_the_promise_too() {
    let rate = 1e-4;
    for ids in [1, 40, 700, 2_500] {
        let mut bloom = Bloom::new(week(rate));
        let asked = filled(&mut bloom, &[ids; 12]);
        let told = bloom.false_positive_rate(&asked);
        assert!(told <= rate, "{told} told with {ids} a slice");
        assert!(measured(&bloom, &asked, 400_000) <= bound(told, 400_000), "with {ids} a slice");
    }
}

/// Filters filled to the last place that their design has, each with other ids. The rate told is
/// exact for filters as small as these.
#[test]
fn a_small_filter_has_room_for_chance() {
    for (rate, ids) in
        [(1e-4, 300), (1e-4, 2_000), (1e-4, 16_000), (1e-9, 300), (1e-9, 2_000), (1e-9, 16_000)]
    {
        for seed in 0..40 {
            let mut bloom = Bloom::new(week(rate));
            bloom.expect(ids);
            (0..ids * 2 + 1_000)
                .for_each(|number| bloom.insert(&look(seed * 100_000 + number), START + HOUR));
            let slice = &bloom.slices()[0];
            assert!(slice.filters > 1, "it never was full: {slice:?}");
            assert!(slice.false_positive_rate <= rate / 7.0, "{rate} {ids} {seed}: {slice:?}");
        }
    }
}

#[test]
fn only_the_slices_asked_count() {
    let mut bloom = Bloom::new(week(1e-2));
    let asked = filled(&mut bloom, &[5_000; 8]);
    let all = bloom.false_positive_rate(&(0..i64::MAX));
    let some = bloom.false_positive_rate(&asked);
    let none = bloom.false_positive_rate(&(0..START));
    assert!(some < all && some > 0.0 && none == 0.0, "{none} {some} {all}");
}
