//! All gauges with the label `partition`, in one place, so that a revoked partition leaves no series behind.

use std::time::Duration;

use prometheus::GaugeVec;

use super::registered;
use super::status::PartitionStatus;
use super::table::ByPartition;

impl ByPartition {
    /// Sets the gauges whose values are known. A value that was never known has no series. A value that is
    /// temporarily unknown keeps its last one: a window of 0 seconds during loading would raise a false alarm.
    pub(super) fn set(&self, status: &PartitionStatus, log_start: Option<u64>, hanging: Option<Duration>) {
        let label = status.partition.to_string();
        let set = |gauges: &GaugeVec, value: Option<f64>| {
            if let Some(value) = value {
                registered::set(gauges, &label, value);
            }
        };
        set(&self.lag, status.lag_records.map(|lag| lag as f64));
        set(&self.raw_start, log_start.map(|start| start as f64));
        let retained = status.committed.zip(log_start).map(|(next, start)| next.saturating_sub(start));
        set(&self.raw_retained, retained.map(|count| count as f64));
        set(&self.raw_hanging, hanging.map(|age| age.as_secs_f64()));
        if status.window.asked_seconds > 0.0 {
            set(&self.window_seconds, Some(status.window_seconds));
            set(&self.window_certain, Some(status.window.certain_seconds));
            set(&self.window_ids, status.window_ids.map(|ids| ids as f64));
            set(&self.miss_rate, Some(status.window.miss_rate));
        }
    }

    /// Removes the series of a partition. A series that does not exist is no error.
    pub(super) fn remove(&self, partition: u32) {
        let label = partition.to_string();
        self.all().into_iter().for_each(|gauges| drop(gauges.remove_label_values(&[&label])));
    }
}
