//! Checks whether a restore has read the whole log.
//!
//! The client reports the end of a partition as an event. A follower, a new leader or a lost connection can cause that event
//! too early. The checkpoint names the last committed entry, so the last entry of the restore is compared with it, and the numbers of the
//! entries show whether some are missing. After an
//! early end the log is read on, or again, and also when another reader finds more records after the end. A log whose start was
//! deleted by retention is reported as a shorter window.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::coordinates::ranges;
use crate::dedupe::{Offset, PartitionId, Tail, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::Lacking;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::Phase;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Leftover, LogId, LogTails, StateItem};

/// Number of consecutive early ends of one partition after which an operator has to act.
const ATTEMPTS: u32 = 10;
/// Pause before a restore that ended early is restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// Timeout of reading records after the reported end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How a restore ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The last entry read is the last committed one.
    Complete,
    /// The log no longer holds that entry.
    CutOff,
    /// The log holds that entry, and it was not read.
    Early,
}

/// Compares the last entry read with the one that the checkpoint names. Without a named one the restore counts as
/// complete.
fn ending(named: Option<Tail>, read: Option<Tail>, confirmed: Option<Offset>, low: Offset) -> Ending {
    let Some(named) = named else { return Ending::Complete };
    match read {
        Some(read) if read.names_same(&named) => Ending::Complete,
        // The local state reaches beyond the named entry.
        None if confirmed.is_some_and(|confirmed| confirmed >= named.next) => Ending::Complete,
        _ if named.from.is_none_or(|from| from < low) => Ending::CutOff,
        _ => Ending::Early,
    }
}

impl Restoring {
    /// The last committed entry, as the checkpoint names it.
    fn named(&self) -> Option<Tail> {
        self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.tail)
    }

    /// Whether the last committed entry is read, as the checkpoint names it.
    fn has_read_all(&self) -> bool {
        self.named().zip(self.last).is_some_and(|(named, read)| read.names_same(&named))
    }

    /// Whether entries beyond the committed offset were read: another worker commits, or the group was rewound.
    fn exceeds_committed(&self) -> bool {
        self.committed.zip(self.covered).is_some_and(|(committed, covered)| covered > committed)
    }
}

/// The restore, if it has read the whole log, of which the client reported the end `next`. Otherwise it continues, or the partition is restored again.
pub(crate) fn restored<W: WorkerPorts>(
    ctx: &mut Context<W>,
    mut restoring: Box<Restoring>,
    next: Offset,
) -> Result<Option<Box<Restoring>>, WorkerError> {
    if !ctx.options.keeps(Safeguard::RestoreEnd) {
        return Ok(Some(restoring));
    }
    let id = restoring.state.id;
    let is_more = !restoring.has_read_all() && is_more_to_read(ctx, &restoring, next)?;
    if restoring.exceeds_committed() && !is_more {
        return Ok(Some(restoring));
    }
    let has_advanced = restoring.ended_at.replace(restoring.needed) != Some(restoring.needed);
    if is_more && has_advanced {
        let journal = ctx.options.journal_of(id);
        if let Some(partition) = ctx.partitions.get_mut(id) {
            partition.enter(Phase::Restoring(restoring));
        }
        ctx.reopen_journal(journal);
        return Ok(None);
    }
    let found = if is_more {
        Ending::Early
    } else {
        ending(restoring.named(), restoring.last, restoring.confirmed, restoring.low)
    };
    let Some(partition) = ctx.partitions.get_mut(id) else { return Ok(None) };
    if found != Ending::Early {
        partition.early_ends = 0;
        if let Some(ms) = reaches(&restoring, found) {
            note_cut(id, ms, &mut restoring.state.windows);
        }
        return Ok(Some(restoring));
    }
    let (committed, read) = (restoring.named(), restoring.last);
    tracing::warn!(
        partition = id,
        read = read.map(tracing::field::display),
        committed = committed.map(tracing::field::display),
        "the restore ended before the last committed entry; reading again"
    );
    read_again(ctx, id, committed).map(|()| None)
}

/// The journal lacks committed records, as far as it was read.
pub(crate) fn misses_entries<W: WorkerPorts>(
    ctx: &mut Context<W>,
    partitions: &[PartitionId],
    gap: Lacking,
) -> Result<(), WorkerError> {
    tracing::warn!(
        partitions = %ranges(partitions.iter().copied()),
        last = gap.last,
        next = gap.next,
        "the journal lacks records of committed entries; reading again"
    );
    for id in partitions {
        let named = ctx.partitions.restoring_mut(*id).and_then(|restoring| restoring.named());
        ctx.reopen_journal(ctx.options.journal_of(*id));
        read_again(ctx, *id, named)?;
    }
    Ok(())
}

fn read_again<W: WorkerPorts>(
    ctx: &mut Context<W>,
    id: PartitionId,
    named: Option<Tail>,
) -> Result<(), WorkerError> {
    let now = ctx.clock.elapsed();
    let Some(partition) = ctx.partitions.get_mut(id) else { return Ok(()) };
    partition.early_ends += 1;
    if partition.early_ends >= ATTEMPTS {
        return Err(ends_early(&ctx.options, id, named).into());
    }
    partition.unload(now + PAUSE);
    Ok(())
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
    let journal = ctx.options.journal_of(id);
    let ends = ctx.log.stable_ends(&[LogId::state(journal)], REQUEST_TIMEOUT)?;
    let end = ends.first().copied().unwrap_or_default();
    let mut from = next;
    // The first record is enough, and in topic scope the rest can be gigabytes.
    while from < end {
        let to = end.min(from + ctx.options.evidence_records);
        let rest = ctx.log.tails(&[(journal, from..to)], Leftover::Committed, READ_TIMEOUT)?;
        if rest.iter().any(|item| matches!(item, StateItem::Block { .. })) {
            return Ok(true);
        }
        ctx.progress.advance();
        from = to;
    }
    Ok(false)
}

fn ends_early(options: &WorkerOptions, id: PartitionId, named: Option<Tail>) -> Fatal {
    let named = named.map_or_else(String::new, |tail| format!(" ({tail})"));
    Fatal::Operator(format!(
        "{ATTEMPTS} restores of partition {id} from topic {} ended before the last committed entry{named}, or lack records: check the \
         replicas of that partition (kafka-topics.sh --describe); dedupd continues when the leader shows all committed \
         records. If they are lost, continue from the committed offsets with windows that start empty: set topics.state to a new topic and {}",
        options.state,
        options.to_current()
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
    use crate::dedupe::EntryName;

    /// An entry with this number and checksum.
    #[expect(clippy::unnecessary_wraps, reason = "the arguments are options")]
    fn tail(number: u64, crc: u32, from: Option<Offset>) -> Option<Tail> {
        Some(Tail { entry: EntryName { number, crc }, next: 10 * number, from })
    }

    #[test]
    fn a_restore_that_reads_the_last_committed_entry_is_complete() {
        assert_eq!(ending(tail(5, 7, Some(9)), tail(5, 7, Some(11)), None, 0), Ending::Complete);
        assert_eq!(ending(None, tail(5, 7, Some(11)), None, 0), Ending::Complete);
        assert_eq!(ending(tail(5, 7, Some(9)), None, Some(50), 0), Ending::Complete);
    }

    #[test]
    fn an_end_before_the_last_committed_entry_is_early() {
        assert_eq!(ending(tail(5, 7, Some(9)), tail(4, 6, Some(5)), None, 0), Ending::Early);
        assert_eq!(ending(tail(5, 7, Some(9)), None, None, 0), Ending::Early);
        assert_eq!(ending(tail(5, 7, Some(9)), None, Some(40), 0), Ending::Early);
        // Same number, different content: the log was truncated and written again.
        assert_eq!(ending(tail(5, 7, Some(9)), tail(5, 8, Some(9)), None, 0), Ending::Early);
    }

    #[test]
    fn a_restore_without_an_entry_that_retention_deleted_is_cut_off() {
        assert_eq!(ending(tail(5, 7, Some(9)), None, None, 30), Ending::CutOff);
        assert_eq!(ending(tail(5, 7, None), None, None, 30), Ending::CutOff);
    }
}
