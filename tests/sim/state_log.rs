//! The reader of the state topic.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId, StateKey};
use dedupd::ports::{
    Failure, Isolation, LogBounds, LogId, LogReads, OutputTopic, Remedy, SideRecords, StateItem, StateLog,
};

use crate::sim::chance::{Exposure, Fault, failed};
use crate::sim::cluster::{Cluster, StateRecord};
use crate::sim::content::without_digests;
use crate::sim::universe::{Sabotage, Universe};

/// One worker's reader.
pub struct SimLog {
    universe: Rc<Universe>,
    worker: usize,
    open: BTreeMap<PartitionId, OpenRead>,
    is_standby: bool,
}

/// How far an open partition is read.
struct OpenRead {
    /// The next offset.
    next: Offset,
    /// The offset at which its end was reported: like the real client, only once.
    ended: Option<Offset>,
}

impl SimLog {
    /// A reader without open partitions.
    pub fn new(universe: &Rc<Universe>, worker: usize) -> Self {
        Self { universe: Rc::clone(universe), worker, open: BTreeMap::new(), is_standby: false }
    }

    /// The reader of a standby.
    pub fn of_standby(self) -> Self {
        Self { is_standby: true, ..self }
    }

    fn call<T>(&self, effect: impl FnOnce(&mut Cluster) -> Result<T, Failure>) -> Result<T, Failure> {
        self.universe.call(self.worker, Exposure::Before, effect)
    }

    /// Fails when one of these logs has no leader.
    fn reach(&self, mut logs: impl Iterator<Item = LogId>) -> Result<(), Failure> {
        let unreachable = self.universe.unreachable.borrow();
        match logs.find(|log| unreachable.contains(log)) {
            Some(log) => Err(failed(Remedy::Retry, &format!("{log:?} has no leader"))),
            None => Ok(()),
        }
    }
}

fn item(partition: PartitionId, offset: Offset, record: &StateRecord) -> StateItem {
    StateItem::Record { partition, offset, key: StateKey::parse(&record.key), value: record.block.clone() }
}

/// Reads the next few items of each open partition.
fn read(
    open: &mut BTreeMap<PartitionId, OpenRead>,
    cluster: &mut Cluster,
    sabotage: Sabotage,
) -> Vec<StateItem> {
    let mut items = Vec::new();
    for (partition, OpenRead { next, ended }) in open {
        if *next < cluster.state[*partition as usize].bounds().low {
            items.push(StateItem::Gone { partition: *partition });
            continue;
        }
        let count = cluster.chance.rng.usize(0..5);
        let early = cluster.chance.hit(Fault::EarlyEnd);
        let log = &cluster.state[*partition as usize];
        tracing::trace!(partition, next, count, early, bounds = ?log.bounds(), "read");
        let mut blocks: Vec<_> = match sabotage {
            Sabotage::StandbyReadsUncommitted => log.everything(*next).collect(),
            _ => log.committed(*next).collect(),
        };
        if sabotage == Sabotage::BlockHidden {
            blocks.pop();
        }
        let ends = early || blocks.len() < count;
        for (offset, record) in blocks.into_iter().take(count) {
            items.push(item(*partition, offset, record));
            *next = offset + 1;
        }
        if ends && ended.replace(*next) != Some(*next) {
            items.push(StateItem::End { partition: *partition, next: *next });
        }
    }
    items
}

impl StateLog for SimLog {
    fn open(&mut self, partition: PartitionId, from: Offset) -> Result<(), Failure> {
        self.call(|_| Ok(()))?;
        self.open.insert(partition, OpenRead { next: from, ended: None });
        Ok(())
    }

    fn read(&mut self, _: Duration) -> Result<Vec<StateItem>, Failure> {
        let Self { universe, worker, open, is_standby } = self;
        let sabotage = match universe.sabotage {
            Sabotage::StandbyReadsUncommitted if !*is_standby => Sabotage::Nothing,
            other => other,
        };
        universe.call(*worker, Exposure::Before, |cluster| Ok(read(open, cluster, sabotage)))
    }

    fn close(&mut self, partition: PartitionId) -> Result<(), Failure> {
        self.call(|_| Ok(()))?;
        self.open.remove(&partition);
        Ok(())
    }
}

impl LogReads for SimLog {
    fn bounds(&self, logs: &[LogId], _: Duration) -> Result<Vec<LogBounds>, Failure> {
        self.reach(logs.iter().copied())?;
        self.call(|cluster| Ok(logs.iter().map(|log| bounds(cluster, *log)).collect()))
    }

    fn stable_ends(&self, logs: &[LogId], _: Duration) -> Result<Vec<Offset>, Failure> {
        self.reach(logs.iter().copied())?;
        self.call(|cluster| Ok(logs.iter().map(|log| bounds(cluster, *log).stable).collect()))
    }

    fn records(
        &self,
        ranges: &[(PartitionId, Range<Offset>)],
        what: Isolation,
        _: Duration,
    ) -> Result<Vec<StateItem>, Failure> {
        let sabotage = self.universe.sabotage;
        self.call(|cluster| {
            let mut items = Vec::new();
            for (partition, range) in ranges {
                let log = cluster.state[*partition as usize].bounds();
                let limit = if what == Isolation::Committed { log.stable } else { log.high };
                cluster.check_range(LogId::state(*partition), range.end, limit);
                let end = reported_end(cluster, sabotage, range.clone())?;
                let log = &cluster.state[*partition as usize];
                let found: Vec<_> = match what {
                    Isolation::Committed => {
                        log.committed(range.start).take_while(|(at, _)| *at < end).collect()
                    }
                    Isolation::Uncommitted => {
                        log.everything(range.start).take_while(|(at, _)| *at < end).collect()
                    }
                };
                let count = u32::try_from(found.len()).unwrap();
                items.extend(found.into_iter().map(|(offset, record)| item(*partition, offset, record)));
                cluster.advance(cluster.pace.evidence_time * count);
            }
            if sabotage == Sabotage::RepairLosesDigests && what == Isolation::Uncommitted {
                let shows = |partition: PartitionId, at: Offset| {
                    cluster.state[partition as usize]
                        .committed(at)
                        .next()
                        .is_some_and(|(shown, _)| shown == at)
                };
                items = without_digests(items, shows);
            }
            Ok(items)
        })
    }

    fn with_records(&self, partitions: &[PartitionId], _: Duration) -> Result<Vec<PartitionId>, Failure> {
        let mut found = Vec::new();
        for id in partitions {
            let has_any =
                self.call(|cluster| Ok(cluster.clean[*id as usize].committed(0).next().is_some()))?;
            found.extend(has_any.then_some(*id));
        }
        Ok(found)
    }

    fn side_logs(&self, _: Duration) -> Result<Vec<LogId>, Failure> {
        self.call(|cluster| Ok(cluster.sides.logs.keys().copied().collect()))
    }

    fn side_records(
        &self,
        from_to: &BTreeMap<LogId, (Offset, Offset)>,
        _: Duration,
    ) -> Result<SideRecords, Failure> {
        let sabotage = self.universe.sabotage;
        self.call(|cluster| cluster.side_records(from_to, sabotage))
    }

    fn visible(
        &self,
        at: &[(PartitionId, Offset)],
        what: Isolation,
        _: Duration,
    ) -> Result<Vec<bool>, Failure> {
        let sabotage = self.universe.sabotage;
        self.reach(at.iter().map(|(partition, _)| LogId::clean(*partition)))?;
        self.call(|cluster| {
            let shows = |(partition, offset): &(PartitionId, Offset)| {
                let end = reported_end(cluster, sabotage, *offset..*offset + 1)?;
                let log = &cluster.clean[*partition as usize];
                let found = match what {
                    Isolation::Committed => log.committed(*offset).next(),
                    Isolation::Uncommitted if sabotage == Sabotage::CompactedIsAborted => return Ok(true),
                    Isolation::Uncommitted => log.everything(*offset).next(),
                };
                Ok(found.is_some_and(|(at, _)| at == *offset && at < end))
            };
            at.iter().map(shows).collect()
        })
    }
}

impl Cluster {
    /// A real reader waits for the end of its range.
    pub fn check_range(&mut self, log: LogId, end: Offset, limit: Offset) {
        if end > limit {
            self.violations
                .push(format!("read beyond the end of {log:?}: up to {end}, and it ends at {limit}"));
        }
    }
}

/// The end of a read. With a fault, the leader reports the end of the partition before the end of the range: the read fails, or
/// returns less when the port is sabotaged, and so do other reads of the same range.
pub fn reported_end(
    cluster: &mut Cluster,
    sabotage: Sabotage,
    Range { start, end }: Range<Offset>,
) -> Result<Offset, Failure> {
    if let Some(early) = cluster.early_ends.get(&(start, end)) {
        return Ok(*early);
    }
    if start >= end || !cluster.chance.hit(Fault::EarlyEnd) {
        return Ok(end);
    }
    if sabotage != Sabotage::EarlyEndAccepted {
        return Err(failed(
            Remedy::Retry,
            "the end of the partition was reported before the end of the range",
        ));
    }
    let early = cluster.chance.rng.u64(start..end);
    cluster.early_ends.insert((start, end), early);
    Ok(early)
}

fn bounds(cluster: &Cluster, log: LogId) -> LogBounds {
    let partition = log.partition as usize;
    match log.topic {
        OutputTopic::Clean => cluster.clean[partition].bounds(),
        OutputTopic::State => cluster.state[partition].bounds(),
        OutputTopic::DeadLetter | OutputTopic::Duplicates => {
            cluster.sides.logs.get(&log).expect("the side partition exists").bounds()
        }
    }
}
