//! What the ports of all workers share: the cluster, the workers themselves, and how a call fails.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dedupd::clock::Clock;
use dedupd::dedupe::Offset;
use dedupd::pipeline::{Fatal, LoadSlice, Safeguard, Worker, World};
use dedupd::ports::Failure;

use crate::sim::chance::{Exposure, Fault, injected};
use crate::sim::cluster::Cluster;
use crate::sim::sink::SimSink;
use crate::sim::source::SimSource;
use crate::sim::state_log::SimLog;
use crate::sim::store::{DAMAGED, SimStore};

/// What a worker says of a group that goes by another identity rule.
const OTHER_RULE: &str = "was written by the identity rule";
/// What it says when nothing tells any more where the group stands.
const EXPIRED: &str = "both have expired";

/// Most records of a transaction, and so identities of a block, which is loaded as a whole.
pub const MOST_RECORDS: usize = 30;
/// What it says of a raw topic of another id.
const RECREATED: &str = "was deleted and recreated";
/// What it says of an offset below what the state has.
const REWOUND: &str = "the group was rewound";
/// What it says of a raw log that does not hold what comes next.
const GAP: &str = "to accept the gap";

/// More port calls than any history makes.
const CALLS_MAX: u64 = 1_000_000;

/// What is broken on purpose, to see that the audit notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing.
    Nothing,
    /// The store passes off what lies ahead of the group as committed.
    StoreAhead,
    /// The sink calls a commit a success that the broker aborted.
    CommitUnderstood,
    /// The state log leaves out its last block.
    BlockHidden,
    /// The store says that an identity was taken back, and keeps it.
    ForgetUnheard,
    /// The worker goes without one of its own rules.
    Without(Safeguard),
}

impl Sabotage {
    /// The rule that the worker goes without.
    pub fn without(self) -> Option<Safeguard> {
        if let Self::Without(rule) = self { Some(rule) } else { None }
    }
}

/// The worker under test.
pub type SimWorker = Worker<SimWorld>;

/// Its ports.
pub struct SimWorld;

impl World for SimWorld {
    type Source = SimSource;
    type Sink = SimSink;
    type Log = SimLog;
    type Store = SimStore;
    type Clock = SimClock;
}

/// Everything there is.
pub struct Universe {
    /// The cluster.
    pub cluster: RefCell<Cluster>,
    /// The workers; a slot is borrowed while its worker runs, and empty while its process is down.
    pub workers: Vec<RefCell<Option<SimWorker>>>,
    /// Whether the workers are one process with one store.
    pub shared: bool,
    /// What is broken on purpose.
    pub sabotage: Sabotage,
    /// A worker finds a raw topic of another id, until it ends.
    pub is_trial: Cell<bool>,
    /// Identities of local state that each worker has loaded in its current turn.
    pub loaded: Vec<Cell<u64>>,
    /// How much one of them may load in a turn.
    pub load_slice: LoadSlice,
}

impl Universe {
    /// An empty one.
    pub fn new(
        cluster: Cluster,
        (workers, shared): (usize, bool),
        sabotage: Sabotage,
        max_records: usize,
    ) -> Self {
        // One block, a few, or all that there is.
        let ids = [1, 10, 1 << 20][max_records % 3];
        Self {
            cluster: RefCell::new(cluster),
            workers: (0..workers).map(|_| RefCell::new(None)).collect(),
            shared,
            sabotage,
            is_trial: Cell::new(false),
            loaded: vec![Cell::new(0); workers],
            load_slice: LoadSlice { ids, time: Duration::MAX / 2 },
        }
    }

    /// A port call of worker `me`: time passes, others may run, something may fail.
    pub fn call<T, F: FnOnce(&mut Cluster) -> Result<T, Failure>>(
        &self,
        me: usize,
        exposure: Exposure,
        effect: F,
    ) -> Result<T, Failure> {
        self.meanwhile(me);
        let mut cluster = self.cluster.borrow_mut();
        cluster.calls += 1;
        tracing::trace!(worker = me, now = ?cluster.now, call = std::any::type_name::<F>(), "called");
        if cluster.dead.contains(&me) {
            // It may wait for a deadline.
            cluster.advance(Duration::from_millis(10));
            return Err(injected(Fault::Crash));
        }
        assert!(cluster.calls < CALLS_MAX, "the worker calls and calls and gets nowhere");
        let pause = cluster.chance.rng.u64(0..3000);
        cluster.advance(Duration::from_micros(pause));
        let Some(fault) = cluster.chance.failure(exposure) else { return effect(&mut cluster) };
        tracing::debug!(worker = me, ?fault, call = std::any::type_name::<F>(), "injected");
        if exposure != Exposure::Before && cluster.chance.coin() {
            drop(effect(&mut cluster));
        }
        if fault == Fault::Crash {
            self.crash(&mut cluster, me);
        }
        Err(injected(fault))
    }

    /// The process of worker `me` ends; what it calls from now on has no effect.
    pub fn crash(&self, cluster: &mut Cluster, me: usize) {
        if self.shared {
            cluster.dead.extend(0..self.workers.len());
        } else {
            cluster.dead.insert(me);
        }
    }

    /// Now and then another worker runs while this one hangs in a call.
    pub fn meanwhile(&self, me: usize) {
        let turns = {
            let mut cluster = self.cluster.borrow_mut();
            if self.workers.len() < 2 || cluster.dead.contains(&me) {
                return;
            }
            if !cluster.chance.hit(Fault::Meanwhile) {
                return;
            }
            let longest = [3, 30, 200][cluster.chance.rng.usize(0..3)];
            cluster.chance.rng.u32(1..=longest)
        };
        for other in (0..self.workers.len()).filter(|other| *other != me) {
            for _ in 0..turns {
                self.shuffle();
                if !self.iterate(other) {
                    break;
                }
            }
        }
    }

    /// What happens to the group and the raw topic by itself.
    pub fn shuffle(&self) {
        let mut cluster = self.cluster.borrow_mut();
        let cluster = &mut *cluster;
        let partition = cluster.chance.rng.usize(0..cluster.raw.len());
        let due = cluster.now + Duration::from_millis(cluster.chance.rng.u64(0..500));
        if cluster.chance.hit(Fault::Rebalance) {
            cluster.group.revoke(partition, due);
        }
        if cluster.chance.hit(Fault::Kick) {
            cluster.group.kick(partition, due);
        }
        if cluster.chance.coin() {
            cluster.group.balance(cluster.now, &mut cluster.chance.rng);
        }
        cluster.decay(partition);
        if cluster.chance.hit(Fault::Compaction) {
            let from = cluster.offsets[partition].settled.as_ref().map_or(0, |(offset, _)| *offset);
            cluster.raw[partition].compact(from, &mut cluster.chance);
        }
    }

    /// Lets a worker take a turn. False when it cannot, or ended with it.
    pub fn iterate(&self, worker: usize) -> bool {
        let Ok(mut slot) = self.workers[worker].try_borrow_mut() else { return false };
        let Some(running) = slot.as_mut() else { return false };
        self.loaded[worker].set(0);
        let ended = running.iterate();
        let mut cluster = self.cluster.borrow_mut();
        let loaded = self.loaded[worker].get();
        if loaded > self.load_slice.ids + MOST_RECORDS as u64 {
            cluster.violations.push(format!("worker {worker} loaded {loaded} ids without polling"));
        }
        if ended.is_ok() && !cluster.dead.contains(&worker) {
            return true;
        }
        self.ended(&mut cluster, worker, ended);
        drop(cluster);
        *slot = None;
        false
    }

    /// A worker has ended: as a crash made it, because it was fenced again and again, or wrongly.
    pub fn ended(&self, cluster: &mut Cluster, worker: usize, how: Result<(), Fatal>) {
        match &how {
            // The process ends, and its next start begins with an empty store.
            Err(Fatal::State(what)) if !cluster.dead.contains(&worker) && what.contains(DAMAGED) => {
                cluster.condemned.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::State(what)) if cluster.rule > 0 && what.contains(OTHER_RULE) => {
                cluster.refused.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::Operator(what)) if what.contains(RECREATED) && self.is_trial.get() => {}
            Err(Fatal::Operator(what))
                if what.contains(GAP) && cluster.raw.iter().any(|raw| raw.is_broken) =>
            {
                cluster.gapped.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::Operator(what)) if what.contains(EXPIRED) => cluster.reset_offsets(None),
            // Local state knows of more than what the operator saw.
            Err(Fatal::Operator(what)) if cluster.reset && what.contains(REWOUND) => {
                cluster.reset_offsets(Some(covered(what)));
            }
            Err(fatal) if !cluster.dead.contains(&worker) && !matches!(fatal, Fatal::Fenced(_)) => {
                cluster.violations.push(format!("worker {worker} gave up: {fatal}"));
            }
            _ => {}
        }
        tracing::debug!(worker, ?how, "ended");
        self.crash(cluster, worker);
        cluster.group.gone(worker);
        cluster.begun.remove(&writer(worker));
    }
}

/// The partition, and the offset up to which it was committed, that a message about a rewound group names.
fn covered(what: &str) -> (usize, Offset) {
    let after = |words: &str| {
        let (_, rest) = what.split_once(words).expect(what);
        rest.split(|c: char| !c.is_ascii_digit())
            .next()
            .and_then(|number| number.parse::<u64>().ok())
            .expect(what)
    };
    (usize::try_from(after("for partition ")).unwrap(), after("committed blocks up to "))
}

/// Transactional id of a worker.
pub fn writer(worker: usize) -> String {
    format!("group.sim.{worker}")
}

/// The clocks of a worker's machine; its wall clock can be wrong.
pub struct SimClock(pub Rc<Universe>, pub usize);

impl Clock for SimClock {
    fn wall_ms(&self) -> i64 {
        let cluster = self.0.cluster.borrow();
        cluster.wall_ms() + cluster.clock_errors.get(&self.1).copied().unwrap_or(0)
    }

    fn elapsed(&self) -> Duration {
        self.0.cluster.borrow().now
    }

    fn rest(&self, pause: Duration) {
        self.0.cluster.borrow_mut().advance(pause);
    }
}
