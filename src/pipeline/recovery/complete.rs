//! Checks whether a restore has read the whole log.
//!
//! The client reports the end of a partition as an event. A follower, a new leader or a lost connection can cause that event
//! too early. The checkpoint names the last committed block, so the last block of the restore is compared with it. After an
//! early end the log is read again, and also when another reader finds more records after the end. A log whose start was
//! deleted by retention is reported as a shorter window.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId, Tail, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Leftover, LogId, LogTails, StateItem, StateLog};

/// Number of consecutive early ends of one partition after which an operator has to act.
const ATTEMPTS: u32 = 10;
/// Pause before a restore that ended early is restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// Timeout of reading records after the reported end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How a restore ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The last block read is the last committed block.
    Complete,
    /// The log no longer holds that block.
    CutOff,
    /// The log holds that block, and it was not read.
    Early,
}

/// Compares the last block read with the block that the checkpoint names. Without a named block the restore counts as
/// complete.
fn ending(named: Option<Tail>, read: Option<Tail>, confirmed: Option<Offset>, low: Offset) -> Ending {
    let Some(named) = named else { return Ending::Complete };
    match read {
        Some(read) if read.names_same(&named) => Ending::Complete,
        // The local state reaches beyond the named block.
        None if confirmed.is_some_and(|confirmed| confirmed >= named.next) => Ending::Complete,
        _ if named.from.is_none_or(|from| from < low) => Ending::CutOff,
        _ => Ending::Early,
    }
}

impl Restoring {
    /// The last committed block, as the checkpoint names it.
    fn named(&self) -> Option<Tail> {
        self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.tail)
    }

    /// Whether everything that the checkpoint names is read: the last committed block, and all forget records.
    fn has_read_all(&self) -> bool {
        let is_last = self.named().zip(self.last).is_some_and(|(named, read)| read.names_same(&named));
        is_last && self.checkpoint.as_ref().is_some_and(|it| self.state.forgets >= it.forgets)
    }

    /// Whether blocks beyond the committed offset were read: another worker commits, or the group was rewound.
    fn exceeds_committed(&self) -> bool {
        self.committed.zip(self.covered).is_some_and(|(committed, covered)| covered > committed)
    }
}

/// Whether the restore has read the whole log, of which the client reported the end `next`. Otherwise the partition is
/// restored again.
pub(crate) fn is_restored<W: WorkerPorts>(
    ctx: &mut Context<W>,
    restoring: &mut Restoring,
    next: Offset,
) -> Result<bool, WorkerError> {
    if !ctx.options.keeps(Safeguard::RestoreEnd) {
        return Ok(true);
    }
    let now = ctx.clock.elapsed();
    let id = restoring.state.id;
    let is_more = !restoring.has_read_all() && is_more_to_read(ctx, restoring, next)?;
    if restoring.exceeds_committed() && !is_more {
        return Ok(true);
    }
    let found = if is_more {
        Ending::Early
    } else {
        ending(restoring.named(), restoring.last, restoring.confirmed, restoring.low)
    };
    let Some(partition) = ctx.partitions.get_mut(id) else { return Ok(false) };
    if found != Ending::Early {
        partition.early_ends = 0;
        if let Some(ms) = reaches(restoring, found) {
            note_cut(id, ms, &mut restoring.state.windows);
        }
        return Ok(true);
    }
    partition.early_ends += 1;
    let committed = restoring.named();
    tracing::warn!(
        partition = id,
        read = restoring.last.map(tracing::field::display),
        committed = committed.map(tracing::field::display),
        "the restore ended before the last committed block; reading again"
    );
    if partition.early_ends >= ATTEMPTS {
        return Err(ends_early(&ctx.options, id, committed).into());
    }
    partition.unload(now + PAUSE);
    ctx.log.close(id)?;
    Ok(false)
}

/// Whether another reader finds committed records after the reported end. This creates a client. It is therefore skipped
/// when the restore has reached the end that the leader reported at its start, also when there was nothing to read.
fn is_more_to_read<W: WorkerPorts>(
    ctx: &Context<W>,
    restoring: &Restoring,
    next: Offset,
) -> Result<bool, WorkerError> {
    if next >= restoring.until {
        return Ok(false);
    }
    let id = restoring.state.id;
    let ends = ctx.log.stable_ends(&[LogId::state(id)], REQUEST_TIMEOUT)?;
    let Some(end) = ends.first().filter(|end| **end > next) else { return Ok(false) };
    let rest = ctx.log.tails(&[(id, next..*end)], Leftover::Committed, READ_TIMEOUT)?;
    Ok(rest.iter().any(|item| matches!(item, StateItem::Block { .. })))
}

fn ends_early(options: &WorkerOptions, id: PartitionId, named: Option<Tail>) -> Fatal {
    let named = named.map_or_else(String::new, |tail| format!(" ({tail})"));
    Fatal::Operator(format!(
        "{ATTEMPTS} restores of partition {id} from topic {} ended before the last committed block{named}: check the \
         replicas of that partition (kafka-topics.sh --describe); dedupd continues when the leader shows all committed \
         records",
        options.state
    ))
}

/// The stream time, in epoch milliseconds, from which on the window is complete when older blocks are deleted.
fn reaches(restoring: &Restoring, ending: Ending) -> Option<i64> {
    let is_local = restoring.from > restoring.low;
    let gone = restoring.low > 0 && !is_local;
    let now = || restoring.checkpoint.as_ref().map(|checkpoint| checkpoint.stream_time_ms);
    match ending {
        Ending::CutOff => restoring.first_ms.or_else(now),
        _ if gone => restoring.first_ms.or_else(now),
        _ => None,
    }
}

fn note_cut(id: PartitionId, ms: i64, windows: &mut Windows) {
    windows.note_incomplete_before(ms);
    if windows.incomplete_before_ms().is_some() {
        tracing::warn!(
            partition = id,
            from_ms = ms,
            "the state topic no longer holds the whole window; duplicates of ids from before this stream time may be \
             forwarded"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "the arguments are options")]
    fn tail(crc: u32, next: Offset, from: Option<Offset>) -> Option<Tail> {
        Some(Tail { crc, next, from })
    }

    #[test]
    fn a_restore_that_reads_the_last_committed_block_is_complete() {
        assert_eq!(ending(tail(7, 50, Some(9)), tail(7, 50, Some(11)), None, 0), Ending::Complete);
        assert_eq!(ending(None, tail(7, 50, Some(11)), None, 0), Ending::Complete);
        assert_eq!(ending(tail(7, 50, Some(9)), None, Some(50), 0), Ending::Complete);
    }

    #[test]
    fn an_end_before_the_last_committed_block_is_early() {
        assert_eq!(ending(tail(7, 50, Some(9)), tail(6, 40, Some(5)), None, 0), Ending::Early);
        assert_eq!(ending(tail(7, 50, Some(9)), None, None, 0), Ending::Early);
        assert_eq!(ending(tail(7, 50, Some(9)), None, Some(40), 0), Ending::Early);
        // Same length, different block: the log was truncated and written again.
        assert_eq!(ending(tail(7, 50, Some(9)), tail(8, 50, Some(9)), None, 0), Ending::Early);
    }

    #[test]
    fn a_restore_without_a_block_that_retention_deleted_is_cut_off() {
        assert_eq!(ending(tail(7, 50, Some(9)), None, None, 30), Ending::CutOff);
        assert_eq!(ending(tail(7, 50, None), None, None, 30), Ending::CutOff);
    }
}
