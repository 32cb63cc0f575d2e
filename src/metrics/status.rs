//! What the workers are doing, as they last said it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::labels::PartitionState;

/// What this process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct About {
    /// Version of the program.
    pub version: String,
    /// The consumer group.
    pub group: String,
    /// This instance's name in it.
    pub instance: String,
    /// The topic that is read.
    pub raw: String,
    /// The topic that is written.
    pub clean: String,
}

/// What a partition's window remembers of what it was asked to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct WindowStatus {
    /// How far back ids shall be remembered, exactly or in filters, in seconds of stream time.
    pub asked_seconds: f64,
    /// How far back they are remembered exactly.
    pub exact_seconds: f64,
    /// How far back none was overwritten.
    pub certain_seconds: f64,
    /// Share of the ids inside the exact part that were overwritten, 0 to 1.
    pub miss_rate: f64,
    /// Which limit is in force and what it does, in one line; `None` when none is.
    pub limit: Option<String>,
}

/// One partition, as its worker last said it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: u32,
    /// What it is doing.
    pub state: PartitionState,
    /// Why it is not running, or how far it is; one line.
    pub reason: Option<String>,
    /// The next raw offset to process.
    pub next: Option<u64>,
    /// The offset up to which the group has committed.
    pub committed: Option<u64>,
    /// From `next` to the end that `read_committed` can see, in offsets.
    pub lag_records: Option<u64>,
    /// Identities in the window.
    pub window_ids: u64,
    /// How far back they are remembered, in seconds of stream time.
    pub window_seconds: f64,
    /// What that is of what was asked.
    pub window: WindowStatus,
    /// The chance that a record never seen counts as probably seen, now.
    pub false_positive_rate: f64,
}

/// The windows of one named kind, in all partitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindStatus {
    /// Its name.
    pub kind: String,
    /// How far back ids shall be remembered, exactly or in filters, in seconds of stream time.
    pub asked_seconds: f64,
    /// How far back they are remembered in the partition where that is shortest; what is asked, without any.
    pub window_seconds: f64,
    /// Identities in the windows.
    pub window_ids: u64,
}

impl KindStatus {
    /// What several workers say, one for each kind.
    pub fn of_all<'a>(said: impl IntoIterator<Item = &'a Self>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for one in said {
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

/// One worker, as it last said it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerStatus {
    /// Why it is not ready, continuing a sentence: `waits for the broker`. `None` when it is.
    pub not_ready: Option<String>,
    /// What an operator should know though it is ready, one line each.
    pub notes: Vec<String>,
    /// Memory of its exact index, in bytes.
    pub index_bytes: u64,
    /// Memory of its filters beyond the exact window, in bytes.
    pub bloom_bytes: u64,
    /// Keys and values in its largest transaction since the last time this was published, in bytes.
    pub batch_bytes: u64,
    /// Its partitions.
    pub partitions: Vec<PartitionStatus>,
    /// The named kinds that have windows.
    pub kinds: Vec<KindStatus>,
}

impl WorkerStatus {
    /// A worker that has not said anything yet.
    pub fn starting() -> Self {
        Self {
            not_ready: Some("is starting".to_owned()),
            notes: Vec::new(),
            index_bytes: 0,
            bloom_bytes: 0,
            batch_bytes: 0,
            partitions: Vec::new(),
            kinds: Vec::new(),
        }
    }

    /// Why it is not ready, in one line: its own reason, else the first partition's.
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

/// Whether this process does its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Every worker is ready and all its partitions are running.
    pub ready: bool,
    /// One line for each worker that is not, and one for each note.
    pub lines: Vec<String>,
}

/// What the workers are doing. Each publishes about once a second, and whoever asks gets a copy; the
/// locks are held for the copy only.
#[derive(Debug)]
pub struct Status {
    about: About,
    workers: Mutex<Vec<WorkerStatus>>,
    failure: Mutex<Option<String>>,
    log_starts: Mutex<BTreeMap<u32, u64>>,
    hanging: Mutex<(BTreeMap<u32, Duration>, Vec<String>)>,
    unassigned: Mutex<(usize, Option<String>)>,
    group_lag: Mutex<BTreeMap<u32, u64>>,
}

impl Status {
    /// So many workers, all starting.
    pub fn new(about: About, workers: usize) -> Self {
        let workers = Mutex::new(vec![WorkerStatus::starting(); workers]);
        Self {
            about,
            workers,
            failure: Mutex::default(),
            log_starts: Mutex::default(),
            hanging: Mutex::default(),
            unassigned: Mutex::default(),
            group_lag: Mutex::default(),
        }
    }

    /// What this process is.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Replaces what a worker said before. A worker beyond the number given at the start is ignored.
    pub fn publish(&self, worker: usize, status: WorkerStatus) {
        if let Some(place) = lock(&self.workers).get_mut(worker) {
            *place = status;
        }
    }

    /// What the workers said last, by number.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        lock(&self.workers).clone()
    }

    /// Offsets to the end of the raw topic, all partitions together; nothing while one does not know its own, and
    /// when there are none.
    pub fn lag(&self) -> Option<u64> {
        let workers = lock(&self.workers);
        let mut lags =
            workers.iter().flat_map(|worker| &worker.partitions).map(|it| it.lag_records).peekable();
        lags.peek().is_some().then(|| lags.sum())?
    }

    /// Notes where the raw logs begin; what was noted of other partitions stays.
    pub fn note_log_starts(&self, starts: BTreeMap<u32, u64>) {
        lock(&self.log_starts).extend(starts);
    }

    /// The first offset left in the raw log of each partition that was asked about, as last answered.
    pub fn log_starts(&self) -> BTreeMap<u32, u64> {
        lock(&self.log_starts).clone()
    }

    /// Notes for how long an upstream transaction has held each partition up, and what to say of it; what was
    /// noted before goes.
    pub fn note_hanging(&self, standing: BTreeMap<u32, Duration>, notes: Vec<String>) {
        *lock(&self.hanging) = (standing, notes);
    }

    /// For how long an upstream transaction has held each partition up, zero where none does.
    pub fn hanging(&self) -> BTreeMap<u32, Duration> {
        lock(&self.hanging).0.clone()
    }

    /// Notes how many partitions of raw no member of the group has, and why that keeps this process from being ready.
    pub fn note_unassigned(&self, count: usize, obstacle: Option<String>) {
        *lock(&self.unassigned) = (count, obstacle);
    }

    /// How many partitions of raw no member of the group has, as last seen.
    pub fn unassigned(&self) -> usize {
        lock(&self.unassigned).0
    }

    /// Notes how far the group is behind in each partition of raw; what was noted of other partitions stays.
    pub fn note_group_lag(&self, lag: BTreeMap<u32, u64>) {
        lock(&self.group_lag).extend(lag);
    }

    /// How far the group is behind in each partition of raw, owned or not, as last seen.
    pub fn group_lag(&self) -> BTreeMap<u32, u64> {
        lock(&self.group_lag).clone()
    }

    /// From now on the process counts as dead; one line says why. The first reason stays.
    pub fn fail(&self, reason: &str) {
        lock(&self.failure).get_or_insert_with(|| one_line(reason));
    }

    /// Why the process counts as dead.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Whether this process does its work, and what there is to say about it.
    pub fn readiness(&self) -> Readiness {
        let workers = self.workers();
        let mut lines: Vec<_> =
            self.failure().into_iter().map(|reason| format!("failed: {reason}")).collect();
        let obstacles = workers.iter().enumerate().filter_map(|(number, worker)| {
            worker.obstacle().map(|reason| format!("worker {number}: {}", one_line(&reason)))
        });
        lines.extend(obstacles);
        lines.extend(lock(&self.unassigned).1.iter().map(|obstacle| one_line(obstacle)));
        let ready = lines.is_empty();
        for (number, worker) in workers.iter().enumerate() {
            lines
                .extend(worker.notes.iter().map(|note| format!("note: worker {number}: {}", one_line(note))));
        }
        lines.extend(lock(&self.hanging).1.iter().map(|note| format!("note: {}", one_line(note))));
        Readiness { ready, lines }
    }
}

/// A panic in a worker must not take the status page with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
