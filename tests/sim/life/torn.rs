//! Histories with one torn transaction.

use super::*;
use crate::sim::cluster::Marked;

/// The first transaction of a partition has one block for each of `records` records, and its markers reach one log only. With
/// the marker in clean, another instance then continues without local state, and receives a copy of every record. Returns the
/// violations.
pub fn tear_the_first_transaction(setting: &Setting, records: u64, marked: Marked) -> Vec<String> {
    let mut life = Life::quiet(setting, 1, Choices::one_id_blocks);
    life.produce_ids(0..records);
    life.universe.cluster.borrow_mut().tears_next = Some(marked);
    let mut calmed = life.calm();
    assert_eq!(life.universe.cluster.borrow().tears_next, None, "no transaction was torn");
    if marked == Marked::Clean {
        life.leave(0);
        life.processes[0].store = LeasedStore::new(MemoryStore::new());
        life.produce_ids(0..records);
        calmed &= life.calm();
    }
    life.end(calmed).violations
}

/// After an orderly stop, compaction has removed the last clean record, as it removes a tombstone that has expired. Returns the
/// violations after the next start.
pub fn compact_the_last_record(setting: &Setting) -> Vec<String> {
    let mut life = Life::quiet(setting, 1, Choices::one_id_blocks);
    life.produce_ids(0..20);
    assert!(life.calm(), "the records are not processed");
    life.leave(0);
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let (last, _) = cluster.clean[0].committed(0).last().unwrap();
        assert!(cluster.clean[0].compact(last, Offset::MAX), "no record was removed");
    }
    let calmed = life.calm();
    life.end(calmed).violations
}
