//! The plan as a text table.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::HumanCount;

use super::{CapacityPlan, Fits, IdKind, PlannedFilters, count};
use crate::units::measured_text;

impl fmt::Display for CapacityPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.workload;
        section(f, "traffic")?;
        let (rate, partitions) = (self.new_ids_per_second, asked.partitions);
        let decimals = if rate < 10.0 { 3 } else { 0 };
        line(f, "new ids", &format!("{rate:.decimals$} per second, {partitions} partitions"))?;
        line(f, "exact", &format!("{}, {}", measured_text(asked.exact), ids(self.exact_ids)))?;
        if self.filters.is_some() {
            line(
                f,
                "in all, then in filters only",
                &format!("{}, {}", measured_text(asked.bloom), ids(self.window_ids)),
            )?;
        }
        self.memory(f)?;
        if let Some(filters) = &self.filters {
            self.filters(f, filters)?;
        }
        section(f, "disk and topic")?;
        let of_disk = format!("{} per id", per_id(self.disk_bytes, self.window_ids));
        costs(f, "local state", self.disk_bytes, &of_disk)?;
        let retention = Duration::from_secs(self.state_topic.retention_seconds);
        costs(
            f,
            "state topic",
            self.state_topic.bytes,
            &format!("one replica, retention.ms={} ({})", retention.as_millis(), measured_text(retention)),
        )?;
        self.hour_of_lag(f)?;
        section(f, "restart")?;
        line(f, "from local state", &format!("{:.1} s", self.restore.local_seconds))?;
        line(f, "from the state topic", &format!("{:.1} s", self.restore.state_topic_seconds))?;
        section(f, "errors")?;
        let taken = match asked.ids {
            IdKind::Uuid => "none for UUIDs, which are not hashed (--ids text: other ids)".to_owned(),
            IdKind::Text => format!("two ids with the same 128-bit hash: probability {:.0e}", self.collision),
        };
        line(f, "in the exact part", &taken)?;
        if self.filters.is_some() {
            let drops = format!(
                "at most {} new records per day dropped as duplicates",
                figure(self.false_drops_a_day)
            );
            line(f, "in filters only", &drops)?;
        }
        self.fixed(f)
    }
}

impl CapacityPlan {
    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        section(f, "memory, in topic scope")?;
        let memory = &self.memory;
        let exact = format!(
            "{} per id, at most {} while it fills",
            per_id(memory.exact_bytes, self.workload.held(self.exact_ids)),
            size(memory.exact_peak_bytes)
        );
        let what = if memory.sealed_ids > 0 { "exact part" } else { "exact index" };
        costs(f, what, memory.exact_bytes, &exact)?;
        if let Some(filters) = &self.filters {
            costs(
                f,
                "filters without owners",
                memory.bloom_bytes,
                &format!("{} per id", per_id(memory.bloom_bytes, filters.ids)),
            )?;
            costs(f, "total", memory.total_bytes, "")?;
        }
        costs(f, "in partition scope", memory.partition_scope_bytes, "the windows of all partitions")?;
        let of_transaction = "more at most, for the ids of the open transaction; within the limit below";
        costs(f, "and until they are committed", memory.transaction_bytes, of_transaction)?;
        let limit = "for a container or service unit, in topic scope";
        costs(f, "memory limit to set", memory.limit_bytes, limit)
    }

    fn hour_of_lag(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.workload.window().as_secs_f64().max(1.0);
        let of_hour = |of_window: u64| count(of_window as f64 * 3_600.0 / window);
        let in_memory = if self.misses.is_some() { 0 } else { self.memory.total_bytes };
        let [more, memory, disk] = [self.window_ids, in_memory, self.disk_bytes].map(of_hour);
        section(f, "for each hour by which one partition lags, in topic scope")?;
        let costs = format!("{}: {} of memory, {} of local state", ids(more), size(memory), size(disk));
        line(f, "held beyond the window", &costs)
    }

    fn fixed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(misses) = &self.misses {
            section(f, "duplicates forwarded as new, because their id was overwritten")?;
            for (seconds, rate) in misses.seconds.iter().zip(misses.rates) {
                let delay = format!("arriving {} later", measured_text(Duration::from_secs_f64(*seconds)));
                line(f, &delay, &share(rate))?;
            }
            let certain = measured_text(Duration::from_secs_f64(misses.seconds_for_99_percent));
            line(f, "99 % recognised", &format!("up to {certain}, {}", slots(misses.slots)))?;
        }
        section(f, "alternative: a table of fixed size that overwrites the oldest ids")?;
        let table = |buckets: u64| {
            format!("{} buckets of 8 bytes, {}", HumanCount(buckets), size(buckets.saturating_mul(8)))
        };
        line(f, "90 % still stored at the end", &table(self.fixed_memory.buckets_for_90_percent))?;
        line(f, "99 % still stored at the end", &table(self.fixed_memory.buckets_for_99_percent))?;
        line(f, "90 % with --overflow evict", &slots(self.fixed_memory.slots_for_90_percent))?;
        line(f, "99 % with --overflow evict", &slots(self.fixed_memory.slots_for_99_percent))
    }

    fn filters(&self, f: &mut fmt::Formatter<'_>, filters: &PlannedFilters) -> fmt::Result {
        section(f, "filters without owners")?;
        let span = measured_text(Duration::from_secs_f64(filters.span_seconds));
        line(f, "ids in filters only", &format!("{}; a filter covers at least {span}", ids(filters.ids)))?;
        let configured = self.workload.false_positive_rate;
        let rate = format!("{configured:.0e} configured, {:.1e} expected", filters.expected_rate);
        line(f, "false-positive rate", &rate)
    }
}

impl fmt::Display for Fits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        section(f, &format!("what fits into {}", size(self.memory_bytes)))?;
        let is_short = self.exact.window < self.asked;
        let short = if is_short {
            format!(": shorter than --exact {}", measured_text(self.asked))
        } else {
            String::new()
        };
        line(f, "entirely exact", &format!("{}{short}", measured_text(self.exact.window)))?;
        match &self.bloom {
            Some(fit) => line(f, "with filters after --exact", &measured_text(fit.window)),
            None => line(f, "with filters after --exact", "none: the exact part alone needs more"),
        }
    }
}

pub(super) fn section(f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
    writeln!(f, "{title}")
}

pub(super) fn line(f: &mut fmt::Formatter<'_>, what: &str, text: &str) -> fmt::Result {
    writeln!(f, "  {what:<30} {text}")
}

fn costs(f: &mut fmt::Formatter<'_>, what: &str, bytes: u64, text: &str) -> fmt::Result {
    writeln!(f, "{}", format!("  {what:<30} {:>10}  {text}", size(bytes)).trim_end())
}

/// In binary units.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn per_id(bytes: u64, ids: u64) -> String {
    format!("{:.1} bytes", bytes as f64 / ids.max(1) as f64)
}

fn ids(count: u64) -> String {
    format!("{} ids", HumanCount(count))
}

fn slots(count: u64) -> String {
    format!("--max-ids {count}, {}", size(count.saturating_mul(8)))
}

fn share(value: f64) -> String {
    if value >= 1e-4 { format!("{:.2} %", value * 100.0) } else { format!("{value:.0e}") }
}

fn figure(value: f64) -> String {
    if value >= 0.01 { format!("{value:.2}") } else { format!("{value:.0e}") }
}
