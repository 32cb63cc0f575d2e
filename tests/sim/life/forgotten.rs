//! Ids that are forgotten, and a restore that reads older owners of them.

use std::ops::Range;

use super::*;
use crate::sim::cluster::Marked;

/// More than the slots of a table that evicts: the ids before these are evicted.
const OTHERS: Range<u64> = 100..140;
/// The ids that are forgotten. They are the first ones, and one block has them.
pub(super) const FORGOTTEN_IDS: Range<u64> = 0..8;

/// Forgets ids whose first owners the worker has evicted and no longer stores, restores all blocks into a table that evicts
/// them too, and loads what that restore has stored into a table that holds every id. Returns the number of ids that
/// were forgotten, and the violations: each of these ids must be forwarded again.
pub fn forget_before_a_restore(setting: &Setting) -> (usize, Vec<String>) {
    let mut life = Life::quiet(setting, 2, evicting);
    life.forget_evicted(OTHERS);
    // The next process has no local state, and stops before a commit: a commit would delete the blocks of evicted owners.
    life.processes[0].store = SimDisk::memory();
    life.start(0);
    assert!(life.calm(), "the state is not restored");
    life.leave(0);
    life.processes[0].choices.evicts = false;
    life.produce_ids(FORGOTTEN_IDS);
    let calmed = life.calm();
    let forgotten = life.requests.forgotten.len();
    (forgotten, life.end(calmed).violations)
}

/// Partitions, of which one iteration starts some only.
const MANY: usize = 300;

/// The broker responds to a commit and writes none of its markers: one of records in the last of many partitions, or one that forgets an
/// id of them. In each iteration an operator requests to forget that id, until it is forgotten. After another record a worker
/// without local state continues, and reads a copy. Returns the violations.
pub fn forget_what_was_undone(setting: &Setting, undoes_records: bool) -> Vec<String> {
    let mut life = Life::quiet(setting, MANY, Choices::plain);
    assert!(life.calm(), "the partitions are not assigned");
    let last = MANY - 1;
    life.produce_ids_to(last, 0..2);
    assert!(undoes_records || life.calm(), "the records are not processed");
    life.universe.cluster.borrow_mut().tears_next = Some(Marked::Nothing);
    for _ in 0..CALM_ITERATIONS {
        life.requests.send_for(
            &life.universe.cluster.borrow(),
            &life.controls,
            (last, format!("{last}-0")),
            true,
        );
        assert!(life.universe.iterate(0), "the worker has ended");
        life.requests.receive(&life.universe.cluster.borrow());
        if !life.requests.forgotten.is_empty() {
            break;
        }
    }
    assert_eq!(life.universe.cluster.borrow().tears_next, None, "no transaction was undone");
    life.produce_ids_to(last, 2..3);
    assert!(life.calm(), "the next record is not processed");
    life.leave(0);
    life.processes[0].store = SimDisk::memory();
    life.produce_ids_to(last, 0..1);
    let calmed = life.calm();
    let is_forgotten = !life.requests.forgotten.is_empty();
    let mut violations = life.end(calmed).violations;
    violations.extend((!is_forgotten).then(|| "not forgotten".to_owned()));
    violations
}

pub(super) fn evicting(chance: &mut Chance) -> Choices {
    let mut choices = Choices::plain(chance);
    choices.evicts = true;
    choices
}

impl Life {
    /// Forgets ids whose first owners the worker has evicted, because of these others. Then it leaves the group.
    pub(super) fn forget_evicted(&mut self, others: Range<u64>) {
        for ids in [FORGOTTEN_IDS, others, FORGOTTEN_IDS] {
            self.produce_ids(ids);
            assert!(self.calm(), "the records are not processed");
        }
        for id in FORGOTTEN_IDS {
            let cluster = self.universe.cluster.borrow();
            self.requests.send_for(&cluster, &self.controls, (0, format!("0-{id}")), true);
        }
        assert!(self.calm(), "the ids are not forgotten");
        self.requests.receive(&self.universe.cluster.borrow());
        self.leave(0);
    }
}
