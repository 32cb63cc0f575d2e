//! The broker: logs, transactions, group offsets, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use dedupd::dedupe::{Offset, PartitionId};
use dedupd::pipeline::Checkpoint;
use dedupd::ports::{Failure, LogId, Position, Remedy};

use crate::sim::chance::{Chance, Fault, failed};
use crate::sim::group::{Group, MemberId};
use crate::sim::raw::{Raw, RawLog};
use crate::sim::side::{Letter, Sides};
use crate::sim::tx_log::{self, Fate, TxLog};

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
    number: tx_log::Producer,
    epoch: Epoch,
    open: Option<Open>,
    commits: u64,
    /// A transaction that is decided, but whose markers are still under way.
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

/// A log that gets a marker of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Clean(usize),
    State(usize),
    Side(LogId),
    /// The group's offsets of all partitions: one log.
    Offsets,
}

/// What the group knows of a partition.
#[derive(Default)]
pub struct Offsets {
    /// Offset and metadata, `None` when there are none.
    pub settled: Option<(Offset, String)>,
    /// The highest offset that was ever committed. Local state may still know it when the group does not.
    pub highest: Offset,
    /// What each producer's next marker would make of it.
    pub pending: BTreeMap<tx_log::Producer, (Offset, String)>,
}

impl Offsets {
    /// The leader epoch of the last record before the offset, where the metadata has it.
    fn epoch(&self) -> Option<i32> {
        let (offset, metadata) = self.settled.as_ref()?;
        Checkpoint::parse(metadata)?.epoch.filter(|epoch| epoch.next == *offset).map(|epoch| epoch.number)
    }

    /// Whether the log differs from what was read by its leader epochs, or would if it were cut at `at`.
    pub fn shows_cut(&self, raw: &RawLog, at: Offset) -> bool {
        self.epoch().is_some_and(|epoch| raw.end_of_epoch(epoch) > at)
    }

    /// Whether the metadata names a raw topic of this id.
    pub fn names(&self, raw_id: &str) -> bool {
        let checkpoint = self.settled.as_ref().and_then(|(_, metadata)| Checkpoint::parse(metadata));
        checkpoint.is_some_and(|checkpoint| checkpoint.raw.as_deref() == Some(raw_id))
    }
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
    /// The side topics.
    pub sides: Sides,
    /// The group's offsets.
    pub offsets: Vec<Offsets>,
    /// The group's members.
    pub group: Group,
    /// Workers whose process has ended, though they may not know it yet.
    pub dead: BTreeSet<usize>,
    /// Processes that ended because their store is damaged.
    pub condemned: BTreeSet<usize>,
    /// Processes that ended because the group goes by another identity rule.
    pub refused: BTreeSet<usize>,
    /// By how much the clock of each worker's machine is wrong, ms.
    pub clock_errors: BTreeMap<usize, i64>,
    /// Processes that ended because raw does not hold what comes next.
    pub gapped: BTreeSet<usize>,
    /// Producers with a transaction begun, known to the broker or not.
    pub begun: BTreeSet<String>,
    /// What must never happen and did.
    pub violations: Vec<String>,
    /// Something has made windows forget: an id may be let through again.
    pub forgets: bool,
    /// A window was shorter for a while than before or after.
    pub shortened: bool,
    /// An operator has set offsets.
    pub reset: bool,
    /// The identity rule that the operator wants, by number.
    pub rule: u8,
    /// Port calls so far.
    pub calls: u64,
    writers: BTreeMap<String, Writer>,
    late: Vec<(Duration, String, Epoch)>,
}

impl Cluster {
    /// An empty cluster.
    pub fn new(chance: Chance, partitions: usize) -> Self {
        let mut cluster = Self {
            chance,
            now: Duration::ZERO,
            raw: Vec::new(),
            clean: Vec::new(),
            state: Vec::new(),
            sides: Sides::default(),
            offsets: Vec::new(),
            group: Group::default(),
            forgets: false,
            shortened: false,
            reset: false,
            rule: 0,
            dead: BTreeSet::new(),
            condemned: BTreeSet::new(),
            refused: BTreeSet::new(),
            clock_errors: BTreeMap::new(),
            gapped: BTreeSet::new(),
            begun: BTreeSet::new(),
            violations: Vec::new(),
            calls: 0,
            writers: BTreeMap::new(),
            late: Vec::new(),
        };
        (0..partitions).for_each(|_| cluster.grow());
        cluster
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

    /// A commit request is still under way; it arrives unless the writer is fenced before.
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

    /// What clean shows of the records of a raw partition, without those that raw has lost to others.
    pub fn shown(&self, partition: usize) -> impl Iterator<Item = &Rc<Raw>> {
        let raw = &self.raw[partition];
        self.clean[partition]
            .ever_committed()
            .map(|(_, shown)| shown)
            .filter(|shown| !raw.has_replaced(shown))
    }

    /// How many transactions a writer has committed.
    pub fn commits(&self, writer: &str) -> u64 {
        self.writers.get(writer).map_or(0, |writer| writer.commits)
    }

    /// Takes a transactional id over: its open transaction is aborted, its producer fenced. Like the broker's,
    /// the answer comes when no marker of it is under way any more.
    pub fn fence(&mut self, writer: &str) -> Epoch {
        self.complete(writer);
        self.finish(writer, Fate::Aborted);
        self.complete(writer);
        let entry = named(&mut self.writers, writer);
        entry.epoch += 1;
        entry.epoch
    }

    /// The number of the writer, whose transaction is open from now on and will have a marker in `part`.
    fn open(&mut self, writer: &str, epoch: Epoch, part: Part) -> Result<tx_log::Producer, Failure> {
        current(&mut self.writers, writer, epoch)?;
        // The client waits until the markers of the last transaction are written.
        self.complete(writer);
        let now = self.now;
        let entry = named(&mut self.writers, writer);
        entry.open.get_or_insert_with(|| Open { since: now, parts: BTreeSet::new() }).parts.insert(part);
        Ok(entry.number)
    }

    /// Writes to the clean topic; `None` is a record that nobody is meant to see.
    pub fn write_clean(
        &mut self,
        (writer, epoch): (&str, Epoch),
        partition: PartitionId,
        record: Option<Rc<Raw>>,
    ) -> Result<Offset, Failure> {
        let partition = partition as usize;
        let producer = self.open(writer, epoch, Part::Clean(partition))?;
        Ok(self.clean[partition].append(producer, self.now, record))
    }

    /// Writes to the state topic; `None` is a record that nobody is meant to see.
    pub fn write_state(
        &mut self,
        (writer, epoch): (&str, Epoch),
        partition: PartitionId,
        record: Option<StateRecord>,
    ) -> Result<Offset, Failure> {
        let partition = partition as usize;
        let producer = self.open(writer, epoch, Part::State(partition))?;
        Ok(self.state[partition].append(producer, self.now, record))
    }

    /// Writes to a side topic; `None` is a record that nobody is meant to see.
    pub fn write_side(
        &mut self,
        (writer, epoch): (&str, Epoch),
        log: LogId,
        letter: Option<Letter>,
    ) -> Result<Offset, Failure> {
        let producer = self.open(writer, epoch, Part::Side(log))?;
        let to = self.sides.logs.get_mut(&log).expect("side partitions are those that were asked for");
        Ok(to.append(producer, self.now, letter))
    }

    /// Puts offsets into the transaction. A member, when given, has to be of the current generation;
    /// whether it owns the partitions is not looked at.
    pub fn send_offsets(
        &mut self,
        (writer, epoch): (&str, Epoch),
        member: Option<MemberId>,
        positions: &[Position],
    ) -> Result<(), Failure> {
        let producer = self.open(writer, epoch, Part::Offsets)?;
        if member.is_some_and(|member| !self.group.is_valid(member)) {
            return Err(failed(Remedy::Abort, "the group has gone on without this member"));
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

    /// Decides the writer's open transaction. Its markers follow at once or a little later, and where a
    /// partition has no leader just then, never.
    fn finish(&mut self, writer: &str, fate: Fate) {
        let Some(open) = self.writers.get_mut(writer).and_then(|writer| writer.open.take()) else { return };
        let chance = &mut self.chance;
        let parts: BTreeSet<Part> =
            open.parts.into_iter().filter(|part| !chance.hit(part.torn_by())).collect();
        let late = if chance.hit(Fault::LateMarker) { chance.rng.u64(0..50) } else { 0 };
        let due = self.now + Duration::from_millis(late);
        named(&mut self.writers, writer).completing = Some(Completing { due, fate, parts });
        if late == 0 {
            self.complete(writer);
        }
    }

    /// Writes the markers that are under way.
    fn complete(&mut self, writer: &str) {
        let entry = named(&mut self.writers, writer);
        let (number, Some(completing)) = (entry.number, entry.completing.take()) else { return };
        for part in completing.parts {
            match part {
                Part::Clean(partition) => self.clean[partition].mark(number, self.now, completing.fate),
                Part::State(partition) => self.state[partition].mark(number, self.now, completing.fate),
                Part::Side(log) => {
                    if let Some(log) = self.sides.logs.get_mut(&log) {
                        log.mark(number, self.now, completing.fate);
                    }
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

/// The writer of this name, with a number of its own.
fn named<'a>(writers: &'a mut BTreeMap<String, Writer>, writer: &str) -> &'a mut Writer {
    let number = writers.len();
    writers.entry(writer.to_owned()).or_insert_with(|| Writer { number, ..Writer::default() })
}

fn current<'a>(
    writers: &'a mut BTreeMap<String, Writer>,
    writer: &str,
    epoch: Epoch,
) -> Result<&'a mut Writer, Failure> {
    let known = named(writers, writer);
    if known.epoch == epoch {
        Ok(known)
    } else {
        Err(failed(Remedy::Fenced, "another producer took over the transactional id"))
    }
}
