//! Waits until all markers of a transaction are written: only then has it ended.
//!
//! The broker responds to the end of a transaction before it has written the markers. Kafka 4.3.0 to 4.4.0 omit the markers of
//! partitions that have no leader at that moment (see [`crate::pipeline::torn`]). The next marker of the same producer then commits or
//! aborts what the missing marker left open. A producer therefore begins a transaction only when it has seen every marker of
//! its last one. This prevents two sequences:
//!
//! - abort without its marker in partition p, next transaction touches p, commit: aborted records of p appear.
//! - commit without its marker in p, next transaction touches p, abort (or crash, or timeout): committed records of p
//!   vanish below the committed offset.
//!
//! In a side partition, which several workers write to, the last stable offset can be held back by the open transaction of
//! another worker. It never lies before the first record of an open transaction, so ours has ended there once the last stable
//! offset is beyond our first record. While it lies before our first record, an earlier transaction is open and nothing is known
//! about ours: a marker that cannot be seen is not a missing one, and the wait is longer.
//!
//! The cost per transaction is one list-offsets request and one offset-fetch request. The broker answers both from memory.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::commit::Committer;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Failure, GroupMember, LogId, LogReads, Remedy, WrittenEnds};

/// How long to wait for the next marker. Normally all are written within milliseconds. A new producer waits for markers that
/// are still being written, so a slow broker costs at most a new producer.
const MARKER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for all markers, and for earlier transactions of others in side partitions: a busy broker was seen to need
/// more than 30 s for the first ones of 2,048 logs. Below the supervisor's limit for a worker without progress.
const ALL_MARKERS_TIMEOUT: Duration = Duration::from_secs(45);
/// Pause between two checks, for each check that all logs need.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Most logs in one check. The time that the client needs for a check grows with the square of this number, and a request for
/// two thousand logs in every millisecond takes the broker's time from writing the markers.
const LOGS_PER_CHECK: usize = 128;

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

impl<W: WorkerPorts> Committer<W> {
    /// Where the markers of the open transaction will be written. Called before the commit, when all records are acknowledged.
    pub(crate) fn touched(&self, options: &WorkerOptions) -> Touched {
        let offsets = self.transaction.touched();
        let starts = self.sink.side_starts();
        let mut logs: Vec<(LogId, Offset)> =
            starts.into_iter().filter_map(|(log, start)| Some((log, start? + 1))).collect();
        for id in &offsets {
            logs.extend(self.sink.clean_end(*id).map(|end| (LogId::clean(*id), end)));
        }
        for journal in options.journals_of(offsets.iter().copied()) {
            logs.extend(self.sink.state_end(journal).map(|end| (LogId::state(journal), end)));
        }
        Touched { logs, offsets }
    }

    /// Where the markers of the transaction that was just aborted are written. Records may have been written without being
    /// acknowledged, so the current high watermarks of the logs are used.
    pub(crate) fn touched_by_abort(
        &mut self,
        ctx: &mut Context<W>,
        side: Vec<(LogId, Option<Offset>)>,
    ) -> Result<Touched, WorkerError> {
        let offsets = self.transaction.touched();
        let mut logs = ctx.options.outputs_of(&offsets);
        logs.extend(side.iter().filter(|(_, start)| start.is_none()).map(|(log, _)| *log));
        let bounds = ctx.log.bounds(&logs, REQUEST_TIMEOUT)?;
        let logs = logs.into_iter().zip(bounds).map(|(log, bounds)| (log, bounds.high));
        // Records are appended in order, so the first acknowledged one is the first of the transaction.
        let started = side.into_iter().filter_map(|(log, start)| Some((log, start? + 1)));
        Ok(Touched { logs: logs.chain(started).collect(), offsets })
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Waits for the markers. The remedy for markers that are missing or cannot be checked is a new producer. A weaker remedy is
    /// not safe, because the next transaction of this producer would commit or abort what is left open.
    pub(crate) fn await_markers(&mut self, source: &W::Source, touched: Touched) -> Result<(), WorkerError> {
        if !self.options.keeps(Safeguard::Markers) {
            return Ok(());
        }
        self.check_markers(source, touched).map_err(WorkerError::renewing)
    }

    fn check_markers(&self, source: &W::Source, touched: Touched) -> Result<(), WorkerError> {
        self.check_logs(touched.logs)?;
        self.progress.advance();
        self.check_offsets(source, &touched.offsets)
    }

    /// Waits until the stable ends of the logs have reached these offsets.
    fn check_logs(&self, mut logs: Vec<(LogId, Offset)>) -> Result<(), WorkerError> {
        let began = self.clock.elapsed();
        let mut deadline = began + MARKER_TIMEOUT;
        loop {
            let before = logs.len();
            let is_behind_others = self.drop_marked(&mut logs)?;
            if logs.is_empty() {
                return Ok(());
            }
            let now = self.clock.elapsed();
            if logs.len() < before || is_behind_others {
                self.progress.advance();
                deadline = (now + MARKER_TIMEOUT).min(began + ALL_MARKERS_TIMEOUT);
            }
            if now >= deadline {
                let logs: Vec<LogId> = logs.iter().map(|(log, _)| *log).collect();
                return Err(missing(&LogId::listed(&logs), now.saturating_sub(began)).into());
            }
            // When all logs of a check have their markers, the next ones are checked at once.
            let checks = u32::try_from(logs.len().div_ceil(LOGS_PER_CHECK)).unwrap_or(1);
            if before - logs.len() < before.min(LOGS_PER_CHECK) {
                self.clock.rest(CHECK_INTERVAL * checks);
            }
        }
    }

    /// Waits until the group's offsets of these partitions are readable.
    fn check_offsets(&self, source: &W::Source, offsets: &[PartitionId]) -> Result<(), WorkerError> {
        if offsets.is_empty() {
            return Ok(());
        }
        let began = self.clock.elapsed();
        loop {
            match source.committed(offsets, REQUEST_TIMEOUT) {
                Ok(_) => return Ok(()),
                Err(failed) if failed.remedy != Remedy::Retry => return Err(failed.into()),
                Err(_) if self.clock.elapsed() >= began + MARKER_TIMEOUT => {
                    let partitions = ranges(offsets.iter().copied());
                    let waited = self.clock.elapsed().saturating_sub(began);
                    return Err(
                        missing(&format!("the group's offsets of partitions {partitions}"), waited).into()
                    );
                }
                Err(_) => self.clock.rest(CHECK_INTERVAL),
            }
        }
    }

    /// Checks the last logs and removes those whose marker is written. The others are put in front, so that all logs are checked
    /// in turn: the broker writes the markers in any order. Returns whether those that were checked and have no marker yet are
    /// side partitions with an earlier open transaction.
    fn drop_marked(&self, logs: &mut Vec<(LogId, Offset)>) -> Result<bool, Failure> {
        if logs.is_empty() {
            return Ok(false);
        }
        let mut checked = logs.split_off(logs.len().saturating_sub(LOGS_PER_CHECK));
        let ids: Vec<LogId> = checked.iter().map(|(log, _)| *log).collect();
        let ends = self.log.stable_ends(&ids, REQUEST_TIMEOUT);
        let mut is_behind_others = ends.is_ok();
        if let Ok(ends) = &ends {
            let mut ends = ends.iter();
            checked.retain(|(log, needed)| {
                let stable = ends.next().copied().unwrap_or(0);
                is_behind_others &= stable >= *needed || log.topic.is_shared() && stable + 1 < *needed;
                stable < *needed
            });
        }
        checked.append(logs);
        *logs = checked;
        match ends {
            Ok(_) => Ok(is_behind_others && !logs.is_empty()),
            Err(failed) if failed.remedy == Remedy::Retry => Ok(false),
            Err(failed) => Err(failed),
        }
    }
}

fn missing(places: &str, waited: Duration) -> Failure {
    Failure::new(
        Remedy::Renew,
        format!(
            "the markers of the last transaction are missing after {} s in {places}, or hidden behind an open transaction of \
             another program; replacing the producer and continuing from the committed offset",
            waited.as_secs()
        ),
    )
}
