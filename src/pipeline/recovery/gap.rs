//! Checks whether the raw log holds the offset to resume at, and handles a log that does not.

use crate::dedupe::{Coordinates, Offset, PartitionId};
use crate::metrics::OffsetReset;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::access::Access;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::{OnGap, WorkerOptions};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::recovery::start_bounds::request_raw;
use crate::ports::{Failure, GroupMember, LogBounds, Remedy, Source, Truncation};

impl<W: WorkerPorts> Access<'_, W> {
    /// Makes a partition of complete windows resume at C, or at the nearest offset that the log holds, if the log does
    /// not hold C and the configuration accepts the gap. Returns from where on owners of the partition have to be undone, if any.
    pub(crate) fn resume_offset(&mut self, id: PartitionId) -> Result<Option<Coordinates>, WorkerError> {
        let Some(committed) = self.ctx.partitions.get(id).map(|partition| partition.committed) else {
            return Ok(None);
        };
        let truncated = self.source.truncated(id);
        let mut log = self.raw_bounds(id)?;
        if truncated.is_some() || !(log.low..=log.high).contains(&committed) {
            // Only the current bounds show a gap: the log may have grown since the request for all partitions.
            log = request_raw::<W>(self.source, &self.ctx.options, &[id])?.first().copied().unwrap_or(log);
        }
        let Some(partition) = self.ctx.partitions.get_mut(id) else { return Ok(None) };
        // The client cannot read on behind a record that retention has deleted.
        partition.keep_epoch(|epoch| epoch.covers(committed) || epoch.next >= log.low);
        let is_covered = partition.committed_epoch.is_some();
        if truncated.is_none() && committed > log.high && is_covered {
            // The records at the end of the log may have been written after it was truncated. The client determines the
            // offset of the truncation when it starts reading at C, and reports it.
            return Ok(None);
        }
        let Some(gap) = gap(committed, log, truncated) else { return Ok(None) };
        self.check_not_advanced(id, committed)?;
        let names = gap_names(&self.ctx.options, id, log, committed, &gap);
        if self.ctx.options.on_gap == OnGap::Stop {
            return Err(gap_refusal(&names, &gap).into());
        }
        // Where the log before `nearest` is not the one that was read, comparing leader epochs would find the truncation again and
        // again.
        if let Some(partition) = self.ctx.partitions.get_mut(id) {
            partition.keep_epoch(|epoch| gap.nearest <= gap.same_until && epoch.covers(gap.nearest));
        }
        Ok(self.accept_gap(id, gap.nearest, &names))
    }

    /// Fails when the committed offset has advanced. A process that was suspended for long compares the current log with an
    /// outdated offset: another instance may have processed records since.
    fn check_not_advanced(&self, id: PartitionId, committed: Offset) -> Result<(), Failure> {
        let answers = self.source.committed(&[id], REQUEST_TIMEOUT)?;
        match answers.first().and_then(|answer| answer.offset) {
            Some(offset) if offset > committed => Err(Failure::new(
                Remedy::Retry,
                format!(
                    "the group's offset for partition {id} of topic {} is {offset} now, not {committed}; reading it again",
                    self.ctx.options.raw
                ),
            )),
            _ => Ok(()),
        }
    }

    fn accept_gap(&mut self, id: PartitionId, next: Offset, names: &str) -> Option<Coordinates> {
        let partition = self.ctx.partitions.get_mut(id)?;
        let committed = partition.committed;
        let skipped = next.saturating_sub(committed);
        let how = if next < committed {
            "reading the records that replace the lost ones".to_owned()
        } else {
            format!("{skipped} offsets skipped")
        };
        tracing::error!("{names}; continuing at {next}, {how} (group.on_gap = accept)");
        // At most the group's committed offset: the section of the next transaction begins there.
        partition.committed = committed.min(next);
        partition.next = next;
        partition.uncommitted_position = true;
        // Other records will be read at these offsets.
        partition.rewound |= next < committed;
        self.ctx.report.metrics.offset_resets(OffsetReset::Gap).inc();
        self.ctx.report.metrics.parts.group.gap_offsets.inc_by(skipped);
        (next < committed).then_some(Coordinates { partition: id, offset: next })
    }
}

/// Fails when a start would not accept what the log has at the committed offset, as far as its bounds show that.
pub(crate) fn check_gap(
    options: &WorkerOptions,
    id: PartitionId,
    committed: Offset,
    log: LogBounds,
) -> Result<(), Fatal> {
    match gap(committed, log, None) {
        Some(gap) if options.on_gap == OnGap::Stop => {
            Err(gap_refusal(&gap_names(options, id, log, committed, &gap), &gap))
        }
        _ => Ok(()),
    }
}

fn gap_names(
    options: &WorkerOptions,
    id: PartitionId,
    log: LogBounds,
    committed: Offset,
    gap: &Gap,
) -> String {
    format!(
        "partition {id} of topic {} now holds offsets {} to {}, but the group has to continue at {committed}: {}",
        options.raw, log.low, log.high, gap.reason
    )
}

fn gap_refusal(names: &str, gap: &Gap) -> Fatal {
    Fatal::Operator(format!(
        "{names}; to accept the gap, start once with group.on_gap = \"accept\" (in the environment: \
         DEDUPD_GROUP__ON_GAP=accept), or set the group's offset to {} with kafka-consumer-groups.sh while dedupd \
         is stopped",
        gap.nearest
    ))
}

/// The error for a group that was reset to below what the state, in its topic or local, has committed.
pub(crate) fn rewound_group(
    options: &WorkerOptions,
    id: PartitionId,
    committed: Offset,
    covered: Offset,
) -> Fatal {
    Fatal::Operator(format!(
        "{}: the group was rewound; set group.on_rewind to skip (do not process those records again) or reemit (write them \
         again), or reset the group's offset to {covered}",
        rewound_names(options, id, committed, covered)
    ))
}

pub(super) fn rewound_names(
    options: &WorkerOptions,
    id: PartitionId,
    committed: Offset,
    covered: Offset,
) -> String {
    format!(
        "the group's offset for partition {id} of topic {} is {committed}, but the state has committed entries up to \
         {covered}",
        options.raw
    )
}

/// A log that does not hold the records after C.
#[derive(Debug, PartialEq, Eq)]
struct Gap {
    /// The nearest offset at which the log can be read.
    nearest: Offset,
    /// The log up to this offset is the one that was read.
    same_until: Offset,
    reason: &'static str,
}

/// Whether the log holds the records after C. `truncated` is what a comparison of leader epochs found: the records after the
/// offset of the truncation were written since.
fn gap(committed: Offset, log: LogBounds, truncated: Option<Truncation>) -> Option<Gap> {
    let same_until = if let Some(Truncation::At(end)) = truncated { end } else { committed };
    let (nearest, reason) = if committed < log.low {
        (log.low, "records were deleted before they were read")
    } else if same_until < committed {
        (same_until.min(log.high).max(log.low), "the topic was truncated and written again")
    } else if committed > log.high {
        let reason = "the topic was truncated at an unknown offset: records written between that offset and the log end are \
                      not read";
        (log.high, reason)
    } else {
        return None;
    };
    Some(Gap { nearest, same_until, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_resumed_at_its_nearest_offset_or_where_it_was_truncated() {
        let log = LogBounds { low: 10, stable: 90, high: 100 };
        let nearest = |committed, end: Option<Offset>| {
            gap(committed, log, end.map(Truncation::At)).map(|gap| gap.nearest)
        };
        assert_eq!([10, 50, 100].map(|committed| nearest(committed, None)), [None; 3]);
        assert_eq!([9, 101].map(|committed| nearest(committed, None)), [Some(10), Some(100)]);
        assert_eq!(gap(50, log, Some(Truncation::Unknown)), None);
        assert_eq!(gap(101, log, Some(Truncation::Unknown)).map(|gap| gap.nearest), Some(100));
        // Written again beyond C: only the leader epochs show that.
        assert_eq!([50, 60, 61].map(|committed| nearest(committed, Some(60))), [None, None, Some(60)]);
        assert_eq!(
            [nearest(50, Some(5)), nearest(200, Some(150)), nearest(5, Some(3))],
            [Some(10), Some(100), Some(10)]
        );
    }
}
