//! Ids that are forgotten, and a restore that reads older owners of them.

use super::*;

/// More than the slots of a table that evicts: the ids before these are evicted.
const OTHERS: std::ops::Range<u64> = 100..140;
/// The ids that are forgotten. They are the first ones, and one block has them.
const FORGOTTEN_IDS: std::ops::Range<u64> = 0..8;

/// Forgets ids whose first owners the worker has evicted and no longer stores, restores all blocks into a table that evicts
/// them too, and loads what that restore has stored into a table that holds every id. Returns the number of ids that
/// were forgotten, and the violations: each of these ids must be forwarded again.
pub fn forget_before_a_restore(setting: &Setting) -> (usize, Vec<String>) {
    let evicting = |chance: &mut Chance| {
        let mut choices = Choices::plain(chance);
        choices.evicts = true;
        choices
    };
    let mut life = Life::quiet(setting, 1, evicting);
    for ids in [FORGOTTEN_IDS, OTHERS, FORGOTTEN_IDS] {
        life.produce_ids(ids);
        assert!(life.calm(), "the records are not processed");
    }
    for id in FORGOTTEN_IDS {
        let cluster = life.universe.cluster.borrow();
        life.requests.send_for(&cluster, &life.controls, (0, format!("0-{id}")), true);
    }
    assert!(life.calm(), "the ids are not forgotten");
    life.requests.receive(&life.universe.cluster.borrow());
    life.leave(0);
    // The next process has no local state, and stops before a commit: a commit would delete the blocks of evicted owners.
    life.processes[0].store = LeasedStore::new(MemoryStore::new());
    life.start(0);
    assert!(life.calm(), "the state is not restored");
    life.leave(0);
    life.processes[0].choices.evicts = false;
    life.produce_ids(FORGOTTEN_IDS);
    let calmed = life.calm();
    let forgotten = life.requests.forgotten.len();
    (forgotten, life.end(calmed).violations)
}
