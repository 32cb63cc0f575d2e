//! Checks whether a restore has read the whole log.
//!
//! The client reports the end of a log as an event. A follower, a new leader or a lost connection can cause that event
//! too early. The checkpoint names the last committed entry, so the last entry of the restore is compared with it, and the numbers of the
//! entries show whether some are missing. After an
//! early end the log is read on, or again, and also when another reader finds more records after the end. A log whose start was
//! deleted by retention is reported as a shorter window.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{LastEntry, Offset, PartitionId, Windows};
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::{Fatal, WorkerError};
use crate::pipeline::journal::Phase;
use crate::pipeline::journal::reading::Lacking;
use crate::pipeline::journal::restoring::Restoring;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Isolation, LogId, LogReads, StateItem};

/// Number of consecutive early ends of one journal after which an operator has to act.
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

/// Compares the last entry that is in the windows with the last committed one. Without a committed one the restore counts as complete. Another worker
/// may have committed later ones since.
fn ending(committed: Option<LastEntry>, last: Option<LastEntry>, low: Offset) -> Ending {
    let Some(committed) = committed else { return Ending::Complete };
    match last.map(|last| last.entry) {
        Some(last) if last == committed.entry || last.number > committed.entry.number => Ending::Complete,
        _ if committed.from.is_none_or(|from| from < low) => Ending::CutOff,
        _ => Ending::Early,
    }
}

impl<W: WorkerPorts> Context<W> {
    /// The restore, if it has read the whole journal, of which the client reported the end `next`. Otherwise it continues, or the journal is read again.
    pub(crate) fn if_whole(
        &mut self,
        id: PartitionId,
        mut restoring: Box<Restoring>,
        next: Offset,
    ) -> Result<Option<Box<Restoring>>, WorkerError> {
        if !self.options.keeps(Safeguard::RestoreEnd) {
            return Ok(Some(restoring));
        }
        let found = ending(restoring.located.last_entry, restoring.last, restoring.low);
        let has_all = restoring.located.last_entry.is_some() && found == Ending::Complete;
        let is_more = !has_all && self.is_more_to_read(id, &restoring, next)?;
        let has_advanced = restoring.ended_at.replace(restoring.needed) != Some(restoring.needed);
        if is_more && has_advanced {
            if let Some(journal) = self.journals.get_mut(id) {
                journal.enter(Phase::Restoring(restoring));
            }
            self.reopen_journal(id);
            return Ok(None);
        }
        let found = if is_more { Ending::Early } else { found };
        let Some(journal) = self.journals.get_mut(id) else { return Ok(None) };
        if found != Ending::Early {
            journal.early_ends = 0;
            if let Some(ms) = reaches(&restoring, found) {
                note_cut(id, ms, &mut restoring.windows);
            }
            return Ok(Some(restoring));
        }
        let (committed, read) = (restoring.located.last_entry, restoring.last);
        tracing::warn!(
            journal = id,
            read = read.map(tracing::field::display),
            committed = committed.map(tracing::field::display),
            "the restore ended before the last committed entry; reading again"
        );
        self.read_again(id, committed, None).map(|()| None)
    }

    /// The journal lacks committed records, as far as it was read, or has some twice.
    pub(crate) fn misses_entries(&mut self, id: PartitionId, gap: Lacking) -> Result<(), WorkerError> {
        let (last, next) = (gap.last, gap.next);
        match gap.again_at {
            Some(offset) => {
                tracing::warn!(
                    journal = id,
                    entry = next,
                    offset,
                    last,
                    "the journal has an entry again; reading again"
                );
            }
            None => {
                tracing::warn!(
                    journal = id,
                    last,
                    next,
                    "the journal lacks records of committed entries; reading again"
                );
            }
        }
        let restoring = self.journals.get_mut(id).and_then(|journal| journal.restoring_mut());
        let named = restoring.and_then(|restoring| restoring.located.last_entry);
        self.reopen_journal(id);
        self.read_again(id, named, Some(gap))
    }

    fn read_again(
        &mut self,
        id: PartitionId,
        named: Option<LastEntry>,
        gap: Option<Lacking>,
    ) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        let Some(journal) = self.journals.get_mut(id) else { return Ok(()) };
        journal.early_ends += 1;
        // Retention may have deleted the last entry since.
        journal.is_checked = false;
        if journal.early_ends >= ATTEMPTS {
            let again = gap.filter(|gap| gap.again_at.is_some());
            let fatal = again
                .map_or_else(|| ends_early(&self.options, id, named), |gap| repeats(&self.options, id, gap));
            return Err(fatal.into());
        }
        journal.unload(now + PAUSE);
        Ok(())
    }

    /// Whether another reader finds committed records after the reported end. This creates a client. It is therefore skipped
    /// when the restore has reached the end that the leader reported at its start, also when there was nothing to read.
    fn is_more_to_read(
        &self,
        id: PartitionId,
        restoring: &Restoring,
        next: Offset,
    ) -> Result<bool, WorkerError> {
        if next >= restoring.until {
            return Ok(false);
        }
        let ends = self.log.stable_ends(&[LogId::state(id)], REQUEST_TIMEOUT)?;
        let end = ends.first().copied().unwrap_or_default();
        let mut from = next;
        // The first record is enough, and in topic scope the rest can be gigabytes.
        while from < end {
            let to = end.min(from + self.options.evidence_records);
            let rest = self.log.records(&[(id, from..to)], Isolation::Committed, READ_TIMEOUT)?;
            if rest.iter().any(|item| matches!(item, StateItem::Record { .. })) {
                return Ok(true);
            }
            self.progress.advance();
            from = to;
        }
        Ok(false)
    }
}

fn ends_early(options: &WorkerOptions, id: PartitionId, named: Option<LastEntry>) -> Fatal {
    let named = named.map_or_else(String::new, |last| format!(" ({last})"));
    Fatal::Operator(format!(
        "{ATTEMPTS} restores from topic {} partition {id} ended before the last committed entry{named}, or lack records: check the \
         replicas of that partition (kafka-topics.sh --describe); dedupd continues when the leader shows all committed \
         records. If they are lost, {}",
        options.state,
        with_empty_windows(options)
    ))
}

fn repeats(options: &WorkerOptions, id: PartitionId, gap: Lacking) -> Fatal {
    Fatal::Operator(format!(
        "topic {} partition {id} {}: another program may have copied records there, and a restore cannot rely on their order. An \
         instance that has its local state, up to that entry, starts without them. Otherwise {}",
        options.state,
        gap.what(),
        with_empty_windows(options)
    ))
}

fn with_empty_windows(options: &WorkerOptions) -> String {
    format!(
        "continue from the committed offsets with windows that start empty: set topics.state to a new topic and {}",
        options.to_current()
    )
}

/// The stream time, in epoch milliseconds, from which on the windows are complete when older entries are deleted.
fn reaches(restoring: &Restoring, ending: Ending) -> Option<i64> {
    let is_local = restoring.from > restoring.low;
    let gone = restoring.low > 0 && !is_local;
    let now = || restoring.located.checkpoint.as_ref().map(|checkpoint| checkpoint.stream_time_ms);
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
            journal = id,
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

    const fn entry(number: u64, crc: u32, from: Option<Offset>) -> LastEntry {
        LastEntry { entry: EntryName { number, crc }, from }
    }

    /// The last committed entry.
    const COMMITTED: Option<LastEntry> = Some(entry(5, 7, Some(9)));

    /// How a restore ends whose last entry is this one, of a journal that begins at `low`.
    fn ended(last: Option<(u64, u32)>, low: Offset) -> Ending {
        ending(COMMITTED, last.map(|(number, crc)| entry(number, crc, None)), low)
    }

    #[test]
    fn a_restore_that_has_the_last_committed_entry_is_complete() {
        assert_eq!(ended(Some((5, 7)), 0), Ending::Complete);
        assert_eq!(ended(Some((6, 1)), 0), Ending::Complete);
        assert_eq!(ending(None, None, 0), Ending::Complete);
    }

    #[test]
    fn an_end_before_the_last_committed_entry_is_early() {
        assert_eq!(ended(Some((4, 6)), 0), Ending::Early);
        assert_eq!(ended(None, 0), Ending::Early);
        // Same number, different content: the log was truncated and written again.
        assert_eq!(ended(Some((5, 8)), 0), Ending::Early);
    }

    #[test]
    fn a_restore_without_an_entry_that_retention_deleted_is_cut_off() {
        assert_eq!(ended(None, 30), Ending::CutOff);
    }
}
