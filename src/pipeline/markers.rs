//! The end of a transaction: it has ended when its markers are written.
//!
//! A broker answers the end of a transaction before it has written the markers, and Kafka 4.3.0 leaves out those
//! of partitions that have no leader just then (see [`super::torn`]). What such a marker left open belongs to the
//! next marker of the same producer. Two sequences would go wrong, and cannot happen because a producer begins a
//! transaction only when it has seen every marker of its last one:
//!
//! - abort without its marker in partition p, next transaction touches p, commit: aborted records of p appear.
//! - commit without its marker in p, next transaction touches p, abort (or crash, or timeout): committed records of p
//!   vanish below the committed offset.
//!
//! The price is one request for log ends and one for offsets per transaction, both of which a broker answers from memory.

use std::time::Duration;

use super::safeguard::Safeguard;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::ports::{Failure, LogId, Remedy, Sink, Source, StateLog};

/// Slice of a question to the broker.
const SLICE: Duration = Duration::from_secs(1);
/// How long markers may take. Normally they are there within milliseconds; a new producer waits for those that are
/// still being written, so a slow broker costs no more than a new producer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Where a transaction leaves markers.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Logs written to, each with an offset that its stable end has to reach.
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
    /// Where the open transaction, about to be committed, leaves markers: everything is acknowledged.
    pub(super) fn touched(&self) -> Touched {
        let offsets = self.batch.touched();
        let mut logs = self.sink.side_ends();
        for id in &offsets {
            logs.extend(self.sink.clean_end(*id).map(|end| (LogId::clean(*id), end)));
            logs.extend(self.sink.state_end(*id).map(|end| (LogId::state(*id), end)));
        }
        Touched { logs, offsets }
    }

    /// Where the transaction that was just aborted leaves markers. What of it was written without being
    /// acknowledged is not known, so the ends of the logs count as they are now.
    pub(super) fn touched_by_abort(&mut self, side: Vec<(LogId, Offset)>) -> Result<Touched, Trouble> {
        let offsets = self.batch.touched();
        let mut logs = LogId::pairs(&offsets);
        logs.extend(side.into_iter().map(|(log, _)| log));
        let bounds = self.log.bounds(&logs, SLICE)?;
        let logs = logs.into_iter().zip(bounds).map(|(log, bounds)| (log, bounds.high)).collect();
        Ok(Touched { logs, offsets })
    }

    /// Waits for the markers. The remedy for those that do not come, or cannot be asked about, is a new producer: nothing
    /// less may follow, because the next transaction of this one would decide about what is left open.
    pub(super) fn await_markers(&mut self, source: &W::Source, touched: Touched) -> Result<(), Trouble> {
        if !self.options.keeps(Safeguard::Markers) {
            return Ok(());
        }
        self.look_for_markers(source, touched).map_err(Trouble::renewing)
    }

    fn look_for_markers(&self, source: &W::Source, touched: Touched) -> Result<(), Trouble> {
        let Touched { mut logs, offsets } = touched;
        let deadline = self.clock.elapsed() + PATIENCE;
        loop {
            self.drop_marked(&mut logs)?;
            if logs.is_empty() {
                break;
            }
            if self.clock.elapsed() >= deadline {
                return Err(missing(&format!("{logs:?} (log and offset)")).into());
            }
            self.clock.rest(PAUSE);
        }
        if offsets.is_empty() {
            return Ok(());
        }
        loop {
            match source.committed(&offsets, SLICE) {
                Ok(_) => return Ok(()),
                Err(failed) if failed.remedy != Remedy::Retry => return Err(failed.into()),
                Err(_) if self.clock.elapsed() >= deadline => {
                    return Err(missing(&format!("the group's offsets of partitions {offsets:?}")).into());
                }
                Err(_) => self.clock.rest(PAUSE),
            }
        }
    }

    /// Leaves the logs whose marker is not seen yet.
    fn drop_marked(&self, logs: &mut Vec<(LogId, Offset)>) -> Result<(), Failure> {
        if logs.is_empty() {
            return Ok(());
        }
        let ids: Vec<LogId> = logs.iter().map(|(log, _)| *log).collect();
        match self.log.stable_ends(&ids, SLICE) {
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
    Failure {
        remedy: Remedy::Renew,
        what: format!(
            "the markers of the last transaction are missing after {} s in {places}; replacing the producer and \
             continuing from the committed offset",
            PATIENCE.as_secs()
        ),
        refused: None,
    }
}
