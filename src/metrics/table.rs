//! Every metric, once.

use std::fmt::Write as _;

use super::labels::{
    Beginning, MemoryPart, Outcome, PartitionState, Resolution, RestoreSource, Stall, Topic,
    TransactionResult,
};

/// What kind of metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// The label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values; empty where they are not known beforehand.
    pub values: &'static [&'static str],
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Its full name.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Base unit, or what is counted.
    pub unit: &'static str,
    /// Its label, if it has one.
    pub label: Option<Label>,
    /// Whether it has the label `kind` before that one, the name of a kind in the configuration.
    pub by_kind: bool,
    /// One sentence.
    pub help: &'static str,
}

impl Row {
    const fn new(name: &'static str, kind: Kind, unit: &'static str, help: &'static str) -> Self {
        Self { name, kind, unit, label: None, by_kind: false, help }
    }

    const fn by(self, name: &'static str, values: &'static [&'static str]) -> Self {
        Self { label: Some(Label { name, values }), ..self }
    }

    const fn by_kind(self) -> Self {
        Self { by_kind: true, ..self }
    }

    /// The names of its labels.
    #[must_use]
    pub fn labels(&self) -> Vec<&'static str> {
        self.by_kind.then_some("kind").into_iter().chain(self.label.map(|label| label.name)).collect()
    }
}

use Kind::{Counter, Gauge, Histogram};

pub(super) const RECORDS: Row = Row::new(
    "dedupd_records_total",
    Counter,
    "records",
    "Raw records by what became of them, once committed.",
)
.by("outcome", Outcome::NAMES);
pub(super) const KIND_RECORDS: Row = Row::new(
    "dedupd_kind_records_total",
    Counter,
    "records",
    "The same for the records of each kind in [[kinds]].",
)
.by("outcome", Outcome::NAMES)
.by_kind();
pub(super) const BYTES: Row = Row::new(
    "dedupd_bytes_total",
    Counter,
    "bytes",
    "Bytes of keys and values read or written, once committed.",
)
.by("topic", Topic::NAMES);
pub(super) const LATENCY: Row = Row::new(
    "dedupd_latency_seconds",
    Histogram(&[0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0]),
    "seconds",
    "From a record's timestamp in raw to its commit in clean.",
);
pub(super) const TRANSACTIONS: Row =
    Row::new("dedupd_transactions_total", Counter, "transactions", "Transactions by how they ended.")
        .by("result", TransactionResult::NAMES);
pub(super) const TRANSACTION_SECONDS: Row = Row::new(
    "dedupd_transaction_seconds",
    Histogram(&[0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]),
    "seconds",
    "From the first record of a transaction to its end.",
);
pub(super) const BATCH_RECORDS: Row = Row::new(
    "dedupd_batch_records",
    Histogram(&[1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 25_000.0, 50_000.0, 100_000.0]),
    "records",
    "Raw records in a committed transaction.",
);
pub(super) const TORN: Row = Row::new(
    "dedupd_torn_transactions_total",
    Counter,
    "transactions",
    "Transactions that a broker left without their marker, by how they were settled.",
)
.by("resolution", Resolution::NAMES);
pub(super) const LAG: Row = Row::new(
    "dedupd_lag_records",
    Gauge,
    "offsets",
    "From the next offset to process to the end that read_committed can see.",
)
.by("partition", &[]);
pub(super) const RAW_START: Row = Row::new(
    "dedupd_raw_start_offset",
    Gauge,
    "offset",
    "The first offset that retention has left in the raw log; asked every 30 seconds.",
)
.by("partition", &[]);
pub(super) const RAW_RETAINED: Row = Row::new(
    "dedupd_raw_retained_records",
    Gauge,
    "offsets",
    "From there to the committed offset: at 0, with lag, retention is about to delete what was not read yet.",
)
.by("partition", &[]);
pub(super) const RAW_HANGING: Row = Row::new(
    "dedupd_raw_hanging_seconds",
    Gauge,
    "seconds",
    "For how long an upstream transaction has stood open, at least: what lies behind it cannot be read; 0 if none does.",
)
.by("partition", &[]);
pub(super) const WINDOW_SECONDS: Row = Row::new(
    "dedupd_window_seconds",
    Gauge,
    "seconds",
    "How far back identities are remembered, in stream time; less than asked when a limit bites.",
)
.by("partition", &[]);
pub(super) const KIND_WINDOW_SECONDS: Row = Row::new(
    "dedupd_kind_window_seconds",
    Gauge,
    "seconds",
    "The same of the window of a kind, in the partition where it is shortest.",
)
.by_kind();
pub(super) const KIND_WINDOW_IDS: Row =
    Row::new("dedupd_kind_window_ids", Gauge, "identities", "Identities in the windows of a kind.").by_kind();
pub(super) const WINDOW_CONFIGURED: Row = Row::new(
    "dedupd_window_configured_seconds",
    Gauge,
    "seconds",
    "How far back identities shall be remembered: the longer of window.exact and window.bloom.",
);
pub(super) const WINDOW_CERTAIN: Row = Row::new(
    "dedupd_window_certain_seconds",
    Gauge,
    "seconds",
    "How far back identities are remembered exactly and none was overwritten, in stream time.",
)
.by("partition", &[]);
pub(super) const WINDOW_IDS: Row =
    Row::new("dedupd_window_ids", Gauge, "identities", "Identities in the window.").by("partition", &[]);
pub(super) const EVICTED: Row = Row::new(
    "dedupd_evicted_ids_total",
    Counter,
    "identities",
    "Identities overwritten before their time, with window.overflow = evict.",
);
pub(super) const MISS_RATE: Row = Row::new(
    "dedupd_window_miss_rate",
    Gauge,
    "share",
    "Of the identities inside the exact window, those that were overwritten: copies of them are forwarded.",
)
.by("partition", &[]);
pub(super) const FALSE_POSITIVE_RATE: Row = Row::new(
    "dedupd_false_positive_rate",
    Gauge,
    "chance",
    "That a record never seen counts as probably seen, from the bits set in the filters; the worst partition's.",
);
pub(super) const FALSE_POSITIVE_RATE_PROMISED: Row = Row::new(
    "dedupd_false_positive_rate_promised",
    Gauge,
    "chance",
    "The highest that is configured, window.false_positive_rate; 0 without filters.",
);
pub(super) const FALSE_DROPS: Row = Row::new(
    "dedupd_probable_false_drops_estimate",
    Gauge,
    "records",
    "Records called probably seen that were not, since the start: new records times that chance.",
);
pub(super) const MEMORY: Row =
    Row::new("dedupd_memory_bytes", Gauge, "bytes", "Memory by what it is used for.")
        .by("part", MemoryPart::NAMES);
pub(super) const STATE_DISK: Row =
    Row::new("dedupd_state_disk_bytes", Gauge, "bytes", "Size of the local state on disk.");
pub(super) const RESTORE_SECONDS: Row = Row::new(
    "dedupd_restore_seconds",
    Histogram(&[0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0]),
    "seconds",
    "From the assignment of a partition to its state being complete.",
);
pub(super) const RESTORED: Row =
    Row::new("dedupd_restored_ids_total", Counter, "identities", "Identities loaded, by where from.")
        .by("source", RestoreSource::NAMES);
pub(super) const PARTITIONS: Row =
    Row::new("dedupd_partitions", Gauge, "partitions", "Partitions of this process by what they are doing.")
        .by("state", PartitionState::NAMES);
pub(super) const REBALANCES: Row =
    Row::new("dedupd_rebalances_total", Counter, "events", "Assignments and revocations seen.");
pub(super) const UNASSIGNED: Row = Row::new(
    "dedupd_group_unassigned_partitions",
    Gauge,
    "partitions",
    "Partitions of raw that no member of the group has, as every instance sees it; asked every 4 seconds.",
);
pub(super) const GROUP_LAG: Row = Row::new(
    "dedupd_group_lag_records",
    Gauge,
    "offsets",
    "From the committed offset to the end that read_committed can see, of every partition of raw, owned or not.",
)
.by("partition", &[]);
pub(super) const FORCED: Row = Row::new(
    "dedupd_forced_rebalances_total",
    Counter,
    "rebalances",
    "Rebalances that this instance forced because partitions had no owner.",
);
pub(super) const STALLED: Row = Row::new(
    "dedupd_stalled_fetches_total",
    Counter,
    "partitions",
    "Partitions assigned anew inside the client because it did not fetch what the log has.",
)
.by("reason", Stall::NAMES);
pub(super) const BEGINNINGS: Row = Row::new(
    "dedupd_beginnings_total",
    Counter,
    "partitions",
    "Partitions that went on elsewhere than at the group's offset, by why.",
)
.by("reason", Beginning::NAMES);
pub(super) const GAP_OFFSETS: Row = Row::new(
    "dedupd_gap_offsets_total",
    Counter,
    "offsets",
    "Raw offsets that were deleted before they were read and skipped, as group.on_gap = accept asks.",
);
pub(super) const READY: Row =
    Row::new("dedupd_ready", Gauge, "0 or 1", "1 when /readyz answers 200, else 0.");
pub(super) const BUILD: Row =
    Row::new("dedupd_build_info", Gauge, "1", "Always 1; the label is the version.").by("version", &[]);
pub(super) const RESIDENT: Row =
    Row::new("process_resident_memory_bytes", Gauge, "bytes", "Resident memory of the process (Linux).");
pub(super) const CPU: Row =
    Row::new("process_cpu_seconds_total", Counter, "seconds", "User and system time of the process (Linux).");

/// Every metric, in the order of the documentation.
pub const TABLE: &[Row] = &[
    RECORDS,
    KIND_RECORDS,
    BYTES,
    LATENCY,
    TRANSACTIONS,
    TRANSACTION_SECONDS,
    BATCH_RECORDS,
    TORN,
    LAG,
    RAW_START,
    RAW_RETAINED,
    RAW_HANGING,
    WINDOW_SECONDS,
    WINDOW_CONFIGURED,
    WINDOW_CERTAIN,
    WINDOW_IDS,
    KIND_WINDOW_SECONDS,
    KIND_WINDOW_IDS,
    EVICTED,
    MISS_RATE,
    FALSE_POSITIVE_RATE,
    FALSE_POSITIVE_RATE_PROMISED,
    FALSE_DROPS,
    MEMORY,
    STATE_DISK,
    RESTORE_SECONDS,
    RESTORED,
    PARTITIONS,
    REBALANCES,
    UNASSIGNED,
    GROUP_LAG,
    FORCED,
    STALLED,
    BEGINNINGS,
    GAP_OFFSETS,
    READY,
    BUILD,
    RESIDENT,
    CPU,
];

/// Begins the generated section of a Markdown file.
pub const BEGIN: &str = "<!-- metrics: begin, made from src/metrics/table.rs -->";
/// Ends the generated section of a Markdown file.
pub const END: &str = "<!-- metrics: end -->";

/// The table in Markdown.
pub fn markdown() -> String {
    let mut text = String::from("| metric | kind | unit | label | meaning |\n|---|---|---|---|---|\n");
    for row in TABLE {
        let kind = match row.kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram(_) => "histogram",
        };
        let label = row.label.map(|label| match label.values {
            [] => format!("`{}`", label.name),
            values => format!("`{}`: {}", label.name, values.join(", ")),
        });
        let labels: Vec<_> = row.by_kind.then(|| "`kind`".to_owned()).into_iter().chain(label).collect();
        let label = labels.join("; ");
        let line = writeln!(text, "| `{}` | {kind} | {} | {label} | {} |", row.name, row.unit, row.help);
        debug_assert!(line.is_ok(), "writing to a String cannot fail");
    }
    text
}

/// A Markdown file with what stands between [`BEGIN`] and [`END`] replaced by [`markdown`]; `None`
/// when the marks are missing. The file is up to date when the result equals it.
pub fn regenerated(file: &str) -> Option<String> {
    let (before, rest) = file.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}{END}{after}", markdown()))
}
