//! What is known of each copy: how far it is read, what the log has beyond that, and why it is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dedupe::{Checkpoint, Offset, PartitionId, Sequence, Window};
use crate::metrics::StandbyStatus;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::expiry::expire_stored;
use crate::pipeline::journal::{Journal, Journals, Phase};
use crate::pipeline::kinds::Kinds;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{LogId, LogReads};

/// Interval between two measurements of the lag.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Longest interval between two deletions of owners. For short windows it is a part of their length.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(10);
const EXPIRIES_PER_WINDOW: u32 = 16;
/// Owners in the index of a window of which nothing is sealed, before they are removed from it.
const UNSEALED_MAX: u64 = 65_536;

/// A copy.
#[derive(Debug, Default)]
struct Copy {
    /// The next offset of the journal to read.
    next: Offset,
    /// Whether the journal was read to its end since the copy was begun.
    is_complete: bool,
    /// The stable end of the journal when the lag was measured.
    end: Option<Offset>,
    refused: Option<RefusedCopy>,
    /// Whether the journal had lost its start when reading began there.
    is_cut: bool,
}

/// Why a copy cannot be continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedCopy {
    pub why: String,
    /// Whether a takeover that reads the journal there fails, too.
    pub is_lasting: bool,
}

/// All copies of a process, by their journals.
#[derive(Debug)]
pub(super) struct Copies {
    all: BTreeMap<PartitionId, Copy>,
    expire_interval: Duration,
    /// Monotonic time.
    measured: Option<Duration>,
}

impl Copies {
    /// Without copies. `kinds` as configured.
    pub fn of(kinds: &Kinds) -> Self {
        let shortest = kinds.iter().filter_map(|kind| Some(kind.window?.exact)).min();
        let shortest = shortest.unwrap_or(EXPIRE_INTERVAL);
        Self {
            all: BTreeMap::new(),
            expire_interval: EXPIRE_INTERVAL.min(shortest / EXPIRIES_PER_WINDOW),
            measured: None,
        }
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.measured = None;
    }

    /// A copy begins to read at this offset.
    pub fn started(&mut self, id: PartitionId, next: Offset, is_cut: bool) {
        let copy = self.all.entry(id).or_default();
        *copy = Copy { next, is_cut, refused: copy.refused.take(), ..Copy::default() };
    }

    /// A copy is not read any more.
    pub fn stopped(&mut self, id: PartitionId) {
        self.all.get_mut(&id).into_iter().for_each(|copy| copy.is_complete = false);
    }

    /// Whether the journal had lost its start when reading began there. Returns that once.
    pub fn take_cut(&mut self, id: PartitionId) -> bool {
        self.all.get_mut(&id).is_some_and(|copy| std::mem::take(&mut copy.is_cut))
    }

    /// Records below `next` are read. Returns whether the copy has become complete.
    pub fn read(&mut self, id: PartitionId, next: Offset, is_end: bool) -> bool {
        let copy = self.all.entry(id).or_default();
        copy.next = copy.next.max(next);
        if !is_end {
            return false;
        }
        copy.refused = None;
        !std::mem::replace(&mut copy.is_complete, true)
    }

    /// Notes why a copy is refused. Returns whether that is another reason than before.
    pub fn refuse(&mut self, id: PartitionId, refusal: &RefusedCopy) -> bool {
        let copy = self.all.entry(id).or_default();
        copy.refused.replace(refusal.clone()).as_ref() != Some(refusal)
    }

    /// The refused copies.
    pub fn refusals(&self) -> impl Iterator<Item = (PartitionId, &RefusedCopy)> {
        self.all.iter().filter_map(|(id, copy)| Some((*id, copy.refused.as_ref()?)))
    }

    /// Whether every copy that can be read was read to the end.
    pub fn are_complete(&self, journals: &Journals) -> bool {
        let is_complete = |id: PartitionId| self.all.get(&id).is_some_and(|copy| copy.is_complete);
        journals.iter().all(|it| matches!(it.phase(), Phase::Locating(_)) || is_complete(it.id))
    }

    /// Deletes stored owners that no worker needs any more, if that is due: by the group's newest checkpoints.
    pub fn expire<W: WorkerPorts>(
        &self,
        ctx: &mut Context<W>,
        group: &BTreeMap<PartitionId, Checkpoint>,
        now: Duration,
    ) -> Result<(), WorkerError> {
        let is_bounded = ctx.options.keeps(Safeguard::StandbyExpiry);
        let due = ctx.journals.all_restoring_mut().filter(|(_, it)| it.next_expiry <= now);
        for (id, restoring) in due {
            restoring.next_expiry = now + self.expire_interval;
            if !is_bounded {
                let read_ms = restoring.windows.committed_ms();
                restoring.windows.set_horizon(read_ms);
            }
            expire_stored(&mut ctx.store, id, &mut restoring.windows, group.get(&id))?;
        }
        Ok(())
    }

    /// Requests where the journals end, if that is due.
    pub fn measure<W: WorkerPorts>(&mut self, ctx: &Context<W>, now: Duration) {
        if self.measured.is_some_and(|last| now.saturating_sub(last) < MEASURE_INTERVAL) {
            return;
        }
        self.measured = Some(now);
        let ids = self.measured(&ctx.journals);
        let logs: Vec<LogId> = ids.iter().copied().map(LogId::state).collect();
        if logs.is_empty() {
            return;
        }
        match ctx.log.stable_ends(&logs, REQUEST_TIMEOUT) {
            Ok(ends) => {
                for (id, end) in ids.into_iter().zip(ends) {
                    self.all.entry(id).or_default().end = Some(end);
                }
            }
            Err(failed) => tracing::debug!(%failed, "requesting the lag of standby copies failed"),
        }
    }

    /// The journals that count in the lag: those that are followed, and those whose copy cannot be used.
    fn measured(&self, journals: &Journals) -> Vec<PartitionId> {
        let is_refused = |id| self.all.get(&id).is_some_and(|copy| copy.refused.is_some());
        journals.ids(|journal| is_followed(journal) || is_refused(journal.id))
    }

    pub fn status(&self, journals: &Journals) -> StandbyStatus {
        let lag = |id: PartitionId| {
            let copy = self.all.get(&id)?;
            Some(copy.end?.saturating_sub(copy.next))
        };
        StandbyStatus {
            journals: journals.ids(is_followed).len() as u64,
            complete: self.all.values().filter(|copy| copy.is_complete).count() as u64,
            lag_records: self.measured(journals).into_iter().map(lag).sum(),
            refused: self.refusals().map(|(_, refusal)| refusal.why.clone()).next(),
            blocks: None,
            slow: None,
        }
    }
}

/// Whether it is read or loaded.
fn is_followed(journal: &Journal) -> bool {
    matches!(journal.phase(), Phase::Restoring(_) | Phase::Loading(_))
}

/// Removes owners from the indexes: where nothing is sealed, only their stamps are used.
pub(super) fn empty_indexes(journals: &mut Journals) {
    for (_, restoring) in journals.all_restoring_mut() {
        restoring.windows.iter_mut().for_each(|(_, window)| empty_index(window, UNSEALED_MAX));
    }
}

fn empty_index(window: &mut Window, most: u64) {
    if window.unsealed() >= most
        && let Some(range) = window.to_seal(i64::MAX, Sequence::MAX)
    {
        window.seal(range.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedupe::Digest;
    use crate::dedupe::{Coordinates, Identity, Owner, Positions, TimeSource, WindowLimits};

    const OWNERS: u64 = 50;
    const T: i64 = 1_000_000;

    fn restore(window: &mut Window, number: u64) {
        let time_ms = T + 1_000 * number.cast_signed();
        let owner = |offset: Offset| Owner {
            at: Coordinates { partition: 0, offset },
            time_ms,
            identity: Identity(u128::from(offset).to_le_bytes()),
            digest: Digest::NONE,
        };
        let owners: Vec<Owner> = (number * OWNERS..(number + 1) * OWNERS).map(owner).collect();
        window.set_horizon(time_ms);
        window.restore(&owners);
        empty_index(window, 2 * OWNERS);
    }

    #[test]
    fn a_window_of_which_nothing_is_sealed_keeps_stamps_and_no_index() {
        let exact = Duration::from_mins(1);
        let limits = WindowLimits { exact, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
        let mut window = Window::new(limits, Positions::keyed([7; 16]));
        (0..30).for_each(|number| restore(&mut window, number));
        assert!(window.unsealed() < 2 * OWNERS, "{}", window.unsealed());
        assert_eq!(window.ids(), 30 * OWNERS);
        (30..200).for_each(|number| restore(&mut window, number));
        assert!(window.unsealed() < 2 * OWNERS && window.memory_in_index() < 64 << 10);
        assert!((59 * OWNERS..=63 * OWNERS).contains(&window.ids()), "a minute is kept: {}", window.ids());
    }
}
