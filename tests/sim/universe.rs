//! What the ports of all workers share: the cluster, the workers, and the injection of faults into calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use dedupd::dedupe::Offset;
use dedupd::metrics::Metrics;
use dedupd::pipeline::{Fatal, LoadPart, Progress, Safeguard, Worker, WorkerPorts};
use dedupd::ports::{Failure, LogId};

use crate::sim::chance::{Exposure, Fault, injected};
use crate::sim::clock::SimClock;
use crate::sim::cluster::Cluster;
use crate::sim::offsets::Offsets;
use crate::sim::sink::SimSink;
use crate::sim::source::{DAMAGED_BATCH, SimSource};
use crate::sim::state_log::SimLog;
use crate::sim::store::{SimStore, is_damage};

/// Part of the error for state of another identity rule.
const OTHER_RULE: &str = "was written by another identity rule";
/// Part of the error for a group without offsets and state.
const EXPIRED: &str = "both have expired";

/// Maximum number of records per transaction, and so of ids per run. A run is loaded as a whole.
pub const MOST_RECORDS: usize = 30;
/// Part of the error for a raw topic with another id.
const RECREATED: &str = "was deleted and recreated";
/// Part of the error for a committed offset below the end of the state.
const REWOUND: &str = "the group was rewound";
/// Part of the error for a gap in the raw log.
const GAP: &str = "to accept the gap";

/// Maximum number of port calls per history.
const CALLS_MAX: u64 = 1_000_000;

/// The parameters of a history.
#[derive(Clone)]
pub struct Setting {
    /// The sabotage.
    pub sabotage: Sabotage,
    /// Registered once, because registration takes longer than a history.
    pub metrics: Metrics,
}

impl Setting {
    /// Without sabotage.
    pub fn sound() -> Self {
        Self { sabotage: Sabotage::Nothing, metrics: Metrics::new() }
    }
}

/// A deliberate defect that the audit must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// No defect.
    Nothing,
    /// The store presents entries ahead of the committed offset as committed.
    StoreAhead,
    /// The sink reports success for a commit that the broker aborted.
    FalseCommit,
    /// The state log omits its last entry.
    BlockHidden,
    /// The store reports that an id was forgotten, and keeps it.
    ForgetIgnored,
    /// The reader of all records finds every record that it is asked for, as if compaction removed none.
    CompactedIsAborted,
    /// A read returns less than its range when the end of the partition is reported early.
    EarlyEndAccepted,
    /// The filters of slices do not contain all of their ids.
    SliceMisses,
    /// The last owners of each slice are missing in it.
    SliceCutShort,
    /// Forgotten owners stay in slices.
    SliceKeepsForgotten,
    /// Owners beyond the committed offset stay in slices.
    SliceKeepsRemoved,
    /// Filters without owners do not contain all of their ids.
    FilterMisses,
    /// Forgotten ids stay in filters without owners.
    FilterKeepsForgotten,
    /// The store has the digest of the owner before.
    DigestOfAnother,
    /// Slices have no digests.
    SliceLosesDigests,
    /// A repair writes the entry of a torn transaction again without digests.
    RepairLosesDigests,
    /// A standby also reads entries that are not committed.
    StandbyReadsUncommitted,
    /// A standby notes in its store that it has an entry, and does not store it.
    StandbyHeadAhead,
    /// The worker runs without one of its safeguards.
    Without(Safeguard),
}

impl Sabotage {
    /// The safeguard that the worker runs without.
    pub fn without(self) -> Option<Safeguard> {
        if let Self::Without(safeguard) = self { Some(safeguard) } else { None }
    }
}

/// The worker under test.
pub type SimWorker = Worker<SimWorld>;

/// Its ports.
pub struct SimWorld;

impl WorkerPorts for SimWorld {
    type Source = SimSource;
    type Sink = SimSink;
    type Log = SimLog;
    type Store = SimStore;
    type Clock = SimClock;
}

/// The whole simulation.
pub struct Universe {
    /// The cluster.
    pub cluster: RefCell<Cluster>,
    /// The logs that have no leader now.
    pub unreachable: RefCell<BTreeSet<LogId>>,
    /// The workers. A slot is borrowed while its worker runs, and empty while its process is down.
    pub workers: Vec<RefCell<Option<SimWorker>>>,
    /// Whether the workers share one process and one store.
    pub shared: bool,
    /// The deliberate defect.
    pub sabotage: Sabotage,
    /// All workers have one transactional id.
    pub is_topic_wide: bool,
    /// The running worker finds a raw topic with another id.
    pub is_trial: Cell<bool>,
    /// Before each abort another process uses the transactional id.
    pub fences_aborts: Cell<bool>,
    /// Number of ids that each worker has loaded from local state in its current iteration.
    pub loaded: Vec<Cell<u64>>,
    /// Number of times that a restore has written the owners of several entries at once.
    pub joined: Cell<u64>,
    /// Number of owners that were sealed.
    pub sealed: Cell<u64>,
    /// Number of look-ups that found a sealed owner.
    pub sealed_hits: Cell<u64>,
    /// Number of records whose content was found to be that of their owner, and another one.
    pub compared: [Cell<u64>; 2],
    /// Number of look-ups that found an id in a filter without owners.
    pub filter_hits: Cell<u64>,
    /// Number of times that all local state was removed, because a filter could not lose the owners of one partition.
    pub cleared: Cell<u64>,
    /// Number of slices in which owners were undone, without the last ones.
    pub undo_slices: Cell<u64>,
    /// Number of iterations of a standby whose copies were read to the end.
    pub caught_up: Cell<u64>,
    /// Number of standbys whose process has become the active instance.
    pub handed_over: Cell<u64>,
    /// Simulated time to read one stored run.
    pub block_time: Cell<Duration>,
    /// Maximum that a worker may load per iteration.
    pub load_part: LoadPart,
    /// What the workers count for the supervisor.
    pub progress: Progress,
    /// The last observed count, when it changed, and the longest time without a change.
    pub silence: Cell<(u64, Duration, Duration)>,
}

impl Universe {
    /// A simulation without running workers.
    pub fn new(
        cluster: Cluster,
        (workers, shared): (usize, bool),
        sabotage: Sabotage,
        max_records: usize,
    ) -> Self {
        // One run, a few runs, or everything.
        let ids = [1, 10, 1 << 20][max_records % 3];
        Self {
            is_topic_wide: cluster.topic_ids.is_some(),
            cluster: RefCell::new(cluster),
            unreachable: RefCell::default(),
            workers: (0..workers).map(|_| RefCell::new(None)).collect(),
            shared,
            sabotage,
            is_trial: Cell::new(false),
            fences_aborts: Cell::new(false),
            loaded: vec![Cell::new(0); workers],
            joined: Cell::new(0),
            sealed: Cell::new(0),
            sealed_hits: Cell::new(0),
            compared: Default::default(),
            filter_hits: Cell::new(0),
            cleared: Cell::new(0),
            undo_slices: Cell::new(0),
            caught_up: Cell::new(0),
            handed_over: Cell::new(0),
            block_time: Cell::new(Duration::ZERO),
            load_part: LoadPart { ids, time: Duration::MAX / 2, threads: 2 },
            progress: Progress::default(),
            silence: Cell::new(Default::default()),
        }
    }

    /// Transactional id of a worker.
    pub fn writer(&self, worker: usize) -> String {
        if self.is_topic_wide { TOPIC_WRITER.to_owned() } else { writer(worker) }
    }

    /// A worker is about to abort its transaction.
    pub fn before_abort(&self, writer: &str) {
        if self.fences_aborts.get() {
            self.cluster.borrow_mut().fence(writer);
        }
    }

    /// A port call of worker `me`: time passes, other workers may run, and the call may fail.
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
            // The worker may be waiting for a deadline.
            cluster.advance(Duration::from_millis(10));
            return Err(injected(Fault::Crash));
        }
        assert!(cluster.calls < CALLS_MAX, "the worker makes no progress");
        self.observe_progress(cluster.now);
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

    /// Measures for how long the workers count no progress, as the supervisor does.
    fn observe_progress(&self, now: Duration) {
        let (before, changed, longest) = self.silence.get();
        let steps = self.progress.steps();
        let silent = longest.max(now.saturating_sub(changed));
        self.silence.set((steps, if steps == before { changed } else { now }, silent));
    }

    /// Ends the process of worker `me`. Its calls have no effect from now on.
    pub fn crash(&self, cluster: &mut Cluster, me: usize) {
        if self.shared {
            cluster.dead.extend(0..self.workers.len());
        } else {
            cluster.dead.insert(me);
        }
    }

    /// With a fault, the other workers run while this one waits in a call.
    pub fn meanwhile(&self, me: usize) {
        let iterations = {
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
            for _ in 0..iterations {
                self.shuffle();
                if !self.iterate(other) {
                    break;
                }
            }
        }
    }

    /// Applies rebalances, retention and compaction.
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

    /// Runs one iteration of a worker. Returns false if the worker is down or busy, or if it ended.
    pub fn iterate(&self, worker: usize) -> bool {
        let Ok(mut slot) = self.workers[worker].try_borrow_mut() else { return false };
        let Some(running) = slot.as_mut() else { return false };
        self.loaded[worker].set(0);
        let ended = running.iterate();
        let mut cluster = self.cluster.borrow_mut();
        let loaded = self.loaded[worker].get();
        // Two threads that load, a search, and the owners of the last commit before an id is forgotten, once for each kind.
        if loaded > 6 * (self.load_part.ids + MOST_RECORDS as u64) {
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

    /// Handles the end of a worker: after a crash, after repeated fencing, with an expected error, or wrongly.
    pub fn ended(&self, cluster: &mut Cluster, worker: usize, how: Result<(), Fatal>) {
        match &how {
            // The process ends, and starts with an empty store next time.
            Err(Fatal::State(what)) if !cluster.dead.contains(&worker) && is_damage(cluster, what) => {
                cluster.condemned.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::State(what)) if cluster.rule > 0 && what.contains(OTHER_RULE) => {
                cluster.other_rule.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::Operator(what)) if what.contains(RECREATED) && self.is_trial.get() => {}
            Err(Fatal::Operator(what))
                if what.contains(GAP) && cluster.raw.iter().any(|raw| raw.is_broken) =>
            {
                cluster.gapped.insert(if self.shared { 0 } else { worker });
            }
            Err(Fatal::Operator(what)) if what.contains(DAMAGED_BATCH) => {
                cluster.replace_damaged(place(what, "at offset "));
            }
            // In topic scope only where the checkpoints of all partitions are lost, and not all positions are committed again.
            Err(Fatal::Operator(what))
                if what.contains(EXPIRED)
                    && (cluster.topic_ids.is_none() || Offsets::have_expired(&cluster.offsets)) =>
            {
                cluster.reset_offsets(None);
            }
            // Local state covers more than what is left in the topics.
            Err(Fatal::Operator(what)) if cluster.reset && what.contains(REWOUND) => {
                cluster.reset_offsets(Some(place(what, "committed entries up to ")));
            }
            Err(fatal) if !cluster.dead.contains(&worker) && !matches!(fatal, Fatal::Fenced(_)) => {
                cluster.violations.push(format!("worker {worker} failed: {fatal}"));
            }
            _ => {}
        }
        tracing::debug!(worker, ?how, "ended");
        self.crash(cluster, worker);
        cluster.group.remove(worker);
        cluster.end_begun(&self.writer(worker));
    }
}

/// The partition in an error, and the offset that follows these words.
fn place(what: &str, words: &str) -> (usize, Offset) {
    let after = |words: &str| {
        let (_, rest) = what.split_once(words).expect(what);
        rest.split(|c: char| !c.is_ascii_digit())
            .next()
            .and_then(|number| number.parse::<u64>().ok())
            .expect(what)
    };
    (usize::try_from(after("for partition ")).unwrap(), after(words))
}

/// Transactional id of all workers in topic scope.
const TOPIC_WRITER: &str = "group.active";

/// Client id of a worker, and its transactional id in partition scope.
pub fn writer(worker: usize) -> String {
    format!("group.sim.{worker}")
}
