use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3_600_000;
const T: i64 = 1_700_000_000_000;

fn positions() -> Positions {
    Positions::keyed([7; 16])
}

fn key(number: u64) -> IndexKey {
    positions().key(Identity(
        u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes(),
    ))
}

fn hours(hours: u64) -> TopicFilter {
    TopicFilter::new(Duration::from_hours(hours), positions(), u64::MAX)
}

/// The share of absent identities that are found in a group.
fn false_rate(filter: &TopicFilter) -> f64 {
    let absent = (1u64 << 40)..(1 << 40) + 100_000;
    let found = absent.clone().filter(|number| !filter.groups(&key(*number)).is_empty()).count();
    found as f64 / absent.count() as f64
}

fn bytes_per_id(filter: &TopicFilter, ids: u64) -> f64 {
    filter.memory_bytes() as f64 / ids as f64
}

#[test]
fn the_groups_of_an_identity_are_those_of_its_partitions() {
    let mut filter = hours(1);
    for partition in [3, 70, 3 + 32, 255] {
        filter.insert(&key(7), partition, T);
    }
    let groups = filter.groups(&key(7));
    let of_three = (3..256).step_by(32);
    let of_six = (6..256).step_by(32);
    let of_last = (31..256).step_by(32);
    let wanted: Vec<PartitionId> = of_three.chain(of_six).chain(of_last).collect();
    assert_eq!(groups.partitions(256).collect::<Vec<_>>(), wanted);
    assert!(groups.has(70) && groups.has(6) && !groups.has(4));
    assert_eq!(groups.partitions(4).collect::<Vec<_>>(), [3]);
    assert!(filter.groups(&key(8)).is_empty());
    assert_eq!(PartitionGroups::default().partitions(256).count(), 0);
}

#[test]
fn a_backlog_that_is_read_partition_by_partition_is_kept_until_the_horizon_has_passed() {
    const EACH: u64 = 360 * 4_000;
    let mut filter = hours(1);
    // 4,000 owners per minute, over six hours; one partition is read to the end before the next one begins.
    let arrived = |number: u64| T + 60_000 * (number % EACH / 4_000).cast_signed();
    let partition = |number: u64| PartitionId::try_from(number / EACH).unwrap();
    for number in 0..3 * EACH {
        filter.insert(&key(number), partition(number), arrived(number));
    }
    let is_found = |filter: &TopicFilter, number| filter.groups(&key(number)).has(partition(number));
    assert!((0..3 * EACH).step_by(97).all(|number| is_found(&filter, number)));
    let bytes = bytes_per_id(&filter, 3 * EACH);
    assert!(bytes < 4.5, "{bytes} bytes per identity");
    filter.expire(T + 5 * HOUR);
    let kept = |number: &u64| arrived(*number) >= T + 4 * HOUR;
    assert!((0..3 * EACH).step_by(97).filter(kept).all(|number| is_found(&filter, number)));
    // The entries of a window are in one age, because the numbers of the others were in use.
    filter.expire(T + 7 * HOUR + HOUR / 8);
    filter.insert(&key(1), 0, T + 8 * HOUR);
    filter.expire(T + 7 * HOUR + HOUR / 8);
    let left = bytes_per_id(&filter, 3 * EACH);
    assert!(left < 0.2 * bytes, "{left} of {bytes}");
}

#[test]
fn steady_traffic_has_one_table_and_three_bytes_per_identity() {
    let mut filter = hours(1);
    // One owner per millisecond.
    let held = 3_600_000u64;
    for number in 0..5 * held {
        let ms = T + number.cast_signed();
        filter.insert(&key(number), 5, ms);
        if number % 50_000 == 0 {
            filter.expire(ms);
        }
    }
    assert_eq!(filter.tables.len(), 1);
    let (bytes, rate) = (bytes_per_id(&filter, held), false_rate(&filter));
    assert!(bytes < 3.3, "{bytes} bytes per identity");
    let planned = TopicFilter::bytes_for(held) as f64 / held as f64;
    assert!((planned / bytes - 1.0).abs() < 0.05, "{planned} planned, {bytes} allocated");
    assert!((0.05..0.25).contains(&rate), "{rate}");
    // The traffic ends: the memory follows.
    for hour in 5..9 {
        for minute in 0..60 {
            let ms = T + hour * HOUR + minute * 60_000;
            filter.insert(&key(1 << 30), 5, ms);
            filter.expire(ms);
        }
    }
    assert!(bytes_per_id(&filter, held) < 0.5, "{}", bytes_per_id(&filter, held));
}

#[test]
fn a_number_of_an_age_that_is_used_again_without_other_inserts_loses_nothing() {
    let mut filter = hours(1);
    let mut next = 0;
    // Bursts that fill the table, each followed by a silence of several windows.
    for burst in 0..40 {
        let ms = T + burst * 3 * HOUR / 2;
        filter.expire(ms);
        let first = next;
        for _ in 0..60_000 {
            filter.insert(&key(next), 1, ms);
            next += 1;
        }
        assert!((first..next).all(|number| filter.groups(&key(number)).has(1)), "burst {burst}");
    }
    assert!(filter.memory_bytes() < 1 << 20, "{} bytes", filter.memory_bytes());
}

#[test]
fn a_late_record_counts_from_the_horizon_on() {
    let mut filter = hours(1);
    filter.expire(T + 5 * HOUR);
    filter.insert(&key(1), 1, T);
    filter.expire(T + 6 * HOUR);
    assert!(filter.groups(&key(1)).has(1));
    assert!(!filter.covers_own(T) && filter.covers_own(T + 6 * HOUR));
}

#[test]
fn an_owner_without_a_time_is_not_covered_in_its_own_partition() {
    let mut filter = hours(1);
    assert!(filter.covers_own(T));
    filter.insert(&key(1), 1, 0);
    filter.expire(T);
    filter.insert(&key(2), 2, T + HOUR / 2);
    assert!(filter.groups(&key(1)).has(1) && filter.groups(&key(2)).has(2));
    assert!(!filter.covers_own(T + 9 * HOUR), "its window counts it from a later time on");
}

#[test]
fn restored_identities_get_one_table_of_the_right_size() {
    let mut filter = hours(1);
    let owners: Vec<_> = (0..200_000u64).map(|number| (number, T + 18 * number.cast_signed())).collect();
    filter.expect(12 * owners.len() as u64);
    for partition in 0..12u32 {
        let identity = |number: u64| key(number * 12 + u64::from(partition)).identity;
        let identities: Vec<_> = owners.iter().map(|(number, ms)| (identity(*number), *ms)).collect();
        filter.insert_all(partition, &identities);
    }
    assert_eq!((filter.expected, filter.tables.len()), (0, 1));
    assert!(bytes_per_id(&filter, 12 * owners.len() as u64) < 3.3);
    assert!(owners.iter().all(|(number, _)| filter.groups(&key(number * 12 + 11)).has(11)));
    // The partitions have the same times, so their entries are in the same ages.
    let live: u32 = filter.live.count_ones();
    assert!((5..=6).contains(&live), "{live} ages");
}

#[test]
fn a_limit_on_the_memory_ends_the_oldest_ages_first() {
    const LIMIT: u64 = 4 << 20;
    let mut filter = TopicFilter::new(Duration::from_hours(1), positions(), LIMIT);
    for number in 0..8_000_000u64 {
        let ms = T + number.cast_signed();
        filter.insert(&key(number), 5, ms);
        if number % 10_000 == 0 {
            filter.expire(ms - 1_000);
            assert!(filter.memory_bytes() <= LIMIT, "{} bytes", filter.memory_bytes());
        }
    }
    // 4 MiB are enough for 1.8 million identities, half an hour.
    let now_ms = T + 8_000_000;
    let missing_ms = filter.missing_ms().unwrap();
    assert!((HOUR / 8..HOUR / 2).contains(&(now_ms - missing_ms)), "{} s", (now_ms - missing_ms) / 1_000);
    let first_found = u64::try_from(missing_ms - T + 1).unwrap();
    assert!((first_found..8_000_000).all(|number| filter.groups(&key(number)).has(5)));
    assert!(!filter.covers_own(now_ms), "an older owner can be in the window");
    // The limit has no effect when the traffic is low again.
    filter.expire(now_ms + 2 * HOUR);
    filter.insert(&key(1 << 30), 5, now_ms + 2 * HOUR);
    assert_eq!(filter.missing_ms(), None);
    assert!(filter.covers_own(now_ms + 2 * HOUR));
}

proptest! {
    /// Against a map: every owner whose distance to the record is within the window, and that is not older than the window at the
    /// horizon, is found; and so is every one within the window in the record's own partition, where the filter covers it.
    #[test]
    fn no_owner_that_counts_is_missed(
        steps in prop::collection::vec((0u64..40, 0u32..70, -20i64..900, 0i64..30, 1u64..3_000), 1..300),
        max_bytes in prop_oneof![Just(u64::MAX), 300_000u64..2_000_000],
    ) {
        let mut filter = TopicFilter::new(Duration::from_millis(100), positions(), max_bytes);
        let mut owners: HashMap<u64, Vec<(u32, i64)>> = HashMap::new();
        let (mut horizon, mut others) = (0, 1 << 40);
        for (number, partition, at, ahead, fillers) in steps {
            // Unknown where it is negative.
            let at_ms = if at < 0 { 0 } else { T + at };
            let groups = filter.groups(&key(number));
            for (owner, arrived) in owners.get(&number).into_iter().flatten() {
                let is_near = at_ms == 0 || *arrived == 0 || (at_ms - arrived).abs() <= 100;
                let is_dropped = filter.missing_ms().is_some_and(|ms| *arrived <= ms);
                let counts = is_near && *arrived >= horizon - 100 && !is_dropped
                    || *arrived > 0
                        && (0..=100).contains(&(at_ms - arrived))
                        && *owner == partition
                        && filter.covers_own(at_ms);
                prop_assert!(!counts || groups.has(*owner), "{number} in {owner} at {arrived}");
            }
            filter.insert(&key(number), partition, at_ms);
            owners.entry(number).or_default().push((partition, at_ms));
            for _ in 0..fillers {
                others += 1;
                filter.insert(&key(others), partition, at_ms);
            }
            if ahead == 0 {
                horizon = horizon.max(at_ms - 50);
                filter.expire(horizon);
            }
        }
    }
}
