//! Histories in topic scope in which records are open in some clean logs when a new producer compares the logs.

use super::lagging::without;
use super::*;
use crate::sim::cluster::{Marked, TRANSACTION_TIMEOUT};
use crate::sim::life::foreign::FOREIGN;
use crate::sim::tx_log::Fate;
use dedupd::pipeline::Safeguard;
use dedupd::ports::LogId;

/// The partitions in whose clean logs records are left open. A third one has none.
const LEFT: [PartitionId; 2] = [0, 1];
/// How often the worker iterates while these logs have no leader.
const ITERATIONS: usize = 100;

/// What became of the transaction whose markers are missing in clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The process ended before it had written an entry, and the next one aborted it.
    WithoutEntry,
    /// It was committed.
    Committed,
}

impl Life {
    /// Whether the clean logs of these partitions have open records.
    fn are_open(&self, partitions: &[PartitionId]) -> bool {
        let cluster = self.universe.cluster.borrow();
        partitions.iter().all(|id| cluster.clean[*id as usize].bounds().has_open_records())
    }

    /// Iterates until that holds. The worker starts if it has not.
    fn run_until(&mut self, holds: impl Fn(&Self) -> bool) {
        for _ in 0..CALM_ITERATIONS {
            if holds(self) {
                return;
            }
            self.iterate_once();
        }
        panic!("what is awaited does not happen");
    }
}

/// Three partitions with processed records. All of a few more fit into one transaction.
fn processed(setting: &Setting) -> Life {
    let mut life = Life::quiet(setting, 3, |chance| {
        let mut choices = Choices::plain(chance);
        choices.scope = Scope::Topic;
        (choices.max_records, choices.interval) = (15, TRANSACTION_TIMEOUT / 2);
        choices
    });
    life.produce_ids_round(0, &[0, 1, 2]);
    assert!(life.calm(), "the records are not processed");
    life
}

impl Life {
    /// Appends four records with new ids, from this one on, to each of these partitions in turn.
    fn produce_ids_round(&self, first: u64, partitions: &[usize]) {
        let now_ms = self.universe.cluster.borrow().wall_ms();
        let all = (0..4).flat_map(|_| partitions);
        (first..).zip(all).for_each(|(id, partition)| self.produce_at(*partition, id, now_ms));
    }

    /// How many producers its worker has created.
    fn producers(&self) -> u64 {
        self.universe.cluster.borrow().initialised(&self.universe.writer(0))
    }
}

/// A transaction leaves records in two clean logs, which have no leader when the next producer ends what is left open. They get one in this order,
/// each after some iterations. Returns the violations.
fn leave_records(setting: &Setting, ended: Ended, leaders: &[&[PartitionId]]) -> Vec<String> {
    let mut life = processed(setting);
    life.produce_ids_round(100, &LEFT.map(|id| id as usize));
    let before = life.producers();
    let unreachable = LEFT.map(LogId::clean);
    match ended {
        Ended::WithoutEntry => {
            life.run_until(|life| life.are_open(&LEFT));
            {
                let mut cluster = life.universe.cluster.borrow_mut();
                cluster.dead.insert(0);
                cluster.chance = Chance::with_factor(1, &[Fault::TornClean], 1e3);
            }
            life.end_dead();
            life.universe.unreachable.borrow_mut().extend(unreachable);
            life.run_until(|life| life.producers() > before);
            life.universe.cluster.borrow_mut().chance.quiet();
        }
        Ended::Committed => {
            life.universe.cluster.borrow_mut().tears_next = Some(Marked::NotClean);
            life.run_until(|life| life.universe.cluster.borrow().tears_next.is_none());
            life.universe.unreachable.borrow_mut().extend(unreachable);
        }
    }
    let of_journal = life.universe.cluster.borrow().state[0].bounds();
    assert!(life.are_open(&LEFT) && !life.are_open(&[2]) && !of_journal.has_open_records());
    for with_leader in leaders {
        (0..ITERATIONS).for_each(|_| life.iterate_once());
        assert!(life.producers() > before && life.are_open(with_leader));
        life.universe.unreachable.borrow_mut().retain(|log| !with_leader.contains(&log.partition));
    }
    let calmed = life.calm();
    assert!(LEFT.iter().all(|id| !life.are_open(&[*id])), "records are still open");
    life.end(calmed).violations
}

#[test]
fn records_left_in_clean_logs_without_a_leader_are_ended_before_any_is_processed() {
    for ended in [Ended::WithoutEntry, Ended::Committed] {
        for leaders in [&[&LEFT[..]][..], &[&[0], &[1]], &[&[1], &[0]]] {
            let violations = leave_records(&Setting::sound(), ended, leaders);
            assert_eq!(violations, [""; 0], "{ended:?}, leaders: {leaders:?}");
        }
    }
}

/// Another program has a record open in the clean log of partition 0, behind which a transaction with records of all partitions is committed.
/// Readers of committed records do not find its records there yet. Returns the violations.
fn commit_behind_a_foreign_record(setting: &Setting) -> Vec<String> {
    let mut life = processed(setting);
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let (now, log) = (cluster.now, &mut cluster.clean[0]);
        let record = Rc::clone(log.committed(0).next().unwrap().1);
        log.append(FOREIGN, now, Some(record));
    }
    life.produce_ids_round(100, &[0, 1, 2]);
    let before = life.producers();
    // Its marker in that log cannot be seen.
    life.run_until(|life| life.producers() > before);
    (0..ITERATIONS).for_each(|_| life.iterate_once());
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let now = cluster.now;
        cluster.clean[0].mark(FOREIGN, now, Fate::Aborted);
    }
    let calmed = life.calm();
    life.end(calmed).violations
}

#[test]
fn records_that_are_open_in_one_clean_log_do_not_decide_in_the_others() {
    assert_eq!(commit_behind_a_foreign_record(&Setting::sound()), [""; 0]);
    let decided = commit_behind_a_foreign_record(&without(Safeguard::OpenRecords));
    let is_repeated = decided.iter().any(|what| what.starts_with("duplicated"));
    assert!(is_repeated, "the history does not depend on it: {decided:?}");
}
