//! Contents of records with an id whose first record was written by a torn transaction.

use dedupd::metrics::Metrics;

use super::*;
use crate::sim::cluster::Marked;

const IDS: u64 = 9;

/// The markers of the first transaction reach some logs only. A worker without local state continues, and receives each id twice: with the content of the
/// first record, and with another one. Returns how many records it found equal, and how many not, and the violations.
fn compare_after_a_torn_transaction(
    sabotage: Sabotage,
    scope: Scope,
    marked: Marked,
) -> ([u64; 2], Vec<String>) {
    let setting = Setting { sabotage, metrics: Metrics::new() };
    let mut life = Life::quiet(&setting, 1, |chance| {
        let mut choices = Choices::one_id_blocks(chance);
        (choices.scope, choices.sides, choices.keeps_duplicates) = (scope, 1, true);
        choices
    });
    life.universe.cluster.borrow_mut().sides = Sides::new(1);
    life.produce_ids(0..IDS);
    life.universe.cluster.borrow_mut().tears_next = Some(marked);
    let mut calmed = life.calm();
    assert_eq!(life.universe.cluster.borrow().tears_next, None, "no transaction was torn");
    life.leave(0);
    life.processes[0].store = SimDisk::memory();
    life.produce_ids(0..IDS);
    // From here on each record has the content of the one before, in the order of the ids.
    life.produce_ids([IDS]);
    life.produce_ids(0..IDS);
    calmed &= life.calm();
    let compared = [0, 1].map(|place| life.universe.compared[place].get());
    (compared, life.end(calmed).violations)
}

#[test]
fn a_conflict_with_a_record_of_a_torn_transaction_is_found() {
    let scopes = [Scope::Partition, Scope::Topic].into_iter();
    for (scope, marked) in scopes
        .flat_map(|scope| [Marked::Clean, Marked::State, Marked::NotClean].map(|marked| (scope, marked)))
    {
        let (compared, violations) = compare_after_a_torn_transaction(Sabotage::Nothing, scope, marked);
        assert_eq!(violations, [""; 0], "{scope:?}, {marked:?}");
        assert_eq!(compared, [IDS, IDS], "{scope:?}, {marked:?}");
        if marked == Marked::Clean {
            let (_, missed) = compare_after_a_torn_transaction(Sabotage::RepairLosesDigests, scope, marked);
            let is_missed = missed.iter().any(|what| what.starts_with("a conflict is missed"));
            assert!(is_missed, "{scope:?} does not depend on the digests of the repair: {missed:?}");
        }
    }
}
