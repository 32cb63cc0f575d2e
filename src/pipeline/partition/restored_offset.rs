//! The offset at which a restored partition continues.

use super::restoring::Restoring;
use super::state::State;
use crate::dedupe::{Checkpoint, Offset, PartitionId};
use crate::metrics::OffsetReset;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::Start;
use crate::pipeline::worker::{Core, World};
use crate::ports::GroupMember;

impl<W: World> Core<W> {
    /// The offset at which the restored state ends; `None` when the committed offset has to be read again.
    pub(crate) fn end_offset(
        &mut self,
        source: &W::Source,
        restoring: &mut Restoring,
    ) -> Result<Option<Offset>, WorkerError> {
        let state = &mut *restoring.state;
        let offset = match (restoring.committed, restoring.covered) {
            (Some(committed), Some(covered)) if covered > committed => {
                let Some(partition) = self.partitions.get_mut(state.id) else { return Ok(None) };
                // Another instance may have committed between reading C and reading the state topic, so at the first occurrence
                // C is read again: offsets and blocks are committed together.
                if partition.behind_state.replace(committed) != Some(committed) {
                    return Ok(None);
                }
                self.rewound(state, committed, covered)?
            }
            (Some(committed), _) => committed,
            (None, Some(covered)) => {
                let end = restoring.confirmed.map_or(covered, |confirmed| confirmed.max(covered));
                tracing::warn!(
                    partition = state.id,
                    offset = end,
                    "the group has no committed offset (offsets expire when a group is empty for long); \
                     continuing at the end of the state"
                );
                self.report.offset_reset(OffsetReset::Expired);
                // Other instances read the position from the group.
                state.uncommitted_position = true;
                end
            }
            // Nothing was committed yet: the partition starts again at the same offset.
            (None, None) => match restoring.confirmed {
                Some(confirmed) => {
                    state.uncommitted_position = self.options.start == Start::Latest || restoring.low > 0;
                    confirmed
                }
                None if restoring.low > 0 => return Err(self.all_expired(state.id, None).into()),
                None => self.first_offset(source, state)?,
            },
        };
        Ok(Some(offset))
    }

    fn first_offset(&mut self, source: &W::Source, state: &mut State) -> Result<Offset, WorkerError> {
        let id = state.id;
        let bounds = self.raw_bounds(source, id)?;
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
                state.uncommitted_position = true;
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
