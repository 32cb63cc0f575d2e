//! The Bloom filters of the window: every inserted id is found, and the false-positive rate is at most the configured one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod memory;
mod never_lost;
mod rates;
mod rebuild;

use std::time::Duration;

use dedupd::dedupe::{BloomLimits, Identity, IndexKey};

/// An hour of stream time, in milliseconds.
const HOUR: i64 = 3_600_000;
/// The start of a slice of any whole number of hours up to 24, in epoch milliseconds.
const START: i64 = 19_675 * 24 * HOUR;

/// A window of a week, of which one day is exact, with seven slices.
fn week(rate: f64) -> BloomLimits {
    BloomLimits {
        exact: Duration::from_hours(24),
        bloom: Duration::from_hours(168),
        slices: 7,
        false_positive_rate: rate,
        max_bytes: u64::MAX,
    }
}

/// Version 7 UUIDs: a slowly increasing time, version and variant bits, and a counter.
fn numbered(number: u64) -> Identity {
    let front = 0x0190_0000_0000_u128 + u128::from(number / 4_096);
    let id = (front << 80) | (7 << 76) | (u128::from(number % 4_096) << 64) | (2 << 62) | u128::from(number);
    Identity(id.to_be_bytes())
}

fn key(number: u64) -> IndexKey {
    IndexKey::at(numbered(number))
}

/// Ids that are never inserted.
fn absent(count: u64) -> impl Iterator<Item = IndexKey> {
    (0..count).map(|number| key((1 << 50) + number))
}
