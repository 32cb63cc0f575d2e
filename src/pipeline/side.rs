//! Records that a broker left open in the side topics (dead letters, duplicates).
//!
//! A side topic has no committed offset and no block of its own, so nothing redoes what is lost there: its raw record is
//! below the committed offset. Its partitions are not the raw ones, so a worker that begins looks at all of them. What its
//! producer left open is settled before its first transaction that could touch it: no partition runs before, neither one
//! that is assigned nor one whose state was being read when the producer was replaced. Three sequences can no longer happen:
//!
//! - abort without its marker in a side partition, crash, next transaction of the same id touches it, commit: a record that was
//!   processed again appears twice.
//! - commit without its marker in a side partition, crash, next transaction of the same id touches it, abort: the record is
//!   nowhere.
//! - producer replaced while the state of a partition is read, the partition runs, side topics settled: the leftovers are ended
//!   by an abort, and with them the records of the transaction that is open.
//!
//! Records of a committed transaction are copied first, by a producer without transactions, and everything open is then ended
//! as aborted. A crash between the two repeats the copy: a record may stand there twice, never zero times. What decides is
//! whether the raw record comes again: where its partition goes on beyond it ([`Core::standings`]), its transaction was
//! committed. As long as nothing shows where that is, because the group's offset and the state have expired, nothing is
//! settled. When another worker processed the record meanwhile, its own record shows that: it is in the same partition, as
//! long as the side topic has as many partitions as then.
//!
//! The last stable offset shows only the first open transaction of a partition. What comes first and is not ours belongs
//! to a living writer, which moves on, or to one that settles it when it starts. If records of ours are behind it for longer
//! than any transaction lives, it is settled for its writer. Leftovers of others alone are left to them: nothing of ours can
//! decide about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::markers::Touched;
use super::repair::Standing;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::ports::{Bounds, LogId, SideRecord, Sink, StateLog};

/// Slice of a question to the broker.
const SLICE: Duration = Duration::from_secs(1);
/// How long a look at the records may take.
const LOOK: Duration = Duration::from_secs(2);
/// Longest time that a copy may wait for its acknowledgements.
const LONG: Duration = Duration::from_secs(10);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// How long our own records have to be open at the same place.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a producer that has just begun knows of the side topics.
#[derive(Debug, Default)]
pub(super) struct Sides {
    is_settled: bool,
    /// Monotonic time of the next look.
    next_look: Duration,
    /// The partitions in which something was open; `None` before the first look.
    open: Option<BTreeMap<LogId, Seen>>,
}

/// What is open in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// Its stable end, and the monotonic time since which that is there.
    stable: Offset,
    since: Duration,
    /// Where the reading goes on, and where it ends.
    next: Offset,
    high: Offset,
    /// Whether the first record has been read, and its writer; `None` for another program.
    has_first: bool,
    first: Option<String>,
    /// What is there of the first writer and of us, each raw record with the last offset of its copy.
    found: BTreeMap<String, BTreeMap<Coordinates, Offset>>,
    /// Whether the log has said that nothing decides about it yet.
    is_told: bool,
}

/// What to do about a partition.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// Nothing there is ours.
    Leave,
    /// Look again.
    Wait,
    /// Look again: nothing shows yet where this raw partition goes on.
    Ask(PartitionId),
    /// Copy the records at these offsets, and end what this writer left open.
    Settle(String, Vec<Offset>),
}

impl Seen {
    fn new(&Bounds { stable, high, .. }: &Bounds, since: Duration) -> Self {
        Self {
            stable,
            since,
            next: stable,
            high,
            has_first: false,
            first: None,
            found: BTreeMap::new(),
            is_told: false,
        }
    }

    /// With the ends of the partition as they are now. A stable end that has moved begins anew.
    fn updated(before: Option<Self>, bounds: &Bounds, now: Duration) -> Self {
        match before.filter(|seen| seen.stable == bounds.stable) {
            Some(seen) => Self { high: bounds.high, ..seen },
            None => Self::new(bounds, now),
        }
    }

    fn take(&mut self, record: SideRecord, ours: &str) {
        if !std::mem::replace(&mut self.has_first, true) {
            self.first.clone_from(&record.writer);
        }
        let Some(writer) = record.writer else { return };
        if let Some(raw) = record.raw {
            // Who processed the raw record again knew that no transaction before had committed it.
            let others = self.found.iter_mut().filter(|(name, _)| **name != writer);
            others.for_each(|(_, records)| {
                records.remove(&raw);
            });
        }
        if writer == ours || self.first.as_ref() == Some(&writer) {
            let records = self.found.entry(writer).or_default();
            records.extend(record.raw.map(|raw| (raw, record.offset)));
        }
    }

    /// The raw partitions whose committed offsets decide.
    fn raw(&self) -> impl Iterator<Item = PartitionId> {
        self.found.values().flat_map(BTreeMap::keys).map(|raw| raw.partition)
    }

    /// Whether it has been open at the same place for longer than a transaction of a living writer.
    fn is_due(&self, ours: &str, now: Duration, transaction_timeout: Duration) -> bool {
        // Our own has ended: we have taken our id over.
        let patience = if self.first.as_deref() == Some(ours) { PATIENCE } else { transaction_timeout };
        now.saturating_sub(self.since) >= patience
    }

    fn decide(&self, ours: &str, is_due: bool, standings: &BTreeMap<PartitionId, Standing>) -> Decision {
        if self.next < self.high {
            return Decision::Wait;
        }
        if !self.found.contains_key(ours) {
            return Decision::Leave;
        }
        if !is_due {
            return Decision::Wait;
        }
        // Another program's transaction is not ours to end; what is ours behind it is settled all the same.
        let writer = self.first.clone().unwrap_or_else(|| ours.to_owned());
        let mut copies = Vec::new();
        for (raw, offset) in self.found.get(&writer).into_iter().flatten() {
            match standings.get(&raw.partition) {
                Some(standing) if raw.offset < standing.next => copies.push(*offset),
                Some(standing) if standing.is_final => {}
                _ => return Decision::Ask(raw.partition),
            }
        }
        Decision::Settle(writer, copies)
    }
}

impl<W: World> Core<W> {
    /// Whether a transaction could decide about records in a side topic that are still open.
    pub(super) fn waits_for_sides(&self) -> bool {
        !self.sides.is_settled
    }

    /// When that is looked at again.
    pub(super) fn next_look_at_sides(&self) -> Duration {
        self.sides.next_look
    }

    /// When a partition is looked at again whose leftovers are not settled, because the producer was replaced while its state
    /// was read. No record may be sent before: it would share a transaction with them.
    pub(super) fn held_by_leftovers(&self, id: PartitionId) -> Option<Duration> {
        if self.waits_for_sides() {
            return Some(self.next_look_at_sides());
        }
        let is_torn = self.options.repairs() && self.partitions.get(id).is_some_and(|p| !p.untorn);
        is_torn.then(|| self.clock.elapsed())
    }

    /// Forgets what is known: the producer is another one.
    pub(super) fn forget_sides(&mut self) {
        self.sides = Sides::default();
    }

    /// Looks once at what an earlier producer of ours left open in the side topics, and settles what is certain.
    pub(super) fn settle_sides(&mut self, source: &W::Source) -> Result<(), Trouble> {
        let now = self.clock.elapsed();
        if self.sides.is_settled || now < self.sides.next_look || self.batch.is_open() {
            return Ok(());
        }
        if !self.options.repairs() {
            self.sides.is_settled = true;
            return Ok(());
        }
        // Also after a failure.
        self.sides.next_look = now + PAUSE;
        let mut open = self.open_sides(now)?;
        let looked = self.look_at_sides(source, &mut open);
        self.sides.is_settled = open.is_empty();
        self.sides.open = Some(open);
        looked
    }

    /// The side partitions in which something is open, of those that matter still. Partitions that are new since the first
    /// look hold nothing of an earlier producer.
    fn open_sides(&mut self, now: Duration) -> Result<BTreeMap<LogId, Seen>, Trouble> {
        let logs = match &self.sides.open {
            Some(open) => open.keys().copied().collect(),
            None => self.log.side_logs(SLICE)?,
        };
        let bounds = if logs.is_empty() { Vec::new() } else { self.log.bounds(&logs, SLICE)? };
        let mut before = self.sides.open.clone().unwrap_or_default();
        let mut open = BTreeMap::new();
        for (log, bounds) in logs.into_iter().zip(bounds).filter(|(_, bounds)| bounds.has_open_records()) {
            open.insert(log, Seen::updated(before.remove(&log), &bounds, now));
        }
        Ok(open)
    }

    /// Reads what is open, and decides about each partition. Leaves those that have to be looked at again.
    fn look_at_sides(&mut self, source: &W::Source, open: &mut BTreeMap<LogId, Seen>) -> Result<(), Trouble> {
        // Before the records are read: another worker's record in the place of ours is in the log before its offset is.
        let (now, timeout) = (self.clock.elapsed(), self.options.transaction_timeout);
        let is_due = |seen: &Seen| seen.is_due(&self.options.writer, now, timeout);
        let raw: BTreeSet<PartitionId> =
            open.values().filter(|seen| is_due(seen)).flat_map(Seen::raw).collect();
        let raw: Vec<PartitionId> = raw.into_iter().collect();
        let standings = if raw.is_empty() { BTreeMap::new() } else { self.standings(source, &raw)? };
        self.read_sides(open)?;
        let ours = &self.options.writer;
        let decide = |(log, seen): (&LogId, &Seen)| {
            (*log, seen.decide(ours, seen.is_due(ours, now, timeout), &standings))
        };
        let decisions: Vec<(LogId, Decision)> = open.iter().map(decide).collect();
        for (log, decision) in decisions {
            match decision {
                Decision::Wait => {}
                Decision::Ask(partition) => {
                    if let Some(seen) = open.get_mut(&log).filter(|seen| !seen.is_told) {
                        seen.is_told = true;
                        tracing::warn!(
                            ?log,
                            partition,
                            "a broker left a transaction without its marker in a side topic, and nothing shows yet whether it \
                             was committed: a transaction is open in the clean or the state topic of that raw partition, or the \
                             group has no offset for it and the state topic nothing either; no record is forwarded before"
                        );
                    }
                }
                Decision::Leave => drop(open.remove(&log)),
                Decision::Settle(writer, copies) => {
                    let stable = open.get(&log).map_or(0, |seen| seen.stable);
                    self.settle_side(source, (log, stable), &writer, &copies)?;
                    if writer == self.options.writer {
                        open.remove(&log);
                    }
                }
            }
        }
        Ok(())
    }

    fn read_sides(&mut self, open: &mut BTreeMap<LogId, Seen>) -> Result<(), Trouble> {
        let unread = open.iter().filter(|(_, seen)| seen.next < seen.high);
        let from_to: BTreeMap<_, _> = unread.map(|(log, seen)| (*log, (seen.next, seen.high))).collect();
        if from_to.is_empty() {
            return Ok(());
        }
        let (records, next) = self.log.side_records(&from_to, LOOK)?;
        for record in records {
            if let Some(seen) = open.get_mut(&record.log) {
                seen.take(record, &self.options.writer);
            }
        }
        for (log, next) in next {
            if let Some(seen) = open.get_mut(&log) {
                seen.next = next;
            }
        }
        Ok(())
    }

    fn settle_side(
        &mut self,
        source: &W::Source,
        (log, stable): (LogId, Offset),
        writer: &str,
        copies: &[Offset],
    ) -> Result<(), Trouble> {
        tracing::warn!(
            ?log,
            writer,
            copies = copies.len(),
            "a broker left a transaction without its marker in a side topic; writing the records again that were committed"
        );
        self.sink.copy_aside(log, copies, LONG)?;
        super::failpoint::pass("side_copied");
        let own = self.partitions.iter().map(|partition| partition.id).next();
        let Some(id) = own.or_else(|| self.everywhere().first().copied()) else { return Ok(()) };
        self.purge(source, (writer, id), &[log])?;
        // Without the marker of the purge the next look would find the same and copy it again, and the next commit of ours
        // would make its offset real.
        let offsets = if writer == self.options.writer { vec![id] } else { Vec::new() };
        self.await_markers(source, Touched::of([(log, stable + 1)], offsets))
    }
}

#[cfg(test)]
mod tests;
