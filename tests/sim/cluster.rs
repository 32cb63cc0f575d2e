//! The simulated broker: logs, transactions, group offsets and time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::ports::{CommitPosition, Failure, LogId, Remedy};

use crate::sim::chance::{Chance, Fault, failed};
use crate::sim::group::{Group, MemberId};
pub use crate::sim::offsets::Offsets;
use crate::sim::pace::Pace;
use crate::sim::raw::{Ids, Raw, RawLog};
use crate::sim::side::{Letter, Sides};
use crate::sim::tx_log::{self, Fate, TxLog};

/// The broker aborts transactions that are open for longer.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The wall clock at the start of a history, in epoch milliseconds.
const EPOCH_MS: i64 = 1_700_000_000_000;

/// The number of a producer instance of a transactional id. It increases with each instance.
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
    number: tx_log::Producer,
    epoch: Epoch,
    open: Option<Open>,
    commits: u64,
    /// A decided transaction whose markers are not written yet.
    completing: Option<Completing>,
}

struct Open {
    since: Duration,
    parts: BTreeSet<Part>,
}

struct Completing {
    due: Duration,
    fate: Fate,
    parts: BTreeSet<Part>,
}

/// The logs that receive the markers of a transaction that a test tears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    Clean,
    State,
    NotClean,
    Nothing,
}

/// A log that receives its own marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Clean(usize),
    State(usize),
    Side(LogId),
    /// The group's offsets of all partitions, in one log.
    Offsets,
}

/// The simulated cluster.
pub struct Cluster {
    /// The random source.
    pub chance: Chance,
    /// Time since the start of the history.
    pub now: Duration,
    /// The raw topic.
    pub raw: Vec<RawLog>,
    /// The only partition of raw from which records are delivered now.
    pub delivers_only: Option<PartitionId>,
    /// In topic scope, the ids of all partitions.
    pub topic_ids: Option<Ids>,
    /// The clean topic.
    pub clean: Vec<TxLog<Rc<Raw>>>,
    /// The state topic.
    pub state: Vec<TxLog<StateRecord>>,
    /// Where sabotaged reads of a range end.
    pub early_ends: BTreeMap<(Offset, Offset), Offset>,
    /// The side topics.
    pub sides: Sides,
    /// The group's offsets.
    pub offsets: Vec<Offsets>,
    /// The group's members.
    pub group: Group,
    /// Workers whose process has ended. Calls of these workers have no effect.
    pub dead: BTreeSet<usize>,
    /// Processes that ended because their store is damaged.
    pub condemned: BTreeSet<usize>,
    /// Processes that ended because the state was written with another identity rule.
    pub other_rule: BTreeSet<usize>,
    /// The clock error of each worker's machine, in milliseconds.
    pub clock_errors: BTreeMap<usize, i64>,
    /// Processes that ended because of a gap in raw.
    pub gapped: BTreeSet<usize>,
    /// Producers that have begun a transaction, whether or not the broker has received a record of it.
    pub begun: BTreeMap<String, Duration>,
    /// How long all transactions were open, from the producer's point of view.
    pub open_time: Duration,
    /// Violations of the guarantees so far.
    pub violations: Vec<String>,
    /// Windows have lost ids: an id may be forwarded again.
    pub forgets: bool,
    /// A window was temporarily shorter than before or after.
    pub shortened: bool,
    /// An operator has set offsets.
    pub reset: bool,
    /// The number of the identity rule that the operator configures.
    pub rule: u8,
    /// The only kind of log that receives a marker of the next commit.
    pub tears_next: Option<Marked>,
    /// The speed of the connection.
    pub pace: Pace,
    /// Port calls so far.
    pub calls: u64,
    writers: BTreeMap<String, Writer>,
    late: Vec<(Duration, String, Epoch)>,
}

impl Cluster {
    /// An empty cluster.
    pub fn new(chance: Chance, partitions: usize, topic_ids: Option<Ids>) -> Self {
        let mut cluster = Self {
            chance,
            now: Duration::ZERO,
            raw: Vec::new(),
            delivers_only: None,
            topic_ids,
            clean: Vec::new(),
            state: Vec::new(),
            sides: Sides::default(),
            offsets: Vec::new(),
            group: Group::default(),
            forgets: false,
            shortened: false,
            reset: false,
            rule: 0,
            pace: Pace::default(),
            dead: BTreeSet::new(),
            condemned: BTreeSet::new(),
            other_rule: BTreeSet::new(),
            clock_errors: BTreeMap::new(),
            gapped: BTreeSet::new(),
            begun: BTreeMap::new(),
            open_time: Duration::ZERO,
            violations: Vec::new(),
            early_ends: BTreeMap::new(),
            tears_next: None,
            calls: 0,
            writers: BTreeMap::new(),
            late: Vec::new(),
        };
        (0..partitions).for_each(|_| cluster.grow());
        cluster
    }

    /// The wall clock, in epoch milliseconds.
    pub fn wall_ms(&self) -> i64 {
        EPOCH_MS + i64::try_from(self.now.as_millis()).unwrap()
    }

    /// Advances the time and runs everything that is due.
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
        let due = self
            .writers
            .iter()
            .filter(|(_, writer)| writer.completing.as_ref().is_some_and(|completing| completing.due <= now));
        for writer in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.complete(&writer);
        }
        let timed_out = self.writers.iter().filter(|(_, writer)| {
            writer.open.as_ref().is_some_and(|open| open.since + TRANSACTION_TIMEOUT <= now)
        });
        for writer in timed_out.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.fence(&writer);
        }
    }

    /// Schedules a delayed commit request. It takes effect unless the writer is fenced before.
    pub fn commit_later(&mut self, writer: &str, epoch: Epoch) {
        let due = self.now + Duration::from_millis(self.chance.rng.u64(0..2000));
        self.late.push((due, writer.to_owned(), epoch));
    }

    /// Whether no transaction is open anywhere.
    pub fn is_settled(&self) -> bool {
        self.begun.is_empty()
            && self.late.is_empty()
            && self.writers.values().all(|w| w.open.is_none() && w.completing.is_none())
    }

    /// The committed clean records of a raw partition, without those whose raw offset holds another record now.
    pub fn shown(&self, partition: usize) -> impl Iterator<Item = &Rc<Raw>> {
        let raw = &self.raw[partition];
        self.clean[partition]
            .ever_committed()
            .map(|(_, shown)| shown)
            .filter(|shown| !raw.has_replaced(shown))
    }

    /// How often a transactional id was initialised.
    pub fn initialised(&self, writer: &str) -> Epoch {
        self.writers.get(writer).map_or(0, |writer| writer.epoch)
    }

    /// How many transactions a writer has committed.
    pub fn commits(&self, writer: &str) -> u64 {
        self.writers.get(writer).map_or(0, |writer| writer.commits)
    }

    /// Fences the producer of a transactional id and aborts its open transaction. As with a real broker, the
    /// answer is returned after all markers are written.
    pub fn fence(&mut self, writer: &str) -> Epoch {
        self.complete(writer);
        self.finish(writer, Fate::Aborted);
        self.complete(writer);
        let entry = writer_entry(&mut self.writers, writer);
        entry.epoch += 1;
        entry.epoch
    }

    /// Adds `part` to the open transaction of a writer, which begins if none is open. Returns the writer's number.
    fn add_part(&mut self, writer: &str, epoch: Epoch, part: Part) -> Result<tx_log::Producer, Failure> {
        current(&mut self.writers, writer, epoch)?;
        // The client waits until the markers of the previous transaction are written.
        self.complete(writer);
        let now = self.now;
        let entry = writer_entry(&mut self.writers, writer);
        entry.open.get_or_insert_with(|| Open { since: now, parts: BTreeSet::new() }).parts.insert(part);
        Ok(entry.number)
    }

    /// Writes to the clean topic; `None` is a record of a transaction that is always aborted.
    pub fn write_clean(
        &mut self,
        (writer, epoch): (&str, Epoch),
        partition: PartitionId,
        record: Option<Rc<Raw>>,
    ) -> Result<Offset, Failure> {
        let partition = partition as usize;
        let producer = self.add_part(writer, epoch, Part::Clean(partition))?;
        Ok(self.clean[partition].append(producer, self.now, record))
    }

    /// Writes to the state topic; `None` is a record of a transaction that is always aborted.
    pub fn write_state(
        &mut self,
        (writer, epoch): (&str, Epoch),
        partition: PartitionId,
        record: Option<StateRecord>,
    ) -> Result<Offset, Failure> {
        let partition = partition as usize;
        let producer = self.add_part(writer, epoch, Part::State(partition))?;
        Ok(self.state[partition].append(producer, self.now, record))
    }

    /// Writes to a side topic; `None` is a record of a transaction that is always aborted.
    pub fn write_side(
        &mut self,
        (writer, epoch): (&str, Epoch),
        log: LogId,
        letter: Option<Letter>,
    ) -> Result<Offset, Failure> {
        let producer = self.add_part(writer, epoch, Part::Side(log))?;
        let to = self.sides.logs.get_mut(&log).expect("the side partition exists");
        Ok(to.append(producer, self.now, letter))
    }

    /// Adds offsets to the transaction. A given member must be in the current generation. As in Kafka,
    /// ownership of the partitions is not checked.
    pub fn send_offsets(
        &mut self,
        (writer, epoch): (&str, Epoch),
        member: Option<MemberId>,
        positions: &[CommitPosition],
    ) -> Result<(), Failure> {
        let producer = self.add_part(writer, epoch, Part::Offsets)?;
        if member.is_some_and(|member| !self.group.is_valid(member)) {
            return Err(failed(Remedy::Abort, "the member is not in the current generation"));
        }
        for position in positions {
            let pending = (position.next, position.metadata.clone());
            self.offsets[position.partition as usize].pending.insert(producer, pending);
        }
        Ok(())
    }

    /// Commits the writer's transaction.
    pub fn commit(&mut self, writer: &str, epoch: Epoch) -> Result<(), Failure> {
        current(&mut self.writers, writer, epoch)?.commits += 1;
        self.finish(writer, Fate::Committed);
        Ok(())
    }

    /// Aborts the writer's transaction.
    pub fn abort(&mut self, writer: &str, epoch: Epoch) -> Result<(), Failure> {
        current(&mut self.writers, writer, epoch)?;
        self.finish(writer, Fate::Aborted);
        Ok(())
    }

    /// Decides the writer's open transaction. Its markers are written immediately or a little later. A fault can
    /// omit the marker of a partition.
    fn finish(&mut self, writer: &str, fate: Fate) {
        let Some(open) = self.writers.get_mut(writer).and_then(|writer| writer.open.take()) else { return };
        let torn = if fate == Fate::Committed { self.tears_next.take() } else { None };
        let chance = &mut self.chance;
        let is_marked = |part: &Part| match torn {
            None => !chance.hit(part.torn_by()),
            Some(Marked::Clean) => matches!(part, Part::Clean(_)),
            Some(Marked::State) => matches!(part, Part::State(_)),
            Some(Marked::Nothing) => false,
            Some(Marked::NotClean) => !matches!(part, Part::Clean(_)),
        };
        let parts: BTreeSet<Part> = open.parts.into_iter().filter(is_marked).collect();
        let late = if chance.hit(Fault::LateMarker) { chance.rng.u64(0..50) } else { 0 };
        let due = self.now + Duration::from_millis(late);
        writer_entry(&mut self.writers, writer).completing = Some(Completing { due, fate, parts });
        if late == 0 {
            self.complete(writer);
        }
    }

    /// Writes the outstanding markers.
    fn complete(&mut self, writer: &str) {
        let entry = writer_entry(&mut self.writers, writer);
        let (number, Some(completing)) = (entry.number, entry.completing.take()) else { return };
        for part in completing.parts {
            match part {
                Part::Clean(partition) => self.clean[partition].mark(number, self.now, completing.fate),
                Part::State(partition) => self.state[partition].mark(number, self.now, completing.fate),
                Part::Side(log) => {
                    let log = self.sides.logs.get_mut(&log).into_iter();
                    log.for_each(|log| log.mark(number, self.now, completing.fate));
                }
                Part::Offsets => self.mark_offsets(number, completing.fate),
            }
        }
    }

    fn mark_offsets(&mut self, number: tx_log::Producer, fate: Fate) {
        for offsets in &mut self.offsets {
            let pending = offsets.pending.remove(&number);
            if fate == Fate::Committed && pending.is_some() {
                offsets.highest = pending.as_ref().map_or(0, |(offset, _)| *offset).max(offsets.highest);
                offsets.settled = pending;
            }
        }
    }
}

impl Part {
    fn torn_by(self) -> Fault {
        match self {
            Self::Clean(_) => Fault::TornClean,
            Self::State(_) => Fault::TornState,
            Self::Side(_) => Fault::TornSide,
            Self::Offsets => Fault::TornOffsets,
        }
    }
}

/// The writer with this transactional id, which is created if it does not exist.
fn writer_entry<'a>(writers: &'a mut BTreeMap<String, Writer>, writer: &str) -> &'a mut Writer {
    let number = writers.len();
    writers.entry(writer.to_owned()).or_insert_with(|| Writer { number, ..Writer::default() })
}

fn current<'a>(
    writers: &'a mut BTreeMap<String, Writer>,
    writer: &str,
    epoch: Epoch,
) -> Result<&'a mut Writer, Failure> {
    let entry = writer_entry(writers, writer);
    if entry.epoch != epoch {
        return Err(failed(Remedy::Fenced, "a newer producer uses the transactional id"));
    }
    Ok(entry)
}
