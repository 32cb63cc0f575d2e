//! Transactions that a broker left without their marker.
//!
//! When a partition has no leader at the moment the coordinator wants to write its marker, Kafka 4.3.0 records the
//! transaction as complete and never writes it (KAFKA-17573, KAFKA-20734). The records stay open in that log, and
//! **the next marker of the same producer id settles them its own way**, whatever it belongs to. The group's offsets
//! are such a log too, one for all partitions.
//!
//! Leftovers are only ever *aborted*, by a transaction that touches the log and is aborted itself. So it does not
//! matter where that is cut short or by whom it is repeated: a crash in it is the same abort. Afterwards every log
//! shows the transaction or never will, and [`super::evidence`] decides what follows. No leftover is committed by a
//! marker: a crash on the way there would abort it.
//!
//! When no leftover can exist any more, and so nothing has to be looked for:
//! - in the group's offsets, of our own: when a new producer has cleared them ([`Core::clear_own_offsets`]), and as long
//!   as it sees the markers of each transaction before the next ([`super::markers`]).
//! - in a clean and a state partition, of anybody: when their stable ends have reached their ends, at each assignment
//!   and after each change of the producer ([`Core::without_leftovers`]).
//! - in a side partition, of our own: when a new producer has looked at all of them ([`super::side`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::checkpoint::{Checkpoint, Origin};
use super::partition::LeftOpen;
use super::safeguard::Safeguard;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::metrics::Resolution;
use crate::ports::{Bounds, Failure, Leftover, LogId, Position, Remedy, Sink, Source, StateItem, StateLog};

/// Slice of a question to the broker.
const SLICE: Duration = Duration::from_secs(1);
/// How long the first look at the group's offsets may take; those of other members are pending for moments only.
const GLANCE: Duration = Duration::from_millis(300);
/// Records of a state log in which the names of writers are looked for.
const LAST: Offset = 100;
/// Longest time that reading a tail or purging may take.
const LONG: Duration = Duration::from_secs(10);

impl<W: World> Core<W> {
    /// Ends what an earlier producer of our transactional id left open: in the group's offsets, because the marker of
    /// our first commit would make it real, for partitions that are not ours now; in clean and state logs, because
    /// their owners may not know whose it is. False: the offsets are to be looked at again.
    pub(super) fn clear_own_offsets(&mut self, source: &W::Source) -> Result<bool, Trouble> {
        if !self.options.keeps(Safeguard::Markers) {
            return Ok(true);
        }
        let all = self.everywhere();
        let open = if self.held_back_since.is_none() { self.open_logs(&all)? } else { BTreeMap::new() };
        let open: Vec<LogId> = open.into_keys().collect();
        if open.is_empty() && Self::nothing_pending(source, &all, GLANCE)? {
            return Ok(true);
        }
        // One offset brings the marker to the log of all of them. Another member's pending offset may hold back
        // the answer for its own partition, so each attempt takes another one.
        let Some(id) = all.get(self.probed % all.len().max(1)).copied() else { return Ok(true) };
        self.probed = self.probed.wrapping_add(1);
        let writer = self.options.writer.clone();
        self.purge(source, (&writer, id), &open)?;
        if Self::nothing_pending(source, &[id], SLICE)? {
            self.held_back_since = None;
            return Ok(true);
        }
        // Every partition may be held back by somebody else, who is dead.
        let now = self.clock.elapsed();
        let since = *self.held_back_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.options.transaction_timeout {
            self.clear_offsets(source, &all)?;
        }
        Ok(false)
    }

    /// Ends what a producer of ours left open in partitions that are not ours any more, when the first attempt came to
    /// nothing: their owners may not know our name. Looks once per transaction timeout; what was open at the same place
    /// then is nobody's who lives, or ours.
    pub(super) fn clear_elsewhere(&mut self, source: &W::Source) -> Result<(), Trouble> {
        let now = self.clock.elapsed();
        let (last, before) = &self.open_elsewhere;
        let is_due = now.saturating_sub(*last) >= self.options.transaction_timeout;
        if !self.options.keeps(Safeguard::Markers) || self.batch.is_open() || !is_due {
            return Ok(());
        }
        let open = self.open_logs(&self.everywhere())?;
        let same = open.iter().filter(|(log, at)| before.get(*log) == Some(*at));
        let same: Vec<LogId> = same.map(|(log, _)| *log).collect();
        self.open_elsewhere = (now, open);
        let Some(first) = same.first() else { return Ok(()) };
        let (writer, id) = (self.options.writer.clone(), first.partition);
        self.purge(source, (&writer, id), &same)?;
        Self::is_cleared(source, id)
    }

    /// The marker of a purge of ours can be missing too, and our next commit would make its offset real.
    fn is_cleared(source: &W::Source, id: PartitionId) -> Result<(), Trouble> {
        if Self::nothing_pending(source, &[id], SLICE)? {
            return Ok(());
        }
        Err(Failure {
            remedy: Remedy::Renew,
            what: format!("the group's offset of partition {id} is still held back; replacing the producer"),
            refused: None,
        }
        .into())
    }

    /// The partitions that raw, clean and state topic all have: those that were there when the process began, and those
    /// that it was given since.
    pub(super) fn everywhere(&self) -> Vec<PartitionId> {
        (0..self.options.began.max(self.partitions.end()))
            .filter(|id| self.options.reach.covers(*id))
            .collect()
    }

    /// The clean and state logs of these partitions in which something is open, of whomever, and where that begins.
    fn open_logs(&self, ids: &[PartitionId]) -> Result<BTreeMap<LogId, Offset>, Trouble> {
        Ok(self.reachable(ids)?.iter().flat_map(open_of).collect())
    }

    /// The ends of the clean and state logs of these partitions; without those that have no leader now, which must not hold
    /// back the others. An error when it is all of them.
    fn reachable(&self, ids: &[PartitionId]) -> Result<Vec<Ends>, Trouble> {
        let deadline = self.clock.elapsed() + SLICE * 2;
        let (mut found, mut failure) = (Vec::new(), None);
        let mut left = vec![ids];
        while let Some(ids) = left.pop().filter(|ids| !ids.is_empty()) {
            match self.log.bounds(&LogId::pairs(ids), if failure.is_none() { SLICE } else { GLANCE }) {
                Ok(bounds) => {
                    let ends =
                        bounds.chunks_exact(2).filter_map(|ends| Some((*ends.first()?, *ends.last()?)));
                    found.extend(ids.iter().zip(ends).map(|(id, (clean, state))| (*id, clean, state)));
                }
                Err(failed) if failed.remedy != Remedy::Retry => return Err(failed.into()),
                Err(failed) => {
                    failure.get_or_insert(failed);
                    let (first, second) = ids.split_at(ids.len() / 2);
                    if !first.is_empty() && self.clock.elapsed() < deadline {
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

    fn nothing_pending(source: &W::Source, ids: &[PartitionId], wait: Duration) -> Result<bool, Trouble> {
        match source.committed(ids, wait) {
            Ok(_) => Ok(true),
            Err(failed) if failed.remedy == Remedy::Retry => Ok(false),
            Err(failed) => Err(failed.into()),
        }
    }

    /// The partitions among those that wait in whose clean and state logs nothing is open. What is open in the
    /// others is waited for, or ended when nobody else will.
    pub(super) fn without_leftovers(
        &mut self,
        source: &W::Source,
        waiting: &[PartitionId],
    ) -> Result<Vec<PartitionId>, Trouble> {
        let (known, unknown): (Vec<PartitionId>, Vec<PartitionId>) =
            waiting.iter().partition(|id| self.partitions.get(**id).is_none_or(|p| p.untorn));
        if !self.options.keeps(Safeguard::Markers) || unknown.is_empty() {
            return Ok(waiting.to_vec());
        }
        let mut free = known;
        for ends in self.reachable(&unknown)? {
            if open_of(&ends).next().is_some() {
                self.left_open(source, &ends)?;
            } else {
                if let Some(partition) = self.partitions.get_mut(ends.0) {
                    partition.left_open = None;
                }
                free.push(ends.0);
            }
        }
        Ok(free)
    }

    /// Something is open in a partition. A living writer moves on, and of a dead one the broker ends it after the
    /// transaction timeout; what stands at the same place for longer is left over.
    fn left_open(&mut self, source: &W::Source, ends: &Ends) -> Result<(), Trouble> {
        let (id, clean, state) = ends;
        let id = *id;
        let now = self.clock.elapsed();
        let place = (clean.stable, state.stable);
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let known = partition.left_open.filter(|left| left.place == place);
        let left = known.unwrap_or(LeftOpen { since: now, place, attempts: 0 });
        let writers = if known.is_none() {
            // Ours ended when we took our id over.
            BTreeSet::from([self.options.writer.clone()])
        } else if now.saturating_sub(left.since) < self.options.transaction_timeout {
            BTreeSet::new()
        } else {
            self.suspects(source, id, (state, left.attempts))?
        };
        let attempts = left.attempts + u32::from(known.is_some() && !writers.is_empty());
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.left_open = Some(LeftOpen { attempts, ..left });
        }
        let logs: Vec<LogId> = open_of(ends).map(|(log, _)| log).collect();
        writers.iter().try_for_each(|writer| self.purge(source, (writer, id), &logs))?;
        if writers.contains(&self.options.writer) { Self::is_cleared(source, id) } else { Ok(()) }
    }

    /// The committed offsets have been held back for longer than any living transaction.
    pub(super) fn clear_offsets(&mut self, source: &W::Source, ids: &[PartitionId]) -> Result<(), Trouble> {
        let Some(first) = ids.first() else { return Ok(()) };
        let writers = self.known_writers(source)?;
        writers.iter().try_for_each(|writer| self.purge(source, (writer, *first), &[]))
    }

    /// Every writer that the group's offsets and the ends of the state logs name, and this one.
    fn known_writers(&mut self, source: &W::Source) -> Result<BTreeSet<String>, Trouble> {
        let all = self.everywhere();
        let reachable = self.reachable(&all)?.into_iter();
        let ends = reachable.map(|(id, _, state)| (id, state.low.max(state.high.saturating_sub(LAST))));
        let ends: Vec<(PartitionId, Offset)> = ends.collect();
        self.writers(source, &ends, &all)
    }

    /// The writers that these ends of state logs and the offsets of these partitions name, and this one.
    fn writers(
        &self,
        source: &W::Source,
        ends: &[(PartitionId, Offset)],
        ids: &[PartitionId],
    ) -> Result<BTreeSet<String>, Trouble> {
        let tails = self.log.tails(ends, Leftover::Everything, LONG)?;
        let settled = source.committed_unstable(ids, SLICE)?;
        let committers =
            settled.iter().filter_map(|answer| Some(Checkpoint::parse(&answer.metadata)?.writer));
        let named = tails.iter().filter_map(writer_of).chain(committers.filter(|writer| !writer.is_empty()));
        Ok(named.chain([self.options.writer.clone()]).collect())
    }

    /// Whose the records may be that are open in a partition: whoever wrote blocks there or committed last, and when
    /// that was not it, anybody.
    fn suspects(
        &mut self,
        source: &W::Source,
        id: PartitionId,
        (state, attempts): (&Bounds, u32),
    ) -> Result<BTreeSet<String>, Trouble> {
        if attempts > 0 {
            return self.known_writers(source);
        }
        self.writers(source, &[(id, state.stable)], &[id])
    }

    /// Ends what a writer left open in these logs and in the group's offsets, as aborted.
    pub(super) fn purge(
        &mut self,
        source: &W::Source,
        (writer, id): (&str, PartitionId),
        logs: &[LogId],
    ) -> Result<(), Trouble> {
        // The offset is never meant to be committed; should it be, by a marker of a later transaction, it changes nothing.
        let settled = source.committed_unstable(&[id], SLICE)?.into_iter().next();
        let (next, metadata) =
            settled.map_or((0, String::new()), |answer| (answer.offset.unwrap_or(0), answer.metadata));
        tracing::warn!(partition = id, writer, ?logs, "ending what a transaction left open, as aborted");
        let position = Position { partition: id, next, metadata };
        self.sink.purge(writer, logs, &position, LONG)?;
        self.report.torn(Resolution::Aborted);
        Ok(())
    }
}

/// The ends of the clean and of the state log of a partition.
type Ends = (PartitionId, Bounds, Bounds);

/// Those of the two logs in which something is open, and where that begins.
fn open_of((id, clean, state): &Ends) -> impl Iterator<Item = (LogId, Offset)> + use<> {
    let logs = [(LogId::clean(*id), *clean), (LogId::state(*id), *state)];
    logs.into_iter().filter(|(_, bounds)| bounds.has_open_records()).map(|(log, bounds)| (log, bounds.stable))
}

fn writer_of(item: &StateItem) -> Option<String> {
    match item {
        StateItem::Block { key, .. } => Some(Origin::parse(key)?.writer),
        StateItem::End { .. } | StateItem::Gone { .. } => None,
    }
}
