//! The consumer of the raw topic.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Coordinates, Offset, PartitionId};
use dedupd::ports::{
    Committed, Epoch, Failure, GroupEvent, GroupMember, LogBounds, Remedy, Source, Truncation,
};

use crate::sim::chance::{Exposure, Fault, failed};
use crate::sim::cluster::Cluster;
use crate::sim::group::{Fetch, MemberId};
use crate::sim::raw::{RawLog, SimRecord};
use crate::sim::universe::{Universe, writer};

/// Part of the error for a damaged batch.
pub const DAMAGED_BATCH: &str = "the raw log holds a damaged batch";

/// One member's client.
pub struct SimSource {
    universe: Rc<Universe>,
    worker: usize,
    /// Its number in the group.
    pub member: MemberId,
    /// The id of the raw topic that the client finds.
    raw_id: String,
    /// Records fetched before the last seek of a partition and delivered after it: their number and first offset.
    left: RefCell<BTreeMap<PartitionId, (u32, Offset)>>,
    /// Partitions whose leader epochs show a truncation. The next poll reports it.
    unreported: RefCell<BTreeMap<PartitionId, Offset>>,
    /// Positions outside of the log that a poll has reported.
    truncated: RefCell<BTreeMap<PartitionId, Truncation>>,
    /// The damaged batches that were read, and the failure that every poll returns since the second read.
    damaged: RefCell<BTreeMap<(PartitionId, Offset), Option<Failure>>>,
}

impl SimSource {
    /// Joins the group.
    pub fn join(universe: &Rc<Universe>, worker: usize, raw_id: String) -> Self {
        let member = universe.cluster.borrow_mut().group.join(worker);
        let universe = Rc::clone(universe);
        let (left, unreported, truncated, damaged) = Default::default();
        Self { universe, worker, member, raw_id, left, unreported, truncated, damaged }
    }

    fn call<T>(&self, effect: impl FnOnce(&mut Cluster) -> Result<T, Failure>) -> Result<T, Failure> {
        self.universe.call(self.worker, Exposure::Before, effect)
    }

    fn deliver(&self, cluster: &mut Cluster, wait: Duration) -> Result<Option<SimRecord>, Failure> {
        let Cluster { group, chance, raw, delivers_only, .. } = cluster;
        if !group.has_event(self.member, cluster.now) && !chance.hit(Fault::EmptyPoll) {
            let fetch = group.fetch(self.member);
            let ready = fetch
                .iter_mut()
                .filter(|(partition, _)| delivers_only.is_none_or(|only| only == **partition))
                .filter(|(partition, fetch)| !fetch.paused && !self.is_damaged(**partition))
                .filter_map(|(partition, fetch)| Some((raw[*partition as usize].next(fetch.at?)?, fetch)));
            let mut ready: Vec<_> = ready.collect();
            if !ready.is_empty() {
                let stale = ready.iter().find_map(|(record, _)| self.left_over(record.at.partition));
                if let Some(record) = stale.and_then(|(partition, at)| raw[partition as usize].next(at)) {
                    return Ok(Some(SimRecord(Rc::clone(record))));
                }
                if let Some((partition, _)) = stale {
                    // The record was compacted away. Records that were written later were not fetched before the seek.
                    self.left.borrow_mut().remove(&partition);
                }
                let (record, fetch) = ready.swap_remove(chance.rng.usize(0..ready.len()));
                // The fetch queue is ordered: no stale record follows one of the new position.
                self.left.borrow_mut().remove(&record.at.partition);
                let record = Rc::clone(record);
                let damaged = &mut raw[record.at.partition as usize].damaged;
                let is_damaged = chance.hit(Fault::Damaged);
                if is_damaged && chance.is_lasting() {
                    damaged.insert(record.at.offset);
                }
                if is_damaged || damaged.contains(&record.at.offset) {
                    // The client skips the batch.
                    fetch.at = Some(record.at.offset + 1);
                    return Err(self.read_damaged(record.at));
                }
                let next = if chance.hit(Fault::Redelivery) { 0 } else { 1 };
                fetch.at = Some(record.at.offset + next);
                return Ok(Some(SimRecord(record)));
            }
        }
        let slow = cluster.chance.rng.u64(0..20);
        cluster.advance(wait + Duration::from_millis(if wait.is_zero() { 0 } else { slow }));
        Ok(None)
    }
}

impl SimSource {
    /// Finds and pauses a partition whose log ends before its position.
    fn outside(&self, cluster: &mut Cluster) -> Option<PartitionId> {
        let Cluster { group, raw, .. } = cluster;
        let mut fetch = group.fetch(self.member).iter_mut();
        let is_outside = |(id, fetch): &(&PartitionId, &mut Fetch)| {
            !fetch.paused && fetch.at.is_some_and(|at| at > raw[**id as usize].end())
        };
        fetch.find(is_outside).map(|(id, fetch)| {
            fetch.paused = true;
            *id
        })
    }

    /// The next record; waits at most `wait`.
    fn next(&self, wait: Duration) -> Result<Option<SimRecord>, Failure> {
        self.call(|cluster| {
            if cluster.group.is_dead(self.member) || cluster.chance.hit(Fault::Replaced) {
                cluster.group.remove(self.worker);
                return Err(failed(Remedy::Rejoin, "another member has the same group instance id"));
            }
            if let Some((partition, end)) = self.unreported.borrow_mut().pop_first() {
                self.truncated.borrow_mut().insert(partition, Truncation::At(end));
                return Err(failed(Remedy::Abort, "the log was truncated"));
            }
            if let Some(partition) = self.outside(cluster) {
                self.truncated.borrow_mut().insert(partition, Truncation::Unknown);
                return Err(failed(
                    Remedy::Abort,
                    &format!("the position in {partition} is outside of its log"),
                ));
            }
            self.deliver(cluster, wait)
        })
    }

    fn read_damaged(&self, Coordinates { partition, offset }: Coordinates) -> Failure {
        let what = format!("{DAMAGED_BATCH}, for partition {partition} at offset {offset}");
        let mut damaged = self.damaged.borrow_mut();
        let Some(standing) = damaged.get_mut(&(partition, offset)) else {
            damaged.insert((partition, offset), None);
            return failed(Remedy::Abort, &what);
        };
        let at = Coordinates { partition, offset };
        standing.insert(Failure { damaged: Some(at), ..failed(Remedy::Stop, &what) }).clone()
    }

    /// Whether the next record of a partition lies behind a batch that was found damaged by two reads.
    fn is_damaged(&self, partition: PartitionId) -> bool {
        let damaged = self.damaged.borrow();
        damaged.iter().any(|((of, _), standing)| *of == partition && standing.is_some())
    }

    /// Removes what was found at the position that a partition had until now.
    fn forget_position(&self, partition: PartitionId) {
        let mut damaged = self.damaged.borrow_mut();
        damaged.iter_mut().filter(|((of, _), _)| *of == partition).for_each(|(_, standing)| *standing = None);
        self.unreported.borrow_mut().remove(&partition);
        self.truncated.borrow_mut().remove(&partition);
    }

    /// The next stale record of a partition.
    fn left_over(&self, partition: PartitionId) -> Option<(PartitionId, Offset)> {
        let mut left = self.left.borrow_mut();
        let (count, at) = left.remove(&partition)?;
        if count > 1 {
            left.insert(partition, (count - 1, at + 1));
        }
        Some((partition, at))
    }
}

impl Source for SimSource {
    type Record<'a> = SimRecord;

    fn poll(&self, records: &mut Vec<SimRecord>, most: usize, wait: Duration) -> Result<(), Failure> {
        let standing = self.damaged.borrow().values().flatten().next().cloned();
        let mut wait = wait;
        while records.len() < most
            && let Some(record) = self.next(wait)?
        {
            records.push(record);
            wait = Duration::ZERO;
        }
        standing.map_or(Ok(()), Err)
    }

    fn seek(&self, starts: &[(PartitionId, Offset)]) -> Result<(), Failure> {
        self.call(|cluster| {
            for (partition, start) in starts {
                self.forget_position(*partition);
                match cluster.group.fetch(self.member).get_mut(partition) {
                    Some(fetch) => {
                        let before = fetch.at.filter(|before| before > start);
                        *fetch = Fetch { at: Some(*start), paused: false };
                        self.left.borrow_mut().remove(partition);
                        if let Some(before) = before.filter(|_| cluster.chance.hit(Fault::StaleAbove)) {
                            let count = cluster.chance.rng.u32(1..4);
                            // Only existing records can have been fetched.
                            let fetched = cluster.raw[*partition as usize].end().saturating_sub(before);
                            if fetched > 0 {
                                let count = count.min(u32::try_from(fetched).unwrap());
                                self.left.borrow_mut().insert(*partition, (count, before));
                            }
                        }
                    }
                    None => cluster.violations.push(format!("seek in partition {partition}, not assigned")),
                }
            }
            Ok(())
        })
    }

    fn seek_behind(
        &self,
        partition: PartitionId,
        offset: Offset,
        last: Option<Epoch>,
    ) -> Result<(), Failure> {
        self.seek(&[(partition, offset)])?;
        let mut cluster = self.universe.cluster.borrow_mut();
        let known = last.filter(|last| last.covers(offset));
        let end = known.map(|last| cluster.raw[partition as usize].end_of_epoch(last.number));
        if let Some(end) = end.filter(|end| *end < offset) {
            self.unreported.borrow_mut().insert(partition, end);
            if let Some(fetch) = cluster.group.fetch(self.member).get_mut(&partition) {
                fetch.paused = true;
            }
        }
        Ok(())
    }

    fn truncated(&self, partition: PartitionId) -> Option<Truncation> {
        self.truncated.borrow().get(&partition).copied()
    }

    fn pause(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        self.call(|cluster| {
            for partition in partitions {
                if let Some(fetch) = cluster.group.fetch(self.member).get_mut(partition) {
                    fetch.paused = true;
                }
            }
            Ok(())
        })
    }

    fn bounds(&self, partitions: &[PartitionId], _: Duration) -> Result<Vec<LogBounds>, Failure> {
        self.call(|cluster| {
            let log = |partition: &PartitionId| &cluster.raw[*partition as usize];
            let bounds = |log: &RawLog| LogBounds { low: log.low(), stable: log.end(), high: log.end() };
            Ok(partitions.iter().map(log).map(bounds).collect())
        })
    }

    fn partition_count(&self, _: Duration) -> Result<usize, Failure> {
        self.call(|cluster| Ok(cluster.raw.len()))
    }

    fn topic_id(&self, _: Duration) -> Option<String> {
        Some(self.raw_id.clone())
    }

    fn end(&self, partition: PartitionId) -> Option<Offset> {
        Some(self.universe.cluster.borrow().raw[partition as usize].end())
    }
}

impl GroupMember for SimSource {
    fn events(&self) -> Vec<GroupEvent> {
        let mut cluster = self.universe.cluster.borrow_mut();
        if cluster.dead.contains(&self.worker) {
            return Vec::new();
        }
        let now = cluster.now;
        cluster.group.events(self.member, now)
    }

    fn assign(&self, starts: &[(PartitionId, Option<Offset>)]) -> Result<(), Failure> {
        self.call(|cluster| {
            for (partition, start) in starts {
                self.forget_position(*partition);
                let fetch = Fetch { at: *start, paused: start.is_none() };
                cluster.group.fetch(self.member).insert(*partition, fetch);
            }
            Ok(())
        })
    }

    fn unassign(&self, partitions: &[PartitionId]) -> Result<(), Failure> {
        self.call(|cluster| {
            cluster.group.unassign(self.member, partitions);
            for partition in partitions {
                self.forget_position(*partition);
            }
            Ok(())
        })
    }

    fn committed(&self, partitions: &[PartitionId], wait: Duration) -> Result<Vec<Committed>, Failure> {
        self.call(|cluster| {
            if partitions.iter().any(|p| !cluster.offsets[*p as usize].pending.is_empty()) {
                cluster.advance(wait);
                return Err(failed(Remedy::Retry, "an open transaction has pending offsets"));
            }
            Ok(settled(cluster, partitions))
        })
    }

    fn committed_unstable(&self, partitions: &[PartitionId], _: Duration) -> Result<Vec<Committed>, Failure> {
        self.call(|cluster| Ok(settled(cluster, partitions)))
    }

    fn live_writers(&self, _: Duration) -> Result<BTreeSet<String>, Failure> {
        self.call(|cluster| Ok(cluster.group.workers().map(writer).collect()))
    }

    fn may_commit(&self, partitions: &[PartitionId]) -> bool {
        let cluster = self.universe.cluster.borrow();
        cluster.group.considers_owned(self.member, partitions, cluster.now)
    }

    fn rejoin(&mut self) -> Result<(), Failure> {
        let worker = self.worker;
        self.member = self.call(|cluster| {
            cluster.group.remove(worker);
            Ok(cluster.group.join(worker))
        })?;
        // The new client has no fetched records.
        (self.left, self.unreported, self.truncated) = Default::default();
        Ok(())
    }

    fn leave(&self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        let now = cluster.now;
        if !cluster.dead.contains(&self.worker) {
            cluster.group.leave(self.member, now);
        }
    }
}

fn settled(cluster: &Cluster, partitions: &[PartitionId]) -> Vec<Committed> {
    let answer = |partition: &PartitionId| {
        let settled = cluster.offsets[*partition as usize].settled.clone();
        Committed {
            partition: *partition,
            offset: settled.as_ref().map(|(offset, _)| *offset),
            metadata: settled.map(|(_, metadata)| metadata).unwrap_or_default(),
        }
    };
    partitions.iter().map(answer).collect()
}
