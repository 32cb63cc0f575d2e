//! Every metric, once.

mod markdown;
mod row;

pub use markdown::{BEGIN, END, markdown, regenerated};
pub use row::{Label, MetricKind, Row};

use super::labels::{
    ClientLabel, MemoryPart, OffsetReset, Outcome, PartitionState, Resolution, RestoreSource, Role, Stall,
    TopicLabel, TransactionResult,
};

use MetricKind::{Counter, Gauge, Histogram};

/// Declares a constant for each row, and a table of all rows in the same order, followed by rows of other tables.
macro_rules! rows {
    ($(#[$doc:meta])* $table:ident = rows $(+ [$($other:expr),+])?; $($name:ident = $row:expr;)+) => {
        $(pub(super) const $name: Row = $row;)+

        $(#[$doc])*
        pub const $table: &[Row] = &[$($name,)+ $($($other),+)?];
    };
}
pub(super) use rows;

rows! {
    /// Every metric, in the order of the documentation.
    TABLE = rows;

    RECORDS =
        Row::new("dedupd_records_total", Counter, "records", "Raw records by outcome, counted at the commit.")
            .by("outcome", Outcome::NAMES);
    KIND_RECORDS = Row::new(
        "dedupd_kind_records_total",
        Counter,
        "records",
        "Raw records by kind of [[kinds]] and outcome, counted at the commit.",
    )
    .by("outcome", Outcome::NAMES)
    .by_kind();
    BYTES = Row::new(
        "dedupd_bytes_total",
        Counter,
        "bytes",
        "Bytes of keys and values read or written, counted at the commit.",
    )
    .by("topic", TopicLabel::NAMES);
    LATENCY = Row::new(
        "dedupd_latency_seconds",
        Histogram(&[0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0]),
        "seconds",
        "Time from the arrival of a record in this process to its commit in the clean topic.",
    );
    AGE = Row::new(
        "dedupd_record_age_seconds",
        Histogram(&[0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0, 86_400.0]),
        "seconds",
        "Time from the timestamp of a record to its commit in the clean topic. It contains the delay of the producer, and of an outage or a replay.",
    );
    TRANSACTIONS = Row::new(
        "dedupd_transactions_total",
        Counter,
        "transactions",
        "Transactions by result, counted once it is known.",
    )
    .by("result", TransactionResult::NAMES);
    TRANSACTION_SECONDS = Row::new(
        "dedupd_transaction_seconds",
        Histogram(&[0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]),
        "seconds",
        "Time from the first record of a transaction to its last marker, or to the failure that ended it.",
    );
    BATCH_RECORDS = Row::new(
        "dedupd_batch_records",
        Histogram(&[1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 25_000.0, 50_000.0, 100_000.0]),
        "records",
        "Raw records per committed transaction.",
    );
    LAST_COMMIT = Row::new(
        "dedupd_last_commit_timestamp_seconds",
        Gauge,
        "seconds",
        "Time of the last commit, in seconds since 1970, latest of all workers; 0 before the first one.",
    );
    REDUCED = Row::new(
        "dedupd_transaction_reduced_records",
        Gauge,
        "records",
        "Most records of a transaction while the limit is reduced because one took long, lowest of all workers; otherwise 0.",
    );
    CLIENT_ROUND_TRIP = Row::new(
        "dedupd_client_round_trip_seconds",
        Gauge,
        "seconds",
        "99th percentile of the requests to the slowest broker in the last 10 s, from sending to the response.",
    )
    .by("client", ClientLabel::NAMES);
    CLIENT_THROTTLE = Row::new(
        "dedupd_client_throttle_seconds",
        Gauge,
        "seconds",
        "99th percentile of the time for which a broker throttled requests because of a quota, in the last 10 s.",
    )
    .by("client", ClientLabel::NAMES);
    CLIENT_QUEUED = Row::new(
        "dedupd_client_queued_records",
        Gauge,
        "records",
        "Records in the queues of the Kafka clients: fetched and not read, or not written yet.",
    )
    .by("client", ClientLabel::NAMES);
    CLIENT_BROKERS_DOWN = Row::new(
        "dedupd_client_brokers_down",
        Gauge,
        "brokers",
        "Brokers to which a Kafka client had a connection and has none.",
    )
    .by("client", ClientLabel::NAMES);
    TORN = Row::new(
        "dedupd_torn_transactions_total",
        Counter,
        "transactions",
        "Transactions that a broker left without a transaction marker, by how they were resolved.",
    )
    .by("resolution", Resolution::NAMES);
    LAG = Row::new(
        "dedupd_lag_records",
        Gauge,
        "offsets",
        "Offsets from the next offset to process to the last stable offset.",
    )
    .by("partition", &[]);
    RAW_START = Row::new(
        "dedupd_raw_start_offset",
        Gauge,
        "offset",
        "Log start offset of the raw partition; requested every 30 seconds.",
    )
    .by("partition", &[]);
    RAW_RETAINED = Row::new(
        "dedupd_raw_retained_records",
        Gauge,
        "offsets",
        "Offsets from the log start offset to the committed offset; at 0 with lag, retention is about to delete unread records.",
    )
    .by("partition", &[]);
    RAW_HANGING = Row::new(
        "dedupd_raw_hanging_seconds",
        Gauge,
        "seconds",
        "Minimum age of a hanging upstream transaction, behind which no record can be read; 0 without one.",
    )
    .by("partition", &[]);
    OUTPUT_HANGING = Row::new(
        "dedupd_output_hanging_seconds",
        Gauge,
        "seconds",
        "Minimum age of a transaction that hangs in a topic that dedupd writes to; its partition waits. 0 without one.",
    )
    .by("topic", &["clean", "state", "dead_letter", "duplicates"]);
    WINDOW_SECONDS = Row::new(
        "dedupd_window_seconds",
        Gauge,
        "seconds",
        "How far back identities are stored, in stream time; less than configured when a limit applies.",
    )
    .by("partition", &[]);
    WINDOW_CONFIGURED = Row::new(
        "dedupd_window_configured_seconds",
        Gauge,
        "seconds",
        "Configured length of the window: the longer of window.exact and window.bloom.",
    );
    EXPIRY_LAG = Row::new(
        "dedupd_expiry_lag_seconds",
        Gauge,
        "seconds",
        "For how much longer than the window ids are held, because of the slowest partition, in stream time; /readyz names it. \
         0 with dedupe.scope = partition.",
    );
    WINDOW_CERTAIN = Row::new(
        "dedupd_window_certain_seconds",
        Gauge,
        "seconds",
        "How far back identities are stored exactly and none was overwritten, in stream time.",
    )
    .by("partition", &[]);
    WINDOW_IDS =
        Row::new("dedupd_window_ids", Gauge, "identities", "Identities in the window; in topic scope the first partition has those of all.")
        .by("partition", &[]);
    KIND_WINDOW_SECONDS = Row::new(
        "dedupd_kind_window_seconds",
        Gauge,
        "seconds",
        "How far back identities of a kind are stored, in stream time, in the partition where this is shortest.",
    )
    .by_kind();
    KIND_WINDOW_IDS =
        Row::new("dedupd_kind_window_ids", Gauge, "identities", "Identities in the windows of a kind.")
            .by_kind();
    ELSEWHERE = Row::new(
        "dedupd_duplicates_elsewhere_total",
        Counter,
        "records",
        "Duplicates whose owner is in another partition of raw, counted at the commit; dedupd_records_total contains them.",
    );
    EVICTED = Row::new(
        "dedupd_evicted_ids_total",
        Counter,
        "identities",
        "Identities overwritten before they expired, with window.overflow = evict.",
    );
    SEALED = Row::new(
        "dedupd_sealed_ids_total",
        Counter,
        "identities",
        "Identities that were moved from the index to sealed slices: a filter in memory, and a file.",
    );
    DISCARDED = Row::new(
        "dedupd_slices_discarded_total",
        Counter,
        "files",
        "Slices that could not be written, as on a full disk, and were discarded; each is retried after some minutes.",
    );
    MISS_RATE = Row::new(
        "dedupd_window_miss_rate",
        Gauge,
        "share",
        "Share of the identities inside the exact window that were overwritten; their duplicates are forwarded.",
    )
    .by("partition", &[]);
    FALSE_POSITIVE_RATE = Row::new(
        "dedupd_false_positive_rate",
        Gauge,
        "chance",
        "Probability that the filters report a new id as seen, computed from the bits set; highest value of all partitions.",
    );
    FALSE_POSITIVE_RATE_PROMISED = Row::new(
        "dedupd_false_positive_rate_promised",
        Gauge,
        "chance",
        "Highest configured false-positive rate, window.false_positive_rate; 0 without filters.",
    );
    FALSE_DROPS = Row::new(
        "dedupd_probable_false_drops_estimate",
        Gauge,
        "records",
        "Estimated new records reported as probably seen since the start: new records times the false-positive rate.",
    );
    MEMORY = Row::new("dedupd_memory_bytes", Gauge, "bytes", "Memory by use.").by("part", MemoryPart::NAMES);
    STATE_DISK = Row::new("dedupd_state_disk_bytes", Gauge, "bytes", "Size of the local state on disk.");
    RESTORE_SECONDS = Row::new(
        "dedupd_restore_seconds",
        Histogram(&[0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0]),
        "seconds",
        "Time from the assignment of a partition until its state is loaded.",
    );
    RESTORED = Row::new("dedupd_restored_ids_total", Counter, "identities", "Identities loaded, by source.")
        .by("source", RestoreSource::NAMES);
    PARTITIONS = Row::new("dedupd_partitions", Gauge, "partitions", "Partitions of this process by state.")
        .by("state", PartitionState::NAMES);
    STANDBY_JOURNALS = Row::new(
        "dedupd_standby_journals",
        Gauge,
        "journals",
        "Journals of other instances that are followed: partitions of the state topic (state.standby).",
    );
    STANDBY_LAG = Row::new(
        "dedupd_standby_lag_records",
        Gauge,
        "offsets",
        "Offsets of the state topic that the standby copies have not read, in all followed partitions.",
    );
    REBALANCES =
        Row::new("dedupd_rebalances_total", Counter, "events", "Partition assignments and revocations.");
    UNASSIGNED = Row::new(
        "dedupd_group_unassigned_partitions",
        Gauge,
        "partitions",
        "Raw partitions assigned to no member of the group; every instance reports the same, every 4 seconds.",
    );
    GROUP_LAG = Row::new(
        "dedupd_group_lag_records",
        Gauge,
        "offsets",
        "Offsets from the committed offset to the last stable offset, for every raw partition, assigned or not.",
    )
    .by("partition", &[]);
    FORCED = Row::new(
        "dedupd_forced_rebalances_total",
        Counter,
        "rebalances",
        "Rebalances that this instance forced because partitions were assigned to no member.",
    );
    STALLED = Row::new(
        "dedupd_stalled_fetches_total",
        Counter,
        "partitions",
        "Partitions reassigned inside the client because it did not return records that the log has.",
    )
    .by("reason", Stall::NAMES);
    OFFSET_RESETS = Row::new(
        "dedupd_offset_resets_total",
        Counter,
        "partitions",
        "Partitions that started at another offset than the committed offset, by reason.",
    )
    .by("reason", OffsetReset::NAMES);
    GAP_OFFSETS = Row::new(
        "dedupd_gap_offsets_total",
        Counter,
        "offsets",
        "Raw offsets deleted before they were read, and skipped because of group.on_gap = accept.",
    );
    ROLE = Row::new(
        "dedupd_role",
        Gauge,
        "0 or 1",
        "1 for the role of this instance; always active with dedupe.scope = partition.",
    )
    .by("role", Role::NAMES);
    READY = Row::new("dedupd_ready", Gauge, "0 or 1", "1 when /readyz returns 200, else 0.");
    BUILD =
        Row::new("dedupd_build_info", Gauge, "1", "Always 1; the label is the version.").by("version", &[]);
    RESIDENT =
        Row::new("process_resident_memory_bytes", Gauge, "bytes", "Resident memory of the process (Linux).");
    CPU = Row::new(
        "process_cpu_seconds_total",
        Counter,
        "seconds",
        "User and system CPU time of the process (Linux).",
    );
}
