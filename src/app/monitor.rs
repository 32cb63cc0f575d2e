//! The topic monitor polls what no Kafka client reports: topics that grow or are recreated, the log start offsets of
//! raw, hanging transactions, and partitions that are assigned to no member of the group. It runs on one
//! thread with its own clients, so that no worker waits for a response.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ExitError;
use super::assembly::settings;
use super::hanging::{self, HangingPartitions};
use super::ownership::Ownership;
use super::supervisor::{ProcessParts, pause};
use crate::cli::Exit;
use crate::clock::{self, Clock, SystemClock};
use crate::kafka::{
    ClientFigures, ClientUse, GroupMonitor, LogEnds, OUTAGE_QUIET, Offsets, Settings, TopicError,
    TopicMonitor, Topology, client_figures, log_ended_outages,
};
use crate::metrics::{ClientLabel, ClientStatus, Metrics, Status};
use crate::pipeline::{PartitionCounts, StableEnds, is_due};
use crate::ports::{Failure, OutputTopic};

/// Interval between checks of the topics. Until the next check a recreated topic is taken for the old one.
const TOPICS_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between requests of the log start offsets. Retention deletes whole segments, every few minutes at most.
const LOG_STARTS_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between requests of last stable offsets and high watermarks.
const LOG_ENDS_INTERVAL: Duration = Duration::from_secs(10);
/// The same for the partitions of raw that this process owns: their lag is counted from that.
const OWN_ENDS_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between descriptions of the group; each broker lists its groups for that.
const GROUP_INTERVAL: Duration = Duration::from_secs(4);
/// Time limit of a forced rebalance: all members have to learn of it in their heartbeats. Nothing else is checked
/// meanwhile.
const FORCED_REBALANCE_LIMIT: Duration = Duration::from_secs(15);
/// Time limit of a request; well below the time limit of a stop.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Interval between checks for newly assigned partitions.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the monitor. It runs until `stop` is set, or until it finds a reason to end the process.
pub(super) fn start_monitor(
    shared: &ProcessParts<'_>,
    start: &Topology,
) -> Result<JoinHandle<Result<(), ExitError>>, ExitError> {
    let service = shared.service;
    let settings = settings(&service.config, 0);
    let mut monitor = Monitor {
        topics: TopicMonitor::new(
            &settings,
            start,
            service.config.topics.create,
            service.config.dedupe.scope,
        )?,
        ends: LogEnds::new(&settings).map_err(ExitError::operator)?,
        group: GroupMonitor::new(&settings).map_err(ExitError::operator)?,
        ownership: Ownership::default(),
        client_id: settings.client_id.clone(),
        raw: start.partitions,
        hanging: HangingPartitions::new(&settings.raw, hanging::UPSTREAM, &settings.bootstrap_servers),
        outputs: outputs(&settings),
        clock: SystemClock::start(),
        status: Arc::clone(&service.status),
        metrics: service.metrics.clone(),
        partition_counts: shared.partition_counts.clone(),
        stable_ends: shared.ends.clone(),
        owned: BTreeSet::new(),
        topics_checked: None,
        log_starts_requested: None,
        log_ends_requested: None,
        own_ends_requested: None,
        group_described: None,
        failed: None,
        stop: Arc::clone(shared.stop),
    };
    let (stop, first) = (Arc::clone(shared.stop), Arc::clone(shared.first));
    let work = move || {
        while !stop.load(Ordering::Acquire) {
            monitor.iterate().inspect_err(|failure| drop(first.set(failure.clone())))?;
            pause(POLL_INTERVAL, &stop);
        }
        Ok(())
    };
    std::thread::Builder::new().name("monitor".to_owned()).spawn(work).map_err(|e| {
        ExitError::failed(format!(
            "the thread of the topic monitor cannot be started: {e}; raise the limit on processes"
        ))
    })
}

/// The topics that transactions write to.
fn outputs(settings: &Settings) -> Vec<(OutputTopic, HangingPartitions)> {
    let topics = [OutputTopic::Clean, OutputTopic::State, OutputTopic::DeadLetter, OutputTopic::Duplicates];
    let hanging = |name: &str| HangingPartitions::new(name, hanging::DOWNSTREAM, &settings.bootstrap_servers);
    settings.configured(topics).map(|(topic, name)| (topic, hanging(name))).collect()
}

/// What the Kafka clients of this process report.
fn client_status() -> BTreeMap<ClientLabel, ClientStatus> {
    let status = |(client, figures): (ClientUse, ClientFigures)| {
        let label = match client {
            ClientUse::Consumer => ClientLabel::Consumer,
            ClientUse::Producer => ClientLabel::Producer,
        };
        let status = ClientStatus {
            round_trip_seconds: figures.round_trip.as_secs_f64(),
            throttle_seconds: figures.throttle.as_secs_f64(),
            queued_records: figures.queued,
            brokers_down: figures.brokers_down,
        };
        (label, status)
    };
    client_figures().into_iter().map(status).collect()
}

struct Monitor {
    topics: TopicMonitor,
    ends: LogEnds,
    group: GroupMonitor,
    ownership: Ownership,
    /// The client id of the first worker.
    client_id: String,
    /// The number of raw partitions.
    raw: usize,
    hanging: HangingPartitions,
    outputs: Vec<(OutputTopic, HangingPartitions)>,
    clock: SystemClock,
    status: Arc<Status>,
    metrics: Metrics,
    partition_counts: PartitionCounts,
    /// The last stable offsets of raw, for the workers.
    stable_ends: StableEnds,
    /// The partitions of this process at the last iteration.
    owned: BTreeSet<u32>,
    /// The time of the last request of each type.
    topics_checked: Option<Duration>,
    log_starts_requested: Option<Duration>,
    log_ends_requested: Option<Duration>,
    own_ends_requested: Option<Duration>,
    group_described: Option<Duration>,
    stop: Arc<AtomicBool>,
    /// The last request that failed, in an outage that was logged.
    failed: Option<Instant>,
}

impl Monitor {
    /// Sends the requests that are due. An unreachable broker is logged once only: the workers report it as well.
    fn iterate(&mut self) -> Result<(), ExitError> {
        log_ended_outages();
        let clients = client_status();
        self.status.update(|it| it.clients = clients);
        match self.request() {
            // Often no request is due. Each is repeated in less than this time.
            Ok(()) => self.failed = self.failed.filter(|at| at.elapsed() < OUTAGE_QUIET),
            Err(TopicError::Unreachable(what)) => {
                if self.failed.replace(clock::monotonic()).is_none() {
                    tracing::warn!(
                        "{what}; until a request succeeds, changes of the topics and of the group are not detected, \
                         and dedupd_raw_start_offset, dedupd_raw_hanging_seconds, dedupd_output_hanging_seconds and dedupd_group_* keep their last \
                         values"
                    );
                }
            }
            Err(TopicError::CannotGrow(what)) => return Err(ExitError::new(Exit::StartUp, what)),
            Err(TopicError::Replaced(what)) => return Err(ExitError::new(Exit::Operator, what)),
        }
        Ok(())
    }

    /// Returns at the first request without a response: a stop waits for this method.
    fn request(&mut self) -> Result<(), TopicError> {
        let now = self.clock.elapsed();
        let owned = self.status.read(|it| it.partitions().map(|it| it.partition).collect());
        let has_new_partitions = !BTreeSet::is_subset(&owned, &self.owned);
        self.owned = owned;
        // The group assigned partitions of a grown topic before this check was due.
        let has_partition_to_cover =
            self.owned.iter().any(|partition| !self.partition_counts.covers(*partition));
        if is_due(&mut self.topics_checked, now, TOPICS_INTERVAL) || has_partition_to_cover {
            let state = self.topics.check()?;
            state.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            self.partition_counts.raise(state.shared);
            self.partition_counts.note_raw(state.raw);
            self.raw = self.raw.max(state.raw);
        }
        let unanswered = |failed: Failure| TopicError::Unreachable(failed.what);
        if is_due(&mut self.log_starts_requested, now, LOG_STARTS_INTERVAL) || has_new_partitions {
            let starts =
                self.ends.first(&self.hanging.topic, self.all(), REQUEST_LIMIT).map_err(unanswered)?;
            self.status.update(|it| it.log_starts.extend(starts));
        }
        let is_own_due =
            is_due(&mut self.own_ends_requested, now, OWN_ENDS_INTERVAL) && !self.owned.is_empty();
        if is_due(&mut self.log_ends_requested, now, LOG_ENDS_INTERVAL) {
            self.check_log_ends().map_err(unanswered)?;
        } else if is_own_due {
            self.raw_ends(self.owned.iter().copied()).map_err(unanswered)?;
        }
        if is_due(&mut self.group_described, now, GROUP_INTERVAL) {
            self.check_group().map_err(unanswered)?;
        }
        Ok(())
    }

    /// All partitions of the raw topic.
    fn all(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        0..u32::try_from(self.raw).unwrap_or(u32::MAX)
    }

    /// Requests the last stable offsets and the high watermarks of these partitions of raw, for the workers.
    fn raw_ends(&self, partitions: impl Iterator<Item = u32> + Clone) -> Result<(Offsets, Offsets), Failure> {
        let fastest_ms = self.stable_ends.fastest_ms();
        let (stable, high_watermarks) = self.ends.last(&self.hanging.topic, partitions, REQUEST_LIMIT)?;
        self.stable_ends.note(&stable, &high_watermarks, fastest_ms);
        Ok((stable, high_watermarks))
    }

    fn check_log_ends(&mut self) -> Result<(), Failure> {
        let (stable, high_watermarks) = self.raw_ends(self.all())?;
        self.read_silent(&stable);
        let is_owned = |partition: &u32| self.owned.contains(partition);
        let owned: Offsets =
            stable.iter().filter(|(it, _)| is_owned(it)).map(|(it, end)| (*it, *end)).collect();
        let now = self.clock.elapsed();
        let ages = self.hanging.observe(&owned, &high_watermarks, now);
        self.hanging.warn(now);
        let mut notes = self.hanging.notes(now);
        let output_ages = self.check_outputs(now, &mut notes)?;
        self.status.update(|it| {
            (it.hanging, it.output_hanging, it.hanging_notes) = (ages, output_ages, notes);
        });
        let committed = self.group.committed(self.all(), REQUEST_LIMIT)?;
        self.status.update(|it| it.group_lag.extend(lag(&stable, &committed, &it.log_starts)));
        Ok(())
    }

    /// Reads what the workers' clients do not return of some partitions.
    fn read_silent(&self, stable: &Offsets) {
        let silent = self.stable_ends.silent();
        let range = |(id, from): (&u32, &u64)| Some((*id, *from..*stable.get(id)?));
        let is_read = |(id, range): &(u32, Range<u64>)| self.owned.contains(id) && !range.is_empty();
        let ranges = silent.iter().filter_map(range).filter(is_read);
        match self.ends.without_records(&self.hanging.topic, &ranges.collect(), REQUEST_LIMIT) {
            Ok(empty) => self.stable_ends.note_empty(&empty, stable),
            Err(failed) => {
                tracing::debug!(%failed, "reading partitions without new records failed; retrying");
            }
        }
    }

    /// For how long a transaction has been open in each topic that dedupd writes to: of clean and state in the partitions of this
    /// process, of the side topics in all.
    fn check_outputs(
        &mut self,
        now: Duration,
        notes: &mut Vec<String>,
    ) -> Result<BTreeMap<String, Duration>, Failure> {
        let mut ages = BTreeMap::new();
        for (topic, hanging) in &mut self.outputs {
            let partitions = if topic.is_shared() {
                self.ends.partitions(&hanging.topic, REQUEST_LIMIT)?
            } else {
                self.owned.iter().copied().collect()
            };
            let (stable, high_watermarks) = match partitions.as_slice() {
                [] => (Offsets::new(), Offsets::new()),
                _ => self.ends.last(&hanging.topic, partitions, REQUEST_LIMIT)?,
            };
            let longest = hanging.observe(&stable, &high_watermarks, now).into_values().max();
            ages.insert(topic.to_string(), longest.unwrap_or_default());
            hanging.warn(now);
            notes.extend(hanging.notes(now));
        }
        Ok(ages)
    }

    fn check_group(&mut self) -> Result<(), Failure> {
        let view = self.group.view(REQUEST_LIMIT)?;
        let now = self.clock.elapsed();
        let reassigned = self.ownership.observe(&view, self.raw, now);
        if reassigned > 0 {
            tracing::info!(partitions = reassigned, "unassigned partitions are assigned again");
        }
        let about = &self.status.about;
        let mut members = BTreeMap::new();
        for member in &view.members {
            let name = member.instance(&about.group);
            if name != about.instance {
                *members.entry(format!("{name} at {}", member.host)).or_default() += member.partitions.len();
            }
        }
        self.status.update(|it| it.members = members);
        let foreign = self.group.foreign_member(&view.members);
        let is_pure = foreign.is_none();
        let obstacle = self.ownership.obstacle(&about.group, &about.raw, foreign, now);
        self.status
            .update(|it| (it.unassigned, it.unassigned_obstacle) = (self.ownership.unassigned(), obstacle));
        // A rebalance does not change what another program does.
        if is_pure && self.ownership.is_due(&view, &self.client_id, now) {
            tracing::warn!(
                partitions = self.ownership.unassigned(),
                topic = about.raw,
                group = about.group,
                "partitions are unassigned although the group is stable; forcing a rebalance"
            );
            self.ownership.note_forced(now);
            self.metrics.parts.group.forced.inc();
            if !self.group.force_rebalance(FORCED_REBALANCE_LIMIT, &self.stop)? {
                let limit_s = FORCED_REBALANCE_LIMIT.as_secs();
                tracing::warn!(
                    limit_s,
                    "the forced rebalance did not complete in time; retrying with backoff"
                );
            }
        }
        Ok(())
    }
}

/// The lag of the group in each partition, in offsets: from the committed offset, or from the log start offset where
/// the group has none, to the last stable offset.
fn lag(stable: &Offsets, committed: &Offsets, starts: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
    let from = |partition| committed.get(partition).or_else(|| starts.get(partition)).copied();
    stable.iter().filter_map(|(it, end)| Some((*it, end.saturating_sub(from(it)?)))).collect()
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
