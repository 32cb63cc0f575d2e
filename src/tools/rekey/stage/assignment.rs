//! Changes of the assignment: which partitions are read, and from where.

use std::slice;
use std::time::Duration;

use super::incarnation::ACCEPT;
use super::{REQUEST_TIMEOUT, RekeyLoop};
use crate::clock;
use crate::config::OnGap;
use crate::dedupe::Offset;
use crate::kafka::{SourceLog, SourceStart};
use crate::ports::{Failure, GroupEvent, LogBounds, Remedy};
use crate::tools::rekey::logs::listed;

/// Shortest pause before the offsets of partitions that could not be placed are requested again.
const PLACE_PAUSE: Duration = Duration::from_secs(1);
/// How long offsets are requested one by one before the partitions that are read continue.
const APART: Duration = Duration::from_secs(1);

/// Assigned partitions that are not read yet, because the request for their offsets failed.
#[derive(Default)]
pub struct UnplacedLogs {
    pub logs: Vec<SourceLog>,
    /// When their offsets are requested again.
    retry: Duration,
    /// Why the last request failed.
    why: String,
}

impl UnplacedLogs {
    /// Which ones there are, if any, and why.
    pub fn problem(&self) -> Option<String> {
        let what = || format!("cannot read the assigned partitions {}: {}", listed(&self.logs), self.why);
        (!self.logs.is_empty()).then(what)
    }
}

impl RekeyLoop<'_> {
    /// Handles the changes of the assignment since the last call, and repeats the requests that failed.
    pub(super) fn follow_assignment(&mut self) -> Result<(), Failure> {
        self.changes.extend(self.reader.changes());
        while let Some(change) = self.changes.front().cloned() {
            self.apply(change)?;
            self.changes.pop_front();
        }
        if self.unplaced.logs.is_empty() || self.began.elapsed() < self.unplaced.retry {
            return Ok(());
        }
        self.place_unplaced()?;
        if self.unplaced.logs.is_empty() {
            tracing::info!("all assigned partitions are read now");
        }
        Ok(())
    }

    fn apply(&mut self, change: GroupEvent<SourceLog>) -> Result<(), Failure> {
        match change {
            GroupEvent::Assigned(logs) => {
                self.unplaced.logs.extend_from_slice(&logs);
                self.place_unplaced()?;
                if !self.unplaced.logs.is_empty() {
                    // Until the client has an answer, which may be empty, it takes part in no rebalance.
                    self.reader.place(&[])?;
                }
                tracing::info!(partitions = %listed(&logs), "partitions assigned");
            }
            GroupEvent::Revoked(logs) => {
                self.settle()?;
                self.release(&logs)?;
                tracing::info!(partitions = %listed(&logs), "partitions revoked");
            }
            GroupEvent::Lost(logs) => {
                self.release(&logs)?;
                tracing::warn!(partitions = %listed(&logs), "partitions lost: other members repeat their last records");
            }
        }
        Ok(())
    }

    /// Places all of them together, and if that fails, one by one: a partition without a leader must not delay the others.
    fn place_unplaced(&mut self) -> Result<(), Failure> {
        let began = clock::monotonic();
        let logs = std::mem::take(&mut self.unplaced.logs);
        if self.try_place(&logs)? {
            return Ok(());
        }
        let (apart, mut failed) = (clock::monotonic(), Vec::new());
        let mut rest = logs.into_iter();
        // A request for the only one that is left would fail like the common one.
        while rest.len() + failed.len() > 1
            && apart.elapsed() < APART
            && let Some(log) = rest.next()
        {
            if !self.try_place(slice::from_ref(&log))? {
                failed.push(log);
            }
        }
        // Those that were not requested yet are the first next time.
        self.unplaced.logs = rest.chain(failed).collect();
        // A broker that does not respond costs the time limit of each request. At least half of the time is for the partitions that
        // are read.
        self.unplaced.retry = self.began.elapsed() + began.elapsed().max(PLACE_PAUSE);
        Ok(())
    }

    /// Returns false after a failure that is to be retried.
    fn try_place(&mut self, logs: &[SourceLog]) -> Result<bool, Failure> {
        match self.place(logs) {
            Err(failure) if failure.remedy == Remedy::Retry => {
                self.warn(&failure);
                self.unplaced.why = failure.what;
                Ok(false)
            }
            placed => placed.map(|()| true),
        }
    }

    /// Reads these partitions from the committed offsets.
    fn place(&mut self, logs: &[SourceLog]) -> Result<(), Failure> {
        let mut starts: Vec<SourceStart> = Vec::with_capacity(logs.len());
        let mut found = Vec::with_capacity(logs.len());
        let ids = self.topic_ids(logs)?;
        for (log, (committed, bounds)) in logs.iter().zip(self.reader.offsets(logs, REQUEST_TIMEOUT)?) {
            let Some(id) = ids.get(&log.topic) else {
                let what = format!("the brokers do not describe topic {}; retrying", log.topic);
                return Err(Failure::new(Remedy::Retry, what));
            };
            let was = committed.as_ref().and_then(|(_, known)| known.raw.as_deref());
            // A recreated topic is read from its start, like one that the group has not read.
            let committed = if self.is_recreated(log, was, id.as_deref())? { None } else { committed };
            let (position, known) = committed.unzip();
            let behind = || self.behind_gap(log, position.unwrap_or_default(), bounds);
            let offset = start(position, bounds).map_or_else(behind, Ok)?;
            let last = known.and_then(|known| known.epoch).filter(|last| last.covers(offset));
            starts.push((log.clone(), offset, last));
            found.push((bounds.stable, id.clone()));
        }
        self.reader.place(&starts)?;
        for (start, (end, id)) in starts.into_iter().zip(found) {
            self.logs.place(start, end, id);
        }
        Ok(())
    }

    /// Where a partition continues whose log does not contain its position. A log that ends before the position was truncated
    /// or recreated; what is repeated is dropped by the next stage.
    fn behind_gap(&self, log: &SourceLog, position: Offset, bounds: LogBounds) -> Result<Offset, Failure> {
        let LogBounds { low, high, .. } = bounds;
        if self.rule.on_gap == OnGap::Stop {
            let what = format!(
                "group {} continues at offset {position} of {log}, but that log contains the offsets {low} to {high}: records \
                 were deleted before they were read, or the log was truncated; to continue at offset {low}, {ACCEPT}",
                self.settings.group
            );
            return Err(Failure::new(Remedy::Stop, what));
        }
        let gap = low.saturating_sub(position);
        self.metrics.parts.gaps.inc_by(gap);
        tracing::warn!(%log, position, offset = low, gap, "the log does not contain the committed offset; continuing");
        Ok(low)
    }

    fn release(&mut self, logs: &[SourceLog]) -> Result<(), Failure> {
        self.unplaced.logs.retain(|log| !logs.contains(log));
        self.reader.release(logs)?;
        for log in logs {
            self.logs.remove(log);
        }
        Ok(())
    }
}

/// The start offset of a partition; `None` if its log does not contain the position. `position` is the next offset to read;
/// without one the group has not read the partition, and nothing in it is skipped.
fn start(position: Option<Offset>, log: LogBounds) -> Option<Offset> {
    Some(position.unwrap_or(log.low)).filter(|start| (log.low..=log.high).contains(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_skipped() {
        let log = LogBounds { low: 10, stable: 20, high: 25 };
        assert_eq!(start(None, log), Some(10));
        for position in [10, 17, 20, 25] {
            assert_eq!(start(Some(position), log), Some(position));
        }
        for position in [0, 9, 26] {
            assert_eq!(start(Some(position), log), None);
        }
    }
}
