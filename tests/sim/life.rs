//! One history: a time of trouble, a time of calm, an audit.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use dedupd::control::Asked;
use dedupd::dedupe::{BloomLimits, HashKind, IdSource, KindId, KindRule, Offset, TimeSource, WindowLimits};
use dedupd::metrics::{About, Metrics, Status};
use dedupd::pipeline::{
    Kind, Kinds, Limits, Mode, OnGap, OnMissing, OnPoison, OnProbable, OnRewind, Options, Overflow, Reach,
    Report, Start,
};
use dedupd::store::{Held, memory::MemoryStore};

use crate::sim::ask::{Wishes, rule};
use crate::sim::audit::audit;
use crate::sim::chance::{Chance, Counts, Fault};
use crate::sim::cluster::{Cluster, TRANSACTION_TIMEOUT};
use crate::sim::sink::SimSink;
use crate::sim::source::SimSource;
use crate::sim::state_log::SimLog;
use crate::sim::store::{SimStore, rot, survive};
use crate::sim::universe::{Sabotage, SimClock, SimWorker, Universe, writer};

/// Longer than any history, in simulated time.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Shorter than most histories, in simulated time.
const SHORT: Duration = Duration::from_secs(2);
/// Of a window that evicts, shared among its partitions: fewer than there are ids.
const SLOTS: u64 = 16;
/// What counts the records that a window let through again because it had forgotten their id.
pub const FORGOTTEN: &str = "id forgotten by eviction";
/// Turns after the faults within which everything has to be done; some 100 s of simulated time.
const CALM_TURNS: usize = 8000;
/// Simulated time with nothing left to do that counts as the end: longer than any pause between two attempts.
const IDLE: Duration = Duration::from_secs(8);

/// What a history begins with.
#[derive(Clone)]
pub struct Setting {
    /// What is broken on purpose.
    pub sabotage: Sabotage,
    /// Registered once; registering takes longer than a history.
    pub metrics: Metrics,
}

/// How a history ended.
pub struct Outcome {
    /// What happened in it.
    pub counts: Counts,
    /// Records written by producers.
    pub raw: usize,
    /// Records in the clean topic.
    pub clean: usize,
    /// What must not be, and is.
    pub violations: Vec<String>,
}

struct Life {
    universe: Rc<Universe>,
    setting: Setting,
    /// Store of each process, and older copies of it.
    stores: Vec<(Held<MemoryStore>, Vec<MemoryStore>)>,
    choices: Choices,
    /// The way to each worker that runs.
    controls: Vec<Option<Sender<Asked>>>,
    wishes: Wishes,
}

#[derive(Clone, Copy)]
struct Choices {
    time: TimeSource,
    /// The exact part of the window is short; filters remember the rest.
    filters: bool,
    /// The window has room for few ids, and overwrites the oldest.
    evicts: bool,
    /// Some records have windows of their own.
    has_kinds: bool,
    on_poison: OnPoison,
    max_records: usize,
    interval: Duration,
}

impl Choices {
    /// The kinds of a history, by the last digit of an id: remembered exactly, in filters, or as all the others.
    fn kinds(self) -> Kinds {
        let kind = |name: &str, digits: &[&str], filters| Kind {
            name: name.to_owned(),
            id: KindId::named(name),
            rule: Some(KindRule::new(
                IdSource::Header("kind".to_owned()),
                digits.iter().map(|digit| (*digit).to_owned()),
            )),
            window: Some(self.window(filters)),
            on_probable: OnProbable::Drop,
        };
        let named = [kind("exact", &["0", "1", "2"], false), kind("filters", &["3", "4"], true)];
        let named = named.into_iter().filter(|_| self.has_kinds);
        Kinds::new(self.window(self.filters), OnProbable::Drop, named)
    }

    fn window(self, filters: bool) -> WindowLimits {
        let exact = if filters { SHORT } else { WINDOW };
        let limits = BloomLimits {
            exact,
            bloom: WINDOW + exact / 32,
            slices: 7,
            false_positive_rate: 1e-12,
            max_bytes: u64::MAX,
        };
        WindowLimits { exact, max_ids: 1 << 20, time: self.time, bloom: filters.then_some(limits) }
    }
}

/// Runs the history of a seed.
pub fn run(seed: u64, setting: &Setting) -> Outcome {
    let mut chance = Chance::new(seed);
    let partitions = chance.rng.usize(1..=3);
    let workers = chance.rng.usize(1..=2);
    let shared = workers > 1 && chance.coin();
    let choices = Choices {
        time: if chance.coin() { TimeSource::Record } else { TimeSource::Arrival },
        filters: chance.rng.u8(0..4) == 0,
        evicts: chance.rng.u8(0..4) == 0,
        has_kinds: false,
        on_poison: if chance.coin() { OnPoison::Drop } else { OnPoison::DeadLetter },
        max_records: chance.rng.usize(1..=30),
        interval: Duration::from_millis(chance.rng.u64(5..1500)),
    };
    let choices = Choices { has_kinds: chance.rng.u8(0..3) == 0, ..choices };
    let steps = chance.rng.usize(30..200);
    let cluster = Cluster::new(chance, partitions);
    let universe = Rc::new(Universe::new(cluster, (workers, shared), setting.sabotage, choices.max_records));
    let processes = if shared { 1 } else { workers };
    let stores = (0..processes).map(|_| (Held::new(MemoryStore::new()), Vec::new())).collect();
    let controls = vec![None; workers];
    let wishes = Wishes::default();
    let mut life = Life { universe, setting: setting.clone(), stores, choices, controls, wishes };
    (0..steps).for_each(|_| life.step());
    let calmed = life.calm();
    life.end(calmed)
}

impl Life {
    fn step(&mut self) {
        self.produce();
        self.wishes.wish(&mut self.universe.cluster.borrow_mut(), &self.controls);
        self.universe.shuffle();
        let (worker, leaves) = {
            let mut cluster = self.universe.cluster.borrow_mut();
            let workers = self.universe.workers.len();
            (cluster.chance.rng.usize(0..workers), cluster.chance.hit(Fault::Leave))
        };
        self.put_aside();
        if self.universe.workers[worker].borrow().is_none() {
            let soon = self.universe.cluster.borrow_mut().chance.rng.u8(0..3) == 0;
            if soon {
                self.down();
                self.start(worker);
            }
        } else if leaves {
            self.leave(worker);
        } else {
            self.universe.turn(worker);
        }
        self.wishes.hear(&self.universe.cluster.borrow());
        self.bury();
    }

    fn produce(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let now_ms = cluster.wall_ms();
        let Cluster { chance, raw, .. } = &mut *cluster;
        if chance.rng.u8(0..3) > 0 {
            return;
        }
        for _ in 0..chance.rng.usize(0..10) {
            let partition = chance.rng.usize(0..raw.len());
            raw[partition].produce(chance, now_ms);
        }
    }

    /// Keeps a copy of a store, for a restart that finds an older one.
    fn put_aside(&mut self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        for (store, older) in &mut self.stores {
            if cluster.chance.hit(Fault::Snapshot) {
                older.push(store.store().snapshot());
            }
            rot(store.store(), &mut cluster.chance);
        }
    }

    /// In one process all workers end with the first.
    fn bury(&self) {
        for (worker, slot) in self.universe.workers.iter().enumerate() {
            let mut cluster = self.universe.cluster.borrow_mut();
            if cluster.dead.contains(&worker) && slot.borrow().is_some() {
                self.universe.ended(&mut cluster, worker, Ok(()));
                drop(cluster);
                *slot.borrow_mut() = None;
            }
        }
    }

    /// What can happen while nobody runs.
    fn down(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        if !cluster.group.is_empty() {
            return;
        }
        if cluster.chance.hit(Fault::Downtime) {
            cluster.advance(TRANSACTION_TIMEOUT * 2);
        }
        let now_ms = cluster.wall_ms();
        let processed: Vec<Offset> = (0..cluster.raw.len()).map(|p| cluster.processed(p)).collect();
        let Cluster { chance, raw, offsets, .. } = &mut *cluster;
        for ((raw, offsets), processed) in raw.iter_mut().zip(offsets).zip(processed) {
            if offsets.settled.is_none() || !offsets.pending.is_empty() {
                continue;
            }
            if processed < raw.end() && chance.hit(Fault::Rewrite) {
                raw.rewrite(processed, chance, now_ms);
            }
            if chance.hit(Fault::OffsetsLost) {
                offsets.settled = None;
            }
        }
    }

    fn leave(&self, worker: usize) {
        let mut slot = self.universe.workers[worker].borrow_mut();
        if let Some(running) = slot.take() {
            let ended = running.run(&AtomicBool::new(true), &AtomicU64::new(0));
            let mut cluster = self.universe.cluster.borrow_mut();
            // Its process goes on without it.
            let dead = cluster.dead.clone();
            self.universe.ended(&mut cluster, worker, ended);
            cluster.dead = dead;
        }
    }

    /// Starts a process: one worker, or all that share it.
    fn start(&mut self, worker: usize) {
        let shared = self.universe.shared;
        let all: Vec<usize> = if shared { (0..self.universe.workers.len()).collect() } else { vec![worker] };
        let down = all.iter().all(|worker| self.universe.workers[*worker].borrow().is_none());
        let process = if shared { 0 } else { worker };
        if down {
            self.choose_store(process);
        }
        for worker in all {
            if self.universe.workers[worker].borrow().is_none() {
                self.universe.cluster.borrow_mut().dead.remove(&worker);
                let started = self.worker(worker, self.stores[process].0.another());
                *self.universe.workers[worker].borrow_mut() = Some(started);
            }
        }
    }

    fn choose_store(&mut self, process: usize) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let (store, older) = &mut self.stores[process];
        if cluster.chance.hit(Fault::StoreCleared) {
            *store = Held::new(MemoryStore::new());
        } else if !older.is_empty() && cluster.chance.hit(Fault::StoreOld) {
            *store = Held::new(older[cluster.chance.rng.usize(0..older.len())].snapshot());
        }
        survive(store, &mut cluster, process);
    }

    fn worker(&mut self, worker: usize, store: Held<MemoryStore>) -> SimWorker {
        let universe = &self.universe;
        let ports = (
            SimSource::join(universe, worker),
            SimSink::new(universe, worker),
            SimLog::new(universe, worker),
            SimStore::new(universe, worker, store),
        );
        let about = About {
            version: String::new(),
            group: "group".to_owned(),
            instance: "sim".to_owned(),
            raw: "raw".to_owned(),
            clean: "clean".to_owned(),
        };
        let status = Arc::new(Status::new(about, universe.workers.len()));
        let report = Report::new(self.setting.metrics.clone(), status, worker);
        let (control, asked) = channel();
        let worker_of = SimWorker::new(ports, SimClock(Rc::clone(universe)), self.options(worker), report);
        self.controls[worker] = Some(control);
        worker_of.answering(asked)
    }

    fn options(&self, worker: usize) -> Options {
        Options {
            raw: "raw".to_owned(),
            raw_id: None,
            state_id: None,
            state: "state".to_owned(),
            reach: Reach::new(usize::MAX),
            began: u32::try_from(self.universe.cluster.borrow().raw.len()).unwrap(),
            writer: writer(worker),
            rule: rule(),
            accept_change: None,
            hash: HashKind::Xxh3,
            kinds: self.choices.kinds(),
            limits: Limits {
                workers: 1,
                max_ids: if self.choices.evicts { SLOTS } else { 1 << 20 },
                when_full: if self.choices.evicts { Overflow::Evict } else { Overflow::Shrink },
                max_memory: None,
                max_disk: None,
            },
            mode: Mode::Drop,
            keep_duplicates: false,
            force_header: None,
            on_missing: OnMissing::Forward,
            on_poison: self.choices.on_poison,
            // In a third of the histories at once, else after one or two pauses.
            poison_retry: Duration::from_secs(self.choices.max_records as u64 % 3),
            start: Start::Earliest,
            on_rewind: OnRewind::Stop,
            on_gap: OnGap::Stop,
            torn: self.setting.sabotage.torn(),
            gaps: self.setting.sabotage.gaps(),
            max_records: self.choices.max_records,
            max_bytes: 1 << 20,
            interval: self.choices.interval,
            transaction_timeout: TRANSACTION_TIMEOUT,
            // Often several for a transaction.
            block_ids: [1, 3, 30_000][self.choices.max_records / 3 % 3],
            most_partitions: 1 + self.choices.max_records % 4,
            load_slice: self.universe.load_slice,
        }
    }

    /// No more faults: everything has to be done after a while.
    fn calm(&mut self) -> bool {
        self.universe.cluster.borrow_mut().chance.quiet();
        let mut idle_since = None;
        for _ in 0..CALM_TURNS {
            self.bury();
            for worker in 0..self.universe.workers.len() {
                self.start(worker);
                self.universe.turn(worker);
            }
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
        // Workers hold the universe that holds them.
        self.universe.workers.iter().for_each(|slot| *slot.borrow_mut() = None);
        let cluster = self.universe.cluster.borrow();
        let mut violations = cluster.violations.clone();
        if !calmed {
            let owners: Vec<_> = (0..cluster.raw.len()).map(|p| cluster.group.owner(p)).collect();
            let at: Vec<_> = (0..cluster.raw.len()).map(|p| cluster.group.position(p)).collect();
            violations.push(format!("not idle after {CALM_TURNS} turns: owners {owners:?}, at {at:?}"));
        }
        let (wrong, repeated) = audit(&cluster, &self.wishes, self.choices.evicts);
        violations.extend(wrong);
        let mut counts = cluster.chance.counts();
        if repeated > 0 {
            counts.insert(FORGOTTEN, repeated);
        }
        let visible = |p: usize| cluster.clean[p].committed(0).count();
        counts.insert("taken back", self.wishes.fulfilled.len() as u64);
        Outcome {
            counts,
            raw: cluster.raw.iter().map(|log| log.history.len()).sum(),
            clean: (0..cluster.raw.len()).map(visible).sum(),
            violations,
        }
    }
}

/// Everybody has what there is, and nothing is open.
fn is_idle(cluster: &Cluster) -> bool {
    let done = |partition: usize| {
        let fetch = cluster.group.position(partition).filter(|fetch| !fetch.paused);
        // Without a committed offset there was nothing to commit since the group lost its offsets.
        let committed = cluster.offsets[partition].settled.as_ref().map(|(offset, _)| *offset);
        let at = fetch.and_then(|fetch| fetch.at);
        at.is_some_and(|at| cluster.raw[partition].next(committed.unwrap_or(at)).is_none())
    };
    cluster.is_settled() && cluster.group.is_settled() && (0..cluster.raw.len()).all(done)
}
