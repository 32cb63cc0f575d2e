//! Histories with torn transactions.

use dedupd::dedupe::Checkpoint;
use dedupd::metrics::Metrics;
use dedupd::pipeline::Safeguard;

use super::*;
use crate::sim::cluster::Marked;
use crate::sim::config::SHORT;
use crate::sim::decay::ended;
use crate::sim::universe::Sabotage;

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
        life.processes[0].store = SimDisk::memory();
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

/// What is lost of the middle one of three entries.
#[derive(Debug, Clone, Copy)]
enum LostOf {
    Entry,
    Record,
}

/// Which entries the local state has of the worker that continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Local {
    Nothing,
    /// Those before the one of which something is lost.
    Before,
}

/// The journal has lost committed records, as after an unclean leader election whose other replicas were filled from a copy. A worker with this local state
/// continues, and receives a copy of every record. Returns the violations.
fn lose_journal_records(setting: &Setting, scope: Scope, (lost, local): (LostOf, Local)) -> Vec<String> {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = Choices::one_id_blocks(chance);
        choices.scope = scope;
        choices
    });
    let (mut ends, mut store) = (Vec::new(), SimDisk::memory());
    life.produce_ids_to(1, [100]);
    for batch in 0..3 {
        life.produce_ids(3 * batch..3 * batch + 3);
        assert!(life.calm(), "the records are not processed");
        if batch == 0 && local == Local::Before {
            life.leave(0);
            store = life.processes[0].store.snapshot();
        }
        let cluster = life.universe.cluster.borrow();
        ends.push(ended(cluster.state[0].committed(0)).last().unwrap());
    }
    life.leave(0);
    life.processes[0].store = store;
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let (at, end) = &ends[1];
        let first = at - Offset::from(end.records);
        let lost = match lost {
            LostOf::Entry => first..at + 1,
            LostOf::Record => first..first + 1,
        };
        assert!(lost.into_iter().all(|at| cluster.state[0].compact(at, Offset::MAX)), "no such record");
    }
    life.produce_ids(0..9);
    let calmed = life.calm();
    life.end(calmed).violations
}

#[test]
fn a_journal_that_lacks_committed_records_is_not_taken_for_whole() {
    let rules = [(LostOf::Entry, Safeguard::EntryNumbers), (LostOf::Record, Safeguard::WholeEntries)];
    let histories = [Scope::Partition, Scope::Topic].into_iter().flat_map(|scope| {
        [Local::Nothing, Local::Before].map(|local| rules.map(|(lost, rule)| (scope, lost, local, rule)))
    });
    for (scope, lost, local, rule) in histories.flatten() {
        let of = |sabotage| {
            lose_journal_records(&Setting { sabotage, metrics: Metrics::new() }, scope, (lost, local))
        };
        let name = format!("{scope:?}, {lost:?}, {local:?}");
        let refused = of(Sabotage::Nothing);
        let is_refused = refused.iter().any(|what| what.contains("or lack records"));
        assert!(
            is_refused && !refused.iter().any(|what| what.starts_with("duplicated")),
            "{name}: {refused:?}"
        );
        let applied = of(Sabotage::Without(rule));
        let is_applied = applied.iter().any(|what| what.starts_with("duplicated"));
        assert!(is_applied, "{name} does not depend on {rule:?}: {applied:?}");
    }
}

/// Ids of the transaction that a standby reads in several steps. Each has a block of its own.
const OF_LARGE: u64 = 300;
/// The id that a copy must not lose.
const KEPT: u64 = 0;

/// A large transaction begins with a copy of an id, and its other records are many windows later. Its markers reach the state topic
/// only, so a repair undoes it. A standby reads the transaction before it is undone, and takes over later. Returns how often the id was forwarded.
pub fn follow_an_undone_transaction(setting: &Setting) -> usize {
    let mut life = Life::quiet(setting, 1, Choices::short_one_id_blocks);
    let at_ms = life.universe.cluster.borrow().wall_ms();
    life.produce_ids([KEPT]);
    assert!(life.calm(), "the record is not processed");
    {
        let mut cluster = life.universe.cluster.borrow_mut();
        let later_ms = at_ms + 8 * i64::try_from(SHORT.as_millis()).unwrap();
        let Cluster { chance, raw, tears_next, .. } = &mut *cluster;
        raw[0].produce_id(KEPT, chance, at_ms);
        (1..=OF_LARGE).zip(later_ms..).for_each(|(id, at_ms)| raw[0].produce_id(id, chance, at_ms));
        *tears_next = Some(Marked::State);
    }
    life.iterate_while(|life| life.universe.cluster.borrow().tears_next.is_some());
    let copy = SimDisk::memory();
    let mut standby = life.standby_on(0, &copy);
    life.follow_to_the_end(&mut standby);
    // The worker ends before it has read the records again.
    life.universe.cluster.borrow_mut().delivers_only = Some(1);
    let written = life.universe.cluster.borrow().state[0].committed(0).count();
    life.iterate_while(|life| {
        let cluster = life.universe.cluster.borrow();
        !cluster.is_settled() || cluster.state[0].committed(0).count() <= written
    });
    life.leave(0);
    life.follow_to_the_end(&mut standby);
    standby.release();
    life.processes[0].store = copy;
    life.universe.cluster.borrow_mut().delivers_only = None;
    assert!(life.calm(), "the records are not processed");
    times_kept(&life)
}

/// Where the state comes from that continues after undone transactions.
#[derive(Debug, Clone, Copy)]
enum Continues {
    /// The worker that wrote them.
    Worker,
    /// A worker without local state.
    Restore,
    /// A worker with the copy of a standby that has seen their offsets.
    Standby,
}

/// A transaction begins with a copy of an id, and its other records are many windows later. Its markers reach all topics but clean, so a
/// repair undoes it. The same happens to the transaction that reads its records again, with a later one. A standby requests the offsets
/// after each of the two, and not between them. In topic scope another partition is half a window ahead of the first one. Returns the histories in
/// which the id was not forwarded once.
pub fn undo_two_transactions(setting: &Setting) -> Vec<String> {
    let scopes = [Scope::Partition, Scope::Topic].into_iter();
    let all = scopes.flat_map(|scope| {
        [Continues::Worker, Continues::Restore, Continues::Standby].map(|continues| (scope, continues))
    });
    let forwarded = all.map(|(scope, continues)| (scope, continues, undo_two(setting, scope, continues)));
    let wrong = forwarded.filter(|(.., times)| *times != 1);
    wrong
        .map(|(scope, continues, times)| format!("{scope:?}, {continues:?}: forwarded {times} times"))
        .collect()
}

fn undo_two(setting: &Setting, scope: Scope, continues: Continues) -> usize {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = Choices::short_one_id_blocks(chance);
        choices.scope = scope;
        choices
    });
    life.patience = Duration::from_secs(2);
    let at_ms = life.universe.cluster.borrow().wall_ms();
    life.produce_ids([KEPT]);
    assert!(life.calm(), "the record is not processed");
    for id in 1..=5 {
        life.produce_at(1, 100 + id, at_ms + later(0, 1) / 2);
        assert!(life.calm(), "the records of the other partition are not processed");
    }
    let copy = SimDisk::memory();
    let mut standby = life.standby_on(0, &copy);
    life.follow_to_the_end(&mut standby);
    for (id, windows) in [(1, 8), (2, 16)] {
        let later_ms = later(at_ms, windows);
        produce_later(&life, id, (at_ms, later_ms));
        life.iterate_while(|life| committed_ms(life) < later_ms);
        life.follow_to_the_end(&mut standby);
        life.iterate_while(|life| committed_ms(life) > at_ms);
    }
    match continues {
        Continues::Worker => {}
        Continues::Restore => {
            life.leave(0);
            life.processes[0].store = SimDisk::memory();
        }
        Continues::Standby => {
            life.leave(0);
            life.follow_to_the_end(&mut standby);
            standby.release();
            life.processes[0].store = copy;
        }
    }
    assert!(life.calm(), "the records are not processed");
    times_kept(&life)
}

/// How often the id was forwarded.
fn times_kept(life: &Life) -> usize {
    let cluster = life.universe.cluster.borrow();
    let names = ["0", "t"].map(|list| format!("{list}-{KEPT}"));
    let all = cluster.clean.iter().flat_map(|log| log.committed(0));
    all.filter(|(_, raw)| names.iter().any(|name| name == raw.name())).count()
}

/// A transaction begins with a copy of an id, and its last record is many windows later. Its markers reach the state topic only, so a repair
/// undoes it. Returns how often the id was forwarded: in topic scope, where the first record with the id is in another partition; and where the stream time of both records is unknown.
pub fn undo_a_transaction(setting: &Setting) -> [usize; 2] {
    [undo_in_topic_scope(setting), undo_without_a_time(setting)]
}

fn undo_in_topic_scope(setting: &Setting) -> usize {
    let mut life = Life::quiet(setting, 2, |chance| {
        let mut choices = Choices::short_one_id_blocks(chance);
        choices.scope = Scope::Topic;
        choices
    });
    life.patience = Duration::from_secs(2);
    let at_ms = life.universe.cluster.borrow().wall_ms();
    life.produce_at(0, 100, at_ms);
    life.produce_at(1, KEPT, at_ms);
    assert!(life.calm(), "the records are not processed");
    undo(&mut life, [(KEPT, at_ms), (1, at_ms), (2, later(at_ms, 8))]);
    finish(&mut life)
}

fn undo_without_a_time(setting: &Setting) -> usize {
    let mut life = Life::quiet(setting, 1, Choices::short_one_id_blocks);
    let at_ms = life.universe.cluster.borrow().wall_ms();
    // A timestamp of zero counts as none.
    life.produce_at(0, KEPT, 0);
    assert!(life.calm(), "the record is not processed");
    undo(&mut life, [(KEPT, 0), (1, at_ms), (2, later(at_ms, 8))]);
    finish(&mut life)
}

/// These records of the first partition are processed in one transaction, whose markers reach the state topic only.
fn undo(life: &mut Life, records: [(u64, i64); 3]) {
    records.into_iter().for_each(|(id, at_ms)| life.produce_at(0, id, at_ms));
    life.universe.cluster.borrow_mut().tears_next = Some(Marked::State);
    life.iterate_while(|life| life.universe.cluster.borrow().tears_next.is_some());
}

/// Processes the records again, and returns how often the id was forwarded.
fn finish(life: &mut Life) -> usize {
    assert!(life.calm(), "the records are not processed");
    let cluster = life.universe.cluster.borrow();
    assert_eq!(cluster.violations, [""; 0]);
    let last = cluster.clean[0].committed(0).last().map(|(_, raw)| raw.at.offset + 1);
    assert_eq!(last, Some(cluster.raw[0].end()), "the last record is not forwarded");
    drop(cluster);
    times_kept(life)
}

/// So many windows later.
fn later(at_ms: i64, windows: i64) -> i64 {
    at_ms + windows * i64::try_from(SHORT.as_millis()).unwrap()
}

/// Appends a later record, and before the first one a copy of the id. The next transaction is torn.
fn produce_later(life: &Life, id: u64, (at_ms, later_ms): (i64, i64)) {
    let mut cluster = life.universe.cluster.borrow_mut();
    let Cluster { chance, raw, tears_next, .. } = &mut *cluster;
    if id == 1 {
        raw[0].produce_id(KEPT, chance, at_ms);
    }
    raw[0].produce_id(id, chance, later_ms);
    *tears_next = Some(Marked::NotClean);
}

/// The stream time of the group's checkpoint.
fn committed_ms(life: &Life) -> i64 {
    let cluster = life.universe.cluster.borrow();
    let checkpoint = cluster.offsets[0].settled.as_ref().and_then(|(_, text)| Checkpoint::parse(text));
    checkpoint.map_or(0, |checkpoint| checkpoint.stream_time_ms)
}
