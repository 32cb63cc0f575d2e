//! What nobody tells dedupd and it has to ask for: topics that grow or are created anew, where the raw logs
//! begin, upstream transactions that hang, partitions that no member of the group has. On one thread with clients of
//! its own, so that no worker waits for an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::assembly::settings;
use super::hanging::Hanging;
use super::ownership::Ownership;
use super::supervisor::pause;
use super::{Ended, Service};
use crate::cli::Exit;
use crate::clock::{self, Clock, SystemClock};
use crate::kafka::{GroupMonitor, LogEnds, LookError, Offsets, TopicWatch, Topology};
use crate::metrics::{Metrics, Status};
use crate::pipeline::{Reach, StableEnds};
use crate::ports::Failure;

/// How often the topics are looked at. Until the next look a topic created anew would pass for the old one.
const TOPICS: Duration = Duration::from_secs(5);
/// How often is asked where logs begin. Retention deletes whole segments, every few minutes at most.
const STARTS: Duration = Duration::from_secs(30);
/// How often is asked where they end.
const ENDS: Duration = Duration::from_secs(10);
/// How often is asked who is in the group; each broker lists its groups for that.
const GROUP: Duration = Duration::from_secs(4);
/// How long a forced rebalance may take: all members have to notice it by their heartbeats. Nothing else is looked at
/// meanwhile.
const FORCE: Duration = Duration::from_secs(15);
/// How long an answer about a log may take; well below the time that a stop may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How often is looked whether partitions have come.
const LOOK: Duration = Duration::from_secs(1);

/// Watches until `stop` is set, or until it sees what has to end the process.
pub(super) fn watch(
    service: &Service,
    start: &Topology,
    (reach, stable_ends): (&Reach, &StableEnds),
    stop: &Arc<AtomicBool>,
) -> Result<JoinHandle<Result<(), Ended>>, Ended> {
    let settings = settings(&service.config, 0);
    let operator = |failed: Failure| Ended::new(Exit::Operator, failed.what);
    let mut watch = Watch {
        topics: TopicWatch::new(&settings, start, service.config.topics.create)?,
        ends: LogEnds::new(&settings).map_err(operator)?,
        group: GroupMonitor::new(&settings).map_err(operator)?,
        ownership: Ownership::default(),
        client_id: settings.transactional_id.clone(),
        raw: start.partitions,
        hanging: Hanging::new(&settings.raw, &settings.bootstrap_servers),
        clock: SystemClock::start(),
        status: Arc::clone(&service.status),
        metrics: service.metrics.clone(),
        reach: reach.clone(),
        stable_ends: stable_ends.clone(),
        owned: BTreeSet::new(),
        looked: None,
        started: None,
        ended: None,
        described: None,
        told: false,
        stop: Arc::clone(stop),
    };
    let stop = Arc::clone(stop);
    let work = move || {
        while !stop.load(Ordering::Acquire) {
            watch.turn()?;
            pause(LOOK, &stop);
        }
        Ok(())
    };
    std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(work)
        .map_err(|e| Ended::failed(format!("cannot start a thread: {e}; raise the limit on processes")))
}

struct Watch {
    topics: TopicWatch,
    ends: LogEnds,
    group: GroupMonitor,
    ownership: Ownership,
    /// What the clients of the first worker are called.
    client_id: String,
    /// How many partitions the raw topic has.
    raw: usize,
    hanging: Hanging,
    clock: SystemClock,
    status: Arc<Status>,
    metrics: Metrics,
    reach: Reach,
    /// For the workers: where the logs of raw end.
    stable_ends: StableEnds,
    /// The partitions of this process at the last look.
    owned: BTreeSet<u32>,
    /// When the topics were looked at, and the logs were asked about.
    looked: Option<Instant>,
    started: Option<Instant>,
    ended: Option<Instant>,
    described: Option<Instant>,
    stop: Arc<AtomicBool>,
    /// Nobody answers, and the log says so.
    told: bool,
}

impl Watch {
    /// Asks what is due. Not our trouble to report that nobody answers while the workers have the same; but once.
    fn turn(&mut self) -> Result<(), Ended> {
        match self.ask() {
            Ok(()) => self.told = false,
            Err(LookError::Unanswered(what)) => {
                if !self.told {
                    tracing::warn!(
                        "{what}; until it is answered, changes of the topics and of the group are not \
                         seen, and dedupd_raw_start_offset, dedupd_raw_hanging_seconds and dedupd_group_* keep their \
                         last values"
                    );
                }
                self.told = true;
            }
            Err(LookError::LeftBehind(what)) => return Err(Ended::new(Exit::StartUp, what)),
            Err(LookError::Replaced(what)) => return Err(Ended::new(Exit::Operator, what)),
        }
        Ok(())
    }

    /// Ends with the first question that is not answered: a stop waits for it.
    fn ask(&mut self) -> Result<(), LookError> {
        let workers = self.status.workers();
        let owned = workers.iter().flat_map(|worker| &worker.partitions).map(|it| it.partition).collect();
        let come = !BTreeSet::is_subset(&owned, &self.owned);
        self.owned = owned;
        // The group has heard of a growth before this look was due.
        let waits = self.owned.iter().any(|partition| !self.reach.covers(*partition));
        if is_due(&mut self.looked, TOPICS) || waits {
            let sight = self.topics.look()?;
            sight.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            self.reach.raise(sight.reach);
            self.raw = self.raw.max(sight.raw);
        }
        let unanswered = |failed: Failure| LookError::Unanswered(failed.what);
        if is_due(&mut self.started, STARTS) || come {
            let starts = self.ends.first(self.all(), ANSWER).map_err(unanswered)?;
            self.status.note_log_starts(starts);
        }
        if is_due(&mut self.ended, ENDS) {
            self.look_at_ends().map_err(unanswered)?;
        }
        if is_due(&mut self.described, GROUP) {
            self.look_at_group().map_err(unanswered)?;
        }
        Ok(())
    }

    /// All partitions of the raw topic.
    fn all(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        0..u32::try_from(self.raw).unwrap_or(u32::MAX)
    }

    fn look_at_ends(&mut self) -> Result<(), Failure> {
        let (stable, written) = self.ends.last(self.all(), ANSWER)?;
        self.stable_ends.note(&stable);
        let is_owned = |partition: &u32| self.owned.contains(partition);
        let owned: Offsets =
            stable.iter().filter(|(it, _)| is_owned(it)).map(|(it, end)| (*it, *end)).collect();
        let now = self.clock.elapsed();
        let standing = self.hanging.seen(&(owned, written), now);
        self.hanging.tell(now);
        self.status.note_hanging(standing, self.hanging.notes(now));
        let committed = self.group.committed(self.all(), ANSWER)?;
        self.status.note_group_lag(lag(&stable, &committed, &self.status.log_starts()));
        Ok(())
    }

    fn look_at_group(&mut self) -> Result<(), Failure> {
        let view = self.group.view(ANSWER)?;
        let now = self.clock.elapsed();
        let found = self.ownership.seen(&view, self.raw, now);
        if found > 0 {
            tracing::info!(partitions = found, "partitions without an owner have one again");
        }
        let about = self.status.about();
        let obstacle = self.ownership.obstacle(&about.group, &about.raw, now);
        self.status.note_unassigned(self.ownership.unassigned(), obstacle);
        if self.ownership.is_due(&view, &self.client_id, now) {
            tracing::warn!(
                partitions = self.ownership.unassigned(),
                "partitions of topic {} have no owner though group {} is stable: forcing a rebalance",
                about.raw,
                about.group
            );
            self.ownership.forced(now);
            self.metrics.forced_rebalances().inc();
            if !self.group.force_rebalance(FORCE, &self.stop)? {
                tracing::warn!("the group did not finish its rebalance within {} s", FORCE.as_secs());
            }
        }
        Ok(())
    }
}

/// How many offsets of each partition the group has not committed yet; from the start of the log where it has
/// committed nothing.
fn lag(stable: &Offsets, committed: &Offsets, starts: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let from = |partition| committed.get(partition).or_else(|| starts.get(partition)).copied();
    stable.iter().filter_map(|(it, end)| Some((*it, end.saturating_sub(from(it)?)))).collect()
}

/// Whether so long has passed since `last`, which then is now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= every);
    if due {
        *last = Some(clock::monotonic());
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_counted_from_the_committed_offset_or_else_from_the_start_of_the_log() {
        let stable = Offsets::from([(0, 100), (1, 50), (2, 7), (3, 9)]);
        let committed = Offsets::from([(0, 90), (2, 8)]);
        let starts = BTreeMap::from([(0, 10), (1, 20), (2, 0)]);
        assert_eq!(lag(&stable, &committed, &starts), BTreeMap::from([(0, 10), (1, 30), (2, 0)]));
    }
}
