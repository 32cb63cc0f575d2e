//! Group events of a worker: partitions are assigned, revoked or lost, and another process may use the same instance
//! name.

use std::time::Duration;

use super::error::{Fatal, WorkerError};
use super::failpoint;
use super::partition::Partition;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{PartitionId, WindowId};
use crate::ports::{Failure, GroupEvent, GroupMember, Remedy, StateLog, Store, StoreError};

/// A member replaced more often than this within [`FENCE_PERIOD`] competes with another process. A single process can
/// replace itself: after an outage longer than its session timeout it rejoins, and the broker takes its own late
/// heartbeat for that of another process.
const REPLACED_MAX: usize = 4;
/// A producer fenced more often than this within [`FENCE_PERIOD`] competes with another process. The limit is higher
/// than [`REPLACED_MAX`]: two processes take the one static membership strictly in turns, so exactly one of them
/// exceeds that limit and ends. The order in which they fence each other's producers in between is random, and could
/// end both.
const FENCED_MAX: usize = 12;
/// Fencings older than this are not counted.
const FENCE_PERIOD: Duration = Duration::from_mins(1);

impl<W: World> Core<W> {
    /// Answers the group events. An event that could not be answered is retried in a later iteration: the client
    /// reports it only once, and the group waits for the answer.
    pub(super) fn serve(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        for event in source.events() {
            self.report.rebalanced(&event);
            self.group_events.push_back(event);
        }
        while let Some(event) = self.group_events.front().cloned() {
            self.group_event(source, event)?;
        }
        Ok(())
    }

    fn group_event(&mut self, source: &W::Source, event: GroupEvent) -> Result<(), WorkerError> {
        match event {
            GroupEvent::Assigned(ids) => {
                if ids.iter().any(|id| self.partitions.get(*id).is_some()) {
                    // Given again without a revocation: what the open transaction has of it could not be committed with its
                    // offset.
                    self.abort_for_rebalance(source)?;
                    self.relocate(source, Duration::ZERO)?;
                }
                let starts: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
                failpoint::pass("before_assign");
                source.assign(&starts)?;
                self.group_events.pop_front();
                failpoint::pass("after_assign");
                let now = self.clock.elapsed();
                for id in ids {
                    self.partitions.insert(Partition::assigned(id, now));
                }
                Ok(())
            }
            GroupEvent::Revoked(ids) => {
                failpoint::pass("after_revoke");
                let committed = self.commit(source);
                let released = self.release(source, &ids);
                committed.and(released)
            }
            GroupEvent::Lost(ids) => {
                let aborted = self.abort_for_rebalance(source);
                let released = self.release(source, &ids);
                // The partitions that this member keeps were part of the aborted transaction too.
                self.relocate(source, Duration::ZERO)?;
                aborted.and(released)
            }
        }
    }

    fn abort_for_rebalance(&mut self, source: &W::Source) -> Result<(), WorkerError> {
        if !self.batch.is_open() {
            return Ok(());
        }
        let aborted = self.abort(source);
        self.report.aborted();
        aborted
    }

    /// Releases partitions. Their committed state is marked as confirmed in the local store, so that they load
    /// quickly when they return.
    fn release(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), WorkerError> {
        // A failure must not prevent the answer: the group waits for it without a time limit.
        let closed: Vec<_> = ids.iter().map(|id| self.close(*id)).collect();
        failpoint::pass("before_unassign");
        source.unassign(ids)?;
        self.group_events.pop_front();
        failpoint::pass("after_unassign");
        closed.into_iter().collect()
    }

    fn close(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let Some(partition) = self.partitions.remove(id) else { return Ok(()) };
        if partition.is_running() && partition.open.is_none() {
            StoreError::unless_lease_lost(self.store.set_head(id.into(), partition.head()))?;
        }
        self.log.close(id)?;
        Ok(())
    }

    /// Another worker of this process holds the partition's local state. This worker will receive a revocation, or
    /// has to take the state back and load it again.
    pub(super) fn lease_lost(&mut self, window: WindowId) -> Failure {
        let now = self.clock.elapsed();
        let id = window.partition();
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.unload();
            if !partition.is_running() {
                partition.relocate(now);
                if let Err(failed) = self.log.close(id) {
                    tracing::debug!(%failed, partition = id, "failed to close the restore of a partition");
                }
            }
        }
        let what = StoreError::LeaseLost(window).to_string();
        Failure::new(Remedy::Abort, what)
    }

    /// The group has removed this member. A new member replaces it and starts without any assignment.
    pub(super) fn rejoin(&mut self, source: &mut W::Source) -> Result<(), WorkerError> {
        self.rejoining = true;
        self.group_events.clear();
        let closed: Vec<_> = self.partitions.ids(|_| true).into_iter().map(|id| self.log.close(id)).collect();
        let ended = if self.batch.is_open() { self.abort(source) } else { Ok(()) };
        self.partitions.remove_all();
        source.rejoin()?;
        self.rejoining = false;
        closed.into_iter().collect::<Result<(), _>>()?;
        ended
    }

    /// A single process is replaced once per outage, so a few times are tolerated.
    pub(super) fn replaced(&mut self, failed: &Failure) -> Result<(), Fatal> {
        if self.rejoining {
            return Ok(());
        }
        let times = count_recent(&mut self.replaced, self.clock.elapsed());
        if times > REPLACED_MAX { Err(self.second_process(failed)) } else { Ok(()) }
    }

    /// A transaction timeout causes the same error, so a few times are tolerated.
    pub(super) fn fenced(&mut self, failed: &Failure) -> Result<(), Fatal> {
        let now = self.clock.elapsed();
        let within_timeout = self
            .batch
            .remaining(now, self.options.transaction_timeout)
            .is_none_or(|remaining| !remaining.is_zero());
        let times = count_recent(&mut self.fenced, now);
        if within_timeout && times > FENCED_MAX { Err(self.second_process(failed)) } else { Ok(()) }
    }

    fn second_process(&self, failed: &Failure) -> Fatal {
        Fatal::Fenced(format!(
            "{}; this recurred several times within a minute: another process runs with the same group.instance and \
             transactional id {}; give each process its own group.instance",
            failed.what, self.options.writer
        ))
    }
}

/// Adds `now` to the earlier times, and returns how many lie within [`FENCE_PERIOD`].
fn count_recent(earlier: &mut Vec<Duration>, now: Duration) -> usize {
    earlier.retain(|before| now.saturating_sub(*before) < FENCE_PERIOD);
    earlier.push(now);
    earlier.len()
}
