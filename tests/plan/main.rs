//! The arithmetic of the plan: examples, and planned memory compared with allocated memory.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ages;
mod allocated;
mod examples;

use std::time::Duration;

use dedupd::tools::plan::{IdKind, Workload};

/// A workload of UUIDs in one partition with an exact window of a day and no duplicates.
fn workload(events_per_second: f64) -> Workload {
    Workload {
        events_per_second,
        duplicates: 0.0,
        ids: IdKind::Uuid,
        exact: Duration::from_hours(24),
        bloom: Duration::from_hours(24),
        false_positive_rate: 1e-9,
        partitions: 1,
        slots: None,
    }
}
