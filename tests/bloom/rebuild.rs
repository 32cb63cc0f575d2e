//! The same inserts produce the same filters: a rebuilt window returns the same answers as the original one.

use dedupd::dedupe::{Bloom, BloomLimits, FilterLayout};
use proptest::prelude::*;

use super::{HOUR, START, absent, key, numbered, week};

/// Arrivals at a varying rate, with pauses.
fn arrivals(seed: u64, count: u64) -> Vec<i64> {
    let mut now = START;
    (0..count)
        .map(|number| {
            let busy = (number / 5_000 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
            now += i64::try_from(busy).unwrap() * 400 + if number % 23_000 == 22_999 { 50 * HOUR } else { 1 };
            now
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn answers_do_not_depend_on_how_often_expiry_ran(seed in 0..1_000u64, every in 1..5_000usize) {
        // The rate is so high that many absent ids pass: the test compares the bits.
        let limits = week(0.3);
        let times = arrivals(seed, 60_000);
        let mut original = Bloom::new(limits);
        for (number, time) in times.iter().enumerate() {
            original.insert(&key(number as u64), *time);
            if number % every == 0 {
                original.expire(*time);
            }
        }
        let mut rebuilt = Bloom::new(limits);
        rebuilt.insert_all(times.iter().enumerate().map(|(number, time)| (numbered(number as u64), *time)));
        let now = times[times.len() - 1] + HOUR;
        original.expire(now);
        rebuilt.expire(now);
        let range = original.queried(now);
        let mut passed = 0;
        for key in (0..60_000).step_by(7).map(key).chain(absent(20_000)) {
            let answer = original.probably(&key, &range);
            prop_assert_eq!(answer, rebuilt.probably(&key, &range));
            passed += u32::from(answer.is_some());
        }
        prop_assert!(passed > 0, "no id passed");
        prop_assert_eq!(original.slices(), rebuilt.slices());
        prop_assert_eq!(original.memory_bytes(), rebuilt.memory_bytes());
    }
}

/// Inserts the arrivals of these numbers into `bloom`, as the pipeline does.
fn fill(bloom: &mut Bloom, times: &[i64], numbers: std::ops::Range<usize>) {
    for number in numbers {
        bloom.insert(&key(number as u64), times[number]);
        if number % 1_000 == 999 {
            bloom.expire(times[number]);
        }
    }
}

/// The answers at `now` for inserted and absent ids, from any filter.
fn passing(bloom: &Bloom, ids: u64, now: i64) -> Vec<Option<i64>> {
    let range = bloom.queried(now).start..i64::MAX;
    (0..ids).step_by(7).map(key).chain(absent(20_000)).map(|key| bloom.probably(&key, &range)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Filter sizes depend on earlier slices, so filters rebuilt from the remaining blocks require the stored layout.
    #[test]
    fn filters_rebuilt_from_their_layout_are_bitwise_equal(
        seed in 0..1_000u64, taken in 1..100_000usize, since in 0..3_000usize, more in 0..40_000usize,
    ) {
        let limits = week(0.3);
        let times = arrivals(seed, 143_000);
        let mut original = Bloom::new(limits);
        fill(&mut original, &times, 0..taken);
        let text = original.layout().unwrap().to_string();
        let crashed = taken + since;
        fill(&mut original, &times, taken..crashed);

        // Blocks older than the window are deleted, or some of them are left.
        let oldest = original.oldest_slice_ms().unwrap();
        let first = times.iter().position(|time| *time >= oldest).unwrap();
        for first in [first, first / 2] {
            let mut rebuilt = Bloom::new(limits);
            rebuilt.follow(&FilterLayout::parse(&text).unwrap());
            fill(&mut rebuilt, &times, first..crashed);
            let mut original = Bloom::new(limits);
            fill(&mut original, &times, 0..crashed);
            for end in [crashed, crashed + more] {
                let now = times[end];
                fill(&mut original, &times, crashed..end);
                fill(&mut rebuilt, &times, crashed..end);
                original.expire(now);
                rebuilt.expire(now);
                let answers = passing(&original, end as u64, now);
                prop_assert!(answers.iter().any(Option::is_some));
                prop_assert_eq!(&answers, &passing(&rebuilt, end as u64, now));
                prop_assert_eq!(original.slices(), rebuilt.slices());
                prop_assert_eq!(original.layout(), rebuilt.layout());
                prop_assert_eq!(original.memory_bytes(), rebuilt.memory_bytes());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A checkpoint without room for the layout leaves it out. Slices that outgrow their filters and slices that a memory
    /// limit drops are among those rebuilt.
    #[test]
    fn filters_rebuilt_without_a_layout_keep_the_rate_and_every_id(
        seed in 0..1_000u64, taken in 1..100_000usize, more in 0..40_000usize, is_limited: bool,
    ) {
        const PROBES: u64 = 40_000;
        let (rate, max_bytes) = (1e-2, if is_limited { 60_000 } else { u64::MAX });
        let limits = BloomLimits { max_bytes, ..week(rate) };
        let times = arrivals(seed, 143_000);
        let mut original = Bloom::new(limits);
        fill(&mut original, &times, 0..taken);
        let oldest = original.oldest_slice_ms().unwrap();
        let first = times.iter().position(|time| *time >= oldest).unwrap();
        let mut rebuilt = Bloom::new(limits);
        fill(&mut rebuilt, &times, first..taken);
        for end in [taken, taken + more] {
            let now = times[end];
            fill(&mut original, &times, taken..end);
            fill(&mut rebuilt, &times, taken..end);
            original.expire(now);
            rebuilt.expire(now);
            let queried = rebuilt.queried(now);
            let reported = rebuilt.false_positive_rate(&queried);
            prop_assert!(reported <= rate * 1.1, "{reported} reported");
            let passed = absent(PROBES).filter(|key| rebuilt.probably(key, &queried).is_some()).count();
            // Four standard deviations above the configured rate.
            let bound = rate + 4.0 * (rate / PROBES as f64).sqrt();
            prop_assert!(passed as f64 / PROBES as f64 <= bound, "{passed} of {PROBES} passed");
            prop_assert!(rebuilt.memory_bytes() <= max_bytes);
            let held = |bloom: &Bloom| -> Vec<_> {
                bloom.slices().iter().map(|slice| (slice.start_ms, slice.ids)).collect()
            };
            prop_assert!(is_limited || held(&original) == held(&rebuilt));
            // What no limit dropped is found.
            let kept = rebuilt.dropped_ms().map_or(queried.start, |dropped| dropped + 1).max(queried.start);
            let inside = times[..end].iter().enumerate().filter(|(_, time)| (kept..queried.end).contains(time));
            let mut inside = inside.filter(|(number, _)| *number >= first).step_by(3);
            prop_assert!(inside.all(|(number, _)| rebuilt.probably(&key(number as u64), &queried).is_some()));
        }
    }
}
