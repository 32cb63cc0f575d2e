//! Torn transactions: transactions that the broker completed without writing all transaction markers.
//!
//! When a partition has no leader at the moment the coordinator writes its marker, Kafka 4.3.0 to 4.4.0 record the transaction as
//! complete and never write that marker (KAFKA-17573, KAFKA-20734). The records stay open in that log. **The next marker of
//! the same producer id commits or aborts them**, whichever transaction that marker belongs to. The group's offsets are such
//! a log too, one log for all partitions.
//!
//! Leftovers are only ever *aborted*, by a transaction that touches the log and is aborted itself. An interruption at any
//! point is harmless, and so is a repetition by another instance: a crash during it is the same abort. Afterwards each log
//! shows the transaction or never will, and [`decision`] decides what follows. No leftover is committed by a marker,
//! because a crash before that marker would abort it.
//!
//! No leftover can exist any more, and no check is needed:
//! - in the group's offsets, for our own writer: once a new producer has cleared them ([`Access::clear_own_offsets`]), as long
//!   as it sees the markers of each transaction before it begins the next ([`crate::pipeline::commit::markers`]).
//! - in a clean and a state partition, for any writer: once the last stable offset has reached the high watermark. This is
//!   checked at each assignment and after each change of the producer ([`Access::without_leftovers`]).
//! - in a side partition, for our own writer: once a new producer has checked all side partitions ([`side`]).

pub mod decision;
mod evidence;
pub mod last_entries;
pub mod producer;
mod reading;
pub mod repair;
mod resume;
pub mod side;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::metrics::Resolution;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::{Journal, LeftOpen};
use crate::pipeline::partition::rounds::Rounds;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{
    CommitPosition, Failure, GroupMember, Isolation, LogBounds, LogId, LogReads, OutputTopic, ProducerLife,
    Remedy, StateItem,
};

/// Timeout of the first check of the group's offsets. Offsets of other members are pending for a short time only.
const FIRST_CHECK_TIMEOUT: Duration = Duration::from_millis(300);
/// Default of [`WorkerOptions::evidence_records`](crate::pipeline::WorkerOptions::evidence_records).
pub const EVIDENCE_RECORDS: Offset = 100;
/// Timeout of reading the end of a journal and of a purge.
const PURGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a log is looked at again that has an open transaction, which can last for hours.
const OPEN_PAUSE: Duration = Duration::from_millis(20);

impl<W: WorkerPorts> Access<'_, W> {
    /// Aborts what an earlier producer with our transactional id left open. In the group's offsets, because the marker of our
    /// first commit would commit those offsets for partitions that are no longer assigned to us. In clean and state logs,
    /// because the workers that own these partitions may not be able to determine the writer.
    ///
    /// Returns false when the offsets have to be checked again.
    pub(crate) fn clear_own_offsets(&mut self) -> Result<bool, WorkerError> {
        if !self.ctx.options.keeps(Safeguard::Markers) {
            return Ok(true);
        }
        let all = self.ctx.all_partitions();
        let open =
            if self.torn.blocked_by_others.is_none() { self.open_logs(&all)? } else { BTreeMap::new() };
        let open: Vec<LogId> = open.into_keys().collect();
        if open.is_empty() && self.nothing_pending(&all, FIRST_CHECK_TIMEOUT)? {
            self.torn.blocked_by_others = None;
            return Ok(true);
        }
        // The offset of one partition is enough: the marker is written to the one log that holds the offsets of all
        // partitions. A pending offset of another member may block the response for its own partition, so each attempt
        // uses the next partition.
        let Some(id) = all.get(self.torn.attempts % all.len().max(1)).copied() else { return Ok(true) };
        self.torn.attempts = self.torn.attempts.wrapping_add(1);
        let writer = self.ctx.options.writer.clone();
        self.purge(&writer, id, &open)?;
        if self.nothing_pending(&[id], REQUEST_TIMEOUT)? {
            self.torn.blocked_by_others = None;
            return Ok(true);
        }
        // The offsets of every partition may be blocked by another writer that is dead.
        let first = Rounds::after(self.ctx.options.transaction_timeout, self.ctx.clock.elapsed());
        self.end_blocking(id, first)?;
        Ok(false)
    }

    /// Aborts what our producer left open in partitions that are no longer assigned to us, when the first attempt failed: their
    /// current owners may not be able to find our transactional id. Checks once per transaction timeout. What is still open at
    /// the same offset then belongs to us or to a writer that is dead.
    pub(crate) fn clear_elsewhere(&mut self) -> Result<(), WorkerError> {
        let now = self.ctx.clock.elapsed();
        let (last, before) = &self.torn.open_elsewhere;
        let is_due = now.saturating_sub(*last) >= self.ctx.options.transaction_timeout;
        if !self.ctx.options.keeps(Safeguard::Markers) || self.committer.transaction.is_open() || !is_due {
            return Ok(());
        }
        let checks = |log: &LogId, at: Offset| {
            before.get(log).filter(|(offset, _)| *offset == at).map_or(0, |(_, checks)| checks + 1)
        };
        let open = self.open_logs(&self.ctx.all_partitions())?.into_iter();
        let open: BTreeMap<LogId, (Offset, u32)> =
            open.map(|(log, at)| (log, (at, checks(&log, at)))).collect();
        // After the check number 1, 2, 4, 8, …: what our abort does not end belongs to another writer.
        let due = open.iter().filter(|(_, (_, checks))| checks.is_power_of_two());
        let due: Vec<LogId> = due.map(|(log, _)| *log).collect();
        self.torn.open_elsewhere = (now, open);
        let Some(first) = due.first() else { return Ok(()) };
        self.purge_own(first.partition, &due)
    }

    /// Aborts the pending transactions of known writers in the group's offsets, when these have been blocked for longer than any
    /// live transaction can be open: in each iteration one. `first` has no round yet, and is used when they were not blocked
    /// before.
    pub(crate) fn end_blocking(&mut self, id: PartitionId, first: Rounds) -> Result<(), WorkerError> {
        let (now, timeout) = (self.ctx.clock.elapsed(), self.ctx.options.transaction_timeout);
        let rounds = self.torn.blocked_by_others.get_or_insert(first);
        if rounds.is_due(now) {
            let writers = self.known_writers()?;
            let mut writers = self.without_live(writers)?;
            // Our own transactional id is the last one, because the producer may have to be replaced then.
            writers.remove(&self.ctx.options.writer);
            let ours = self.ctx.options.writer.clone();
            let rounds = self.torn.blocked_by_others.get_or_insert_default();
            rounds.begin(std::iter::once(ours).chain(writers), timeout, now);
        }
        let Some(writer) = self.torn.blocked_by_others.as_mut().and_then(Rounds::next_writer) else {
            return Ok(());
        };
        if writer == self.ctx.options.writer { self.purge_own(id, &[]) } else { self.purge(&writer, id, &[]) }
    }

    /// The waiting journals that have no open records, and whose partitions' clean logs have none. For the others, waits until the open records
    /// end, and aborts them when no other writer can end them.
    pub(crate) fn without_leftovers(
        &mut self,
        waiting: &[PartitionId],
    ) -> Result<Vec<PartitionId>, WorkerError> {
        let is_checked =
            |id: &PartitionId| self.ctx.journals.get(*id).is_none_or(|journal| journal.is_checked);
        let (mut free, unknown): (Vec<PartitionId>, Vec<PartitionId>) =
            waiting.iter().partition(|id| is_checked(id));
        if !self.ctx.options.keeps(Safeguard::Markers) || unknown.is_empty() {
            return Ok(waiting.to_vec());
        }
        let mut has_aborted = false;
        let members: Vec<PartitionId> = unknown.iter().flat_map(|id| self.ctx.members(*id)).collect();
        let logs = self.reachable(&members)?;
        for id in unknown {
            let of_journal = self.ctx.options.outputs_of(&self.ctx.members(id));
            if !of_journal.iter().all(|log| logs.contains_key(log)) {
                continue;
            }
            let open = |log: LogId| Some((log, *logs.get(&log).filter(|bounds| bounds.has_open_records())?));
            let open: Vec<(LogId, LogBounds)> = of_journal.into_iter().filter_map(open).collect();
            if !open.is_empty() && self.ctx.options.keeps(Safeguard::OpenRecords) {
                has_aborted = has_aborted || self.left_open(id, &open)?;
            } else {
                if let Some(locating) = self.ctx.journals.get_mut(id).and_then(Journal::locating_mut) {
                    locating.left_open = None;
                }
                free.push(id);
            }
        }
        Ok(free)
    }

    /// Handles open records in the logs of a journal. A live writer ends its transaction, and for a dead writer the broker ends it after
    /// the transaction timeout. What stays open at the same offset for longer is a leftover, or belongs to another program.
    /// Returns whether a transaction was aborted: there is at most one such request in an iteration.
    fn left_open(&mut self, id: PartitionId, open: &[(LogId, LogBounds)]) -> Result<bool, WorkerError> {
        let (now, timeout, ours) =
            (self.ctx.clock.elapsed(), self.ctx.options.transaction_timeout, self.ctx.options.writer.clone());
        let place: Vec<(LogId, Offset)> = open.iter().map(|(log, bounds)| (*log, bounds.stable)).collect();
        let logs: Vec<LogId> = place.iter().map(|(log, _)| *log).collect();
        let members = self.ctx.members(id);
        let Some(first) = members.first().copied() else { return Ok(false) };
        let Some(locating) = self.ctx.journals.get_mut(id).and_then(Journal::locating_mut) else {
            return Ok(false);
        };
        let Some(left) = locating.left_open.as_mut().filter(|left| left.place == place) else {
            locating.left_open = Some(LeftOpen { place, rounds: Rounds::after(timeout, now) });
            // Our own transaction has ended, because the new producer fenced the old one.
            return self.purge_own(first, &logs).map(|()| true);
        };
        if left.rounds.is_due(now) {
            let is_first = left.rounds.begun == 0;
            let writers = if is_first {
                let state = open.iter().filter(|(log, _)| log.topic == OutputTopic::State);
                let ends: Vec<_> = state.map(|(log, it)| (log.partition, it.stable..it.high)).collect();
                self.writers(&ends, &members)?
            } else {
                self.known_writers()?
            };
            let mut writers = self.without_live(writers)?;
            // See `clear_elsewhere`.
            writers.remove(&ours);
            if !writers.is_empty() {
                tracing::warn!(journal = id, logs = %LogId::listed(&logs),
                writers = writers.iter().cloned().collect::<Vec<_>>().join(", "),
                "a transaction stays open for longer than any of this group can be; aborting it for writers that are gone");
            }
            if let Some(left) = self.left_open_mut(id) {
                left.rounds.begin(writers, timeout, now);
            }
        }
        if let Some(writer) = self.left_open_mut(id).and_then(|left| left.rounds.next_writer()) {
            return self.purge(&writer, first, &logs).map(|()| true);
        }
        if let Some(locating) = self.ctx.journals.get_mut(id).and_then(Journal::locating_mut) {
            locating.not_before = now + OPEN_PAUSE;
        }
        Ok(false)
    }

    /// Aborts what a writer left open in these logs and in the group's offsets.
    pub(crate) fn purge(&mut self, writer: &str, id: PartitionId, logs: &[LogId]) -> Result<(), WorkerError> {
        // This offset is not meant to be committed. If the marker of a later transaction commits it, nothing changes, because
        // it is the offset that is committed now, if there is one.
        let last = self.source.committed_unstable(&[id], REQUEST_TIMEOUT)?.into_iter().next();
        let (next, metadata) =
            last.map_or((0, String::new()), |answer| (answer.offset.unwrap_or(0), answer.metadata));
        if logs.is_empty() {
            tracing::info!(
                partition = id,
                writer,
                "the offsets of the group are not readable yet: aborting what a transaction may have left there"
            );
        } else {
            tracing::warn!(
                partition = id,
                writer,
                logs = %LogId::listed(logs),
                "aborting what a transaction left open, if it was of this writer; what stays open may be of another program"
            );
        }
        let position = CommitPosition { partition: id, next, metadata };
        let purged =
            self.committer.sink.purge(writer, logs, &position, PURGE_TIMEOUT).map_err(WorkerError::from);
        let is_ours = writer == self.ctx.options.writer;
        // After a failure the offset above may be pending, and the marker of our next commit would commit it: 0 for a partition
        // that has none. A new producer checks that no offset is pending before it begins a transaction.
        purged.map_err(|error| if is_ours { error.renewing() } else { error })?;
        self.ctx.report.metrics.torn_transactions(Resolution::Aborted).inc();
        Ok(())
    }

    /// The same for our own transactional id. Fails when the marker of the purge is missing, too: our next commit would commit the offset of the
    /// purge, and no other member ends what a live one has left open.
    fn purge_own(&mut self, id: PartitionId, logs: &[LogId]) -> Result<(), WorkerError> {
        let writer = self.ctx.options.writer.clone();
        self.purge(&writer, id, logs)?;
        if self.nothing_pending(&[id], REQUEST_TIMEOUT)? {
            return Ok(());
        }
        Err(Failure::new(Remedy::Renew, format!(
            "the committed offset of partition {id} is still blocked by a pending transaction after a purge; replacing \
             the producer"
        ))
    .into())
    }

    /// The clean logs and the journals of these partitions that have open records of any writer, each with the offset at which the
    /// open records begin.
    fn open_logs(&self, ids: &[PartitionId]) -> Result<BTreeMap<LogId, Offset>, WorkerError> {
        let open = self.reachable(ids)?.into_iter().filter(|(_, bounds)| bounds.has_open_records());
        Ok(open.map(|(log, bounds)| (log, bounds.stable)).collect())
    }

    /// The bounds of the clean logs and the journals of these partitions. Leaves out logs that have no leader now, because they
    /// must not delay the others. Fails when no log is reachable.
    fn reachable(&self, ids: &[PartitionId]) -> Result<BTreeMap<LogId, LogBounds>, WorkerError> {
        let deadline = self.ctx.clock.elapsed() + REQUEST_TIMEOUT * 2;
        let (mut found, mut failure) = (BTreeMap::new(), None);
        let all = self.ctx.options.outputs_of(ids);
        let mut left = vec![&*all];
        while let Some(logs) = left.pop().filter(|logs| !logs.is_empty()) {
            let wait = if failure.is_none() { REQUEST_TIMEOUT } else { FIRST_CHECK_TIMEOUT };
            match self.ctx.log.bounds(logs, wait) {
                Ok(bounds) => found.extend(logs.iter().copied().zip(bounds)),
                Err(failed) if failed.remedy != Remedy::Retry => return Err(failed.into()),
                Err(failed) => {
                    failure.get_or_insert(failed);
                    let (first, second) = logs.split_at(logs.len() / 2);
                    if !first.is_empty() && self.ctx.clock.elapsed() < deadline {
                        left.extend([second, first]);
                    }
                }
            }
        }
        match failure.filter(|_| found.is_empty()) {
            Some(failed) => Err(failed.into()),
            None => Ok(found),
        }
    }

    fn nothing_pending(&self, ids: &[PartitionId], wait: Duration) -> Result<bool, WorkerError> {
        match self.source.committed(ids, wait) {
            Ok(_) => Ok(true),
            Err(failed) if failed.remedy == Remedy::Retry => Ok(false),
            Err(failed) => Err(failed.into()),
        }
    }

    fn left_open_mut(&mut self, id: PartitionId) -> Option<&mut LeftOpen> {
        self.ctx.journals.get_mut(id)?.locating_mut()?.left_open.as_mut()
    }

    /// The writers without other members of the group. A member ends its own transactions, and what it has left open; fencing it
    /// would only make it start over.
    pub(crate) fn without_live(
        &self,
        mut writers: BTreeSet<String>,
    ) -> Result<BTreeSet<String>, WorkerError> {
        let ours = &self.ctx.options.writer;
        if writers.iter().any(|writer| writer != ours) {
            let live = self.source.live_writers(REQUEST_TIMEOUT)?;
            writers.retain(|writer| writer == ours || !live.contains(writer));
        }
        Ok(writers)
    }

    /// Every writer that is named in the group's offsets or at the ends of the state logs.
    fn known_writers(&mut self) -> Result<BTreeSet<String>, WorkerError> {
        let all = self.ctx.all_partitions();
        let records = self.ctx.options.evidence_records;
        let from = |state: &LogBounds| state.low.max(state.high.saturating_sub(records));
        let logs = self.reachable(&all)?.into_iter().filter(|(log, _)| log.topic == OutputTopic::State);
        let ends: Vec<_> = logs.map(|(log, state)| (log.partition, from(&state)..state.high)).collect();
        self.writers(&ends, &all)
    }

    /// The writers that are named in these ranges of the state logs or in the committed offsets of these partitions.
    fn writers(
        &self,
        ends: &[(PartitionId, Range<Offset>)],
        ids: &[PartitionId],
    ) -> Result<BTreeSet<String>, WorkerError> {
        let items = self.ctx.log.records(ends, Isolation::Uncommitted, PURGE_TIMEOUT)?;
        let answers = self.source.committed_unstable(ids, REQUEST_TIMEOUT)?;
        let committers =
            answers.iter().filter_map(|answer| Some(Checkpoint::parse(&answer.metadata)?.writer));
        let named = items.iter().filter_map(writer_of).chain(committers.filter(|writer| !writer.is_empty()));
        Ok(named.collect())
    }
}

fn writer_of(item: &StateItem) -> Option<String> {
    match item {
        StateItem::Record { key, .. } => Some(key.as_ref()?.writer.clone()),
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    }
}
