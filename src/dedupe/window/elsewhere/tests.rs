use std::time::Duration;

use super::*;
use crate::dedupe::window::hostile::OwnerMap;
use crate::dedupe::window::sealed::FilterBits;
use crate::dedupe::window::{BloomPart, Positions, TimeSource, WindowLimits};

const HOUR: i64 = 3_600_000;
const T: i64 = 1_700_000_000_000;

fn positions() -> Positions {
    Positions::keyed([7; 16])
}

fn identity(number: u64) -> Identity {
    Identity(u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
}

fn limits(bloom_hours: Option<u64>) -> WindowLimits {
    let bits = FilterBits::at_rate(1e-9);
    let bloom = bloom_hours.map(|hours| BloomPart { length: Duration::from_hours(hours), bits });
    WindowLimits { exact: Duration::from_hours(1), max_ids: 1 << 20, time: TimeSource::Record, bloom }
}

/// A window of another partition with one owner per minute of `hours`, committed each minute and expired by `horizon`.
fn filled(limits: WindowLimits, hours: u64, horizon: i64) -> (Window, OwnerMap) {
    let (mut window, mut known) = (Window::new(limits, positions()), OwnerMap::default());
    window.set_horizon(horizon);
    for minute in 0..hours * 60 {
        let at_ms = T + 60_000 * minute.cast_signed();
        window.observe(Some(at_ms), at_ms);
        window.admit(minute, &positions().key(identity(minute)));
        known.add(&window);
        window.commit(minute + 1);
    }
    (window, known)
}

fn found(window: &Window, known: &OwnerMap, minute: u64, at_ms: i64) -> Option<CopyOf> {
    let time = RecordTime { own_ms: at_ms, stream_ms: at_ms };
    window.copy_of(time, &positions().key(identity(minute)), known).unwrap()
}

#[test]
fn a_copy_counts_within_the_window_in_either_direction() {
    // The other partition is six hours ahead, and this one has not read anything.
    let (window, known) = filled(limits(None), 6, 0);
    let slack = HOUR / 128;
    for minute in [0, 90, 180, 359] {
        let arrived = T + 60_000 * i64::try_from(minute).unwrap();
        for (distance, is_found) in [
            (0, true),
            (HOUR, true),
            (-HOUR, true),
            (HOUR + slack + 60_000, false),
            (-HOUR - slack - 60_000, false),
            (5 * HOUR, false),
        ] {
            let copy = found(&window, &known, minute, arrived + distance);
            assert_eq!(copy.is_some(), is_found, "minute {minute}, distance {distance}: {copy:?}");
        }
    }
    assert!(found(&window, &known, 400, T).is_none());
    assert!(found(&window, &known, 3, 0).is_some(), "the stream time of the other partition is unknown");
}

#[test]
fn a_late_record_is_a_copy_by_its_own_time_and_by_its_arrival() {
    let (window, known) = filled(limits(None), 6, 0);
    let is_copy = |own_ms, stream_ms| {
        let time = RecordTime { own_ms, stream_ms };
        window.copy_of(time, &positions().key(identity(180)), &known).unwrap().is_some()
    };
    let arrived = T + 3 * HOUR;
    assert!(is_copy(arrived + HOUR, arrived + 9 * HOUR) && is_copy(arrived - 9 * HOUR, arrived - HOUR));
    assert!(is_copy(1, arrived + 9 * HOUR), "in between");
    assert!(!is_copy(arrived + 2 * HOUR, arrived + 9 * HOUR) && !is_copy(1, arrived - 2 * HOUR));
}

#[test]
fn owners_expire_by_the_horizon_and_not_by_the_partitions_own_clock() {
    let (behind, known) = filled(limits(None), 6, T + 2 * HOUR);
    assert!(found(&behind, &known, 65, T + 2 * HOUR).is_some());
    assert!(found(&behind, &known, 10, T + HOUR / 2).is_none(), "older than the horizon");
    let (ahead, known) = filled(limits(None), 6, i64::MAX);
    assert!(found(&ahead, &known, 65, T + 2 * HOUR).is_none());
}

#[test]
fn an_owner_beyond_the_exact_part_counts_while_it_is_in_the_window() {
    let (window, known) = filled(limits(Some(4)), 6, 0);
    let arrived = T + HOUR;
    for (distance, is_found) in
        [(HOUR / 2, true), (3 * HOUR, true), (6 * HOUR, false), (-3 * HOUR, true), (-6 * HOUR, false)]
    {
        assert_eq!(found(&window, &known, 60, arrived + distance).is_some(), is_found, "{distance}");
    }
}

#[test]
fn pending_owners_count_and_claims_do_not() {
    let (mut window, known) = (Window::new(limits(None), positions()), OwnerMap::default());
    window.observe(Some(T), T);
    window.claim(identity(1), 9);
    window.admit(4, &positions().key(identity(2)));
    assert_eq!(found(&window, &known, 1, T), None);
    assert_eq!(found(&window, &known, 2, T + HOUR), Some(CopyOf { offset: 4, arrived_ms: T }));
    window.abort();
    assert_eq!(found(&window, &known, 2, T), None);
}
