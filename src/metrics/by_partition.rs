//! All gauges with the label `partition`, in one place, so that a revoked partition leaves no series behind.

use std::time::Duration;

use prometheus::GaugeVec;

use super::status::PartitionStatus;
use super::table::{self, Row};

/// Every gauge with a series for each partition.
pub(super) struct ByPartition {
    lag: GaugeVec,
    raw_start: GaugeVec,
    raw_retained: GaugeVec,
    raw_hanging: GaugeVec,
    window_seconds: GaugeVec,
    window_certain: GaugeVec,
    window_ids: GaugeVec,
    miss_rate: GaugeVec,
}

impl ByPartition {
    /// Creates the gauges with `gauges`, from the rows of the table. They have no series yet.
    pub(super) fn new(gauges: impl Fn(&Row) -> GaugeVec) -> Self {
        Self {
            lag: gauges(&table::LAG),
            raw_start: gauges(&table::RAW_START),
            raw_retained: gauges(&table::RAW_RETAINED),
            raw_hanging: gauges(&table::RAW_HANGING),
            window_seconds: gauges(&table::WINDOW_SECONDS),
            window_certain: gauges(&table::WINDOW_CERTAIN),
            window_ids: gauges(&table::WINDOW_IDS),
            miss_rate: gauges(&table::MISS_RATE),
        }
    }

    /// Sets the gauges whose values are known. A value that was never known has no series. A value that is
    /// temporarily unknown keeps its last one: a window of 0 seconds during loading would raise a false alarm.
    pub(super) fn set(&self, status: &PartitionStatus, log_start: Option<u64>, hanging: Option<Duration>) {
        let label = status.partition.to_string();
        let set = |gauge: &GaugeVec, value: f64| gauge.with_label_values(&[&label]).set(value);
        if let Some(lag) = status.lag_records {
            set(&self.lag, lag as f64);
        }
        if let Some(start) = log_start {
            set(&self.raw_start, start as f64);
            if let Some(committed) = status.committed {
                set(&self.raw_retained, committed.saturating_sub(start) as f64);
            }
        }
        if let Some(hanging) = hanging {
            set(&self.raw_hanging, hanging.as_secs_f64());
        }
        if status.window.asked_seconds > 0.0 {
            set(&self.window_seconds, status.window_seconds);
            set(&self.window_certain, status.window.certain_seconds);
            if let Some(ids) = status.window_ids {
                set(&self.window_ids, ids as f64);
            }
            set(&self.miss_rate, status.window.miss_rate);
        }
    }

    /// Removes the series of a partition. A series that does not exist is no error.
    pub(super) fn remove(&self, partition: u32) {
        let label = partition.to_string();
        for gauges in [
            &self.lag,
            &self.raw_start,
            &self.raw_retained,
            &self.raw_hanging,
            &self.window_seconds,
            &self.window_certain,
            &self.window_ids,
            &self.miss_rate,
        ] {
            drop(gauges.remove_label_values(&[&label]));
        }
    }
}
