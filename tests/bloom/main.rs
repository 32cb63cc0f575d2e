//! The Bloom part of the window: what is inside is always found, what is not is found as seldom as promised.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod memory;
mod never_lost;
mod rates;
mod rebuild;

use std::time::Duration;

use dedupd::dedupe::{BloomLimits, Identity, Look};

/// An hour of stream time, in ms.
const HOUR: i64 = 3_600_000;
/// A beginning of a slice of any whole number of hours up to 24, in ms since the epoch.
const START: i64 = 19_675 * 24 * HOUR;

/// A week with a day of it exact, seven slices.
fn week(rate: f64) -> BloomLimits {
    BloomLimits {
        exact: Duration::from_hours(24),
        bloom: Duration::from_hours(168),
        slices: 7,
        false_positive_rate: rate,
        max_bytes: u64::MAX,
    }
}

/// Version 7 UUIDs: a time in front that hardly moves, version and variant bits, the rest a counter.
fn numbered(number: u64) -> Identity {
    let front = 0x0190_0000_0000_u128 + u128::from(number / 4_096);
    let id = (front << 80) | (7 << 76) | (u128::from(number % 4_096) << 64) | (2 << 62) | u128::from(number);
    Identity(id.to_be_bytes())
}

fn look(number: u64) -> Look {
    Look::at(numbered(number))
}

/// Identities that nobody ever inserts.
fn absent(count: u64) -> impl Iterator<Item = Look> {
    (0..count).map(|number| look((1 << 50) + number))
}
