//! Whether the raw log holds the offset to go on at, and what to do when it does not.

use std::time::Duration;

use super::loading::cut_back;
use super::options::{OnGap, OnRewind};
use super::trouble::{Fatal, Trouble};
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::metrics::Beginning;
use crate::ports::{Bounds, Failure, Remedy, Source};

/// Slice of a question to the broker between two polls.
const SLICE: Duration = Duration::from_secs(1);

impl<W: World> Core<W> {
    /// Where a partition whose state is complete goes on: at C, or, where the log does not hold that and the
    /// configuration accepts it, at the log's near end.
    pub(super) fn place(&mut self, source: &W::Source, id: PartitionId) -> Result<Offset, Trouble> {
        if let Some(known) = &self.options.raw_id {
            // An offset that the log does hold may belong to the log of another topic all the same.
            self.options.same_raw(Some(known), source.topic_id(SLICE).as_deref())?;
        }
        let committed = self.partitions.get(id).map_or(0, |partition| partition.committed);
        let bounds = source.bounds(id, SLICE)?;
        let truncated = source.truncated(id);
        if truncated.is_none() && committed > bounds.high && self.can_compare(id, committed) {
            // The records that the log ends with may have been written since it was cut. The client, when it begins to read
            // there, finds out where that was.
            return Ok(committed);
        }
        let Some((near, why)) = gap(committed, bounds, truncated) else { return Ok(committed) };
        self.is_still_there(source, id, committed)?;
        let names = format!(
            "partition {id} of topic {} now holds offsets {} to {}, but the group has to continue at {committed}: {why}",
            self.options.raw, bounds.low, bounds.high
        );
        match self.options.on_gap {
            OnGap::Stop => Err(Fatal::Operator(format!(
                "{names}; to accept the gap, start once with group.on_gap = \"accept\" (in the environment: \
                 DEDUPD_GROUP__ON_GAP=accept), or set the group's offset to {near} with kafka-consumer-groups.sh while dedupd \
                 is stopped"
            ))
            .into()),
            OnGap::Accept => self.accept(id, (committed, near), &names),
        }
    }

    /// Whether the client can find out where a log was cut that ends before C, and has not been asked to. It can by the leader
    /// epoch of the last record before C.
    fn can_compare(&mut self, id: PartitionId, committed: Offset) -> bool {
        self.partitions.get_mut(id).is_some_and(|partition| {
            partition.committed_epoch.is_some_and(|epoch| epoch.covers(committed))
                && partition.compared.replace(committed) != Some(committed)
        })
    }

    /// A process that stood still for long compares a log of today with an offset of then: another instance may have gone
    /// on since.
    fn is_still_there(&self, source: &W::Source, id: PartitionId, committed: Offset) -> Result<(), Failure> {
        let answers = source.committed(&[id], SLICE)?;
        match answers.first().and_then(|answer| answer.offset) {
            Some(offset) if offset > committed => Err(Failure {
                remedy: Remedy::Retry,
                what: format!(
                    "the group's offset for partition {id} of topic {} is {offset} now, not {committed}; reading it again",
                    self.options.raw
                ),
                refused: None,
            }),
            _ => Ok(()),
        }
    }

    fn accept(
        &mut self,
        id: PartitionId,
        (committed, next): (Offset, Offset),
        names: &str,
    ) -> Result<Offset, Trouble> {
        let skipped = next.saturating_sub(committed);
        let how = if next < committed {
            "and reading the records that replace those lost".to_owned()
        } else {
            format!("{skipped} offsets skipped")
        };
        tracing::error!("{names}; going on at {next}, {how} (group.on_gap = accept)");
        if next < committed {
            self.forget_from(id, next)?;
        }
        if let Some(partition) = self.partitions.get_mut(id) {
            // Not beyond what the group has committed: the local store would take it for that.
            partition.committed = committed.min(next);
            partition.next = next;
            partition.unsettled = true;
        }
        self.report.begun(Beginning::Gap);
        self.report.skipped(skipped);
        Ok(next)
    }

    /// Whether the open transaction sets a partition back. It is committed without records: the blocks of one with records
    /// could not be told from those that covered the same offsets before the log was cut.
    pub(super) fn goes_back(&self) -> bool {
        self.partitions
            .iter()
            .any(|partition| partition.rewound && partition.unsettled && partition.is_running())
    }

    /// The state topic is beyond C. Another instance may have committed between the question for C
    /// and the reading, so the first time the group is asked again: offsets and blocks commit together.
    pub(super) fn recheck_once(&mut self, id: PartitionId, committed: Offset) -> bool {
        let now = self.clock.elapsed();
        let Some(partition) = self.partitions.get_mut(id) else { return true };
        if partition.behind_state.replace(committed) == Some(committed) {
            return false;
        }
        partition.unload();
        partition.relocate(now);
        true
    }

    /// Somebody set the group back below what the state topic has committed.
    pub(super) fn rewound(
        &mut self,
        id: PartitionId,
        committed: Offset,
        covered: Offset,
    ) -> Result<Offset, Trouble> {
        let names = format!(
            "the group's offset for partition {id} of topic {} is {committed}, but the state topic has committed up \
             to {covered}",
            self.options.raw
        );
        match self.options.on_rewind {
            OnRewind::Stop => Err(Fatal::Operator(format!(
                "{names}: the group was rewound; set group.on_rewind to skip (what was committed stays committed) or \
                 reemit (write it again), or set the group's offset back to {covered}"
            ))
            .into()),
            OnRewind::Skip => {
                self.report.begun(Beginning::Rewound);
                tracing::warn!("{names}; skipping to it (group.on_rewind = skip)");
                Ok(covered)
            }
            OnRewind::Reemit => {
                self.report.begun(Beginning::Rewound);
                tracing::warn!("{names}; writing again from the group's offset (group.on_rewind = reemit)");
                self.forget_from(id, committed)?;
                Ok(committed)
            }
        }
    }

    /// Other records will come at offsets that had owners: none of them counts any more.
    pub(super) fn forget_from(&mut self, id: PartitionId, from: Offset) -> Result<(), Trouble> {
        cut_back(&mut self.store, &self.options.kinds.filed(id), from)?;
        if let Some(partition) = self.partitions.get_mut(id) {
            partition.rewound = true;
            partition.windows.iter_mut().for_each(|windows| windows.truncate(from));
        }
        Ok(())
    }
}

/// Where the log can be read on when it does not hold what comes after C, and why it does not. `truncated` is where a comparison
/// of leader epochs found the end of what was read: records that were written since stand behind it.
fn gap(committed: Offset, log: Bounds, truncated: Option<Offset>) -> Option<(Offset, &'static str)> {
    if committed < log.low {
        return Some((log.low, "records were deleted before they were read"));
    }
    match truncated.filter(|end| *end < committed) {
        Some(end) => Some((end.min(log.high).max(log.low), "the topic was truncated and written again")),
        None if committed > log.high => Some((
            log.high,
            "the topic was truncated, at an offset that is not known: records written there since then are not read",
        )),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_on_at_its_near_end_or_where_it_was_truncated() {
        let log = Bounds { low: 10, stable: 90, high: 100 };
        let near = |committed, truncated| gap(committed, log, truncated).map(|(near, _)| near);
        assert_eq!([10, 50, 100].map(|committed| near(committed, None)), [None; 3]);
        assert_eq!([9, 101].map(|committed| near(committed, None)), [Some(10), Some(100)]);
        // Written again beyond C: only the leader epochs tell.
        assert_eq!([50, 60, 61].map(|committed| near(committed, Some(60))), [None, None, Some(60)]);
        assert_eq!(
            [near(50, Some(5)), near(200, Some(150)), near(5, Some(3))],
            [Some(10), Some(100), Some(10)]
        );
    }
}
