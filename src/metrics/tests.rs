//! Tests of the exported metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::table::{MetricKind, rows};
use super::*;

fn about() -> About {
    let text = str::to_owned;
    About {
        version: text("1"),
        group: text("g"),
        instance: text("i"),
        raw: text("raw"),
        clean: text("clean"),
        scope: text("topic"),
    }
}

fn partition(partition: u32, state: PartitionState) -> PartitionStatus {
    PartitionStatus {
        partition,
        state,
        reason: None,
        next: Some(7),
        committed: Some(7),
        lag_records: Some(3),
        window_ids: Some(11),
        window_seconds: 1.5,
        window: WindowStatus { asked_seconds: 2.0, certain_seconds: 1.25, ..WindowStatus::default() },
    }
}

fn running(partitions: Vec<PartitionStatus>) -> WorkerStatus {
    WorkerStatus { not_ready: None, partitions, index_bytes: 100, ..WorkerStatus::starting() }
}

#[test]
fn exported_metrics_are_exactly_those_of_the_table() {
    let metrics = Metrics::new();
    let status = Status::new(about(), 1);
    let kind = |ids| KindStatus {
        kind: "k".into(),
        asked_seconds: 9.0,
        window_seconds: ids as f64,
        window_ids: ids,
    };
    let kinds = vec![kind(5), kind(3)];
    let worker = running(vec![partition(0, PartitionState::Running)]);
    status.publish(0, WorkerStatus { kinds, expiry_lag_seconds: 80.5, ..worker });
    status.update(|it| {
        it.log_starts = BTreeMap::from([(0, 4)]);
        it.hanging = BTreeMap::from([(0, Duration::ZERO)]);
        it.group_lag = BTreeMap::from([(0, 3), (1, 500)]);
        it.unassigned = 1;
    });
    metrics.kind_records("k", Outcome::Retry).inc();
    let page = metrics.scrape(&status);
    assert!(page.contains("dedupd_group_lag_records{partition=\"1\"} 500\n"), "{page}");
    assert!(page.contains("dedupd_group_unassigned_partitions 1\n"), "{page}");
    assert!(page.contains("dedupd_expiry_lag_seconds 80.5\n"), "{page}");
    assert!(page.contains("dedupd_kind_window_seconds{kind=\"k\"} 3\n"), "{page}");
    assert!(page.contains("dedupd_kind_window_ids{kind=\"k\"} 8\n"), "{page}");
    assert!(page.contains("dedupd_kind_records_total{kind=\"k\",outcome=\"retry\"} 1\n"), "{page}");
    let shown: BTreeSet<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            (name.to_owned(), kind.to_owned())
        })
        .collect();
    let named: BTreeSet<_> = rows()
        .map(|row| {
            let kind = match row.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram(_) => "histogram",
            };
            (row.name.to_owned(), kind.to_owned())
        })
        .collect();
    assert_eq!(shown, named);
}

#[test]
fn names_follow_prometheus_conventions() {
    for row in rows() {
        let counter = row.kind == MetricKind::Counter;
        assert_eq!(row.name.ends_with("_total"), counter, "{}", row.name);
        if ["seconds", "bytes"].contains(&row.unit) {
            assert!(row.name.trim_end_matches("_total").ends_with(row.unit), "{}", row.name);
        }
        assert!(row.help.ends_with('.'), "{}", row.name);
        if let MetricKind::Histogram(bounds) = row.kind {
            assert!(bounds.is_sorted(), "{}", row.name);
        }
    }
}

#[test]
fn fixed_labels_start_at_zero_and_count_up() {
    let metrics = Metrics::new();
    for outcome in Outcome::NAMES {
        assert!(metrics.render().contains(&format!("dedupd_records_total{{outcome=\"{outcome}\"}} 0\n")));
    }
    metrics.clone().records(Outcome::Forwarded).inc_by(5);
    metrics.bytes(TopicLabel::Raw).inc_by(9);
    metrics.transaction(TransactionResult::Aborted, Duration::from_millis(120));
    metrics.torn_transactions(Resolution::Redone).inc();
    metrics.restored_ids(RestoreSource::StateTopic).inc_by(4);
    let page = metrics.render();
    for line in [
        "dedupd_records_total{outcome=\"forwarded\"} 5",
        "dedupd_records_total{outcome=\"stale\"} 0",
        "dedupd_bytes_total{topic=\"raw\"} 9",
        "dedupd_transactions_total{result=\"aborted\"} 1",
        "dedupd_transaction_seconds_bucket{le=\"0.1\"} 0",
        "dedupd_transaction_seconds_bucket{le=\"0.15\"} 1",
        "dedupd_torn_transactions_total{resolution=\"redone\"} 1",
        "dedupd_restored_ids_total{source=\"state_topic\"} 4",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is missing in\n{page}");
    }
}

#[test]
fn a_revoked_partition_has_no_series() {
    let metrics = Metrics::new();
    let status = Status::new(about(), 2);
    status.publish(0, running(vec![partition(3, PartitionState::Running)]));
    status.publish(1, running(vec![partition(4, PartitionState::Restoring)]));
    let page = metrics.scrape(&status);
    assert!(page.contains("dedupd_lag_records{partition=\"3\"} 3\n"));
    assert!(page.contains("dedupd_window_seconds{partition=\"4\"} 1.5\n"));
    assert!(page.contains("dedupd_partitions{state=\"running\"} 1\n"));
    assert!(page.contains("dedupd_partitions{state=\"restoring\"} 1\n"));
    assert!(page.contains("dedupd_memory_bytes{part=\"index\"} 200\n"));
    assert!(page.contains("dedupd_ready 0\n"));

    status.publish(1, running(Vec::new()));
    let page = metrics.scrape(&status);
    assert!(page.contains("partition=\"3\""));
    assert!(!page.contains("partition=\"4\""), "{page}");
    assert!(page.contains("dedupd_ready 1\n"));
}

#[test]
fn a_value_never_known_has_no_series_and_a_value_no_longer_known_keeps_its_last_one() {
    let metrics = Metrics::new();
    let status = Status::new(about(), 1);
    let mut loading = partition(3, PartitionState::Restoring);
    (loading.next, loading.committed, loading.lag_records) = (None, None, None);
    loading.window = WindowStatus::default();
    status.publish(0, running(vec![loading.clone()]));
    assert!(!metrics.scrape(&status).contains("partition=\"3\""));

    status.publish(0, running(vec![partition(3, PartitionState::Running)]));
    assert!(!metrics.scrape(&status).contains("dedupd_raw_"), "no log start offset was requested yet");
    status.update(|it| it.log_starts = BTreeMap::from([(3, 5), (9, 1)]));
    let page = metrics.scrape(&status);
    assert!(page.contains("dedupd_raw_start_offset{partition=\"3\"} 5\n"), "{page}");
    assert!(page.contains("dedupd_raw_retained_records{partition=\"3\"} 2\n"), "{page}");
    assert!(page.contains("dedupd_window_certain_seconds{partition=\"3\"} 1.25\n"), "{page}");
    assert!(!page.contains("partition=\"9\""), "assigned to another member by now");

    // Retention deleted records beyond the committed offset.
    status.update(|it| it.log_starts = BTreeMap::from([(3, 8), (9, 1)]));
    assert!(metrics.scrape(&status).contains("dedupd_raw_retained_records{partition=\"3\"} 0\n"));

    status.publish(0, running(vec![loading]));
    let page = metrics.scrape(&status);
    assert!(page.contains("dedupd_lag_records{partition=\"3\"} 3\n"), "{page}");
    assert!(page.contains("dedupd_window_seconds{partition=\"3\"} 1.5\n"), "{page}");
}

#[test]
fn what_the_system_counts_for_the_process_is_plausible() {
    let page = Metrics::new().scrape(&Status::new(about(), 1));
    let info =
        "dedupd_info{clean=\"clean\",group=\"g\",member=\"i\",raw=\"raw\",scope=\"topic\",version=\"1\"} 1\n";
    assert!(page.contains(info), "{page}");
    let value = |name: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes ") > 1_000_000.0);
    assert!(value("process_virtual_memory_bytes ") > value("process_resident_memory_bytes "));
    assert!(value("process_cpu_seconds_total ") < 100_000.0);
    assert!(value("process_threads ") >= 1.0);
    assert!((3.0..value("process_max_fds ")).contains(&value("process_open_fds ")));
    let first = |path: &str, start: &str| -> f64 {
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (booted, up) = (first("/proc/stat", "btime "), first("/proc/uptime", ""));
    assert!((booted..booted + up + 2.0).contains(&value("process_start_time_seconds ")));
}

#[test]
fn readiness_names_every_worker_that_is_not_ready_and_every_note() {
    let status = Status::new(about(), 3);
    assert_eq!(status.snapshot().readiness().lines.len(), 3);
    assert_eq!(status.snapshot().readiness().lines[0], "worker 0: is starting");

    status.publish(0, running(Vec::new()));
    status.publish(
        1,
        WorkerStatus { not_ready: Some("waits for\nthe broker".to_owned()), ..running(Vec::new()) },
    );
    let mut stopped = partition(6, PartitionState::Stopped);
    stopped.reason = Some("raw was recreated".to_owned());
    status.publish(2, running(vec![stopped, partition(7, PartitionState::Starting)]));
    let readiness = status.snapshot().readiness();
    assert!(!readiness.ready);
    assert_eq!(
        readiness.lines,
        [
            "worker 1: waits for the broker",
            "worker 2: partition 6 is stopped (raw was recreated), and 1 more"
        ]
    );

    let notes = vec!["partition 1 stores ids for 3h of 24h: window.max_ids is reached".to_owned()];
    status.publish(1, WorkerStatus { notes, ..running(Vec::new()) });
    status.publish(2, running(Vec::new()));
    let readiness = status.snapshot().readiness();
    assert!(readiness.ready);
    assert_eq!(
        readiness.lines,
        ["note: worker 1: partition 1 stores ids for 3h of 24h: window.max_ids is reached"]
    );

    let slow = Some("has been in one call for 20 s".to_owned());
    status.update(|it| it.standby = Some(StandbyStatus { slow, ..StandbyStatus::default() }));
    let readiness = status.snapshot().readiness();
    assert!(readiness.ready, "copies do not affect readiness");
    assert_eq!(readiness.lines.last().unwrap(), "note: the standby thread has been in one call for 20 s");
    status.update(|it| it.standby = Some(StandbyStatus::default()));
    assert_eq!(status.snapshot().readiness().lines.len(), 1);

    status.fail("worker 1 panicked");
    status.fail("later");
    assert!(!status.snapshot().readiness().ready);
    assert_eq!(status.snapshot().failure.as_deref(), Some("worker 1 panicked"));
}

#[test]
fn a_joining_instance_is_active_when_it_owns_partition_0_and_a_spare_is_ready() {
    let (metrics, status) = (Metrics::new(), Status::new(about(), 1));
    let exported = |role: Role| {
        let page = metrics.scrape(&status);
        let value =
            |it: &Role| format!("dedupd_role{{role=\"{}\"}} {}\n", it.as_str(), u8::from(*it == role));
        assert!(Role::ALL.iter().all(|it| page.contains(&value(it))), "{page}");
        role
    };
    assert_eq!(exported(Role::Active), status.snapshot().role().0, "with dedupe.scope = partition");
    status.update(|it| (it.noted_role, it.active) = (Role::Spare, Some("b at 10.0.0.7".to_owned())));
    status.publish(0, running(Vec::new()));
    assert_eq!(exported(Role::Spare), status.snapshot().role().0);
    let Readiness { ready, lines, .. } = status.snapshot().readiness();
    assert!(ready);
    assert_eq!(lines, ["note: this instance is a spare; the active instance is b at 10.0.0.7"]);
    status.update(|it| (it.noted_role, it.active) = (Role::Joining, None));
    assert_eq!(exported(Role::Joining), status.snapshot().role().0);
    status.publish(0, running(vec![partition(1, PartitionState::Running)]));
    assert_eq!(exported(Role::Joining), status.snapshot().role().0);
    status.publish(0, running(vec![partition(0, PartitionState::Starting)]));
    assert_eq!(exported(Role::Active), status.snapshot().role().0);
    assert!(!status.snapshot().readiness().lines.iter().any(|line| line.contains("spare")));
}
