//! The broker: logs, transactions, group offsets, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::{Failure, Position, Remedy};

use crate::sim::chance::{Chance, Fault, failed};
use crate::sim::group::{Group, MemberId};
use crate::sim::raw::{Raw, RawLog};
use crate::sim::tx_log::{Fate, Tx, TxLog};

/// The broker ends transactions after so long.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The wall clock at the beginning, ms since the epoch.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// A producer instance of a transactional id, by rising number.
pub type Epoch = u64;

/// A record of the state topic.
pub struct StateRecord {
    /// Its key.
    pub key: String,
    /// Its value.
    pub block: Vec<u8>,
}

#[derive(Default)]
struct Writer {
    epoch: Epoch,
    open: Option<Open>,
}

struct Open {
    tx: Tx,
    since: Duration,
    clean: BTreeSet<usize>,
    state: BTreeSet<usize>,
}

/// What the group knows of a partition.
#[derive(Default)]
pub struct Offsets {
    /// Offset and metadata, `None` when there are none.
    pub settled: Option<(Offset, String)>,
    /// What open transactions would make of it.
    pub pending: BTreeMap<Tx, (Offset, String)>,
}

/// The simulated cluster.
pub struct Cluster {
    /// The dice.
    pub chance: Chance,
    /// Time since the beginning.
    pub now: Duration,
    /// The raw topic.
    pub raw: Vec<RawLog>,
    /// The clean topic.
    pub clean: Vec<TxLog<Rc<Raw>>>,
    /// The state topic.
    pub state: Vec<TxLog<StateRecord>>,
    /// The group's offsets.
    pub offsets: Vec<Offsets>,
    /// The group's members.
    pub group: Group,
    /// What became of each transaction.
    pub fates: Vec<Fate>,
    /// Workers whose process has ended, though they may not know it yet.
    pub dead: BTreeSet<usize>,
    /// Processes that ended because their store is damaged.
    pub condemned: BTreeSet<usize>,
    /// Producers with a transaction begun, known to the broker or not.
    pub begun: BTreeSet<String>,
    /// What must never happen and did.
    pub violations: Vec<String>,
    /// Port calls so far.
    pub calls: u64,
    writers: BTreeMap<String, Writer>,
    late: Vec<(Duration, String, Epoch)>,
}

impl Cluster {
    /// An empty cluster.
    pub fn new(chance: Chance, partitions: usize) -> Self {
        Self {
            chance,
            now: Duration::ZERO,
            raw: (0..u32::try_from(partitions).unwrap()).map(RawLog::new).collect(),
            clean: (0..partitions).map(|_| TxLog::default()).collect(),
            state: (0..partitions).map(|_| TxLog::default()).collect(),
            offsets: (0..partitions).map(|_| Offsets::default()).collect(),
            group: Group::new(partitions),
            fates: Vec::new(),
            dead: BTreeSet::new(),
            condemned: BTreeSet::new(),
            begun: BTreeSet::new(),
            violations: Vec::new(),
            calls: 0,
            writers: BTreeMap::new(),
            late: Vec::new(),
        }
    }

    /// The wall clock, ms since the epoch.
    pub fn wall_ms(&self) -> i64 {
        EPOCH_MS + i64::try_from(self.now.as_millis()).unwrap()
    }

    /// Lets time pass; what is due happens.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = late;
        for (_, writer, epoch) in due {
            if self.commit(&writer, epoch).is_ok() {
                self.chance.count(Fault::LateCommit);
            }
        }
        let timed_out = self.writers.iter().filter(|(_, writer)| {
            writer.open.as_ref().is_some_and(|open| open.since + TRANSACTION_TIMEOUT <= now)
        });
        for writer in timed_out.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.fence(&writer);
        }
    }

    /// A commit request is still under way; it arrives unless the writer is fenced before.
    pub fn commit_later(&mut self, writer: &str, epoch: Epoch) {
        let due = self.now + Duration::from_millis(self.chance.rng.u64(0..2000));
        self.late.push((due, writer.to_owned(), epoch));
    }

    /// Whether no transaction is open anywhere.
    pub fn is_settled(&self) -> bool {
        self.begun.is_empty() && self.late.is_empty() && self.writers.values().all(|w| w.open.is_none())
    }

    /// Takes a transactional id over: its open transaction is aborted, its producer fenced.
    pub fn fence(&mut self, writer: &str) -> Epoch {
        self.finish(writer, Fate::Aborted);
        let entry = self.writers.entry(writer.to_owned()).or_default();
        entry.epoch += 1;
        entry.epoch
    }

    /// The writer's open transaction, begun when there is none.
    fn open(&mut self, writer: &str, epoch: Epoch) -> Result<&mut Open, Failure> {
        let now = self.now;
        let entry = current(&mut self.writers, writer, epoch)?;
        let fates = &mut self.fates;
        Ok(entry.open.get_or_insert_with(|| {
            fates.push(Fate::Open);
            Open { tx: fates.len() - 1, since: now, clean: BTreeSet::new(), state: BTreeSet::new() }
        }))
    }

    /// Writes to the clean topic.
    pub fn write_clean(&mut self, writer: &str, epoch: Epoch, record: Rc<Raw>) -> Result<Offset, Failure> {
        let partition = record.at.partition as usize;
        let open = self.open(writer, epoch)?;
        open.clean.insert(partition);
        let tx = open.tx;
        Ok(self.clean[partition].append(tx, record))
    }

    /// Writes to the state topic.
    pub fn write_state(
        &mut self,
        (writer, epoch): (&str, Epoch),
        partition: PartitionId,
        record: StateRecord,
    ) -> Result<Offset, Failure> {
        let open = self.open(writer, epoch)?;
        open.state.insert(partition as usize);
        let tx = open.tx;
        Ok(self.state[partition as usize].append(tx, record))
    }

    /// Puts offsets into the transaction. A member, when given, has to be of the current generation;
    /// whether it owns the partitions is not looked at.
    pub fn send_offsets(
        &mut self,
        (writer, epoch): (&str, Epoch),
        member: Option<MemberId>,
        positions: &[Position],
    ) -> Result<(), Failure> {
        let tx = self.open(writer, epoch)?.tx;
        if member.is_some_and(|member| !self.group.is_valid(member)) {
            return Err(failed(Remedy::Abort, "the group has gone on without this member"));
        }
        for position in positions {
            let pending = (position.next, position.metadata.clone());
            self.offsets[position.partition as usize].pending.insert(tx, pending);
        }
        Ok(())
    }

    /// Commits the writer's transaction.
    pub fn commit(&mut self, writer: &str, epoch: Epoch) -> Result<(), Failure> {
        current(&mut self.writers, writer, epoch)?;
        self.finish(writer, Fate::Committed);
        Ok(())
    }

    /// Aborts the writer's transaction.
    pub fn abort(&mut self, writer: &str, epoch: Epoch) -> Result<(), Failure> {
        current(&mut self.writers, writer, epoch)?;
        self.finish(writer, Fate::Aborted);
        Ok(())
    }

    fn finish(&mut self, writer: &str, fate: Fate) {
        let Some(open) = self.writers.get_mut(writer).and_then(|writer| writer.open.take()) else { return };
        self.fates[open.tx] = fate;
        open.clean.iter().for_each(|p| self.clean[*p].mark(open.tx));
        open.state.iter().for_each(|p| self.state[*p].mark(open.tx));
        for offsets in &mut self.offsets {
            let pending = offsets.pending.remove(&open.tx);
            if fate == Fate::Committed && pending.is_some() {
                offsets.settled = pending;
            }
        }
    }
}

fn current<'a>(
    writers: &'a mut BTreeMap<String, Writer>,
    writer: &str,
    epoch: Epoch,
) -> Result<&'a mut Writer, Failure> {
    let known = writers.entry(writer.to_owned()).or_default();
    if known.epoch == epoch {
        Ok(known)
    } else {
        Err(failed(Remedy::Fenced, "another producer took over the transactional id"))
    }
}
