//! Compares planned memory with the memory that the window and the filters allocate.

use std::collections::VecDeque;
use std::time::Duration;

use dedupd::dedupe::{
    Coordinates, Digest, FILTERS, FilterBits, HashKind, Identity, KnownOwner, Owner, OwnerScan, Positions,
    SMALLEST_SLICE, SealedRange, Slice, SliceBuilder, SliceCover, SliceCoverage, SliceError, SliceMark,
    StampedOwner, TimeSource, Window, WindowBounds, WindowLimits, slice_ids,
};
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

/// Adds the record with this number, at a rate of `ids` per hour.
fn admit(window: &mut Window, number: u64, ids: u64) {
    let (identity, stamp_ms) = (numbered(number), arrival(number, ids));
    let at = Coordinates { partition: 0, offset: number };
    window.set_horizon(stamp_ms);
    let owner = Owner { at, time_ms: stamp_ms, identity, digest: Digest::NONE };
    window.admit(StampedOwner { owner, stamp_ms }, &window.key(identity));
}

fn within_a_tenth(planned: u64, allocated: u64, what: &str) {
    let ratio = planned as f64 / allocated as f64;
    assert!((0.9..=1.1).contains(&ratio), "{what}: {planned} planned, {allocated} allocated");
}

#[test]
fn the_exact_index_takes_the_planned_memory() {
    let hour = Duration::from_hours(1);
    // Of more ids, the old ones are sealed.
    for ids in [20_000u64, 65_000, 100_000, 160_000] {
        let workload = Workload { exact: hour, bloom: hour, ..super::workload(ids as f64 / 3_600.0) };
        let planned = CapacityPlan::of(workload).memory;
        let limits = WindowLimits { exact: hour, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
        let mut window = Window::new(limits, Positions::keyed([7; 16]));
        let mut peak = 0;
        let batch = (ids / 2_000).max(1);
        for number in 0..ids * 4 {
            admit(&mut window, number, ids);
            if number % batch == 0 {
                window.commit();
                peak = peak.max(window.memory_bytes() as u64);
            }
        }
        within_a_tenth(planned.exact_bytes, window.memory_bytes() as u64, &format!("{ids} ids"));
        within_a_tenth(planned.exact_peak_bytes, peak, &format!("the peak of {ids} ids"));
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as a file is written")]
fn extend(file: &mut Vec<u8>, part: &[u8]) -> Result<(), SliceError> {
    file.extend_from_slice(part);
    Ok(())
}

/// The slice of these owners, as it is in memory. Their times differ by an hour at most.
fn slice(range: SealedRange, only_filter: Option<FilterBits>) -> Slice {
    let (numbers, (first_ms, _)) = (range.first..range.next, range.time_ms());
    let (hash, window, cover) = (HashKind::Xxh3, 0.into(), SliceCover::default());
    let coverage = SliceCoverage { file: 0, hash, window, range, cover, only_filter };
    let mut builder = SliceBuilder::new(coverage, Positions::keyed([7; 16]), OwnerScan::Everything);
    let mut file = Vec::new();
    while builder.needs_pass() {
        for offset in numbers.clone() {
            let at = Coordinates { partition: 0, offset };
            builder.offer(numbered(offset), Some(KnownOwner { at, time_ms: first_ms, digest: Digest::NONE }));
        }
        builder.end_pass(|part| extend(&mut file, part), |error| error).unwrap();
    }
    builder.finish(|part| extend(&mut file, part)).unwrap();
    let read = |at: u64, bytes: &mut [u8]| {
        let at = usize::try_from(at).unwrap();
        bytes.copy_from_slice(&file[at..at + bytes.len()]);
        Ok(())
    };
    Slice::read(file.len() as u64, read, |error: SliceError| panic!("{error}")).map_err(|()| "").unwrap()
}

#[test]
fn sealed_windows_take_the_planned_memory() {
    let hour = Duration::from_hours(1);
    for ids in [2_500_000u64, 4_000_000] {
        let workload = Workload { exact: hour, bloom: hour, ..super::workload(ids as f64 / 3_600.0) };
        let planned = CapacityPlan::of(workload).memory;
        let limits = WindowLimits { exact: hour, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
        let mut window = Window::new(limits, Positions::keyed([7; 16]));
        let (mut slices, mut peak): (VecDeque<(u64, Slice)>, u64) = Default::default();
        for number in 0..ids * 5 / 2 {
            admit(&mut window, number, ids);
            if number % 1_000 > 0 {
                continue;
            }
            window.commit();
            let size = slice_ids(SMALLEST_SLICE, window.ids());
            window.set_bounds(WindowBounds { unsealed: size * 3, ..WindowBounds::NONE });
            if window.unsealed() >= 2 * size {
                let until = arrival(number - size, ids);
                let range = window.to_seal(until, u64::MAX).unwrap();
                let next = range.next;
                slices.push_back((next, slice(range, None)));
                window.seal(next);
            }
            while slices.pop_front_if(|(next, _)| *next <= window.first_live()).is_some() {}
            let in_slices: u64 = slices.iter().map(|(_, slice)| slice.memory_bytes()).sum();
            peak = peak.max(window.memory_bytes() as u64 + in_slices);
        }
        let in_slices: u64 = slices.iter().map(|(_, slice)| slice.memory_bytes()).sum();
        let steady = window.memory_bytes() as u64 + in_slices;
        println!("{ids} ids: {in_slices} in slices, {steady} in all, peak {peak}; {planned:?}");
        within_a_tenth(planned.exact_bytes, steady, &format!("{ids} ids"));
        assert!(peak <= planned.exact_peak_bytes, "the peak of {ids} ids is {peak}: {planned:?}");
    }
}

#[test]
fn filters_without_owners_take_the_planned_memory() {
    for (ids, rate) in [(2_500_000u64, 1e-9), (4_000_000, 1e-4)] {
        let (exact, bloom) = (Duration::from_mins(10), Duration::from_hours(1));
        let asked = super::workload(ids as f64 / 3_600.0);
        let plan = CapacityPlan::of(Workload { exact, bloom, false_positive_rate: rate, ..asked });
        let planned = plan.filters.unwrap();
        let bits = FilterBits::at_rate(rate);
        let of_hour = ids / FILTERS;
        let marks = vec![SliceMark { next: of_hour, count: of_hour, time_ms: (0, 0) }];
        let filter = slice(SealedRange { first: 0, next: of_hour, marks }, Some(bits));
        let found = filter.memory_bytes() as f64 * 8.0 / of_hour as f64;
        assert!((found / planned.bits_an_id - 1.0).abs() < 0.03, "{found} bits for an id, {planned:?}");
        assert_eq!(planned.ids, ids * 83 / 100 - ids / FILTERS / 2);
        assert!(planned.expected_rate <= rate && planned.expected_rate > rate / 2.0, "{planned:?}");
    }
}
