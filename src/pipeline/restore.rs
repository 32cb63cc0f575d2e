//! A restore from the state topic, in slices short enough that the worker keeps polling.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checkpoint::{Checkpoint, Origin, Tail};
use super::complete::{is_behind_the_log, usable};
use super::error::{Fatal, WorkerError};
use super::failpoint;
use super::loading::{Stored, clear, cut_back};
use super::options::Start;
use super::partition::{Partition, Phase, Restoring};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{
    Block, BlockView, ForgetRecord, KindId, Look, Offset, Owners, PartitionId, Window, Windows,
};
use crate::metrics::{OffsetReset, RestoreSource};
use crate::ports::{Committed, Head, LogId, Source, StateItem, StateLog, Store};

/// Timeout of one request to the broker between two polls.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a restore logs its progress.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

impl<W: World> Core<W> {
    /// Starts reading the state topic: all of it, or from `local` = (state offset, raw offset) on.
    pub(super) fn begin_restore(
        &mut self,
        source: &W::Source,
        answer: &Committed,
        checkpoint: Option<&Checkpoint>,
        local: Option<(Offset, Offset)>,
    ) -> Result<(), WorkerError> {
        let id = answer.partition;
        let Some(bounds) = self.log.bounds(&[LogId::state(id)], REQUEST_TIMEOUT)?.into_iter().next() else {
            return Ok(());
        };
        if let Some(checkpoint) = checkpoint.filter(|c| c.state_next > bounds.high) {
            return Err(Fatal::Operator(format!(
                "topic {} partition {id} ends at offset {}, but the group's checkpoint was written when it had \
                 reached {}: the topic was recreated or truncated; restore it, or set a new group.id to start with an empty \
                 window",
                self.options.state, bounds.high, checkpoint.state_next
            ))
            .into());
        }
        let usable = usable(local, &bounds, answer.offset);
        let is_behind = local.is_some_and(|(from, _)| is_behind_the_log(from, &bounds));
        if answer.offset.is_none() && is_behind && bounds.low >= bounds.stable {
            return Err(self.all_expired(id, local).into());
        }
        let empty = self.empty_windows(checkpoint);
        let now = self.clock.elapsed();
        if usable.is_none() {
            clear(&mut self.store, &self.options.kinds.windows_of(id))?;
        }
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        if usable.is_none() {
            partition.fresh(empty);
            partition.forgets = 0;
        }
        partition.tail = checkpoint.and_then(|c| c.tail);
        let covered = partition.windows.as_ref().map(Windows::next).filter(|next| *next > 0);
        let from = usable.map_or(bounds.low, |(from, _)| from);
        tracing::info!(partition = id, from, until = bounds.stable, "restoring state from the state topic");
        partition.phase = Phase::Restoring(Box::new(Restoring {
            since: now,
            last_logged: now,
            committed: answer.offset,
            from,
            until: bounds.stable,
            at: from,
            low: bounds.low,
            last: None,
            first_ms: None,
            covered,
            confirmed: usable.map(|(_, confirmed)| confirmed),
            ids: 0,
            ahead: None,
            emptied: self.options.kinds_by_other_rules(checkpoint),
            left_out: BTreeMap::new(),
            checkpoint: checkpoint.cloned(),
        }));
        if from >= bounds.stable {
            return self.restored(source, StateItem::End { partition: id, next: from });
        }
        failpoint::pass("before_state_open");
        self.log.open(id, Some(from))?;
        Ok(())
    }

    /// Processes one item read from the state topic. The log delivers each record once, so a restore that misses a record
    /// restarts: otherwise its end would be mistaken for that of a complete restore.
    pub(super) fn restored(&mut self, source: &W::Source, item: StateItem) -> Result<(), WorkerError> {
        let (id, result) = match item {
            StateItem::Block { partition, offset, key, block } => {
                let origin = Origin::parse(&key).unwrap_or_default();
                let same = self.options.same_raw(origin.raw.as_deref(), self.options.raw_id.as_deref());
                let same = same.map_err(WorkerError::from);
                (partition, same.and_then(|()| self.restore_block((partition, offset), origin, &block)))
            }
            StateItem::End { partition, next } => (partition, self.end_restore(source, partition, next)),
            StateItem::Gone { partition } => (partition, self.restart_restore(partition)),
        };
        if result.is_err() {
            self.abandon_restore(id);
        }
        result
    }

    /// Discards the restore of a partition, so that its state is read again from the start.
    pub(super) fn abandon_restore(&mut self, id: PartitionId) {
        let now = self.clock.elapsed();
        let restoring = |partition: &&mut Partition| matches!(partition.phase, Phase::Restoring(_));
        if let Some(partition) = self.partitions.get_mut(id).filter(restoring) {
            partition.unload();
            partition.relocate(now);
        }
    }

    /// Restarts a restore because the log no longer holds the next record. It restarts from the beginning because the log
    /// bounds have changed.
    fn restart_restore(&mut self, id: PartitionId) -> Result<(), WorkerError> {
        let topic = &self.options.state;
        if let Some(Phase::Restoring(restoring)) = self.partitions.get(id).map(|partition| &partition.phase) {
            let at = restoring.at;
            tracing::warn!(
                partition = id,
                at,
                "topic {topic} lost records while it was read; restarting the restore"
            );
        }
        self.abandon_restore(id);
        Ok(self.log.close(id)?)
    }

    fn restore_block(
        &mut self,
        (id, offset): (PartitionId, Offset),
        origin: Origin,
        bytes: &[u8],
    ) -> Result<(), WorkerError> {
        let topic = self.options.state.clone();
        let place = || format!("topic {topic} partition {id} offset {offset}");
        if ForgetRecord::is_here(bytes) {
            let forgotten = ForgetRecord::decode(bytes).map_err(|e| WorkerError::block(&place(), &e))?;
            let foreign = self.is_foreign((id, &place()), &origin, (forgotten.hash, id.into()))?;
            return self.restore_forgotten(id, offset, (&forgotten, foreign));
        }
        let view = BlockView::verified(bytes).map_err(|e| WorkerError::block(&place(), &e))?;
        let foreign = self.is_foreign((id, &place()), &origin, (view.header.hash, view.header.window))?;
        let block = Block::decode(bytes).map_err(|e| WorkerError::block(&place(), &e))?;
        let now = self.clock.elapsed();
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Phase::Restoring(restoring) = &mut partition.phase else { return Ok(()) };
        restoring.at = offset;
        restoring.covered = Some(block.next);
        // The block is newer than the local state, and may end below `confirmed`. The records in between were all
        // duplicates, and they stay duplicates.
        restoring.confirmed = None;
        restoring.ids += block.entries.len() as u64;
        restoring.log_progress(id, now);
        partition.state_next = restoring.resume_after(&block, offset);
        let tail = Tail { crc: Block::checksum(bytes), next: block.next, from: Some(offset) };
        restoring.last = Some(tail);
        restoring.first_ms.get_or_insert(block.time_first_ms);
        if foreign {
            return Ok(());
        }
        let Some(windows) = partition.windows.as_mut() else { return Ok(()) };
        if block.first == block.next {
            // A block with an empty offset range voids all owners at or beyond it, of all kinds, also of kinds that its writer
            // had not configured.
            windows.truncate(block.next);
            cut_back(&mut self.store, &self.options.kinds.windows_of(id), block.next)?;
        }
        if !windows.restore(&view).map_err(|e| WorkerError::block("the state topic", &e))? {
            *restoring.left_out.entry(origin.kind.unwrap_or_default()).or_default() +=
                block.entries.len() as u64;
            return Ok(());
        }
        let head = Head {
            confirmed: block.next,
            state_next: partition.state_next,
            stream_time_ms: block.time_last_ms,
            tail: Some((tail.crc, tail.next)),
            confirmed_tail: Some((tail.crc, tail.next)),
            forgets: partition.forgets,
            incomplete_ms: windows.incomplete_before_ms().unwrap_or(0),
        };
        self.store.append(&block, head)?;
        self.report.restored(RestoreSource::StateTopic, block.entries.len() as u64);
        Ok(())
    }

    /// Forgets the identities of a forget record, which was written after the blocks read so far.
    fn restore_forgotten(
        &mut self,
        id: PartitionId,
        offset: Offset,
        (forgotten, foreign): (&ForgetRecord, bool),
    ) -> Result<(), WorkerError> {
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Phase::Restoring(restoring) = &mut partition.phase else { return Ok(()) };
        restoring.at = offset;
        partition.state_next = offset + 1;
        if foreign {
            partition.forgets = partition.forgets.max(forgotten.number);
            return Ok(());
        }
        partition.forget(forgotten);
        // Without a stored block there is no head to update. A new head would claim that local state is complete up to
        // offset 0.
        let Some(before) = self.store.head(id.into())? else { return Ok(()) };
        let head = Head { state_next: offset + 1, forgets: partition.forgets, ..before };
        for window_id in self.options.kinds.windows_of(id) {
            let mut owners = forgotten.offsets();
            if let Some(window) =
                partition.windows.as_mut().and_then(|windows| windows.of_kind(window_id.kind()))
            {
                let stored = Stored { store: &self.store, window: window_id };
                owners.extend(forget_older_owners(window, &stored, forgotten)?);
            }
            self.store.forget(window_id, &owners, head)?;
        }
        Ok(())
    }

    fn end_restore(&mut self, source: &W::Source, id: PartitionId, next: Offset) -> Result<(), WorkerError> {
        if !self.is_restored(id, next)? {
            return Ok(());
        }
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        let Phase::Restoring(restoring) = &partition.phase else { return Ok(()) };
        let (committed, covered, confirmed, since, ids, checkpoint) = (
            restoring.committed,
            restoring.covered,
            restoring.confirmed,
            restoring.since,
            restoring.ids,
            restoring.checkpoint.clone(),
        );
        restoring.log_left_out(id, &self.options.state);
        self.log.close(id)?;
        let is_set = committed.is_some();
        let committed = match (committed, covered) {
            (Some(committed), Some(covered)) if covered > committed => {
                if self.recheck_once(id, committed) {
                    return Ok(());
                }
                self.rewound(id, committed, covered)?
            }
            (Some(committed), _) => committed,
            (None, Some(covered)) => {
                let end = confirmed.map_or(covered, |confirmed| confirmed.max(covered));
                tracing::warn!(
                    partition = id,
                    offset = end,
                    "the group has no committed offset (offsets expire when a group is empty for long); \
                     continuing at the end of the state"
                );
                self.report.offset_reset(OffsetReset::Expired);
                // Other instances read the position from the group.
                partition.uncommitted_position = true;
                end
            }
            // Nothing was committed yet: the partition starts again at the same offset.
            (None, None) => match confirmed {
                Some(confirmed) => {
                    partition.uncommitted_position = self.options.start == Start::Latest || restoring.low > 0;
                    confirmed
                }
                None if restoring.low > 0 => return Err(self.all_expired(id, None).into()),
                None => self.first_offset(source, id)?,
            },
        };
        let Some(partition) = self.partitions.get_mut(id) else { return Ok(()) };
        // An offset without our metadata was set by another program.
        partition.uncommitted_position |= is_set && checkpoint.is_none();
        partition.committed = committed;
        partition.next = committed;
        partition.state_next = partition.state_next.max(next);
        partition.take_over(&checkpoint.unwrap_or_default());
        let head = partition.head();
        self.store.set_head(id.into(), head)?;
        let took = self.clock.elapsed().saturating_sub(since);
        tracing::info!(partition = id, ids, offset = committed, ?took, "state restored from the state topic");
        self.start(source, id, Some((since, ids)))
    }

    fn first_offset(&mut self, source: &W::Source, id: PartitionId) -> Result<Offset, WorkerError> {
        let bounds = source.bounds(id, REQUEST_TIMEOUT)?;
        if self.was_added_later(source, id)? {
            // Records that were written before the partition was first assigned belong to it too.
            tracing::info!(
                partition = id,
                offset = bounds.low,
                "new partition of the raw topic; starting at the earliest offset"
            );
            self.report.offset_reset(OffsetReset::Grown);
            return Ok(bounds.low);
        }
        match self.options.start {
            Start::Earliest => Ok(bounds.low),
            Start::Latest => {
                // Committed at once, because the log end will be a different offset for the next owner.
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.uncommitted_position = true;
                }
                Ok(bounds.stable)
            }
            Start::Stop => Err(Fatal::Operator(format!(
                "neither the group nor topic {} has an offset for partition {id} of topic {}, and group.start is \
                 \"stop\"; set it to earliest or latest",
                self.options.state, self.options.raw
            ))
            .into()),
        }
    }

    /// Whether the partition was added to the raw topic after the group began. The checkpoints of the partitions with lower
    /// numbers store the number of partitions at the start of the group. The minimum counts, because each of them may have
    /// started later.
    fn was_added_later(&self, source: &W::Source, id: PartitionId) -> Result<bool, WorkerError> {
        if id >= self.options.began {
            return Ok(true);
        }
        if self.options.start == Start::Earliest || id == 0 {
            return Ok(false);
        }
        let below: Vec<PartitionId> = (0..id).collect();
        let answers = source.committed_unstable(&below, REQUEST_TIMEOUT)?;
        let began = answers.iter().filter_map(|answer| Checkpoint::parse(&answer.metadata)?.began).min();
        Ok(began.is_some_and(|began| id >= began))
    }
}

/// Forgets the same identities also for their older owners, and returns those owners. The writer of the forget record could
/// not name them, because it had evicted them or did not have that kind.
fn forget_older_owners<O: Owners>(
    window: &mut Window,
    stored: &O,
    forgotten: &ForgetRecord,
) -> Result<Vec<Offset>, O::Error> {
    let mut older = Vec::new();
    for (_, identity) in &forgotten.owners {
        for (owner, _) in window.owners(&Look::at(*identity), stored)? {
            // A forget record may be read a second time, after blocks that were written later. Their owners stay.
            if owner < forgotten.at {
                window.forget(owner, *identity);
                older.push(owner);
            }
        }
    }
    Ok(older)
}

impl Restoring {
    /// Fraction of the log read so far, in 0..=1.
    #[must_use]
    pub fn share(&self) -> f64 {
        let total = self.until.saturating_sub(self.from).max(1);
        (self.at.saturating_sub(self.from) as f64 / total as f64).min(1.0)
    }

    /// The state offset at which a later restore has to start to miss nothing, once this block is read. The unnamed kind counts
    /// for all kinds, so it is the first block of a named kind that reaches beyond what the unnamed kind covers by now.
    fn resume_after(&mut self, block: &Block, offset: Offset) -> Offset {
        let kind = block.window.kind();
        match &mut self.ahead {
            Some((_, next)) if kind != KindId::UNNAMED => *next = block.next.max(*next),
            None if kind != KindId::UNNAMED => self.ahead = Some((offset, block.next)),
            ahead => drop(ahead.take_if(|(_, next)| *next <= block.next)),
        }
        self.ahead.map_or(offset + 1, |(first, _)| first)
    }

    fn log_left_out(&self, id: PartitionId, topic: &str) {
        for (kind, ids) in &self.left_out {
            tracing::warn!(
                partition = id,
                "topic {topic} holds {ids} ids of the kind {kind:?}, which has no window in the configuration: \
                 they are ignored; to restore the ids of a renamed kind, configure its old name"
            );
        }
    }

    fn log_progress(&mut self, id: PartitionId, now: Duration) {
        if now.saturating_sub(self.last_logged) >= LOG_INTERVAL {
            self.last_logged = now;
            let percent = self.share() * 100.0;
            tracing::info!(
                partition = id,
                ids = self.ids,
                "restoring state, {percent:.0} % of the state topic read"
            );
        }
    }
}
