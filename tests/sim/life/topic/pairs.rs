//! Random histories of ids with two records each, in different partitions: exact at the edge of the window under faults. The
//! partitions are not read evenly.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use super::*;
use crate::sim::universe::Sabotage;
use dedupd::metrics::Metrics;
use dedupd::pipeline::Safeguard;

/// Faults of these histories, of which each one has some.
const FAULTS: [Fault; 23] = [
    Fault::Crash,
    Fault::Retry,
    Fault::Abort,
    Fault::Unknown,
    Fault::LateCommit,
    Fault::Meanwhile,
    Fault::Redelivery,
    Fault::EmptyPoll,
    Fault::Rebalance,
    Fault::Kick,
    Fault::Replaced,
    Fault::StoreCleared,
    Fault::StoreOld,
    Fault::Snapshot,
    Fault::Leave,
    Fault::Downtime,
    Fault::TornClean,
    Fault::TornState,
    Fault::TornOffsets,
    Fault::LateMarker,
    Fault::EarlyEnd,
    Fault::WritesLost,
    Fault::StaleAbove,
];

/// Length of the window of live traffic, ms: the ends of the logs are compared once per second.
const LIVE_MS: i64 = 10_000;

/// Two records of an id.
#[derive(Debug, Clone, Copy)]
struct Pair {
    first_ms: i64,
    second_ms: i64,
    /// Whether the second one may arrive so far behind the fastest partition that the first one has expired.
    may_be_late: bool,
}

impl Pair {
    /// How many of its accepted records have to be forwarded, if that is determined.
    fn expected(self, accepted: usize, window_ms: i64) -> Option<usize> {
        match (self.second_ms - self.first_ms).abs() {
            ms if ms <= window_ms => (!self.may_be_late).then_some(accepted.min(1)),
            ms if ms > window_ms + window_ms / 256 + window_ms / 32 => Some(accepted),
            _ => None,
        }
    }
}

fn start(
    setting: &Setting,
    (seed, faults, factor): (u64, &[Fault], f64),
    window_ms: i64,
    rng: &mut Rng,
) -> Life {
    let mut chance = Chance::with_factor(seed, faults, factor);
    let mut choices = Choices::short_topic(&mut chance);
    choices.short_length = Duration::from_millis(window_ms.unsigned_abs());
    choices.max_records = rng.usize(1..30);
    choices.interval = Duration::from_millis(rng.u64(5..1_000));
    choices.smallest_slice = [None, Some(1), Some(3), Some(10)][rng.usize(0..4)];
    choices.retry = Some(Duration::from_secs(rng.u64(0..8)));
    let workers = rng.usize(1..=3);
    let mut cluster = Cluster::new(chance, rng.usize(2..6), Some(Ids::new("t")));
    cluster.forgets = true;
    let universe = Universe::new(cluster, (workers, false), setting.sabotage, choices.max_records);
    let mut life = Life::new(setting, universe, choices);
    life.patience = PATIENCE;
    life.has_standbys = rng.bool();
    life
}

impl Life {
    pub(super) fn partitions(&self) -> usize {
        self.universe.cluster.borrow().raw.len()
    }

    fn deliver_one_or_all(&self, one: bool, rng: &mut Rng, among: impl Fn(usize) -> bool) {
        let ids: Vec<usize> = (0..self.partitions()).filter(|id| among(*id)).collect();
        let only = one.then(|| u32::try_from(ids[rng.usize(0..ids.len())]).unwrap());
        self.universe.cluster.borrow_mut().delivers_only = only;
    }

    fn step_without_load(&mut self) {
        let (worker, leaves) = self.choose();
        self.advance(worker, leaves);
        self.stand_by();
        self.end_dead();
    }

    /// Processes the rest. Returns the ids whose number of clean records is wrong.
    fn wrong(mut self, pairs: BTreeMap<u64, Pair>, window_ms: i64) -> Vec<String> {
        self.universe.cluster.borrow_mut().delivers_only = None;
        let calmed = self.calm();
        let mut wrong = self.universe.cluster.borrow().violations.clone();
        wrong.extend((!calmed).then(|| "not idle".to_owned()));
        for (id, pair) in pairs {
            let name = format!("t-{id}");
            let cluster = self.universe.cluster.borrow();
            let records = cluster.raw.iter().flat_map(RawLog::records).filter(|it| it.name() == name);
            let at: Vec<_> = records.map(|it| (it.at, it.rejected)).collect();
            drop(cluster);
            let accepted = at.iter().filter(|(_, rejected)| !rejected).count();
            let found = self.times(id);
            if pair.expected(accepted, window_ms).is_some_and(|expected| expected != found) {
                wrong.push(format!("{found} records of id {id} {at:?}: {pair:?}"));
            }
        }
        self.universe.workers.iter().for_each(|slot| *slot.borrow_mut() = None);
        wrong
    }
}

/// A backlog of six windows, of which one partition at a time is delivered.
fn read_a_backlog_of_pairs(setting: &Setting, seed: u64) -> Vec<String> {
    let mut rng = Rng::with_seed(!seed);
    let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|_| rng.u8(0..3) > 0).collect();
    faults.extend((seed % 3 == 2).then_some(Fault::Rejected));
    let mut life = start(setting, (seed, &faults, 1.0), WINDOW_MS, &mut rng);
    let pairs = life.produce_backlog(66, &mut rng);
    for number in 0..rng.usize(200..1_200) {
        if number % 40 == 0 {
            life.deliver_one_or_all(rng.u8(0..6) > 0, &mut rng, |_| true);
        }
        life.step_without_load();
    }
    let pair = |(first_ms, second_ms)| Pair { first_ms, second_ms, may_be_late: false };
    life.wrong(pairs.into_iter().map(|(id, times)| (id, pair(times))).collect(), WINDOW_MS)
}

/// How a partition of live traffic differs from the others.
struct Lag {
    partition: usize,
    /// Its timestamps are behind by so much all the time, ms.
    clock_ms: i64,
    /// It has few records.
    is_idle: bool,
    /// It is not delivered for most of the time.
    is_held_back: bool,
}

impl Lag {
    fn draw(partitions: usize, rng: &mut Rng) -> Self {
        let tenths = [0, 0, 1, 5, 9, 15][rng.usize(0..6)];
        Self {
            partition: rng.usize(0..partitions),
            clock_ms: LIVE_MS * tenths / 10,
            is_idle: rng.u8(0..3) == 0,
            is_held_back: rng.u8(0..3) == 0,
        }
    }

    /// The timestamp of a record that is written now.
    fn at_ms(&self, partition: usize, now_ms: i64) -> i64 {
        if partition == self.partition { now_ms - self.clock_ms } else { now_ms }
    }

    /// A partition for the next record, other than this one.
    fn draw_partition(&self, partitions: usize, other: Option<usize>, rng: &mut Rng) -> usize {
        loop {
            let drawn = rng.usize(0..partitions);
            let is_rare = self.is_idle && drawn == self.partition && rng.u8(0..12) > 0;
            if Some(drawn) != other && (!is_rare || partitions == 2) {
                return drawn;
            }
        }
    }
}

/// Live traffic, with rejected records and growth. One partition has other clocks, few records, or is not delivered for several windows.
fn read_live_pairs(setting: &Setting, seed: u64) -> Vec<String> {
    let mut rng = Rng::with_seed(seed ^ 0x5eed);
    let mut faults: Vec<Fault> = FAULTS.into_iter().filter(|_| rng.u8(0..3) > 0).collect();
    faults.extend([Fault::Rejected, Fault::Growth].into_iter().filter(|_| rng.bool()));
    let factor = [0.3, 1.0, 3.0][rng.usize(0..3)];
    let mut life = start(setting, (seed, &faults, factor), LIVE_MS, &mut rng);
    let lag = Lag::draw(life.partitions(), &mut rng);
    let mut live = LivePairs { lag, next_id: 1 << 30, later: Vec::new(), pairs: BTreeMap::new() };
    // How late a partition is, is known from its first record on.
    (0..life.partitions()).for_each(|partition| live.produce(&life, partition));
    let steps = rng.usize(300..1_000);
    live.next_id = 0;
    for number in 0..steps {
        if number % 25 == 0 {
            let (held_back, is_held_back) =
                (live.lag.partition, live.lag.is_held_back && number < steps * 2 / 3);
            let one = is_held_back || rng.u8(0..3) == 0;
            life.deliver_one_or_all(one, &mut rng, |id| id != held_back || !is_held_back);
        }
        if rng.bool() {
            life.universe.cluster.borrow_mut().advance(Duration::from_millis(rng.u64(0..300)));
        }
        live.step(&life, number + 200 < steps, &mut rng);
        life.step_without_load();
    }
    live.pairs.retain(|_, pair| pair.second_ms > 0);
    life.wrong(live.pairs, LIVE_MS)
}

/// The load of live traffic.
struct LivePairs {
    lag: Lag,
    next_id: u64,
    /// Second records: when, in which partition, and the id.
    later: Vec<(i64, usize, u64)>,
    pairs: BTreeMap<u64, Pair>,
}

impl LivePairs {
    /// Writes the first record of the next id.
    fn produce(&mut self, life: &Life, partition: usize) {
        let at_ms = self.lag.at_ms(partition, life.universe.cluster.borrow().wall_ms());
        life.produce_at(partition, self.next_id, at_ms);
        self.pairs.insert(self.next_id, Pair { first_ms: at_ms, second_ms: 0, may_be_late: false });
        self.next_id += 1;
    }

    fn step(&mut self, life: &Life, begins_pairs: bool, rng: &mut Rng) {
        let (now_ms, partitions) = (life.universe.cluster.borrow().wall_ms(), life.partitions());
        self.later.sort_unstable();
        let due = self.later.partition_point(|(at_ms, ..)| *at_ms <= now_ms);
        for (_, partition, id) in self.later.drain(..due) {
            let at_ms = self.lag.at_ms(partition, now_ms);
            life.produce_at(partition, id, at_ms);
            let pair = self.pairs.get_mut(&id).unwrap();
            // The horizon is at most one window behind the fastest partition because of clocks that differ.
            let held_from_ms = now_ms - self.lag.clock_ms.min(LIVE_MS) - LIVE_MS;
            (pair.second_ms, pair.may_be_late) = (at_ms, pair.first_ms < held_from_ms);
        }
        if begins_pairs && rng.u8(0..3) == 0 {
            let first = self.lag.draw_partition(partitions, None, rng);
            let second = self.lag.draw_partition(partitions, Some(first), rng);
            let distance_ms = [0, 1, 1_500, 4_500, 7_500, 9_500, 12_500, 20_000][rng.usize(0..8)];
            self.later.push((now_ms + distance_ms, second, self.next_id));
            self.produce(life, first);
        }
    }
}

type History = fn(&Setting, u64) -> Vec<String>;

const BACKLOG: History = read_a_backlog_of_pairs;
const LIVE: History = read_live_pairs;

/// The first histories that are wrong, of at most `seeds`.
fn wrong(history: History, sabotage: Sabotage, seeds: u64) -> Option<(u64, Vec<String>)> {
    let from = crate::variable("DEDUPD_SIM_FROM").unwrap_or(0);
    if from > 0 {
        crate::trace();
    }
    let setting = Setting { sabotage, metrics: Metrics::new() };
    (from..from + seeds).find_map(|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| history(&setting, seed)));
        let wrong = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            vec![format!("panic: {}", text.unwrap_or_default())]
        });
        (!wrong.is_empty()).then_some((seed, wrong))
    })
}

fn seeds(divisor: u64) -> u64 {
    crate::variable("DEDUPD_SIM_SEEDS").unwrap_or(crate::SEEDS) / divisor
}

#[test]
fn pairs_in_a_backlog_are_exact_at_the_edge_of_the_window_under_faults() {
    assert_eq!(wrong(BACKLOG, Sabotage::Nothing, seeds(40)), None);
}

#[test]
fn live_pairs_are_exact_at_the_edge_of_the_window_under_faults() {
    assert_eq!(wrong(LIVE, Sabotage::Nothing, seeds(40)), None);
}

#[test]
fn the_histories_of_pairs_depend_on_each_safeguard_of_the_window() {
    let mut unneeded = Vec::new();
    for (name, history, safeguard) in [
        ("backlog", BACKLOG, Safeguard::SlowestClock),
        ("backlog", BACKLOG, Safeguard::AllPartitions),
        ("backlog", BACKLOG, Safeguard::StandbyExpiry),
        ("live", LIVE, Safeguard::SlowestClock),
        ("live", LIVE, Safeguard::Lateness),
        ("backlog", BACKLOG, Safeguard::SettledClock),
    ] {
        let found = wrong(history, Sabotage::Without(safeguard), 2_000);
        println!("{name}, {safeguard:?}: {:?}", found.as_ref().map(|(seed, _)| seed));
        unneeded.extend(found.is_none().then_some((name, safeguard)));
    }
    assert_eq!(unneeded, [], "no history depends on them");
}
