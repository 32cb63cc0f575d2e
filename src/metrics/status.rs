//! The status of the process: what each worker published last, and what the topic monitor observed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;

use super::duplicates::DuplicatesStatus;
use super::labels::{ClientLabel, PartitionState, Role};
use super::standby::StandbyStatus;
use crate::locked::Locked;

/// The identification of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct About {
    /// Version of the program.
    pub version: String,
    /// `group.id`.
    pub group: String,
    /// This instance's name in it.
    pub instance: String,
    /// The topic that is read.
    pub raw: String,
    /// The topic that is written.
    pub clean: String,
    /// `dedupe.scope`, or `rekey`.
    pub scope: String,
}

/// The effective window of a partition compared with the configured one.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WindowStatus {
    /// Configured length, exact or in filters, in seconds of stream time.
    pub asked_seconds: f64,
    /// How far back ids are stored exactly, in seconds of stream time.
    pub exact_seconds: f64,
    /// How far back no id was overwritten, in seconds of stream time.
    pub certain_seconds: f64,
    /// Share of the ids inside the exact part that were overwritten, 0 to 1.
    pub miss_rate: f64,
    /// The limit that applies and its effect, in one line; `None` when no limit applies.
    pub limit: Option<String>,
}

/// One partition, as last published by its worker.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionStatus {
    /// Number of the raw partition.
    pub partition: u32,
    /// What it is doing.
    pub state: PartitionState,
    /// Why it is not running, or its progress; one line.
    pub reason: Option<String>,
    /// The next raw offset to process.
    pub next: Option<u64>,
    /// The committed offset of the group.
    pub committed: Option<u64>,
    /// From `next` to the last stable offset, in offsets.
    pub lag_records: Option<u64>,
    /// Identities in the windows that it has, or has with others: those are shown for one of them only.
    pub window_ids: Option<u64>,
    /// How far back identities are stored, in seconds of stream time.
    pub window_seconds: f64,
    /// Comparison with the configured window.
    pub window: WindowStatus,
}

/// The windows of one named kind, in all partitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindStatus {
    /// Its name.
    pub kind: String,
    /// Configured length, exact or in filters, in seconds of stream time.
    pub asked_seconds: f64,
    /// How far back ids are stored in the partition where this is shortest, in seconds of stream time; the
    /// configured length when there is no partition.
    pub window_seconds: f64,
    /// Identities in the windows.
    pub window_ids: u64,
}

impl KindStatus {
    /// Merges the status of several workers into one for each kind.
    pub fn of_all<'a>(published: impl IntoIterator<Item = &'a Self>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in published {
            match all.iter_mut().find(|known| known.kind == one.kind) {
                Some(known) => {
                    known.window_seconds = known.window_seconds.min(one.window_seconds);
                    known.window_ids += one.window_ids;
                }
                None => all.push(one.clone()),
            }
        }
        all
    }
}

/// One worker, as it last published it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Why it is not ready, as the predicate of a sentence: `waits for the broker`. `None` when it is ready.
    pub not_ready: Option<String>,
    /// Notes for the operator that do not affect readiness, one line each.
    pub notes: Vec<String>,
    /// Most records of a transaction while the limit is reduced, because transactions took long; `None` while it is not.
    pub reduced_records: Option<u64>,
    /// Memory of its exact index, in bytes.
    pub index_bytes: u64,
    /// Memory of its sealed slices, in bytes.
    pub slices_bytes: u64,
    /// The current probability that a new record is reported as probably seen.
    pub false_positive_rate: f64,
    /// For how much longer than their length windows hold ids because of the slowest partition, in seconds of stream time.
    pub expiry_lag_seconds: f64,
    /// Keys and values in its largest transaction since the last publication, in bytes.
    pub batch_bytes: u64,
    /// The partitions that the group has assigned to this worker.
    pub partitions: Vec<PartitionStatus>,
    /// The named kinds that have windows.
    pub kinds: Vec<KindStatus>,
    /// What it has found about duplicates; `/status.json` shows that of all workers as one.
    #[serde(skip)]
    pub duplicates: DuplicatesStatus,
}

impl WorkerStatus {
    /// A worker that has not published anything yet.
    pub fn starting() -> Self {
        Self { not_ready: Some("is starting".to_owned()), ..Self::default() }
    }

    /// Why it is not ready, in one line: its own reason, otherwise that of the first partition.
    fn obstacle(&self) -> Option<String> {
        if self.not_ready.is_some() {
            return self.not_ready.clone();
        }
        let mut waiting = self.partitions.iter().filter(|it| it.state != PartitionState::Running);
        let first = waiting.next()?;
        let why = first.reason.as_ref().map_or_else(String::new, |reason| format!(" ({})", one_line(reason)));
        let line = format!("partition {} is {}{why}", first.partition, first.state.as_str());
        match waiting.count() {
            0 => Some(line),
            more => Some(format!("{line}, and {more} more")),
        }
    }
}

/// What the Kafka clients of one use report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ClientStatus {
    /// The 99th percentile of the round trips to the slowest broker, in seconds.
    pub round_trip_seconds: f64,
    /// The 99th percentile of the time for which a broker throttles requests, in seconds.
    pub throttle_seconds: f64,
    /// Records that are fetched and not read, or not written yet.
    pub queued_records: u64,
    /// Brokers to which the connection is lost.
    pub brokers_down: u64,
}

/// Whether this process is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Every worker is ready and all its partitions are running.
    pub ready: bool,
    /// There is a note other than that of a spare: an operator should look at it.
    pub noted: bool,
    /// One line for each worker that is not ready, and one for each note.
    pub lines: Vec<String>,
}

/// What is known of this process: what each worker published last, and what the monitors observed.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// By number.
    pub workers: Vec<WorkerStatus>,
    /// Why the process failed; `None` while it has not.
    pub failure: Option<String>,
    /// The log start offset of each raw partition, as last requested.
    pub log_starts: BTreeMap<u32, u64>,
    /// For how long an upstream transaction has blocked each partition of raw; zero without one.
    pub hanging: BTreeMap<u32, Duration>,
    /// For how long a transaction has been open in each topic that dedupd writes to, in the partition where it is longest; zero
    /// without one.
    pub output_hanging: BTreeMap<String, Duration>,
    /// The notes about transactions that hang.
    pub hanging_notes: Vec<String>,
    /// How many raw partitions are assigned to no member of the group.
    pub unassigned: usize,
    /// Why that makes this process not ready.
    pub unassigned_obstacle: Option<String>,
    /// The fingerprint of the identity rule; `None` before the start.
    pub identity_rule: Option<String>,
    /// The role as last noted; [`Snapshot::role`] is the current one.
    pub noted_role: Role,
    /// For a spare the active instance.
    pub active: Option<String>,
    /// The lag of the group in each raw partition, assigned to this process or not.
    pub group_lag: BTreeMap<u32, u64>,
    /// The other instances in the group, by name and host with the number of their partitions. A spare in topic scope is not in
    /// the group.
    pub members: BTreeMap<String, usize>,
    /// What the Kafka clients report; empty before the first report.
    pub clients: BTreeMap<ClientLabel, ClientStatus>,
    /// The standby copies, if this instance follows any.
    pub standby: Option<StandbyStatus>,
}

impl Snapshot {
    /// The partitions of all workers.
    pub fn partitions(&self) -> impl Iterator<Item = &PartitionStatus> {
        self.workers.iter().flat_map(|worker| &worker.partitions)
    }

    /// All workers as one: sums, and the worst of what has no sum. Without reasons and notes, which name their worker, and without the
    /// [`Snapshot::partitions`].
    pub fn total(&self) -> WorkerStatus {
        let sum = |of: fn(&WorkerStatus) -> u64| self.workers.iter().map(of).sum();
        let worst = |of: fn(&WorkerStatus) -> f64| self.workers.iter().map(of).fold(0.0, f64::max);
        WorkerStatus {
            reduced_records: self.workers.iter().filter_map(|worker| worker.reduced_records).min(),
            index_bytes: sum(|worker| worker.index_bytes),
            slices_bytes: sum(|worker| worker.slices_bytes),
            false_positive_rate: worst(|worker| worker.false_positive_rate),
            expiry_lag_seconds: worst(|worker| worker.expiry_lag_seconds),
            batch_bytes: sum(|worker| worker.batch_bytes),
            kinds: KindStatus::of_all(self.workers.iter().flat_map(|worker| &worker.kinds)),
            duplicates: DuplicatesStatus::of_all(self.workers.iter().map(|worker| &worker.duplicates)),
            ..WorkerStatus::default()
        }
    }

    /// The configured length of the longest window, in seconds; `None` without a partition.
    pub fn longest_window(&self) -> Option<f64> {
        let unnamed = self.partitions().map(|it| it.window.asked_seconds);
        let named = self.workers.iter().flat_map(|worker| &worker.kinds).map(|kind| kind.asked_seconds);
        unnamed.chain(named).reduce(f64::max).filter(|seconds| *seconds > 0.0)
    }

    /// Lag in offsets, summed over all partitions; `None` while the lag of one is unknown, and without
    /// partitions.
    pub fn lag(&self) -> Option<u64> {
        let mut lags = self.partitions().map(|it| it.lag_records).peekable();
        lags.peek().is_some().then(|| lags.sum())?
    }

    /// The role of this instance, and for a spare the active instance. A joining instance is active from the moment when its
    /// worker owns partition 0.
    pub fn role(&self) -> (Role, Option<&str>) {
        let is_active = self.noted_role == Role::Joining && self.partitions().any(|it| it.partition == 0);
        (if is_active { Role::Active } else { self.noted_role }, self.active.as_deref())
    }

    /// Whether this process is ready, with its obstacles and notes.
    pub fn readiness(&self) -> Readiness {
        let mut lines: Vec<_> = self.failure.iter().map(|reason| format!("failed: {reason}")).collect();
        let obstacles = self.workers.iter().enumerate().filter_map(|(number, worker)| {
            worker.obstacle().map(|reason| format!("worker {number}: {}", one_line(&reason)))
        });
        lines.extend(obstacles);
        lines.extend(self.unassigned_obstacle.iter().map(|obstacle| one_line(obstacle)));
        let ready = lines.is_empty();
        if let (Role::Spare, Some(active)) = self.role() {
            lines.push(format!("note: this instance is a spare; the active instance is {active}"));
        }
        let before_notes = lines.len();
        for (number, worker) in self.workers.iter().enumerate() {
            lines
                .extend(worker.notes.iter().map(|note| format!("note: worker {number}: {}", one_line(note))));
        }
        let slow = self.standby.iter().filter_map(|standby| standby.slow.as_ref());
        lines.extend(slow.map(|what| format!("note: the standby thread {what}")));
        lines.extend(self.hanging_notes.iter().map(|note| format!("note: {}", one_line(note))));
        Readiness { ready, noted: lines.len() > before_notes, lines }
    }
}

/// The status of the process. Each worker publishes twice per second. The lock is held only while values are copied or read, never during
/// a request or another computation: a worker would wait.
#[derive(Debug, Default)]
pub struct Status {
    /// The identification of this process.
    pub about: About,
    latest: Mutex<Snapshot>,
}

impl Status {
    /// The status of `workers` workers, all starting.
    pub fn new(about: About, workers: usize) -> Self {
        let workers = vec![WorkerStatus::starting(); workers];
        Self { about, latest: Mutex::new(Snapshot { workers, ..Snapshot::default() }) }
    }

    /// A copy of all that is known now.
    pub fn snapshot(&self) -> Snapshot {
        self.read(Snapshot::clone)
    }

    /// Something of what is known now, without a copy of all.
    pub fn read<R>(&self, of: impl FnOnce(&Snapshot) -> R) -> R {
        of(&self.latest.locked())
    }

    /// Changes what is known.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.latest.locked());
    }

    /// Replaces the status of a worker. A number beyond those given to [`Status::new`] is ignored.
    pub fn publish(&self, worker: usize, status: WorkerStatus) {
        if let Some(place) = self.latest.locked().workers.get_mut(worker) {
            *place = status;
        }
    }

    /// Marks the process as failed, for a reason in one line. The first reason stays.
    pub fn fail(&self, reason: &str) {
        self.latest.locked().failure.get_or_insert_with(|| one_line(reason));
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
