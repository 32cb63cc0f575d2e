//! Producers of raw end transactions, whose markers follow the records.

use super::*;
use crate::sim::raw::RawLog;
use dedupd::pipeline::Safeguard;

/// What can happen to a transaction that moves a position, and to its worker.
const FAULTS: [Fault; 13] = [
    Fault::Crash,
    Fault::Retry,
    Fault::Abort,
    Fault::Unknown,
    Fault::LateCommit,
    Fault::LateMarker,
    Fault::TornClean,
    Fault::TornState,
    Fault::TornOffsets,
    Fault::Rebalance,
    Fault::Replaced,
    Fault::StaleAbove,
    Fault::Downtime,
];
const PARTITIONS: usize = 2;
const ROUNDS: usize = 40;
/// Steps of a round: some seconds.
const STEPS: usize = 60;

/// What became of positions before markers.
#[derive(Debug)]
struct Moved {
    /// How often a round ended with a committed offset behind a marker.
    times: usize,
    /// Offsets between the committed offset and the end of raw, at the end.
    lag: Offset,
    violations: Vec<String>,
}

/// In each round some records are written, and then markers. Two workers process them, with faults.
fn end_transactions(sabotage: Sabotage, seed: u64, scope: Scope) -> Moved {
    let setting = Setting { sabotage, ..Setting::sound() };
    let mut chance = Chance::with_factor(seed, &FAULTS, 2.0);
    let mut choices = Choices::plain(&mut chance);
    choices.scope = scope;
    let topic_ids = (scope == Scope::Topic).then(|| Ids::new("t"));
    let mut cluster = Cluster::new(chance, PARTITIONS, topic_ids);
    cluster.forgets = choices.forgets();
    let universe = Universe::new(cluster, (2, false), sabotage, choices.max_records);
    let mut life = Life::new(&setting, universe, choices);
    let mut times = 0;
    for round in 0..ROUNDS {
        life.produce_to(round % PARTITIONS, round % 4);
        life.universe.cluster.borrow_mut().raw.iter_mut().for_each(RawLog::mark);
        for _ in 0..STEPS {
            let (worker, leaves) = life.choose();
            life.advance(worker, leaves);
            life.end_dead();
        }
        times += life.behind_markers(PARTITIONS);
    }
    let calmed = life.calm();
    let lag = {
        let cluster = life.universe.cluster.borrow();
        let committed = |p: usize| cluster.offsets[p].settled.as_ref().map_or(0, |(offset, _)| *offset);
        (0..PARTITIONS).map(|p| cluster.raw[p].end() - committed(p)).sum()
    };
    Moved { times, lag, violations: life.end(calmed).violations }
}

impl Life {
    /// Partitions whose committed offset lies behind a marker.
    fn behind_markers(&self, partitions: usize) -> usize {
        let cluster = self.universe.cluster.borrow();
        let is_behind = |p: &usize| {
            let committed = cluster.offsets[*p].settled.as_ref().map_or(0, |(offset, _)| *offset);
            committed > 0 && cluster.raw[*p].next(committed - 1).is_none_or(|raw| raw.at.offset >= committed)
        };
        (0..partitions).filter(is_behind).count()
    }
}

#[test]
fn positions_move_behind_markers_and_skip_no_record() {
    let mut times = 0;
    for (seed, scope) in (0..20).flat_map(|seed| [(seed, Scope::Partition), (seed, Scope::Topic)]) {
        let moved = end_transactions(Sabotage::Nothing, seed, scope);
        assert_eq!(moved.violations, [""; 0], "seed {seed}, {scope:?}");
        assert_eq!(moved.lag, 0, "seed {seed}, {scope:?}: a position is before a marker");
        times += moved.times;
    }
    println!("{times} positions behind markers");
    assert!(times > 100, "{times}: too few");
    let unproven = Sabotage::Without(Safeguard::EmptyEnds);
    for scope in [Scope::Partition, Scope::Topic] {
        let loses = (0..400).any(|seed| {
            let violations = end_transactions(unproven, seed, scope).violations;
            violations.iter().any(|what| what.starts_with("lost"))
        });
        assert!(loses, "the history does not depend on the proof, {scope:?}");
    }
}

/// A record is written behind a marker, and only then the worker learns where the log ends.
#[test]
fn a_record_behind_a_marker_is_processed_after_a_crash_in_between() {
    for has_local in [false, true] {
        let mut life = Life::quiet(&Setting::sound(), 1, Choices::plain);
        life.produce_ids([1]);
        life.universe.cluster.borrow_mut().raw[0].mark();
        assert!(life.calm());
        assert_eq!(life.behind_markers(1), 1, "the position was not committed");
        life.universe.cluster.borrow_mut().dead.insert(0);
        life.end_dead();
        if !has_local {
            life.processes[0].store = SimDisk::memory();
        }
        life.produce_ids([2, 1]);
        life.universe.cluster.borrow_mut().raw[0].mark();
        assert!(life.calm());
        let forwarded = life.universe.cluster.borrow().clean[0].committed(0).count();
        assert_eq!(forwarded, 2, "with local state: {has_local}");
        assert_eq!(life.end(true).violations, [""; 0]);
    }
}
