//! One history: a phase with faults, a phase without faults, an audit.

mod compared;
mod counted;
mod fenced;
mod foreign;
mod forgotten;
mod markers;
mod quiet;
mod recreated;
mod rejected;
mod slow;
mod standby;
mod stores;
mod topic;
mod torn;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dedupd::control::Request;
use dedupd::dedupe::{Offset, PartitionId};
use dedupd::metrics::Status;
use dedupd::pipeline::{Ports, Scope, StableEnds, Standby, WorkerReport};

use crate::sim::audit::audit;
use crate::sim::chance::{Chance, Counts, Fault};
use crate::sim::clock::SimClock;
use crate::sim::cluster::{Cluster, Offsets};
use crate::sim::config::Choices;
use crate::sim::disk::SimDisk;
use crate::sim::operator::{ForgetRequests, rule};
use crate::sim::raw::Ids;
use crate::sim::side::Sides;
use crate::sim::sink::SimSink;
use crate::sim::source::SimSource;
use crate::sim::state_log::SimLog;
use crate::sim::store::{SimStore, rot, survive};
use crate::sim::universe::{Sabotage, Setting, SimWorker, SimWorld, Universe, writer};
pub use counted::{COMMIT_FAULTS, count};
pub use foreign::open_a_foreign_transaction;
pub use forgotten::{forget_before_a_restore, forget_what_was_undone};
pub use quiet::seal_the_first_block;
use quiet::{is_idle, status};
pub use rejected::replace_the_producer_in_a_wait;
pub use slow::{
    SlowSearch, after_an_outage, evidence_over_a_slow_link, load_slowly, over_a_slow_link,
    restore_forgotten_slowly, search_slowly,
};
use stores::REAL_STORE;
pub use topic::*;
pub use torn::*;

/// Counts records that were forwarded again because a window had evicted their id.
pub const EVICTED: &str = "id evicted";
/// Counts ids that a worker has forgotten on request.
pub const FORGOTTEN: &str = "id forgotten";
/// Counts writes of a restore that joined the owners of several entries.
pub const JOINED: &str = "entries joined";
/// Counts owners that were sealed.
pub const SEALED: &str = "owners sealed";
/// Counts those that the real store has sealed.
pub const SEALED_ON_DISK: &str = "owners sealed on disk";
/// Counts look-ups that found a sealed owner.
pub const SEALED_HITS: &str = "sealed owners found";
/// Records whose content was compared: equal, and not.
pub const COMPARED: [&str; 2] = ["equal to the owner", "conflicts"];
/// Counts look-ups that found an id in a filter without owners.
pub const FILTER_HITS: &str = "ids found in filters";
/// Counts iterations of a standby whose copies were read to the end.
pub const CAUGHT_UP: &str = "standby caught up";
/// Counts standbys whose process has become the active instance.
pub const HANDED_OVER: &str = "standby handed over";
/// The histories of these seeds and all later ones are in topic scope.
pub const TOPIC_SEEDS: u64 = 1 << 40;
/// Iterations after the faults within which all work must be done: about 100 s of simulated time.
const CALM_ITERATIONS: usize = 8000;
/// A history ends after this much simulated time without work. Longer than any retry backoff.
const IDLE: Duration = Duration::from_secs(8);

/// The result of a history.
pub struct Outcome {
    /// The faults and other events in it.
    pub counts: Counts,
    /// Records written by producers.
    pub raw: usize,
    /// Records in the clean topic.
    pub clean: usize,
    /// Violations of the guarantees.
    pub violations: Vec<String>,
}

/// What a process keeps from one start to the next.
struct Process {
    store: SimDisk,
    /// Copies of the store.
    older: Vec<SimDisk>,
    choices: Choices,
}

struct Life {
    universe: Rc<Universe>,
    setting: Setting,
    processes: Vec<Process>,
    /// The request channel of each worker that runs.
    controls: Vec<Option<Sender<Request>>>,
    /// What the worker that was started last publishes.
    status: Option<Arc<Status>>,
    requests: ForgetRequests,
    /// Where the raw logs end, as the topic monitor of each worker has read it since its start.
    ends: Vec<StableEnds>,
    /// What each topic monitor has found last: the partitions without records, and the ends up to which it has read them.
    found: Vec<[BTreeMap<PartitionId, Offset>; 2]>,
    /// How long a partition with unread records may deliver none before it counts as stalled.
    patience: Duration,
    /// How many partitions raw had when the processes started, unless it is what it has now.
    began: Option<usize>,
    has_standbys: bool,
    /// The standby of each process.
    standbys: Vec<Option<Standby<SimWorld>>>,
}

/// Runs the history of a seed. From [`TOPIC_SEEDS`] on it is in topic scope.
pub fn run(seed: u64, setting: &Setting) -> Outcome {
    let mut chance = Chance::new(seed);
    let scope = if seed < TOPIC_SEEDS { Scope::Partition } else { Scope::Topic };
    let partitions = chance.rng.usize(1..=3) + usize::from(scope == Scope::Topic);
    let workers = chance.rng.usize(1..=if scope == Scope::Topic { 3 } else { 2 });
    let shared = scope == Scope::Partition && workers > 1 && chance.coin();
    let mut choices = Choices::draw(&mut chance);
    choices.scope = scope;
    let steps = chance.rng.usize(30..200);
    let topic_ids = (scope == Scope::Topic).then(|| Ids::new("t"));
    let mut cluster = Cluster::new(chance, partitions, topic_ids);
    cluster.forgets = choices.forgets();
    cluster.sides = Sides::new(choices.sides);
    let universe = Universe::new(cluster, (workers, shared), setting.sabotage, choices.max_records);
    let mut life = Life::new(setting, universe, choices);
    life.has_standbys = Life::follows(seed);
    if seed.is_multiple_of(REAL_STORE) && setting.sabotage == Sabotage::Nothing {
        life.use_real_stores();
    }
    (0..steps).for_each(|_| life.step());
    let calmed = life.calm();
    life.end(calmed)
}

impl Life {
    fn step(&mut self) {
        self.produce();
        self.requests.send(&mut self.universe.cluster.borrow_mut(), &self.controls);
        let (worker, leaves) = self.choose();
        self.step_clocks();
        self.advance(worker, leaves);
        self.requests.receive(&self.universe.cluster.borrow());
        self.stand_by();
        self.end_dead();
    }

    /// The worker of this step, and whether it leaves.
    fn choose(&mut self) -> (usize, bool) {
        self.universe.shuffle();
        let chosen = {
            let mut cluster = self.universe.cluster.borrow_mut();
            let workers = self.universe.workers.len();
            (cluster.chance.rng.usize(0..workers), cluster.chance.hit(Fault::Leave))
        };
        self.snapshot_stores();
        chosen
    }

    /// Starts the worker, ends it, or lets it iterate.
    fn advance(&mut self, worker: usize, leaves: bool) {
        self.elect(worker);
        if self.universe.workers[worker].borrow().is_none() {
            let soon = self.universe.cluster.borrow_mut().chance.rng.u8(0..3) == 0;
            if soon {
                self.universe.cluster.borrow_mut().fail_while_down();
                self.start(worker);
            }
        } else if leaves {
            self.leave(worker);
        } else {
            self.universe.iterate(worker);
        }
    }

    fn produce(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let now_ms = cluster.wall_ms();
        let Cluster { chance, raw, .. } = &mut *cluster;
        if chance.hit(Fault::Marker) {
            let partition = chance.of_markers(raw.len());
            raw[partition].mark();
        }
        if chance.rng.u8(0..3) > 0 {
            return;
        }
        for _ in 0..chance.rng.usize(0..10) {
            let partition = chance.rng.usize(0..raw.len());
            raw[partition].produce(chance, now_ms);
        }
    }

    fn step_clocks(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        for (machine, process) in self.processes.iter().enumerate() {
            let workers = if self.universe.shared { self.universe.workers.len() } else { 1 };
            cluster.step_clock(machine..machine + workers, process.choices.time);
        }
    }

    /// Ends all workers of a process that has ended.
    fn end_dead(&self) {
        for (worker, slot) in self.universe.workers.iter().enumerate() {
            let mut cluster = self.universe.cluster.borrow_mut();
            if cluster.dead.contains(&worker) && slot.borrow().is_some() {
                self.universe.ended(&mut cluster, worker, Ok(()));
                drop(cluster);
                *slot.borrow_mut() = None;
            }
        }
    }

    fn leave(&self, worker: usize) {
        let mut slot = self.universe.workers[worker].borrow_mut();
        if let Some(running) = slot.take() {
            let ended = running.run(&AtomicBool::new(true));
            let mut cluster = self.universe.cluster.borrow_mut();
            // Its process continues without it.
            let dead = cluster.dead.clone();
            self.universe.ended(&mut cluster, worker, ended);
            cluster.dead = dead;
        }
    }

    /// Starts a process: one worker, or all workers of the shared process.
    fn start(&mut self, worker: usize) {
        if self.is_spare(worker) {
            return;
        }
        let shared = self.universe.shared;
        let all: Vec<usize> = if shared { (0..self.universe.workers.len()).collect() } else { vec![worker] };
        let down = all.iter().all(|worker| self.universe.workers[*worker].borrow().is_none());
        let process = if shared { 0 } else { worker };
        let down = down && !self.hand_over(process);
        if down {
            self.choose_store(process);
            self.configure(process);
        }
        if down {
            self.try_other_topic(process, worker);
        }
        for worker in all {
            if self.universe.workers[worker].borrow().is_none() {
                self.universe.cluster.borrow_mut().dead.remove(&worker);
                let started = self.worker(worker, process);
                *self.universe.workers[worker].borrow_mut() = Some(started);
            }
        }
    }

    /// Changes the configuration between two starts.
    fn configure(&mut self, process: usize) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let Process { store, older, choices } = &mut self.processes[process];
        if cluster.chance.hit(Fault::Reconfigured) {
            let before = std::mem::replace(choices, choices.changed(&mut cluster));
            if before.has_kinds != choices.has_kinds {
                // A store is quarantined when the list of kinds changes.
                *store = store.another_empty();
                older.clear();
            }
        }
        if cluster.rule < 2 && cluster.chance.hit(Fault::RuleChanged) {
            cluster.rule += 1;
            (choices.rule, choices.accepts) = (cluster.rule, cluster.chance.coin());
        }
        choices.accepts_gap = cluster.gapped.remove(&process);
        if cluster.other_rule.remove(&process) {
            (choices.rule, choices.accepts) = (cluster.rule, true);
        }
        cluster.forgets |= choices.rule > 0;
        let hash = rule(choices.rule).hash_kind();
        if store.has_other_hash(hash) {
            *store = SimDisk::real(self.universe.is_topic_wide, hash);
            older.clear();
        }
    }

    fn worker(&mut self, worker: usize, process: usize) -> SimWorker {
        self.ends[worker] = StableEnds::with_patience(self.patience).silent_after(Duration::ZERO);
        self.found[worker] = Default::default();
        let universe = &self.universe;
        let Process { store, choices, .. } = &self.processes[process];
        let partitions = self.began.unwrap_or(universe.cluster.borrow().raw.len());
        let options = choices.options(
            universe.writer(worker),
            partitions,
            universe.load_part,
            self.setting.sabotage.without(),
        );
        let ports = Ports {
            source: SimSource::join(universe, worker, choices.raw_id()),
            sink: SimSink::new(universe, worker),
            log: SimLog::new(universe, worker),
            store: SimStore::new(universe, worker, store.another()),
            clock: SimClock(Rc::clone(universe), worker),
        };
        let status = Arc::new(status(universe.workers.len()));
        self.status = Some(Arc::clone(&status));
        let report = WorkerReport::new(self.setting.metrics.clone(), status, worker);
        let (control, requests) = channel();
        let worker_of = SimWorker::new(ports, options, report);
        self.controls[worker] = Some(control);
        let worker_of = worker_of.answering(requests).counting(self.universe.progress.clone());
        worker_of.comparing(self.ends[worker].clone())
    }

    /// Runs without faults until all work is done. Returns whether that happened in time.
    fn calm(&mut self) -> bool {
        self.universe.cluster.borrow_mut().chance.quiet();
        let mut idle_since = None;
        for _ in 0..CALM_ITERATIONS {
            self.end_dead();
            for worker in 0..self.universe.workers.len() {
                self.elect(worker);
                self.start(worker);
                self.universe.iterate(worker);
            }
            self.stand_by();
            let mut cluster = self.universe.cluster.borrow_mut();
            let cluster = &mut *cluster;
            cluster.group.balance(cluster.now, &mut cluster.chance.rng);
            idle_since = idle_since.filter(|_| is_idle(cluster)).or(Some(cluster.now));
            let idle = idle_since.is_some_and(|since| cluster.now - since >= IDLE);
            if idle || !cluster.violations.is_empty() {
                return true;
            }
        }
        false
    }

    fn end(self, calmed: bool) -> Outcome {
        let sealed_on_disk = self.sealed_on_disk();
        // Breaks the reference cycle between workers and universe.
        self.universe.workers.iter().for_each(|slot| *slot.borrow_mut() = None);
        drop(self.standbys);
        let cluster = self.universe.cluster.borrow();
        let mut violations = cluster.violations.clone();
        if !calmed {
            let owners: Vec<_> = (0..cluster.raw.len()).map(|p| cluster.group.owner(p)).collect();
            let at: Vec<_> = (0..cluster.raw.len()).map(|p| cluster.group.position(p)).collect();
            violations
                .push(format!("not idle after {CALM_ITERATIONS} iterations: owners {owners:?}, at {at:?}"));
        }
        let (wrong, repeated) = audit(&cluster, &self.requests, cluster.forgets);
        violations.extend(wrong);
        let choices = self.processes[0].choices;
        violations.extend(cluster.audit_sides(choices.keeps_letters(), choices.keeps_duplicates));
        let mut counts = cluster.chance.counts();
        if repeated > 0 {
            counts.insert(EVICTED, repeated);
        }
        let visible = |p: usize| cluster.clean[p].committed(0).count();
        counts.insert(FORGOTTEN, self.requests.forgotten.len() as u64);
        counts.insert(JOINED, self.universe.joined.get());
        counts.insert(SEALED, self.universe.sealed.get());
        counts.insert(SEALED_ON_DISK, sealed_on_disk);
        counts.insert(SEALED_HITS, self.universe.sealed_hits.get());
        COMPARED.iter().zip(&self.universe.compared).for_each(|(name, count)| {
            counts.insert(name, count.get());
        });
        counts.insert(FILTER_HITS, self.universe.filter_hits.get());
        counts.insert(CAUGHT_UP, self.universe.caught_up.get());
        counts.insert(HANDED_OVER, self.universe.handed_over.get());
        Outcome {
            counts,
            raw: cluster.raw.iter().map(|log| log.history.len()).sum(),
            clean: (0..cluster.raw.len()).map(visible).sum(),
            violations,
        }
    }
}
