//! What the group tells a worker: partitions come, go, or are lost, and sometimes a rival appears.

use std::time::Duration;

use super::batch::Partitions;
use super::failpoint;
use super::partition::Partition;
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{KindId, PartitionId};
use crate::ports::{Failure, GroupEvent, Remedy, Source, StateLog, Store, StoreError};

/// A member replaced more often than this within the patience has a rival. A lone one can replace itself:
/// after an outage beyond its session it joins anew, and its own late heartbeat is taken for a rival's.
const REPLACED_MAX: usize = 4;
/// A producer fenced more often than this within the patience has a rival. More than [`REPLACED_MAX`],
/// because two processes take the one seat of a static member strictly in turns, so that exactly one of
/// them leaves for it; who fences whose producer between the turns is a matter of luck, and both could.
const FENCED_MAX: usize = 12;
/// How long a fencing is remembered.
const FENCE_PATIENCE: Duration = Duration::from_mins(1);

impl<W: World> Core<W> {
    /// Answers what the group has said. What could not be answered is answered in a later turn: the
    /// client tells it once, and the group waits for it.
    pub(super) fn serve(&mut self, source: &W::Source) -> Result<(), Trouble> {
        for event in source.events() {
            self.report.rebalanced(&event);
            self.heard.push_back(event);
        }
        while let Some(event) = self.heard.front().cloned() {
            self.group_event(source, event)?;
        }
        Ok(())
    }

    fn group_event(&mut self, source: &W::Source, event: GroupEvent) -> Result<(), Trouble> {
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
                self.heard.pop_front();
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
                // What stays with us was part of the aborted transaction too.
                self.relocate(source, Duration::ZERO)?;
                aborted.and(released)
            }
        }
    }

    fn abort_for_rebalance(&mut self, source: &W::Source) -> Result<(), Trouble> {
        if !self.batch.is_open() {
            return Ok(());
        }
        let aborted = self.abort(source);
        self.report.aborted();
        aborted
    }

    /// Lets partitions go: what is committed is marked as such, so that their return is quick.
    fn release(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), Trouble> {
        // Whatever fails here: the group waits for the answer, and without it for ever.
        let closed: Vec<_> = ids.iter().map(|id| self.close(*id)).collect();
        failpoint::pass("before_unassign");
        source.unassign(ids)?;
        self.heard.pop_front();
        failpoint::pass("after_unassign");
        closed.into_iter().collect()
    }

    fn close(&mut self, id: PartitionId) -> Result<(), Trouble> {
        let Some(partition) = self.partitions.remove(id) else { return Ok(()) };
        if partition.is_running() && partition.open.is_none() {
            StoreError::unless_taken(self.store.set_head(id, partition.head()))?;
        }
        self.log.close(id)?;
        Ok(())
    }

    /// Another worker of this process has the partition's local state; this one will be told, or has to
    /// take it back and begin anew.
    pub(super) fn taken(&mut self, filed: PartitionId) -> Failure {
        let now = self.clock.elapsed();
        let (_, id) = KindId::of_filed(filed);
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.unload();
            if !partition.is_running() {
                partition.relocate(now);
                if let Err(failed) = self.log.close(id) {
                    tracing::debug!(%failed, partition = id, "ending a restore");
                }
            }
        }
        let what = StoreError::Taken(id).to_string();
        Failure { remedy: Remedy::Abort, what, refused: None }
    }

    /// The group goes on without this member: another one takes its place, and begins from nothing.
    pub(super) fn rejoin(&mut self, source: &mut W::Source) -> Result<(), Trouble> {
        self.rejoining = true;
        self.heard.clear();
        let closed: Vec<_> = self.partitions.ids(|_| true).into_iter().map(|id| self.log.close(id)).collect();
        let ended = if self.batch.is_open() { self.abort(source) } else { Ok(()) };
        self.partitions = Partitions::default();
        source.rejoin()?;
        self.rejoining = false;
        closed.into_iter().collect::<Result<(), _>>()?;
        ended
    }

    /// Without a rival this happens once to an outage, so a few times are forgiven.
    pub(super) fn replaced(&mut self, failed: &Failure) -> Result<(), Fatal> {
        if self.rejoining {
            return Ok(());
        }
        let times = remembered(&mut self.replaced, self.clock.elapsed());
        if times > REPLACED_MAX { Err(self.second_process(failed)) } else { Ok(()) }
    }

    /// A transaction timeout looks like this too, so a few times are forgiven.
    pub(super) fn fenced(&mut self, failed: &Failure) -> Result<(), Fatal> {
        let now = self.clock.elapsed();
        let young = self
            .batch
            .remaining(now, self.options.transaction_timeout)
            .is_none_or(|remaining| !remaining.is_zero());
        let times = remembered(&mut self.fenced, now);
        if young && times > FENCED_MAX { Err(self.second_process(failed)) } else { Ok(()) }
    }

    fn second_process(&self, failed: &Failure) -> Fatal {
        Fatal::Fenced(format!(
            "{}; this happened again and again within a minute: another process runs with group.instance \
             and transactional id {}; give each process its own group.instance",
            failed.what, self.options.writer
        ))
    }
}

/// Adds this time to the earlier ones, and returns how many fall within the patience.
fn remembered(earlier: &mut Vec<Duration>, now: Duration) -> usize {
    earlier.retain(|before| now.saturating_sub(*before) < FENCE_PATIENCE);
    earlier.push(now);
    earlier.len()
}
