//! The transactional producer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::{
    CommitPosition, Failure, LogId, OutputTopic, ProducerLife, Reason, RejectedRecords, Remedy, Side, Sink,
    WrittenEnds,
};

use crate::sim::chance::{Exposure, Fault, failed, injected};
use crate::sim::cluster::{Cluster, Epoch, StateRecord};
use crate::sim::raw::{Raw, SimRecord};
use crate::sim::side::Letter;
use crate::sim::source::SimSource;
use crate::sim::universe::{Sabotage, Universe};

enum Outgoing {
    Clean(Rc<Raw>),
    State(PartitionId, StateRecord),
    Side(LogId, Letter),
}

/// A producer instance.
#[derive(Default)]
struct Producer {
    epoch: Epoch,
    began: bool,
    queue: VecDeque<Outgoing>,
    sent: Vec<Rc<Raw>>,
    clean_ends: BTreeMap<PartitionId, Offset>,
    state_ends: BTreeMap<PartitionId, Offset>,
    side_starts: BTreeMap<LogId, Option<Offset>>,
    failed: Option<Failure>,
    /// The broker has committed, but the client has not received the answer.
    committed: bool,
    /// A result was unknown: the producer must not be used any more.
    indefinite: bool,
}

impl Producer {
    /// Sends up to `count` queued records.
    fn deliver(&mut self, writer: &str, cluster: &mut Cluster, count: usize) {
        for _ in 0..count {
            let Some(outgoing) = self.queue.pop_front() else { return };
            let failed = match outgoing {
                Outgoing::Clean(raw) if raw.rejected => Err(self.rejection(&raw, cluster)),
                Outgoing::Clean(raw) => {
                    self.sent.push(Rc::clone(&raw));
                    let partition = raw.at.partition;
                    cluster.write_clean((writer, self.epoch), partition, Some(raw)).map(|at| {
                        self.clean_ends.insert(partition, at + 1);
                    })
                }
                Outgoing::State(partition, record) => {
                    cluster.write_state((writer, self.epoch), partition, Some(record)).map(|at| {
                        self.state_ends.insert(partition, at + 1);
                    })
                }
                Outgoing::Side(log, letter) => {
                    cluster.write_side((writer, self.epoch), log, Some(letter)).map(|at| {
                        self.side_starts.entry(log).or_default().get_or_insert(at);
                    })
                }
            };
            if let Err(failed) = failed {
                self.failed = Some(failed);
                self.queue.clear();
            }
        }
    }

    /// Sends the queued records at the speed of the connection. After `wait`, those that are left have timed out.
    fn deliver_slowly(&mut self, writer: &str, cluster: &mut Cluster, wait: Duration) -> Result<(), Failure> {
        let deadline = cluster.now + wait;
        while !self.queue.is_empty() {
            let acknowledged = cluster.now.max(cluster.pace.stuck_until) + cluster.pace.record_time;
            cluster.advance(acknowledged.min(deadline) - cluster.now);
            if acknowledged > deadline {
                self.queue.clear();
                return Err(failed(Remedy::Abort, "records timed out"));
            }
            self.deliver(writer, cluster, 1);
        }
        Ok(())
    }

    /// The broker rejects the record alone, or together with others of the same batch.
    fn rejection(&self, raw: &Raw, cluster: &mut Cluster) -> Failure {
        let (mut first, mut last, by) = (raw.at.offset, raw.at.offset, OutputTopic::Clean);
        let waiting = self.queue.iter().filter_map(|outgoing| match outgoing {
            Outgoing::Clean(raw) => Some(raw),
            Outgoing::State(..) | Outgoing::Side(..) => None,
        });
        if cluster.chance.coin() {
            for other in waiting.chain(&self.sent).filter(|other| other.at.partition == raw.at.partition) {
                if cluster.chance.coin() {
                    first = first.min(other.at.offset);
                    last = last.max(other.at.offset);
                }
            }
        }
        tracing::debug!(first, last, at = ?raw.at, "rejected");
        let rejected = Some(RejectedRecords { by, partition: raw.at.partition, first, last });
        Failure { rejected, ..failed(Remedy::Abort, "the record is too large") }
    }
}

impl Cluster {
    /// The client of a writer has ended its transaction, or was discarded.
    pub fn end_begun(&mut self, writer: &str) {
        if let Some(since) = self.begun.remove(writer) {
            self.open_time += self.now - since;
        }
    }
}

/// The sink of one worker.
pub struct SimSink {
    universe: Rc<Universe>,
    worker: usize,
    writer: String,
    producer: Option<Producer>,
}

impl SimSink {
    /// A sink without a producer.
    pub fn new(universe: &Rc<Universe>, worker: usize) -> Self {
        let writer = universe.writer(worker);
        Self { universe: Rc::clone(universe), worker, writer, producer: None }
    }

    /// A call that requires a usable producer.
    fn with<T>(
        &mut self,
        exposure: Exposure,
        effect: impl FnOnce(&mut Producer, &mut Cluster, &str) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (writer, universe) = (&self.writer, &self.universe);
        let Some(producer) = self.producer.as_mut() else {
            return Err(failed(Remedy::Renew, "no producer is ready"));
        };
        if producer.indefinite {
            let violation = "a producer is used after an unknown result".to_owned();
            universe.cluster.borrow_mut().violations.push(violation);
        }
        universe.call(self.worker, exposure, |cluster| effect(producer, cluster, writer))
    }

    fn enqueue(&mut self, outgoing: Outgoing) -> Result<(), Failure> {
        self.with(Exposure::Before, |producer, cluster, writer| {
            if !producer.began {
                cluster.violations.push("a record outside of a transaction".to_owned());
            }
            // Any call can report it. The client then refuses the record.
            producer.failed.clone().filter(|_| cluster.chance.coin()).map_or(Ok(()), Err)?;
            producer.queue.push_back(outgoing);
            let some = if cluster.pace.is_slow() { 0 } else { cluster.chance.rng.usize(0..3) };
            producer.deliver(writer, cluster, some);
            Ok(())
        })
    }

    /// The effect of a commit whose call returns `fault`.
    fn try_commit(&mut self, fault: Option<Fault>, cluster: &mut Cluster) -> Result<(), Failure> {
        let Some(producer) = self.producer.as_mut() else {
            return Err(failed(Remedy::Renew, "no producer is ready"));
        };
        producer.deliver(&self.writer, cluster, usize::MAX);
        if let Some(failed) = producer.failed.clone() {
            return Err(failed);
        }
        let applied = match fault {
            None => true,
            Some(Fault::Abort) => false,
            Some(_) => cluster.chance.coin(),
        };
        if self.universe.sabotage == Sabotage::FalseCommit && cluster.chance.rng.u8(0..20) == 0 {
            return cluster.abort(&self.writer, producer.epoch);
        }
        if applied && !producer.committed {
            cluster.commit(&self.writer, producer.epoch)?;
            producer.committed = true;
        }
        let in_flight = matches!(fault, Some(Fault::Crash | Fault::Unknown)) && !producer.committed;
        if in_flight && cluster.chance.hit(Fault::LateCommit) {
            cluster.commit_later(&self.writer, producer.epoch);
        }
        Ok(())
    }

    fn end_transaction(&mut self, cluster: &mut Cluster) {
        cluster.end_begun(&self.writer);
        if let Some(producer) = self.producer.as_mut() {
            producer.queue.clear();
            producer.sent.clear();
            producer.began = false;
            producer.committed = false;
            producer.failed = None;
        }
    }
}

impl ProducerLife for SimSink {
    fn prepare(&mut self, _: Duration) -> Result<(), Failure> {
        if self.producer.is_some() {
            return Ok(());
        }
        let epoch =
            self.universe.call(self.worker, Exposure::Around, |cluster| Ok(cluster.fence(&self.writer)))?;
        self.producer = Some(Producer { epoch, ..Producer::default() });
        Ok(())
    }

    fn fence(&mut self, writer: &str, _: Duration) -> Result<(), Failure> {
        self.universe.call(self.worker, Exposure::Around, |cluster| {
            cluster.fence(writer);
            Ok(())
        })
    }

    fn purge(
        &mut self,
        writer: &str,
        logs: &[LogId],
        position: &CommitPosition,
        _: Duration,
    ) -> Result<(), Failure> {
        let own = self.producer.as_ref().filter(|_| writer == self.writer);
        if own.is_some_and(|producer| producer.began) {
            let violation = "leftovers are purged inside a transaction with records".to_owned();
            self.universe.cluster.borrow_mut().violations.push(violation);
        }
        let own = own.map(|producer| producer.epoch);
        self.universe.call(self.worker, Exposure::Around, |cluster| {
            let by = (writer, own.unwrap_or_else(|| cluster.fence(writer)));
            for log in logs {
                match log.topic {
                    OutputTopic::Clean => cluster.write_clean(by, log.partition, None)?,
                    OutputTopic::State => cluster.write_state(by, log.partition, None)?,
                    OutputTopic::DeadLetter | OutputTopic::Duplicates => {
                        cluster.write_side(by, *log, None)?
                    }
                };
            }
            cluster.send_offsets(by, None, std::slice::from_ref(position))?;
            cluster.abort(writer, by.1)
        })
    }

    fn copy_aside(&mut self, log: LogId, offsets: &[Offset], _: Duration) -> Result<(), Failure> {
        self.universe.call(self.worker, Exposure::Around, |cluster| {
            cluster.copy_aside(log, offsets);
            Ok(())
        })
    }

    fn write_outside(&mut self, log: LogId) {
        let violation = format!("no other program writes to {log:?}");
        self.universe.cluster.borrow_mut().violations.push(violation);
    }

    fn discard(&mut self) {
        let mut cluster = self.universe.cluster.borrow_mut();
        if let Some(mut producer) = self.producer.take()
            && !cluster.dead.contains(&self.worker)
        {
            let in_flight = cluster.chance.rng.usize(0..=producer.queue.len());
            producer.deliver(&self.writer, &mut cluster, in_flight);
        }
        cluster.end_begun(&self.writer);
    }
}

impl Sink<SimSource> for SimSink {
    fn begin(&mut self) -> Result<(), Failure> {
        self.with(Exposure::Before, |producer, cluster, writer| {
            if producer.began {
                cluster.violations.push("a transaction begun inside another".to_owned());
            }
            producer.began = true;
            producer.clean_ends.clear();
            producer.state_ends.clear();
            producer.side_starts.clear();
            cluster.begun.insert(writer.to_owned(), cluster.now);
            Ok(())
        })
    }

    fn forward(&mut self, record: &mut SimRecord) -> Result<(), Failure> {
        tracing::trace!(at = ?record.0.at, value = record.0.value, key = ?record.0.key, "forward");
        self.enqueue(Outgoing::Clean(Rc::clone(&record.0)))
    }

    fn divert(&mut self, side: Side, record: &SimRecord, reason: &Reason) -> Result<(), Failure> {
        self.universe.check_content(&record.0, reason);
        assert!(side != Side::Clean, "the simulation has no shadow mode");
        let topic = side.topic();
        let log = self.universe.cluster.borrow().sides.log_of(topic, record.0.at.partition);
        tracing::trace!(at = ?record.0.at, ?log, "divert");
        let letter = Letter { writer: self.writer.clone(), raw: Rc::clone(&record.0), is_outside: false };
        self.enqueue(Outgoing::Side(log, letter))?;
        if let Some(producer) = self.producer.as_mut() {
            producer.side_starts.entry(log).or_default();
        }
        Ok(())
    }

    fn drain(&mut self, wait: Duration) -> Result<(), Failure> {
        self.with(Exposure::Around, |producer, cluster, writer| {
            if cluster.pace.is_slow() {
                producer.deliver_slowly(writer, cluster, wait)?;
            }
            producer.deliver(writer, cluster, usize::MAX);
            producer.failed.clone().map_or(Ok(()), Err)
        })
    }

    fn put_state(&mut self, partition: PartitionId, key: &str, block: &[u8]) -> Result<(), Failure> {
        let record = StateRecord { key: key.to_owned(), block: block.to_vec() };
        self.enqueue(Outgoing::State(partition, record))
    }

    fn send_offsets(
        &mut self,
        source: &SimSource,
        positions: &[CommitPosition],
        _: Duration,
    ) -> Result<(), Failure> {
        let member = source.member;
        self.with(Exposure::Around, |producer, cluster, writer| {
            cluster.send_offsets((writer, producer.epoch), Some(member), positions)
        })
    }

    fn commit(&mut self, _: Duration) -> Result<(), Failure> {
        let commit_time = self.universe.cluster.borrow().pace.commit_time;
        self.universe.cluster.borrow_mut().advance(commit_time);
        // Other workers may run before the commit. This call fails only if the producer is not usable.
        self.with(Exposure::Crash, |_, _, _| Ok(()))?;
        let universe = Rc::clone(&self.universe);
        let mut cluster = universe.cluster.borrow_mut();
        // After a commit, no failure can require an abort.
        let committed = self.producer.as_ref().is_some_and(|producer| producer.committed);
        let exposure = if committed { Exposure::Ending } else { Exposure::Before };
        let fault = cluster.chance.failure(exposure);
        self.try_commit(fault, &mut cluster)?;
        match fault {
            None => {
                self.end_transaction(&mut cluster);
                return Ok(());
            }
            Some(Fault::Crash) => universe.crash(&mut cluster, self.worker),
            Some(Fault::Unknown) => {
                self.producer.iter_mut().for_each(|producer| producer.indefinite = true);
            }
            Some(_) => {}
        }
        fault.map_or(Ok(()), |fault| Err(injected(fault)))
    }

    fn abort(&mut self, _: Duration) -> Result<(), Failure> {
        self.universe.before_abort(&self.writer);
        self.with(Exposure::Ending, |producer, cluster, writer| {
            // Records in flight can be written although their acknowledgements do not arrive any more.
            let acknowledged =
                (producer.clean_ends.clone(), producer.state_ends.clone(), producer.side_starts.clone());
            let in_flight = cluster.chance.rng.usize(0..=producer.queue.len());
            producer.deliver(writer, cluster, in_flight);
            (producer.clean_ends, producer.state_ends, producer.side_starts) = acknowledged;
            producer.queue.clear();
            if producer.committed {
                cluster.violations.push("an abort after a commit".to_owned());
            }
            cluster.abort(writer, producer.epoch)
        })?;
        let universe = Rc::clone(&self.universe);
        self.end_transaction(&mut universe.cluster.borrow_mut());
        Ok(())
    }
}

impl WrittenEnds for SimSink {
    fn clean_end(&self, partition: PartitionId) -> Option<Offset> {
        self.producer.as_ref()?.clean_ends.get(&partition).copied()
    }

    fn state_end(&self, partition: PartitionId) -> Option<Offset> {
        self.producer.as_ref()?.state_ends.get(&partition).copied()
    }

    fn side_starts(&self) -> Vec<(LogId, Option<Offset>)> {
        let starts = self.producer.iter().flat_map(|producer| &producer.side_starts);
        starts.map(|(log, start)| (*log, *start)).collect()
    }
}
