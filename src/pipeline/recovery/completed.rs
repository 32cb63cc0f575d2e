//! The offsets at which the partitions of a journal continue whose windows are complete.

use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Checkpoint, Coordinates, Offset, PartitionId};
use crate::metrics::OffsetReset;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::local::{Located, all_expired};
use crate::pipeline::journal::restoring::Completed;
use crate::pipeline::options::{OnRewind, Start, WorkerOptions};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::gap::{rewound_group, rewound_names};
use crate::pipeline::recovery::restore::{SKIPS_RECORDS, skips_records};
use crate::ports::{Committed, Failure, GroupMember, LogReads, Remedy};

impl<W: WorkerPorts> Access<'_, W> {
    /// Starts the partitions of a journal. When it fails, the windows are read again.
    pub(crate) fn completed(&mut self, id: PartitionId, mut completed: Completed) -> Result<(), WorkerError> {
        if self.is_behind_for_the_first_time(&completed) {
            return Ok(());
        }
        let answers = completed.located.answers.iter();
        let is_new = |it: &&Committed| it.offset.is_none() && !completed.covered.contains_key(&it.partition);
        let new: Vec<PartitionId> = answers.filter(is_new).map(|answer| answer.partition).collect();
        let mut starts = Vec::new();
        for answer in completed.located.answers.clone() {
            let offset = self.end_offset(&mut completed, &answer)?;
            starts.push((answer, offset));
        }
        self.warn_of_foreign_records(&new)?;
        let Completed { windows, last_entry, covered, next, reset_kinds, rewound, .. } = completed;
        for (answer, offset) in starts {
            let checkpoint = Checkpoint::parse(&answer.metadata);
            let time_ms = covered.get(&answer.partition).map_or(0, |covered| covered.time_ms);
            if let Some(partition) = self.ctx.partitions.get_mut(answer.partition) {
                // An offset without our metadata was set by another program.
                partition.uncommitted_position |= answer.offset.is_some() && checkpoint.is_none();
                partition.locate(&answer, offset, checkpoint.as_ref(), time_ms);
            }
        }
        let Some(journal) = self.ctx.journals.get_mut(id) else { return Ok(()) };
        (journal.windows, journal.last_entry, journal.covered) = (Some(windows), last_entry, covered);
        journal.end.next = journal.end.next.max(next);
        // Another worker may have written since the journal was checked: its numbers are not used again.
        journal.end.extend(journal.last_entry);
        journal.reset_kinds = reset_kinds;
        journal.early_ends = 0;
        journal.confirm(&mut self.ctx.store)?;
        journal.begin_undoing(&mut self.ctx.store, &rewound)?;
        self.start_completed(id)
    }

    /// Whether the journal covers more than a committed offset, and did not before. Another instance may have committed between reading C and reading
    /// the state topic, so at the first occurrence C is read again: offsets and entries are committed together.
    fn is_behind_for_the_first_time(&mut self, completed: &Completed) -> bool {
        let mut is_new = false;
        for answer in &completed.located.answers {
            let covered = completed.covered.get(&answer.partition).map_or(0, |covered| covered.next);
            if let (Some(committed), Some(partition)) =
                (answer.offset, self.ctx.partitions.get_mut(answer.partition))
                && covered > committed
            {
                is_new |= partition.behind_state.replace(committed) != Some(committed);
            }
        }
        is_new
    }

    /// The offset at which a partition continues.
    fn end_offset(&mut self, completed: &mut Completed, answer: &Committed) -> Result<Offset, WorkerError> {
        let id = answer.partition;
        let covered = completed.covered.get(&id).map(|covered| covered.next);
        if let (Some(offset), None) = (answer.offset, Checkpoint::parse(&answer.metadata)) {
            let at = Coordinates { partition: id, offset };
            self.note_skipped(completed, at, covered.unwrap_or(0))?;
        }
        self.set_uncommitted(id, false);
        match (answer.offset, covered) {
            (Some(committed), Some(covered)) if covered > committed => {
                self.rewound_offset(completed, Coordinates { partition: id, offset: committed }, covered)
            }
            (Some(committed), _) => Ok(committed),
            (None, Some(covered)) => {
                tracing::warn!(
                    partition = id,
                    offset = covered,
                    "the group has no committed offset: it was empty for long, or its offsets or the raw topic were deleted; \
                     continuing at the end of the state"
                );
                self.ctx.report.metrics.offset_resets(OffsetReset::Expired).inc();
                // Other instances read the position from the group.
                self.set_uncommitted(id, true);
                Ok(covered)
            }
            // The offsets of a group expire together: while another partition of the journal has a checkpoint, nothing of this one was processed.
            (None, None) if completed.is_cut && completed.located.has_lost_offsets() => {
                Err(self.expired(&completed.located, id, None))
            }
            (None, None) => {
                let offset = self.first_offset(id)?;
                self.note_skipped(completed, Coordinates { partition: id, offset }, 0)?;
                Ok(offset)
            }
        }
    }

    /// Why a partition has no position. Reading the journal took a while, in which another instance may have committed one.
    pub(crate) fn expired(&self, located: &Located, id: PartitionId, local: Option<Offset>) -> WorkerError {
        let options = &self.ctx.options;
        let ids: Vec<PartitionId> = located.answers.iter().map(|answer| answer.partition).collect();
        match self.source.committed(&ids, REQUEST_TIMEOUT) {
            Ok(answers) if answers == located.answers => all_expired(options, id, local).into(),
            Ok(_) => {
                let what = format!(
                    "the offsets of group {} were committed meanwhile; reading them again",
                    options.group
                );
                Failure::new(Remedy::Retry, what).into()
            }
            Err(failed) => failed.into(),
        }
    }

    fn set_uncommitted(&mut self, id: PartitionId, value: bool) {
        self.ctx
            .partitions
            .get_mut(id)
            .into_iter()
            .for_each(|partition| partition.uncommitted_position = value);
    }

    /// Notes that the windows lack ids, if raw has records before the offset at which a partition continues, behind those whose ids are known.
    fn note_skipped(
        &mut self,
        completed: &mut Completed,
        at: Coordinates,
        known: Offset,
    ) -> Result<(), WorkerError> {
        if skips_records(known, at.offset, self.raw_bounds(at.partition)?) {
            tracing::warn!(partition = at.partition, offset = at.offset, "{SKIPS_RECORDS}");
            completed.windows.note_incomplete_before(self.ctx.time.now_ms(&self.ctx.clock));
        }
        Ok(())
    }

    /// The resume offset, by `group.on_rewind`, of a group that was reset to below what the state has committed.
    fn rewound_offset(
        &mut self,
        completed: &mut Completed,
        at: Coordinates,
        covered: Offset,
    ) -> Result<Offset, WorkerError> {
        let Coordinates { partition: id, offset: committed } = at;
        let names = rewound_names(&self.ctx.options, id, committed, covered);
        let ctx = &mut *self.ctx;
        match ctx.options.on_rewind {
            OnRewind::Stop => Err(rewound_group(&ctx.options, id, committed, covered).into()),
            OnRewind::Skip => {
                ctx.report.metrics.offset_resets(OffsetReset::Rewound).inc();
                tracing::warn!("{names}; skipping to that offset (group.on_rewind = skip)");
                Ok(covered)
            }
            OnRewind::Reemit => {
                ctx.report.metrics.offset_resets(OffsetReset::Rewound).inc();
                tracing::warn!(
                    "{names}; processing again from the group's offset (group.on_rewind = reemit)"
                );
                completed.rewound.push(at);
                if let Some(partition) = ctx.partitions.get_mut(id) {
                    partition.rewound = true;
                }
                Ok(committed)
            }
        }
    }

    fn first_offset(&mut self, id: PartitionId) -> Result<Offset, WorkerError> {
        self.check_other_scope()?;
        let log = self.raw_bounds(id)?;
        if self.was_added_later(id)? {
            // Records that were written before the partition was first assigned belong to it too.
            tracing::info!(
                partition = id,
                offset = log.low,
                "new partition of the raw topic; starting at the earliest offset"
            );
            self.ctx.report.metrics.offset_resets(OffsetReset::Grown).inc();
            return Ok(log.low);
        }
        match self.ctx.options.start {
            Start::Earliest => Ok(log.low),
            Start::Latest => {
                // Committed at once, because the log end will be a different offset for the next owner.
                self.set_uncommitted(id, true);
                Ok(log.stable)
            }
            Start::Stop => Err(no_offset(&self.ctx.options, id).into()),
        }
    }

    /// Warns when the clean logs of partitions without an offset have records.
    fn warn_of_foreign_records(&self, new: &[PartitionId]) -> Result<(), WorkerError> {
        if new.is_empty() {
            return Ok(());
        }
        let found = self.ctx.log.with_records(new, REQUEST_TIMEOUT)?;
        if !found.is_empty() {
            tracing::warn!(partitions = ranges(found), "{}", foreign_records(&self.ctx.options.group));
        }
        Ok(())
    }

    /// Whether the partition was added to the raw topic after the group began. The checkpoints of the partitions with lower
    /// numbers store the number of partitions at the start of the group. The minimum counts, because each of them may have
    /// started later.
    fn was_added_later(&self, id: PartitionId) -> Result<bool, WorkerError> {
        if id >= self.ctx.options.raw_partitions {
            return Ok(true);
        }
        if self.ctx.options.start == Start::Earliest || id == 0 {
            return Ok(false);
        }
        let below: Vec<PartitionId> = (0..id).collect();
        let answers = self.source.committed_unstable(&below, REQUEST_TIMEOUT)?;
        let began = answers
            .iter()
            .filter_map(|answer| Checkpoint::parse(&answer.metadata)?.first_raw_partitions)
            .min();
        Ok(began.is_some_and(|began| id >= began))
    }
}

/// The warning that the clean topic is not empty although the group is new.
pub(crate) fn foreign_records(group: &str) -> String {
    format!(
        "the clean topic has records, but group {group} has processed none: what others wrote there is not known, and is written again. To \
         continue another group, set its group.id and topics.state; otherwise correct topics.raw or topics.clean"
    )
}

/// The error for a new group with `group.start = "stop"`.
pub(crate) fn no_offset(options: &WorkerOptions, id: PartitionId) -> Fatal {
    Fatal::Operator(format!(
        "neither the group nor topic {} has an offset for partition {id} of topic {}, and group.start is \
         \"stop\"; set it to earliest or latest",
        options.state, options.raw
    ))
}
