//! The Bloom part of the window: measured and configured false-positive rate, bits per id, look-ups and inserts
//! per second on one core. `cargo bench --bench bloom [-- <million ids> <million probes>]`, 50 and 100
//! without arguments.
//!
//! Look-ups query all eight slices, of which the seven older ones are full: the worst case. Times are the CPU time of
//! the thread where the system reports it (Linux).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measurement fails by panicking"
)]

#[path = "support/spent.rs"]
mod spent;
#[path = "support/stream.rs"]
mod stream;

use std::ops::Range;
use std::time::Duration;

use dedupd::dedupe::window::CHUNK;
use dedupd::dedupe::{Bloom, BloomLimits, IndexKey};
use spent::spent;
use stream::numbered;

/// Stream time of the first record, in epoch milliseconds.
const START: i64 = 1_700_006_400_000;
/// Length of a slice, in milliseconds.
const SLICE_MS: i64 = 24 * 3_600_000;
/// Slices of traffic: those of the window, and as many before them that only determine the size of its filters.
const SLICES: u64 = 16;
/// Identities per transaction.
const BATCH: u64 = 16_384;

fn main() {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let ids = arguments.first().copied().unwrap_or(50) * 1_000_000;
    let probes = arguments.get(1).copied().unwrap_or(100) * 1_000_000;
    for rate in [1e-4, 1e-6, 1e-9] {
        measure(rate, ids, probes);
    }
}

fn measure(rate: f64, ids: u64, probes: u64) {
    let limits = BloomLimits {
        exact: Duration::ZERO,
        bloom: Duration::from_millis(7 * SLICE_MS.unsigned_abs()),
        slices: 7,
        false_positive_rate: rate,
        max_bytes: u64::MAX,
    };
    let mut bloom = Bloom::new(limits);
    let made = (ids / 8) * SLICES;
    let began = spent();
    let most = fill(&mut bloom, made, ids / 8);
    let inserting = spent() - began;
    let now = START + SLICES.cast_signed() * SLICE_MS - 1;
    let queried = bloom.queried(now);
    println!(
        "\nconfigured {rate:.0e}, {} M ids in {} slices:",
        bloom.ids() / 1_000_000,
        bloom.slices().len()
    );
    let computed = bloom.false_positive_rate(&queried);
    println!("  computed from fill    {computed:.3e}");
    assert!(computed <= rate, "the computed rate exceeds the configured rate");
    let began = spent();
    let passed = look_up(&bloom, &queried, (0..probes).map(|number| (1 << 50) + number));
    println!(
        "  measured              {:.3e}   {passed} of {} M absent ids, so at most {:.3e} (95 %)",
        passed as f64 / probes as f64,
        probes / 1_000_000,
        at_most(passed) / probes as f64
    );
    println!("  key-ups, absent ids  {:.2} M/s", probes as f64 / (spent() - began) / 1e6);
    let held = bloom.ids();
    let again = held.min(probes);
    let began = spent();
    let found = look_up(&bloom, &queried, made - again..made);
    assert_eq!(found, again, "an id of the window was not found");
    println!("  key-ups, known ids   {:.2} M/s", again as f64 / (spent() - began) / 1e6);
    println!(
        "  inserts               {:.2} M/s, longest batch of {BATCH} {:.1} ms",
        made as f64 / inserting / 1e6,
        most * 1e3
    );
    println!(
        "  memory                {:.1} MB, {:.1} bits per id",
        bloom.memory_bytes() as f64 / 1e6,
        bloom.memory_bytes() as f64 * 8.0 / held as f64
    );
}

/// Upper 95 % confidence bound of the expected number of events when `seen` were observed: exact for 0, otherwise by
/// Wilson and Hilferty's approximation of the chi-squared distribution.
fn at_most(seen: u64) -> f64 {
    const QUANTILE: f64 = 1.645;
    let events = seen as f64 + 1.0;
    let root = 1.0 - 1.0 / (9.0 * events) + QUANTILE / (3.0 * events.sqrt());
    if seen == 0 { 2.996 } else { events * root.powi(3) }
}

/// Inserts even traffic over all slices. Returns the duration of the longest batch in seconds.
fn fill(bloom: &mut Bloom, ids: u64, ids_per_slice: u64) -> f64 {
    let time =
        |number: u64| START + (u128::from(number) * SLICE_MS as u128 / u128::from(ids_per_slice)) as i64;
    let mut longest = 0.0f64;
    for first in (0..ids).step_by(BATCH as usize) {
        let began = spent();
        let batch = first..(first + BATCH).min(ids);
        bloom.insert_all(batch.clone().map(|number| (numbered(number), time(number))));
        bloom.expire(time(batch.end - 1));
        longest = longest.max(spent() - began);
    }
    longest
}

/// Looks up identities in two passes, as the window does. Returns the number of matches.
fn look_up(bloom: &Bloom, queried: &Range<i64>, numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers = numbers.map(|number| IndexKey::at(numbered(number)));
    let (mut keys, mut passed) = (Vec::with_capacity(CHUNK), 0);
    loop {
        keys.clear();
        for key in numbers.by_ref().take(CHUNK) {
            bloom.prefetch(&key);
            keys.push(key);
        }
        if keys.is_empty() {
            return passed;
        }
        passed += keys.iter().filter(|key| bloom.probably(key, queried).is_some()).count() as u64;
    }
}
