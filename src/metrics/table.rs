//! Every metric, once: a field with its type, the name, the unit, the help text, and labels or buckets.

mod row;

use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, Registry};

pub(super) use row::valid;
pub use row::{Label, MetricKind, Row};
use row::{metrics, register};

use super::labels::{
    ClientLabel, MemoryPart, OffsetReset, Outcome, PartitionState, Resolution, RestoreSource, Role, Stall,
    TopicLabel, TransactionResult,
};

/// Every metric of the service, in the order of the documentation.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    let groups = [
        Flow::ROWS,
        Transactions::ROWS,
        ClientMetrics::ROWS,
        ByPartition::ROWS,
        StateMetrics::ROWS,
        GroupMetrics::ROWS,
        ProcessMetrics::ROWS,
    ];
    groups.into_iter().flatten()
}

/// Every metric of `rekey`.
pub fn rekey_rows() -> impl Iterator<Item = &'static Row> {
    RekeyHandles::ROWS.iter().chain(ProcessMetrics::ROWS)
}

metrics! {
    /// Records and bytes.
    Flow {
        records: IntCounterVec = "dedupd_records_total", "records",
            "Raw records by outcome, counted at the commit.", by("outcome", Outcome::NAMES);
        kind_records: IntCounterVec = "dedupd_kind_records_total", "records",
            "Raw records by kind of [[kinds]] and outcome, counted at the commit.", by("outcome", Outcome::NAMES), configured(&["kind"]);
        bytes: IntCounterVec = "dedupd_bytes_total", "bytes",
            "Bytes of keys and values read or written, counted at the commit.", by("topic", TopicLabel::NAMES);
        latency: Histogram = "dedupd_latency_seconds", "seconds",
            "Time from the arrival of a record in this process to its commit in the clean topic: of a transaction, the first \
             1,024 records and then every 16th.",
            within(&[0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0]);
        age: Histogram = "dedupd_record_age_seconds", "seconds",
            "Time from the timestamp of a record to its commit in the clean topic. \
             It contains the delay of the producer, and of an outage or a replay. Of the same records.",
            within(&[0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 3_600.0, 86_400.0]);
    }
}

metrics! {
    /// Transactions, and those that hang.
    Transactions {
        total: IntCounterVec = "dedupd_transactions_total", "transactions",
            "Transactions by result, counted once it is known.", by("result", TransactionResult::NAMES);
        seconds: Histogram = "dedupd_transaction_seconds", "seconds",
            "Time from the first record of a transaction to its last marker, or to the failure that ended it.",
            within(&[0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]);
        batch_records: Histogram = "dedupd_batch_records", "records",
            "Raw records per committed transaction.",
            within(&[1.0, 10.0, 100.0, 1_000.0, 5_000.0, 10_000.0, 25_000.0, 50_000.0, 100_000.0]);
        last_commit: Gauge = "dedupd_last_commit_timestamp_seconds", "seconds",
            "Time of the last commit, in seconds since 1970, latest of all workers; 0 before the first one.";
        reduced: Gauge = "dedupd_transaction_reduced_records", "records",
            "Most records of a transaction while the limit is reduced because one took long, lowest of all workers; otherwise 0.";
        torn: IntCounterVec = "dedupd_torn_transactions_total", "transactions",
            "Transactions that a broker left without a transaction marker, by how they were resolved.", by("resolution", Resolution::NAMES);
        output_hanging: GaugeVec = "dedupd_output_hanging_seconds", "seconds",
            "Minimum age of a transaction that hangs in a topic that dedupd writes to; its partition waits. 0 without one.",
            by("topic", &["clean", "state", "dead_letter", "duplicates"]);
    }
}

metrics! {
    /// What the Kafka clients report.
    ClientMetrics {
        round_trip: GaugeVec = "dedupd_client_round_trip_seconds", "seconds",
            "99th percentile of the requests to the slowest broker in the last 10 s, from sending to the response.",
            by("client", ClientLabel::NAMES);
        throttle: GaugeVec = "dedupd_client_throttle_seconds", "seconds",
            "99th percentile of the time for which a broker throttled requests because of a quota, in the last 10 s.",
            by("client", ClientLabel::NAMES);
        queued: GaugeVec = "dedupd_client_queued_records", "records",
            "Records in the queues of the Kafka clients: fetched and not read, or not written yet.", by("client", ClientLabel::NAMES);
        brokers_down: GaugeVec = "dedupd_client_brokers_down", "brokers",
            "Brokers to which a Kafka client had a connection and has none.", by("client", ClientLabel::NAMES);
    }
}

metrics! {
    /// Every gauge with a series for each partition of this process; a revoked partition leaves no series behind.
    ByPartition of GaugeVec {
        lag = "dedupd_lag_records", "offsets",
            "Offsets from the next offset to process to the last stable offset.", by("partition", &[]);
        raw_start = "dedupd_raw_start_offset", "offset",
            "Log start offset of the raw partition; requested every 30 seconds.", by("partition", &[]);
        raw_retained = "dedupd_raw_retained_records", "offsets",
            "Offsets from the log start offset to the committed offset; at 0 with lag, retention is about to delete unread records.",
            by("partition", &[]);
        raw_hanging = "dedupd_raw_hanging_seconds", "seconds",
            "Minimum age of a hanging upstream transaction, behind which no record can be read; 0 without one.", by("partition", &[]);
        window_seconds = "dedupd_window_seconds", "seconds",
            "How far back identities are stored, in stream time; less than configured when a limit applies.", by("partition", &[]);
        window_certain = "dedupd_window_certain_seconds", "seconds",
            "How far back identities are stored exactly and none was overwritten, in stream time.", by("partition", &[]);
        window_ids = "dedupd_window_ids", "identities",
            "Identities in the window; in topic scope the first partition has those of all.", by("partition", &[]);
        miss_rate = "dedupd_window_miss_rate", "share",
            "Share of the identities inside the exact window that were overwritten; their duplicates are forwarded.", by("partition", &[]);
    }
}

metrics! {
    /// Windows, memory and restores.
    StateMetrics {
        window_configured: Gauge = "dedupd_window_configured_seconds", "seconds",
            "Configured length of the window: the longer of window.exact and window.bloom.";
        expiry_lag: Gauge = "dedupd_expiry_lag_seconds", "seconds",
            "For how much longer than the window ids are held, because of the slowest partition, in stream time; /readyz names it. \
             0 with dedupe.scope = partition.";
        kind_seconds: GaugeVec = "dedupd_kind_window_seconds", "seconds",
            "How far back identities of a kind are stored, in stream time, in the partition where this is shortest.", configured(&["kind"]);
        kind_ids: GaugeVec = "dedupd_kind_window_ids", "identities",
            "Identities in the windows of a kind.", configured(&["kind"]);
        elsewhere: IntCounter = "dedupd_duplicates_elsewhere_total", "records",
            "Duplicates whose owner is in another partition of raw, counted at the commit; dedupd_records_total contains them.";
        not_compared: IntCounter = "dedupd_duplicates_not_compared_total", "records",
            "Duplicates whose content was not compared with that of their owner, because one of them has no digest of the present identity.compare.";
        duplicate_age: Histogram = "dedupd_duplicate_age_seconds", "seconds",
            "Shortest window in which a duplicate finds its owner, in stream time. Later ones are not found.",
            within(&[1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0]);
        evicted: IntCounter = "dedupd_evicted_ids_total", "identities",
            "Identities overwritten before they expired, with window.overflow = evict.";
        sealed: IntCounter = "dedupd_sealed_ids_total", "identities",
            "Identities that were moved from the index to sealed slices: a filter in memory, and a file.";
        discarded: IntCounter = "dedupd_slices_discarded_total", "files",
            "Slices that could not be written, as on a full disk, and were discarded; each is retried after some minutes.";
        false_positive_rate: Gauge = "dedupd_false_positive_rate", "chance",
            "Probability that the filters report a new id as seen, computed from the bits set; highest value of all partitions.";
        false_positive_rate_promised: Gauge = "dedupd_false_positive_rate_promised", "chance",
            "Highest configured false-positive rate, window.false_positive_rate; 0 without filters.";
        false_drops: Gauge = "dedupd_probable_false_drops_estimate", "records",
            "Estimated new records reported as probably seen since the start: new records times the false-positive rate.";
        memory: GaugeVec = "dedupd_memory_bytes", "bytes",
            "Memory by use.", by("part", MemoryPart::NAMES);
        disk: Gauge = "dedupd_state_disk_bytes", "bytes",
            "Size of the local state on disk.";
        restore_seconds: Histogram = "dedupd_restore_seconds", "seconds",
            "Time from the assignment of a partition until its state is loaded.",
            within(&[0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0]);
        restored: IntCounterVec = "dedupd_restored_ids_total", "identities",
            "Identities loaded, by source.", by("source", RestoreSource::NAMES);
    }
}

metrics! {
    /// The group, and the role of this process in it.
    GroupMetrics {
        partitions: GaugeVec = "dedupd_partitions", "partitions",
            "Partitions of this process by state.", by("state", PartitionState::NAMES);
        standby_journals: Gauge = "dedupd_standby_journals", "journals",
            "Journals of other instances that are followed: partitions of the state topic (state.standby).";
        standby_lag: Gauge = "dedupd_standby_lag_records", "offsets",
            "Offsets of the state topic that the standby copies have not read, in all followed partitions.";
        rebalances: IntCounter = "dedupd_rebalances_total", "events",
            "Partition assignments and revocations.";
        unassigned: Gauge = "dedupd_group_unassigned_partitions", "partitions",
            "Raw partitions assigned to no member of the group; every instance reports the same, every 4 seconds.";
        lag: GaugeVec = "dedupd_group_lag_records", "offsets",
            "Offsets from the committed offset to the last stable offset, for every raw partition, assigned or not.", by("partition", &[]);
        forced: IntCounter = "dedupd_forced_rebalances_total", "rebalances",
            "Rebalances that this instance forced because partitions were assigned to no member.";
        stalled: IntCounterVec = "dedupd_stalled_fetches_total", "partitions",
            "Partitions reassigned inside the client because it did not return records that the log has.", by("reason", Stall::NAMES);
        offset_resets: IntCounterVec = "dedupd_offset_resets_total", "partitions",
            "Partitions that started at another offset than the committed offset, by reason.", by("reason", OffsetReset::NAMES);
        gap_offsets: IntCounter = "dedupd_gap_offsets_total", "offsets",
            "Raw offsets deleted before they were read, and skipped because of group.on_gap = accept.";
        role: GaugeVec = "dedupd_role", "0 or 1",
            "1 for the role of this instance; always active with dedupe.scope = partition.", by("role", Role::NAMES);
    }
}

metrics! {
    /// The process; `rekey` has the same.
    ProcessMetrics {
        ready: Gauge = "dedupd_ready", "0 or 1",
            "1 when /readyz returns 200, else 0.";
        info: GaugeVec = "dedupd_info", "1",
            "Always 1. Topics, group, instance name, scope (topic, partition or rekey) and version, to join with other metrics.",
            configured(&["raw", "clean", "group", "member", "scope", "version"]);
        resident: Gauge = "process_resident_memory_bytes", "bytes",
            "Resident memory of the process (Linux).";
        virtual_memory: Gauge = "process_virtual_memory_bytes", "bytes",
            "Virtual memory of the process (Linux).";
        cpu: prometheus::Counter = "process_cpu_seconds_total", "seconds",
            "User and system CPU time of the process (Linux).";
        started: Gauge = "process_start_time_seconds", "seconds",
            "Start of the process, in seconds since 1970 (Linux).";
        threads: Gauge = "process_threads", "threads",
            "Threads of the process (Linux).";
        open_files: Gauge = "process_open_fds", "files",
            "Open file descriptors (Linux).";
        max_files: Gauge = "process_max_fds", "files",
            "Most file descriptors that the process may have open.";
    }
}

metrics! {
    /// What `rekey` counts and measures.
    RekeyHandles {
        read: IntCounter = "dedupd_rekey_read_total", "records",
            "Records read from the source topics, repeated ones included.";
        written: IntCounter = "dedupd_rekey_written_total", "records",
            "Records that the target topic has acknowledged.";
        missing_id: IntCounter = "dedupd_rekey_missing_id_total", "records",
            "Records without an id, written to the partition that follows from their source partition.";
        failures: IntCounter = "dedupd_rekey_failures_total", "failures",
            "Failures after which the clients were replaced and records were read again from the committed offsets.";
        gaps: IntCounter = "dedupd_rekey_gap_offsets_total", "offsets",
            "Offsets of source topics deleted before they were read, and skipped because of group.on_gap = accept.";
        in_flight: Gauge = "dedupd_rekey_in_flight_records", "records",
            "Records that were sent and are not acknowledged.";
        lag: GaugeVec = "dedupd_rekey_lag_records", "offsets",
            "Offsets from the last acknowledged record to the high watermark, over the assigned partitions of a source topic.",
            by("topic", &[]);
        partitions: Gauge = "dedupd_rekey_partitions", "partitions",
            "Partitions of source topics that are assigned to this process.";
    }
}
