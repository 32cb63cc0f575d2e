//! The same inserts make the same filters: a rebuilt window answers as the one before it.

use dedupd::dedupe::Bloom;
use proptest::prelude::*;

use super::{HOUR, START, absent, look, numbered, week};

/// Arrivals whose number a second rises and falls, with a pause or two.
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
    fn answers_are_the_same_however_often_expiry_ran(seed in 0..1_000u64, every in 1..5_000usize) {
        // A rate so bad that absent ids pass often: what is compared are the bits.
        let limits = week(0.3);
        let times = arrivals(seed, 60_000);
        let mut original = Bloom::new(limits);
        for (number, time) in times.iter().enumerate() {
            original.insert(&look(number as u64), *time);
            if number % every == 0 {
                original.expire(*time);
            }
        }
        let mut rebuilt = Bloom::new(limits);
        rebuilt.insert_all(times.iter().enumerate().map(|(number, time)| (numbered(number as u64), *time)));
        let now = times[times.len() - 1] + HOUR;
        original.expire(now);
        rebuilt.expire(now);
        let asked = original.asked(now);
        let mut passed = 0;
        for look in (0..60_000).step_by(7).map(look).chain(absent(20_000)) {
            let answer = original.probably(&look, &asked);
            prop_assert_eq!(answer, rebuilt.probably(&look, &asked));
            passed += u32::from(answer.is_some());
        }
        prop_assert!(passed > 0, "nothing was compared");
        prop_assert_eq!(original.slices(), rebuilt.slices());
        prop_assert_eq!(original.memory_bytes(), rebuilt.memory_bytes());
    }
}
