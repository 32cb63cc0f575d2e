//! The plan's arithmetic, by examples, and what it says of memory against memory as allocated.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod allocated;
mod examples;

use std::time::Duration;

use dedupd::plan::{IdKind, Workload};

/// UUIDs in one partition, exact for a day, no duplicates.
fn question(events_per_second: f64) -> Workload {
    Workload {
        events_per_second,
        duplicates: 0.0,
        ids: IdKind::Uuid,
        exact: Duration::from_hours(24),
        bloom: Duration::from_hours(24),
        slices: 7,
        false_positive_rate: 1e-9,
        partitions: 1,
        slots: None,
    }
}
