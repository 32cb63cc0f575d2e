//! What is known of each copy: how far it is read, what the log has beyond that, and why it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::dedupe::{Checkpoint, Offset, PartitionId, Window};
use crate::metrics::StandbyStatus;
use crate::pipeline::REQUEST_TIMEOUT;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::kinds::Kinds;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::restoring::Restoring;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{LogId, LogTails};

/// Interval between two measurements of the lag.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Longest interval between two searches for owners to delete. For short windows it is a part of their length.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(10);
const EXPIRIES_PER_WINDOW: u32 = 16;
/// Owners in the index of a window of which nothing is sealed, before they are removed from it.
const UNSEALED_MAX: u64 = 65_536;

/// A copy.
#[derive(Debug, Default)]
struct Copy {
    /// The next state offset to read.
    next: Offset,
    /// Whether the log was read to its end since the copy was begun.
    is_complete: bool,
    /// The stable end of the log when the lag was measured.
    end: Option<Offset>,
    /// Why it is refused.
    refused: Option<String>,
    /// Whether the log had lost its start when reading began there.
    is_cut: bool,
}

/// All copies of a process.
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

    /// A copy begins to read at this state offset.
    pub fn started(&mut self, id: PartitionId, next: Offset, is_cut: bool) {
        let copy = self.all.entry(id).or_default();
        *copy = Copy { next, is_cut, refused: copy.refused.take(), ..Copy::default() };
    }

    /// A copy is not read any more.
    pub fn stopped(&mut self, id: PartitionId) {
        self.all.get_mut(&id).into_iter().for_each(|copy| copy.is_complete = false);
    }

    /// Whether the log had lost its start when reading began there. Returns that once.
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
    pub fn refuse(&mut self, id: PartitionId, why: &str) -> bool {
        let copy = self.all.entry(id).or_default();
        copy.refused.replace(why.to_owned()).as_deref() != Some(why)
    }

    /// Whether every copy that can be read was read to the end.
    pub fn are_complete(&self, partitions: &Partitions) -> bool {
        let is_complete = |p: &Partition| self.all.get(&p.id).is_some_and(|copy| copy.is_complete);
        partitions.iter().all(|p| matches!(p.phase(), Phase::Locating(_)) || is_complete(p))
    }

    /// Deletes stored owners that no worker needs any more, if that is due.
    pub fn expire<W: WorkerPorts>(
        &mut self,
        ctx: &mut Context<W>,
        (group, horizon_ms): (&BTreeMap<PartitionId, Option<Checkpoint>>, Option<i64>),
        now: Duration,
    ) -> Result<(), WorkerError> {
        let is_topic_wide = ctx.options.is_topic_wide();
        let is_bounded = ctx.options.keeps(Safeguard::StandbyExpiry);
        for Restoring { state, expiry, purpose, .. } in
            ctx.partitions.all_restoring_mut().filter(|it| it.expiry.is_due(now))
        {
            let (id, windows) = (state.id, &mut state.windows);
            let checkpoint = group.get(&id).and_then(Option::as_ref);
            // A checkpoint has the horizon and the stream time of the commit before it. Its own commit could be undone, and another one with
            // a later time could replace it between two looks. The horizon alone may be later than the partition's own time.
            let horizon_ms = if is_topic_wide { horizon_ms.unwrap_or(0) } else { i64::MAX };
            let own_ms = checkpoint.and_then(|checkpoint| checkpoint.settled_ms).unwrap_or(0);
            let most_ms = if is_bounded { horizon_ms.min(own_ms) } else { i64::MAX };
            let settled_ms = most_ms.min(windows.stream_time_ms());
            // Where owners are sealed, the windows must not drop what the store keeps: the next ones would be sealed without it.
            windows.set_horizon(settled_ms);
            let settled = (settled_ms, checkpoint);
            expiry.delete((&mut ctx.store, id), (windows, *purpose), settled, (now, self.expire_interval))?;
        }
        Ok(())
    }

    /// Requests where the logs end, if that is due.
    pub fn measure<W: WorkerPorts>(&mut self, ctx: &Context<W>, now: Duration) {
        if self.measured.is_some_and(|last| now.saturating_sub(last) < MEASURE_INTERVAL) {
            return;
        }
        self.measured = Some(now);
        let ids = self.measured(&ctx.partitions);
        let journals: BTreeSet<PartitionId> = ids.iter().map(|id| ctx.options.journal_of(*id)).collect();
        let logs: Vec<LogId> = journals.iter().copied().map(LogId::state).collect();
        if logs.is_empty() {
            return;
        }
        match ctx.log.stable_ends(&logs, REQUEST_TIMEOUT) {
            Ok(ends) => {
                let ends: BTreeMap<PartitionId, Offset> = journals.into_iter().zip(ends).collect();
                for id in ids {
                    self.all.entry(id).or_default().end = ends.get(&ctx.options.journal_of(id)).copied();
                }
            }
            Err(failed) => tracing::debug!(%failed, "requesting the lag of standby copies failed"),
        }
    }

    /// The partitions that count in the lag: those that are followed, and those whose copy cannot be used.
    fn measured(&self, partitions: &Partitions) -> Vec<PartitionId> {
        let is_refused = |id: &PartitionId| self.all.get(id).is_some_and(|copy| copy.refused.is_some());
        partitions.ids(|p| is_followed(p) || is_refused(&p.id))
    }

    /// `is_topic_wide`: all copies follow one journal.
    pub fn status(&self, partitions: &Partitions, is_topic_wide: bool) -> StandbyStatus {
        let lag = |id: &PartitionId| {
            let copy = self.all.get(id)?;
            Some(copy.end?.saturating_sub(copy.next))
        };
        let is_refused = |copy: &&Copy| copy.refused.is_some();
        StandbyStatus {
            partitions: followed(partitions).len() as u64,
            complete: self.all.values().filter(|copy| copy.is_complete).count() as u64,
            lag_records: {
                let measured = self.measured(partitions);
                let mut lags = measured.iter().map(lag);
                if is_topic_wide { lags.try_fold(0, |most, lag| Some(lag?.max(most))) } else { lags.sum() }
            },
            refused: self.all.values().find(is_refused).and_then(|copy| copy.refused.clone()),
            slow: None,
        }
    }
}

/// The partitions that are read or loaded.
fn followed(partitions: &Partitions) -> Vec<PartitionId> {
    partitions.ids(is_followed)
}

fn is_followed(partition: &Partition) -> bool {
    matches!(partition.phase(), Phase::Restoring(_) | Phase::Loading(_))
}

/// Removes owners from the indexes: where nothing is sealed, only their arrival times are used.
pub(super) fn empty_indexes(partitions: &mut Partitions) {
    for restoring in partitions.all_restoring_mut() {
        let id = restoring.state.id;
        restoring.state.windows.iter_mut().for_each(|(_, window)| empty_index(id, window, UNSEALED_MAX));
    }
}

fn empty_index(id: PartitionId, window: &mut Window, most: u64) {
    if window.unsealed() >= most
        && let Some(range) = window.to_seal(id, (i64::MAX, Offset::MAX))
    {
        window.seal(range.next);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::dedupe::{
        Block, BlockView, HashKind, Identity, Owners, Positions, Sequence, StoredOwner, TimeSource,
        WindowLimits,
    };

    const BLOCK: u64 = 50;

    /// What the store has.
    struct EverySecond;

    impl Owners for EverySecond {
        type Error = Infallible;

        fn owner(&self, number: Sequence, _: Option<Identity>) -> Result<StoredOwner, Infallible> {
            Ok(StoredOwner { offset: 2 * number, identity: None })
        }
    }

    fn restore(window: &mut Window, number: u64) {
        let (first, next) = (number * 2 * BLOCK, (number + 1) * 2 * BLOCK);
        let at_ms = 1_000_000 + 1_000 * number.cast_signed();
        let entries =
            (first..next).step_by(2).map(|owner| (owner, Identity(u128::from(owner).to_le_bytes())));
        let empty = Block::empty(HashKind::Xxh3, 0.into(), first..next, at_ms);
        let block = Block { entries: entries.collect(), ..empty };
        window.restore(&BlockView::verified(&block.encode()).unwrap(), Offset::MAX).unwrap();
        empty_index(0, window, 2 * BLOCK);
    }

    #[test]
    fn a_window_of_which_nothing_is_sealed_keeps_arrival_times_and_no_index() {
        let exact = Duration::from_mins(1);
        let limits = WindowLimits { exact, max_ids: u64::MAX, time: TimeSource::Record, bloom: None };
        let mut window = Window::new(limits, Positions::keyed([7; 16]));
        (0..30).for_each(|number| restore(&mut window, number));
        assert!(window.unsealed() < 2 * BLOCK, "{}", window.unsealed());
        assert_eq!(window.ids(), 30 * BLOCK);
        // A repair voids a part, and other blocks follow.
        window.truncate(15 * 2 * BLOCK, &EverySecond).unwrap();
        assert_eq!((window.ids(), window.next()), (15 * BLOCK, 15 * 2 * BLOCK));
        (15..200).for_each(|number| restore(&mut window, number));
        assert!(window.unsealed() < 2 * BLOCK && window.memory_in_index() < 64 << 10);
        assert!((59 * BLOCK..=63 * BLOCK).contains(&window.ids()), "a minute is kept: {}", window.ids());
    }
}
