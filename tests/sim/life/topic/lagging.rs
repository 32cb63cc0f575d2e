//! Histories in topic scope in which one partition lags behind the others. The window of each is two seconds.

use super::*;
use crate::sim::decay::ended;
use crate::sim::universe::Sabotage;
use dedupd::dedupe::EntryEnd;
use dedupd::metrics::{Metrics, PartitionStatus, WorkerStatus};
use dedupd::pipeline::Safeguard;

/// The id whose second record is a copy within the window.
pub(super) const KEPT: u64 = 0;
/// Windows by which the other partition is ahead.
const AHEAD: i64 = 10;

pub(super) fn without(safeguard: Safeguard) -> Setting {
    Setting { sabotage: Sabotage::Without(safeguard), metrics: Metrics::new() }
}

/// How often the id was forwarded, and the limit that the status shows for partition 1 before the copy is read.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    forwarded: usize,
    limit: Option<String>,
}

impl Shown {
    /// Whether the status names the window as short, and the partition that needs older ids.
    fn is_reported(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.contains("; partition 0 is 19 s behind"))
    }
}

pub(super) fn topic(setting: &Setting, partitions: usize, change: impl Fn(&mut Choices)) -> Life {
    let mut life = Life::quiet(setting, partitions, |chance| {
        let mut choices = Choices::short_topic(chance);
        change(&mut choices);
        choices
    });
    life.patience = PATIENCE;
    life
}

impl Life {
    pub(super) fn times(&self, id: u64) -> usize {
        let cluster = self.universe.cluster.borrow();
        let name = format!("t-{id}");
        cluster.clean.iter().flat_map(|log| log.committed(0)).filter(|(_, raw)| raw.name() == name).count()
    }

    pub(super) fn deliver_only(&self, partition: Option<PartitionId>) {
        self.universe.cluster.borrow_mut().delivers_only = partition;
    }

    /// Partition 1 is read for ten windows. Partition 0 has an unread copy of its first id, a quarter of a window later.
    fn run_ahead(&mut self) -> i64 {
        let begin_ms = self.universe.cluster.borrow().wall_ms() - 2 * BACKLOG_MS;
        self.produce_at(0, 1_000, begin_ms);
        self.produce_at(1, 1_001, begin_ms);
        self.deliver_only(Some(0));
        self.process_delivered(0);
        self.produce_at(1, KEPT, begin_ms);
        for (id, at_ms) in (2_000..).zip((begin_ms..begin_ms + AHEAD * WINDOW_MS).step_by(100)) {
            self.produce_at(1, id, at_ms);
        }
        self.produce_at(0, KEPT, begin_ms + WINDOW_MS / 4);
        self.deliver_only(Some(1));
        self.process_delivered(1);
        begin_ms
    }

    /// Iterates without records, until the status is published and the ends of the logs are compared.
    pub(super) fn wait_without_records(&mut self, iterations: usize) {
        let delivers = self.universe.cluster.borrow_mut().delivers_only.replace(PartitionId::MAX);
        for _ in 0..iterations {
            self.iterate_once();
            self.universe.cluster.borrow_mut().advance(Duration::from_millis(500));
        }
        self.deliver_only(delivers);
    }

    pub(super) fn worker_status(&self) -> WorkerStatus {
        self.status.as_ref().unwrap().snapshot().workers.remove(0)
    }

    fn status_of(&self, partition: PartitionId) -> PartitionStatus {
        self.worker_status().partitions.into_iter().find(|it| it.partition == partition).unwrap()
    }

    /// Reads the copy in partition 0.
    fn read_the_copy(&mut self) -> Shown {
        // After a restart until the state is restored, too.
        self.wait_without_records(80);
        let limit = self.status_of(1).window.limit;
        self.deliver_only(Some(0));
        self.process_delivered(0);
        Shown { forwarded: self.times(KEPT), limit }
    }

    pub(super) fn restart(&mut self, has_local: bool) {
        self.leave(0);
        if !has_local {
            self.processes[0].store = SimDisk::memory();
        }
    }
}

/// A partition is ten windows behind. Retention has deleted the state of the other one but for the last two windows and a half.
fn lag_beyond_retention(setting: &Setting, has_local: bool) -> Shown {
    let mut life = topic(setting, 2, |_| ());
    let begin_ms = life.run_ahead();
    life.restart(has_local);
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let keep_ms = begin_ms + AHEAD * WINDOW_MS - 5 * WINDOW_MS / 2;
        let is_kept = |end: &EntryEnd| end.section(1).is_some_and(|section| section.time_first_ms >= keep_ms);
        let kept = ended(cluster.state[0].committed(0)).find(|(_, end)| is_kept(end));
        let kept = kept.map(|(at, end)| at - Offset::from(end.records));
        assert!(cluster.state[0].delete(Duration::MAX, kept.unwrap()));
    }
    life.read_the_copy()
}

/// A partition is ten windows behind, and a limit leaves four windows of ids of the other one.
fn lag_beyond_a_limit(setting: &Setting, most_ids: u64, restarts: bool) -> Shown {
    let mut life = topic(setting, 2, |choices| {
        // A slice keeps its owners until none of them is held.
        (choices.most_ids, choices.smallest_slice) = (most_ids, None);
    });
    life.run_ahead();
    if restarts {
        life.wait_without_records(40);
        life.restart(false);
    }
    life.read_the_copy()
}

#[test]
fn ids_that_a_limit_takes_from_a_lagging_partition_are_reported() {
    let sound = Setting::sound();
    assert_eq!(lag_beyond_a_limit(&sound, 1 << 20, false), Shown { forwarded: 1, limit: None });
    for restarts in [false, true] {
        let limited = lag_beyond_a_limit(&sound, 120, restarts);
        assert!(limited.forwarded == 2 && limited.is_reported(), "{limited:?}");
    }
}

#[test]
fn state_that_retention_takes_from_a_lagging_partition_is_reported() {
    let sound = Setting::sound();
    assert_eq!(lag_beyond_retention(&sound, true), Shown { forwarded: 1, limit: None });
    let cut = lag_beyond_retention(&sound, false);
    assert!(cut.forwarded == 2 && cut.is_reported(), "{cut:?}");
}

#[test]
fn a_partition_that_lags_is_shown_before_anything_is_lost() {
    let mut life = topic(&Setting::sound(), 2, |_| ());
    let begin_ms = life.run_ahead();
    life.wait_without_records(40);
    let shown = life.worker_status();
    assert!((19.0..20.0).contains(&shown.expiry_lag_seconds), "{}", shown.expiry_lag_seconds);
    let note = "partition 0 is 19 s behind: ids are held for 19s longer than the window until it has caught up; topic state \
                retains records for 24s only";
    assert!(shown.notes.iter().any(|line| line.starts_with(note)), "{:?}", shown.notes);
    assert_eq!(life.read_the_copy().forwarded, 1);
    life.wait_without_records(40);
    let held_back = life.worker_status().expiry_lag_seconds;
    assert_eq!(
        held_back, 2.0,
        "its clock holds back expiry by one window, and does so from the next commit on"
    );
    life.produce_at(0, 5_000, begin_ms + AHEAD * WINDOW_MS);
    life.process_delivered(0);
    life.wait_without_records(40);
    let shown = life.worker_status();
    assert!(shown.expiry_lag_seconds < 1.0 && shown.notes.is_empty(), "{shown:?}");
}

/// Partition 0 lags by ten windows. Returns how often an id is forwarded that partition 1 uses again after the window.
fn reuse_beside_a_lag(setting: &Setting) -> usize {
    let mut life = topic(setting, 2, |_| ());
    let begin_ms = life.run_ahead();
    life.produce_at(1, 2_000, begin_ms + AHEAD * WINDOW_MS);
    life.process_delivered(1);
    life.times(2_000)
}

#[test]
fn an_id_that_is_used_again_after_the_window_is_forwarded_however_far_another_partition_lags() {
    assert_eq!(reuse_beside_a_lag(&Setting::sound()), 2);
}
