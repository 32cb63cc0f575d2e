//! Follows the state topic for standby copies (`state.standby`), beside the workers or while this instance is a spare.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ExitError;
use super::supervisor::{Production, pause};
use crate::clock::{SystemClock, monotonic};
use crate::kafka::{GroupMonitor, KafkaStateLog, Settings};
use crate::metrics::{Metrics, Status};
use crate::pipeline::{PartitionCounts, Progress, Standby, StandbyPace, WorkerOptions, WorkerReport};
use crate::store::SledStore;

/// Interval between two requests of the group's committed offsets.
const GROUP_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit of such a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Pause when everything is read: part of the time by which a copy is behind.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// Pause at the start of a process with workers: the group first assigns it partitions.
const START_PAUSE: Duration = Duration::from_secs(10);
/// Interval between two publications of the status.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);

/// The standby copies of this process, and the clients that read for them.
pub(super) struct Follower {
    standby: Standby<Production>,
    group: GroupMonitor,
    partitions: PartitionCounts,
    status: Arc<Status>,
    /// When the group's offsets were requested.
    requested: Option<Instant>,
}

impl Follower {
    /// Creates the clients; nothing is read yet.
    pub(super) fn new(
        settings: &Settings,
        options: WorkerOptions,
        store: SledStore,
        metrics: Metrics,
        status: Arc<Status>,
        progress: Progress,
    ) -> Result<Self, ExitError> {
        let settings = Settings { client_id: format!("{}.standby", settings.client_id), ..settings.clone() };
        let log = KafkaStateLog::new(&settings).map_err(ExitError::operator)?;
        let partitions = options.partition_counts.clone();
        let report = WorkerReport::new(metrics, Arc::clone(&status), 0);
        let standby = Standby::new(log, store, SystemClock::start(), options, report).counting(progress);
        let group = GroupMonitor::new(&settings).map_err(ExitError::operator)?;
        Ok(Self { standby, group, partitions, status, requested: None })
    }

    /// Follows for this time, or until a stop is requested. Uses at most half of a core: each part of the work is followed by a pause that
    /// is as long.
    pub(super) fn follow(&mut self, time: Duration, stop: &AtomicBool) -> Result<(), ExitError> {
        let end = monotonic() + time;
        while !stop.load(Ordering::Acquire) {
            let began = monotonic();
            if began >= end {
                break;
            }
            self.request_group(began);
            let pace = self.standby.iterate()?;
            let most = end.saturating_duration_since(monotonic());
            let wanted = match pace {
                StandbyPace::Behind => began.elapsed(),
                StandbyPace::CaughtUp => IDLE_PAUSE,
            };
            pause(wanted.min(most), stop);
        }
        let standby = self.standby.status();
        self.status.update(|it| it.standby = Some(standby));
        Ok(())
    }

    /// Follows until a stop is requested, beside workers of this process.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> Result<(), ExitError> {
        pause(START_PAUSE, stop);
        while !stop.load(Ordering::Acquire) {
            self.follow(PUBLISH_INTERVAL, stop)?;
        }
        self.release();
        Ok(())
    }

    /// What a takeover would fail at, as far as the state topic was read.
    pub(super) fn obstacle(&self) -> Option<String> {
        self.standby.status().blocks
    }

    /// Leaves the copies to a worker that is about to start.
    pub(super) fn release(&mut self) {
        self.standby.release();
        self.requested = None;
        self.status.update(|it| it.standby = None);
    }

    fn request_group(&mut self, now: Instant) {
        if self.requested.is_some_and(|last| now.saturating_duration_since(last) < GROUP_INTERVAL) {
            return;
        }
        self.requested = Some(now);
        match self.group.answers(0..self.partitions.count(), REQUEST_LIMIT) {
            Ok(committed) => self.standby.note_group(committed.into_iter().flatten().collect()),
            Err(failed) => {
                tracing::debug!(%failed, "reading the committed offsets for standby copies failed; retrying");
            }
        }
    }
}
