//! Every id inside the window is found, for any sequence of arrivals, growth and expiry.

use std::time::Duration;

use dedupd::dedupe::{Bloom, BloomLimits};
use proptest::prelude::*;

use super::{HOUR, START, key, numbered, week};

/// `count` arrivals, `step_ms` apart, then a pause, and optionally an expiry.
#[derive(Debug, Clone)]
struct Stretch {
    count: u16,
    step_ms: u16,
    pause_ms: u32,
    expires: bool,
}

fn stretches() -> impl Strategy<Value = Vec<Stretch>> {
    let pause = prop_oneof![4 => 0..20_000u32, 1 => 0..200_000u32];
    let step = prop_oneof![Just(0u16), 0..20u16];
    let stretch = (1..4_000u16, step, pause, any::<bool>());
    let stretch =
        stretch.prop_map(|(count, step_ms, pause_ms, expires)| Stretch { count, step_ms, pause_ms, expires });
    proptest::collection::vec(stretch, 1..14)
}

fn limits() -> impl Strategy<Value = BloomLimits> {
    (0..60_000u64, 1..100_000u64, 1..13u32, prop_oneof![Just(1e-2), Just(1e-6), Just(1e-9)]).prop_map(
        |(exact, beyond, slices, rate)| BloomLimits {
            exact: Duration::from_millis(exact),
            bloom: Duration::from_millis(exact + beyond),
            slices,
            false_positive_rate: rate,
            max_bytes: u64::MAX,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_id_inside_the_window_is_found(limits in limits(), stretches in stretches()) {
        let mut bloom = Bloom::new(limits);
        let (mut now, mut arrivals) = (START, Vec::new());
        for stretch in &stretches {
            for _ in 0..stretch.count {
                now += i64::from(stretch.step_ms);
                bloom.insert(&key(arrivals.len() as u64), now);
                arrivals.push(now);
            }
            now += i64::from(stretch.pause_ms);
            if stretch.expires {
                bloom.expire(now);
            }
            let times = bloom.queried(now);
            let slice = limits.slice_ms();
            let inside = arrivals.iter().enumerate().filter(|(_, arrived)| times.contains(arrived));
            for (number, arrived) in inside {
                let start = bloom.probably(&key(number as u64), &times);
                prop_assert!(start.is_some(), "{number}, inserted at {arrived}, is lost at {now}");
                prop_assert!(start.is_some_and(|start| start + slice > times.start && start < times.end));
            }
        }
        prop_assert_eq!(bloom.dropped_ms(), None);
    }
}

#[test]
fn a_slice_is_dropped_as_a_whole_when_its_end_is_older_than_the_window() {
    let mut bloom = Bloom::new(week(1e-6));
    (0..9_000)
        .for_each(|number| bloom.insert(&key(number), START + i64::try_from(number).unwrap() * HOUR / 60));
    let starts = |bloom: &Bloom| bloom.slices().iter().map(|slice| slice.start_ms).collect::<Vec<_>>();
    let days = |days: std::ops::Range<i64>| days.map(|day| START + day * 24 * HOUR).collect::<Vec<_>>();
    assert_eq!(starts(&bloom), days(0..7));
    let expiry = START + 8 * 24 * HOUR;
    bloom.expire(expiry - 1);
    assert_eq!(starts(&bloom), days(0..7));
    assert_eq!(bloom.slices()[0].ids, 1_440);
    bloom.expire(expiry);
    assert_eq!(starts(&bloom), days(1..7));
    bloom.expire(expiry + 7 * 24 * HOUR);
    assert_eq!((starts(&bloom).len(), bloom.memory_bytes()), (0, 0));
}

#[test]
fn filters_do_not_answer_for_the_exact_part() {
    let mut bloom = Bloom::new(week(1e-6));
    bloom.insert(&key(1), START + HOUR);
    bloom.insert(&key(2), START + 25 * HOUR);
    // One day later, only the first id is older than the exact part.
    let now = START + 26 * HOUR;
    assert_eq!(bloom.probably(&key(1), &bloom.queried(now)), Some(START));
    assert_eq!(bloom.probably(&key(2), &bloom.queried(now)), None);
    assert_eq!(bloom.probably(&key(2), &bloom.queried(now + 24 * HOUR)), Some(START + 24 * HOUR));
}

#[test]
fn ids_without_a_time_are_stored_in_the_first_slice_with_a_time() {
    let mut bloom = Bloom::new(week(1e-6));
    (0..3_000).for_each(|number| bloom.insert(&key(number), if number % 2 == 0 { 0 } else { -5 }));
    bloom.expire(0);
    assert_eq!(bloom.ids(), 3_000);
    bloom.insert(&key(3_000), START + HOUR);
    let slices = bloom.slices();
    assert_eq!((slices.len(), slices[0].start_ms, slices[0].ids), (1, START, 3_001));
    let times = bloom.queried(START + 7 * 24 * HOUR);
    assert!((0..=3_000).all(|number| bloom.probably(&key(number), &times) == Some(START)));
}

#[test]
fn a_decreasing_time_loses_nothing() {
    let mut bloom = Bloom::new(week(1e-6));
    let times = [3 * 24 * HOUR, 24 * HOUR, 2 * 24 * HOUR, 4 * 24 * HOUR, 0];
    bloom.insert_all(times.iter().enumerate().map(|(number, time)| (numbered(number as u64), START + time)));
    let times = START - 1..START + 30 * 24 * HOUR;
    assert!((0..5).all(|number| bloom.probably(&key(number), &times).is_some()));
    assert_eq!(bloom.slices().len(), 2);
}
