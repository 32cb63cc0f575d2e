//! Records that a broker left open in the side topics (dead letters, duplicates).
//!
//! A side topic has neither a committed offset nor an entry of its own. A record that is lost there is not written again,
//! because its raw record is below the committed offset. The partitions of a side topic are not those of the raw topic, so a
//! worker that starts checks all of them. What its producer left open is settled before the first transaction that could touch
//! it. No partition runs before that: neither a newly assigned one, nor one whose state was being read when the producer was
//! replaced. This prevents three sequences:
//!
//! - abort without its marker in a side partition, crash, next transaction of the same id touches it, commit: a record that was
//!   processed again appears twice.
//! - commit without its marker in a side partition, crash, next transaction of the same id touches it, abort: the record is
//!   lost.
//! - producer replaced while the state of a partition is read, the partition runs, side topics settled: the leftovers are
//!   aborted, and with them the records of the open transaction.
//!
//! Records of a committed transaction are first copied, by a producer without transactions. Then everything open is aborted.
//! A crash between the two loses nothing, and the next start finds the copies that are in the log. A record counts as
//! committed if its raw record is not processed again, that is, if its raw partition resumes beyond it
//! ([`Access::resume_points`]). As long as the resume point is unknown, because the group's offset and the state have expired,
//! nothing is settled. If another worker processed the raw record meanwhile, its own record in the same side partition shows
//! that, and no copy is made. This requires that the side topic still has the same number of partitions.
//!
//! Behind the transaction of another program no marker of ours can be seen. Further records for such a partition are written
//! outside of transactions: the marker of an abort could otherwise end the transaction before it, whose own marker is missing.
//! A worker of another group counts as another program, because our offsets do not show what it has committed.
//!
//! The last stable offset shows only the first open transaction of a partition. If that transaction is not ours, its writer is
//! either alive and ends it, or settles it at its next start. If our records stay behind it for longer than any transaction
//! can be open, it is settled on behalf of its writer. Leftovers of other writers alone are left to those writers: no
//! transaction of ours can decide about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::commit::markers::Touched;
use crate::pipeline::error::WorkerError;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::torn::evidence::ResumePoint;
use crate::pipeline::torn::producer::ProducerState;
use crate::ports::{LogBounds, LogId, LogReads, ProducerLife, SideRecord};

/// Timeout of reading the open records once.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the acknowledgements of a copy.
const COPY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long our own records have to be open at the same offset before they are settled.
const OWN_OPEN_MIN: Duration = Duration::from_millis(500);

/// What a new producer has found in the side topics.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    is_settled: bool,
    /// Monotonic time of the next check.
    next_check: Duration,
    /// The partitions that had open records; `None` before the first check.
    open: Option<BTreeMap<LogId, Seen>>,
}

/// The open records of a side partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    /// Last stable offset of the partition.
    stable: Offset,
    /// Monotonic time since which the last stable offset has that value.
    since: Duration,
    /// Offset at which reading continues.
    next: Offset,
    /// High watermark, where reading ends.
    high: Offset,
    /// Whether the first open record has been read.
    has_first: bool,
    /// Writer of the first open record; `None` for another program or another group.
    first: Option<String>,
    /// The open records of the first writer and of ours: by writer, each raw record with the offset of its last copy.
    found: BTreeMap<String, BTreeMap<Coordinates, Offset>>,
    /// Whether a warning was logged that the outcome is still unknown.
    is_logged: bool,
}

/// What to do about a side partition.
#[derive(Debug, PartialEq, Eq)]
enum SideDecision {
    /// None of the open records is ours.
    Leave,
    /// Check again after [`CHECK_INTERVAL`]: the writer may still be alive.
    Wait,
    /// Check again: the resume point of this raw partition is unknown.
    Unknown(PartitionId),
    /// Copy the records at these offsets, and abort what this writer left open.
    Settle(String, Vec<Offset>),
}

impl Seen {
    fn new(&LogBounds { stable, high, .. }: &LogBounds, since: Duration) -> Self {
        Self { stable, since, next: stable, high, ..Self::default() }
    }

    /// Updates the bounds of the partition. If the last stable offset has moved, the open records are read again.
    fn updated(before: Option<Self>, bounds: &LogBounds, now: Duration) -> Self {
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
        if record.is_outside {
            // An earlier copy: no abort can remove it.
            let raw = record.raw;
            self.found.values_mut().for_each(|records| records.retain(|at, _| Some(*at) != raw));
            return;
        }
        if let Some(raw) = record.raw {
            // A writer processes a raw record again only when no earlier transaction has committed it.
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

    /// The raw partitions whose resume points decide.
    fn raw(&self) -> impl Iterator<Item = PartitionId> {
        self.found.values().flat_map(BTreeMap::keys).map(|raw| raw.partition)
    }

    /// Whether the records have been open at the same offset for longer than a transaction of a live writer can be.
    fn is_due(&self, ours: &str, now: Duration, transaction_timeout: Duration) -> bool {
        // Our own transaction has ended: the new producer fenced the old one.
        let open_min = if self.first.as_deref() == Some(ours) { OWN_OPEN_MIN } else { transaction_timeout };
        now.saturating_sub(self.since) >= open_min
    }

    fn decide(&self, ours: &str, is_due: bool, points: &BTreeMap<PartitionId, ResumePoint>) -> SideDecision {
        if self.next < self.high {
            return SideDecision::Wait;
        }
        if !self.found.contains_key(ours) {
            return SideDecision::Leave;
        }
        if !is_due {
            return SideDecision::Wait;
        }
        // The transaction of another program must not be ended by us. Our records behind it are settled nevertheless.
        let writer = self.first.clone().unwrap_or_else(|| ours.to_owned());
        let mut copies = Vec::new();
        for (raw, offset) in self.found.get(&writer).into_iter().flatten() {
            match points.get(&raw.partition) {
                Some(point) if raw.offset < point.next => copies.push(*offset),
                Some(point) if point.is_final => {}
                _ => return SideDecision::Unknown(raw.partition),
            }
        }
        SideDecision::Settle(writer, copies)
    }
}

impl ProducerState {
    /// Whether records in a side topic may still be open, so that the next transaction could commit or abort them.
    pub(crate) fn waits_for_sides(&self) -> bool {
        !self.sides.is_settled
    }

    /// Monotonic time of the next check of the side topics.
    pub(crate) fn next_side_check(&self) -> Duration {
        self.sides.next_check
    }
}

impl<W: WorkerPorts> Access<'_, W> {
    /// Monotonic time at which a journal is checked again whose leftovers are unsettled, because the producer was replaced
    /// while its windows were read. No record may be sent before that: it would share a transaction with the
    /// leftovers.
    pub(crate) fn held_by_leftovers(&mut self, id: PartitionId) -> Option<Duration> {
        if self.torn.waits_for_sides() {
            return Some(self.torn.next_side_check());
        }
        let is_torn =
            self.ctx.options.repairs() && self.ctx.journals.get(id).is_some_and(|it| !it.is_checked);
        is_torn.then(|| self.ctx.clock.elapsed())
    }

    /// Checks once what an earlier producer of ours left open in the side topics, and settles the records whose outcome is
    /// certain.
    pub(crate) fn settle_sides(&mut self) -> Result<(), WorkerError> {
        let now = self.ctx.clock.elapsed();
        if self.torn.sides.is_settled
            || now < self.torn.sides.next_check
            || self.committer.transaction.is_open()
        {
            return Ok(());
        }
        if !self.ctx.options.repairs() {
            self.torn.sides.is_settled = true;
            return Ok(());
        }
        // Set before the check, so that it also holds after a failure.
        self.torn.sides.next_check = now + CHECK_INTERVAL;
        // The resume points are read before the bounds: when another worker has processed a raw record in our place, its record is
        // in the log before its offset is committed, and so below a high watermark that is read later.
        let points = self.side_points(now)?;
        let mut open = self.open_sides(now)?;
        let checked = self.check_sides(&mut open, now, &points);
        self.torn.sides.is_settled = open.is_empty();
        self.torn.sides.open = Some(open);
        checked
    }

    /// The resume points that decide about the records that are due, as far as these were read in earlier checks.
    fn side_points(&mut self, now: Duration) -> Result<BTreeMap<PartitionId, ResumePoint>, WorkerError> {
        let (ours, timeout) = (&self.ctx.options.writer, self.ctx.options.transaction_timeout);
        let open = self.torn.sides.open.iter().flat_map(BTreeMap::values);
        let due = open.filter(|seen| seen.is_due(ours, now, timeout));
        let raw: BTreeSet<PartitionId> = due.flat_map(Seen::raw).collect();
        if raw.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.resume_points(&raw.into_iter().collect::<Vec<_>>())
    }

    /// The side partitions that have open records, among those that had some at the last check. Partitions created since the
    /// first check have no records of an earlier producer.
    fn open_sides(&mut self, now: Duration) -> Result<BTreeMap<LogId, Seen>, WorkerError> {
        let logs = match &self.torn.sides.open {
            Some(open) => open.keys().copied().collect(),
            None => self.ctx.log.side_logs(REQUEST_TIMEOUT)?,
        };
        let bounds =
            if logs.is_empty() { Vec::new() } else { self.ctx.log.bounds(&logs, REQUEST_TIMEOUT)? };
        let mut before = self.torn.sides.open.clone().unwrap_or_default();
        let mut open = BTreeMap::new();
        for (log, bounds) in logs.into_iter().zip(bounds).filter(|(_, bounds)| bounds.has_open_records()) {
            open.insert(log, Seen::updated(before.remove(&log), &bounds, now));
        }
        Ok(open)
    }

    /// Reads the open records and decides about each partition. Keeps in `open` the partitions that have to be checked again.
    fn check_sides(
        &mut self,
        open: &mut BTreeMap<LogId, Seen>,
        now: Duration,
        points: &BTreeMap<PartitionId, ResumePoint>,
    ) -> Result<(), WorkerError> {
        self.read_sides(open)?;
        let (ours, timeout) = (&self.ctx.options.writer, self.ctx.options.transaction_timeout);
        let decide =
            |(log, seen): (&LogId, &Seen)| (*log, seen.decide(ours, seen.is_due(ours, now, timeout), points));
        let decisions: Vec<(LogId, SideDecision)> = open.iter().map(decide).collect();
        for (log, decision) in decisions {
            match decision {
                SideDecision::Wait => {}
                SideDecision::Unknown(partition) => {
                    if let Some(seen) = open.get_mut(&log).filter(|seen| !seen.is_logged) {
                        seen.is_logged = true;
                        tracing::warn!(
                            log = %LogId::listed(&[log]),
                            partition,
                            "the broker left a transaction without its marker in a side topic, and it is not yet known \
                             whether it was committed: a transaction is open in the clean or the state topic of that raw \
                             partition, or the group has no offset for it and the state topic has no entry of it; no record is \
                             forwarded until this is known"
                        );
                    }
                }
                SideDecision::Leave => drop(open.remove(&log)),
                SideDecision::Settle(writer, copies) => {
                    // Behind the transaction of another program the purge cannot move the last stable offset.
                    let first = open.get(&log).filter(|seen| seen.first.as_ref() == Some(&writer));
                    let needed = first.map(|seen| seen.stable + 1);
                    self.settle_side(log, needed, &writer, &copies)?;
                    if needed.is_none() {
                        self.committer.sink.write_outside(log);
                    }
                    if writer == self.ctx.options.writer {
                        open.remove(&log);
                    }
                }
            }
        }
        Ok(())
    }

    fn settle_side(
        &mut self,
        log: LogId,
        needed: Option<Offset>,
        writer: &str,
        copies: &[Offset],
    ) -> Result<(), WorkerError> {
        if needed.is_some() {
            tracing::warn!(
                log = %LogId::listed(&[log]),
                writer,
                copies = copies.len(),
                "the broker left a transaction without its marker in a side topic; rewriting its committed records"
            );
        } else {
            tracing::warn!(
                log = %LogId::listed(&[log]),
                copies = copies.len(),
                "another program has a transaction open in a side topic before records of this instance, so nothing shows whether \
                 these are committed; rewriting those that are. From now on records for this partition are written outside of \
                 transactions: after an abort or a crash some appear twice. End that transaction, or use a topic of its own"
            );
        }
        self.committer.sink.copy_aside(log, copies, COPY_TIMEOUT)?;
        crate::pipeline::failpoint::pass("side_copied");
        let own = self.ctx.partitions.iter().map(|partition| partition.id).next();
        let Some(id) = own.or_else(|| self.ctx.all_partitions().first().copied()) else { return Ok(()) };
        self.purge(writer, id, &[log])?;
        // If the marker of the purge is missing too, the next check would find the same records and copy them again, and our
        // next commit would commit the offset of the purge.
        let offsets = if writer == self.ctx.options.writer { vec![id] } else { Vec::new() };
        self.ctx.await_markers(self.source, Touched::of(needed.map(|needed| (log, needed)), offsets))
    }

    fn read_sides(&mut self, open: &mut BTreeMap<LogId, Seen>) -> Result<(), WorkerError> {
        let unread = open.iter().filter(|(_, seen)| seen.next < seen.high);
        let from_to: BTreeMap<_, _> = unread.map(|(log, seen)| (*log, (seen.next, seen.high))).collect();
        if from_to.is_empty() {
            return Ok(());
        }
        let (records, next) = self.ctx.log.side_records(&from_to, READ_TIMEOUT)?;
        for record in records {
            if let Some(seen) = open.get_mut(&record.log) {
                seen.take(record, &self.ctx.options.writer);
            }
        }
        for (log, next) in next {
            if let Some(seen) = open.get_mut(&log) {
                seen.next = next;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
