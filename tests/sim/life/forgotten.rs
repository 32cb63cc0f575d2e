//! Ids that are forgotten, and a restore that reads older owners of them.

use std::ops::Range;

use super::*;

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
    life.processes[0].store = LeasedStore::new(SimDisk::memory());
    life.start(0);
    assert!(life.calm(), "the state is not restored");
    life.leave(0);
    life.processes[0].choices.evicts = false;
    life.produce_ids(FORGOTTEN_IDS);
    let calmed = life.calm();
    let forgotten = life.requests.forgotten.len();
    (forgotten, life.end(calmed).violations)
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
