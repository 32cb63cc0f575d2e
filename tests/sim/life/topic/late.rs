//! Histories in topic scope in which the clock of one partition is behind the others, also when all are read to their ends.

use super::lagging::{KEPT, topic, without};
use super::*;
use crate::sim::cluster::Marked;
use dedupd::pipeline::Safeguard;

/// The clock of partition 0 is behind that of partition 1 by `late_ms` all the time, and both are read to their ends in each step. An id of
/// partition 1 has a copy in partition 0, `distance_ms` later. Returns how often it was forwarded.
fn clocks_that_differ(setting: &Setting, late_ms: i64, distance_ms: i64) -> usize {
    let mut life = topic(setting, 2, |_| ());
    let begin_ms = life.universe.cluster.borrow().wall_ms() - 2 * BACKLOG_MS;
    for step in 0..100i64 {
        let (at_ms, id) = (begin_ms + 100 * step, u64::try_from(step).unwrap());
        life.produce_at(1, if step == 20 { KEPT } else { 2_000 + id }, at_ms);
        let is_copy = at_ms - late_ms == begin_ms + 2_000 + distance_ms;
        life.produce_at(0, if is_copy { KEPT } else { 3_000 + id }, at_ms - late_ms);
        life.process_all();
    }
    life.times(KEPT)
}

#[test]
fn partitions_whose_clocks_always_differ_find_each_others_ids_within_the_window() {
    let sound = Setting::sound();
    for tenths in [0, 1, 5, 9, 10] {
        let late_ms = WINDOW_MS * tenths / 10;
        for distance_ms in [0, WINDOW_MS / 2, WINDOW_MS * 9 / 10, WINDOW_MS] {
            let forwarded = clocks_that_differ(&sound, late_ms, distance_ms);
            assert_eq!(forwarded, 1, "{late_ms} ms late, {distance_ms} ms apart");
        }
        assert_eq!(clocks_that_differ(&sound, late_ms, WINDOW_MS + 100), 2, "reused after the window");
    }
    // Their clocks hold back expiry by one window at most.
    let late_ms = WINDOW_MS * 3 / 2;
    assert_eq!([400, 1_900].map(|ms| clocks_that_differ(&sound, late_ms, ms)), [1, 2]);
    let as_if_equal = clocks_that_differ(&without(Safeguard::Lateness), WINDOW_MS / 2, WINDOW_MS * 9 / 10);
    assert_eq!(as_if_equal, 2, "the history does not depend on it");
}

/// What happens to partition 0 before it has no record for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// It is read before any other partition.
    ReadFirst,
    /// Its last record, and then its window, are committed while a partition has unread records. The ones before it were not late.
    CommittedIdle,
    /// Its last record is in a torn transaction, which a repair completes. The ones before it were not late.
    Torn,
}

/// How far the clock of partition 0 is behind, ms: almost a window.
const LATE_MS: i64 = WINDOW_MS * 9 / 10;
/// The last record of partition 0 before the copy is written at this step of 100 ms, and the first one of the copied id at a later one.
const LAST: i64 = 50;
const OF_KEPT: i64 = LAST + 10;

/// A transaction can have all partitions.
fn three_partitions(setting: &Setting) -> Life {
    topic(setting, 3, |choices| choices.max_records = 11)
}

/// The steps up to [`LAST`]: partition 0 is late, and that is not measured.
fn begin_late(life: &mut Life, begin_ms: i64, before: Before) {
    match before {
        Before::ReadFirst => {
            for step in 0..=LAST {
                life.produce_step(begin_ms, step, [Some(LATE_MS), Some(0), Some(0)]);
            }
            life.process_only(0);
        }
        Before::CommittedIdle | Before::Torn => {
            for step in 0..LAST {
                // Partition 0 has no records for as long as its next one is late.
                let is_idle = 100 * (LAST - step) <= LATE_MS;
                life.produce_step(begin_ms, step, [(!is_idle).then_some(0), Some(0), Some(0)]);
                if before == Before::CommittedIdle && step >= LAST / 3 {
                    [0, 1].into_iter().for_each(|partition| life.process_only(partition));
                } else {
                    life.process_all();
                }
            }
            life.produce_step(begin_ms, LAST, [Some(LATE_MS), None, Some(0)]);
            let marked = (before == Before::Torn).then_some(Marked::Clean);
            life.universe.cluster.borrow_mut().tears_next = marked;
            life.process_only(0);
            assert_eq!(life.universe.cluster.borrow().tears_next, None);
            life.process_only(2);
            life.produce_step(begin_ms, LAST + 1, [None, None, Some(0)]);
            life.process_only(2);
        }
    }
}

/// After that the worker restarts, and partition 0 has no record until the copy. Returns how often that was forwarded.
fn late_and_idle(setting: &Setting, before: Before) -> usize {
    let mut life = three_partitions(setting);
    let begin_ms = life.universe.cluster.borrow().wall_ms() - 2 * BACKLOG_MS;
    begin_late(&mut life, begin_ms, before);
    life.restart(false);
    for step in LAST + 2..100 {
        if step == OF_KEPT {
            life.produce_at(1, KEPT, begin_ms + 100 * step);
        }
        let is_copy = step == OF_KEPT + 2 * LATE_MS / 100;
        if is_copy {
            life.produce_at(0, KEPT, begin_ms + 100 * step - LATE_MS);
        }
        life.produce_step(begin_ms, step, [None, Some(0), Some(0)]);
        life.process_all();
    }
    life.times(KEPT)
}

impl Life {
    /// Writes a record with an id of its own to each partition whose clock is given, by how far it is behind.
    fn produce_step(&self, begin_ms: i64, step: i64, late_ms: [Option<i64>; 3]) {
        for (partition, late_ms) in late_ms.into_iter().enumerate() {
            let id = 1_000 * (1 + partition as u64) + step.unsigned_abs();
            late_ms.into_iter().for_each(|ms| self.produce_at(partition, id, begin_ms + 100 * step - ms));
        }
    }

    fn process_only(&mut self, partition: usize) {
        self.deliver_only(PartitionId::try_from(partition).ok());
        self.process_delivered(partition);
    }

    /// Processes all records. Then the topic monitor reads the ends of the logs, and the worker compares them.
    fn process_all(&mut self) {
        self.deliver_only(None);
        for partition in 0..self.partitions() {
            self.process_delivered(partition);
        }
        self.wait_without_records(4);
    }
}

#[test]
fn how_late_a_partition_is_is_not_forgotten_while_it_has_no_records() {
    let all = [Before::ReadFirst, Before::CommittedIdle, Before::Torn];
    let of = |setting: &Setting| all.map(|before| (before, late_and_idle(setting, before)));
    let times = |times: usize| all.map(|before| (before, times));
    assert_eq!(of(&Setting::sound()), times(1));
    assert_eq!(of(&without(Safeguard::KnownLateness)), times(2), "the histories do not depend on it");
}

/// Partition 0 is not late, and has no records for several windows before and after the worker restarts.
#[test]
fn a_partition_without_records_does_not_count_as_late_after_a_restart() {
    let mut life = three_partitions(&Setting::sound());
    let begin_ms = life.universe.cluster.borrow().wall_ms() - 2 * BACKLOG_MS;
    for step in 0..100 {
        if step == 50 {
            life.restart(false);
        }
        life.produce_step(begin_ms, step, [(step < 10).then_some(0), Some(0), Some(0)]);
        life.process_all();
    }
    let shown = life.worker_status().expiry_lag_seconds;
    assert!(shown < 0.5, "{shown}");
}
