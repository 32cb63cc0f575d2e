//! Waits until all markers of a transaction are written: only then has it ended.
//!
//! The broker responds to the end of a transaction before it has written the markers. Kafka 4.3.0 omits the markers of
//! partitions that have no leader at that moment (see [`super`]). The next marker of the same producer then commits or
//! aborts what the missing marker left open. A producer therefore begins a transaction only when it has seen every marker of
//! its last one. This prevents two sequences:
//!
//! - abort without its marker in partition p, next transaction touches p, commit: aborted records of p appear.
//! - commit without its marker in p, next transaction touches p, abort (or crash, or timeout): committed records of p
//!   vanish below the committed offset.
//!
//! The cost per transaction is one list-offsets request and one offset-fetch request. The broker answers both from memory.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::error::WorkerError;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::worker::{Core, World};
use crate::ports::{Failure, GroupMember, LogId, LogTails, Remedy, WrittenEnds};

/// How long to wait for markers. Normally they are written within milliseconds. A new producer waits for markers that are
/// still being written, so a slow broker costs at most a new producer.
const MARKER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The logs and offsets to which the markers of a transaction are written.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Logs written to, each with the offset that its last stable offset has to reach.
    logs: Vec<(LogId, Offset)>,
    /// Partitions whose offsets were sent.
    offsets: Vec<PartitionId>,
}

impl Touched {
    /// These logs, and the group's offsets of these partitions.
    pub fn of(logs: impl IntoIterator<Item = (LogId, Offset)>, offsets: Vec<PartitionId>) -> Self {
        Self { logs: logs.into_iter().collect(), offsets }
    }
}

impl<W: World> Core<W> {
    /// Where the markers of the open transaction will be written. Called before the commit, when all records are acknowledged.
    pub(crate) fn touched(&self) -> Touched {
        let offsets = self.transaction.touched();
        let mut logs = self.sink.side_ends();
        for id in &offsets {
            logs.extend(self.sink.clean_end(*id).map(|end| (LogId::clean(*id), end)));
            logs.extend(self.sink.state_end(*id).map(|end| (LogId::state(*id), end)));
        }
        Touched { logs, offsets }
    }

    /// Where the markers of the transaction that was just aborted are written. Records may have been written without being
    /// acknowledged, so the current high watermarks of the logs are used.
    pub(crate) fn touched_by_abort(&mut self, side: Vec<(LogId, Offset)>) -> Result<Touched, WorkerError> {
        let offsets = self.transaction.touched();
        let mut logs = LogId::pairs(&offsets);
        logs.extend(side.into_iter().map(|(log, _)| log));
        let bounds = self.log.bounds(&logs, REQUEST_TIMEOUT)?;
        let logs = logs.into_iter().zip(bounds).map(|(log, bounds)| (log, bounds.high)).collect();
        Ok(Touched { logs, offsets })
    }

    /// Waits for the markers. The remedy for markers that are missing or cannot be checked is a new producer. A weaker remedy is
    /// not safe, because the next transaction of this producer would commit or abort what is left open.
    pub(crate) fn await_markers(&mut self, source: &W::Source, touched: Touched) -> Result<(), WorkerError> {
        if !self.options.keeps(Safeguard::Markers) {
            return Ok(());
        }
        self.check_markers(source, touched).map_err(WorkerError::renewing)
    }

    fn check_markers(&self, source: &W::Source, touched: Touched) -> Result<(), WorkerError> {
        let Touched { mut logs, offsets } = touched;
        let deadline = self.clock.elapsed() + MARKER_TIMEOUT;
        loop {
            self.drop_marked(&mut logs)?;
            if logs.is_empty() {
                break;
            }
            if self.clock.elapsed() >= deadline {
                let logs: Vec<LogId> = logs.iter().map(|(log, _)| *log).collect();
                return Err(missing(&LogId::listed(&logs)).into());
            }
            self.clock.rest(CHECK_INTERVAL);
        }
        if offsets.is_empty() {
            return Ok(());
        }
        loop {
            match source.committed(&offsets, REQUEST_TIMEOUT) {
                Ok(_) => return Ok(()),
                Err(failed) if failed.remedy != Remedy::Retry => return Err(failed.into()),
                Err(_) if self.clock.elapsed() >= deadline => {
                    let partitions = ranges(offsets.iter().copied());
                    return Err(missing(&format!("the group's offsets of partitions {partitions}")).into());
                }
                Err(_) => self.clock.rest(CHECK_INTERVAL),
            }
        }
    }

    /// Removes the logs whose marker is written; keeps the others.
    fn drop_marked(&self, logs: &mut Vec<(LogId, Offset)>) -> Result<(), Failure> {
        if logs.is_empty() {
            return Ok(());
        }
        let ids: Vec<LogId> = logs.iter().map(|(log, _)| *log).collect();
        match self.log.stable_ends(&ids, REQUEST_TIMEOUT) {
            Ok(ends) => {
                let mut ends = ends.into_iter();
                logs.retain(|(_, needed)| ends.next().is_none_or(|stable| stable < *needed));
                Ok(())
            }
            Err(failed) if failed.remedy == Remedy::Retry => Ok(()),
            Err(failed) => Err(failed),
        }
    }
}

fn missing(places: &str) -> Failure {
    Failure::new(
        Remedy::Renew,
        format!(
            "the markers of the last transaction are missing after {} s in {places}; replacing the producer and \
             continuing from the committed offset",
            MARKER_TIMEOUT.as_secs()
        ),
    )
}
