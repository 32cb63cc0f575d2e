//! Copies in other partitions (`dedupe.scope = "topic"`): what a worker needs beside the windows of its partitions.
//!
//! Two rules make the look-up exact:
//! - A record is processed only while the worker has every partition of raw, and the state of each of them is complete and
//!   settled, in memory ([`has_settled_state`]). Otherwise an owner could be missing that the record must be compared with.
//!   Partitions that are ready earlier are *held*: running, but paused.
//! - Windows expire by the *horizon*, which no partition reads its next record before: that of a partition with unread records is not
//!   before its clock. One that was read to its end has the clock of the fastest partition, less its *lateness*: clocks can differ
//!   all the time. Otherwise an owner could be gone when a copy that is closer to it than the window is read.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::dedupe::{
    CopyOf, IndexKey, Offset, PartitionGroups, PartitionId, RecordTime, TopicFilter, Window,
};
use crate::pipeline::kinds::Kind;
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::partitions::{Others, Partitions};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::{Locating, Partition, Phase};
use crate::pipeline::safeguard::Safeguard;
use crate::ports::{Store, StoreError};

/// Windows whose memory is prefetched before the first of them is read.
const AHEAD: usize = 8;

/// What topic scope adds to a worker.
#[derive(Debug)]
pub struct TopicScope {
    /// The identities of all windows.
    pub filter: TopicFilter,
    /// Whether the state of all partitions is there, so that records are processed.
    pub is_open: bool,
    /// Whether the group has a checkpoint for any partition.
    pub has_checkpoint: bool,
    horizon_ms: i64,
    /// Where the logs ended at some time, until all records before that are read. See [`Self::note_ends`].
    earlier_ends: BTreeMap<PartitionId, RawEnd>,
}

impl TopicScope {
    /// Without identities. `filter` is empty.
    #[must_use]
    pub fn new(filter: TopicFilter) -> Self {
        Self { filter, is_open: false, has_checkpoint: false, horizon_ms: 0, earlier_ends: BTreeMap::new() }
    }

    /// The stream time by which windows expire, epoch milliseconds. It is that of the commit before the last one: a broker may
    /// have undone the last one in some partitions, whose records are then read again.
    #[must_use]
    pub fn horizon_ms(&self) -> i64 {
        self.horizon_ms
    }

    /// Continues at the horizon of a checkpoint. The horizon never goes back.
    pub fn resume(&mut self, horizon_ms: i64) {
        self.horizon_ms = self.horizon_ms.max(horizon_ms);
    }

    /// The partition that holds back the horizon, and by how much. `None` while not all states are in memory.
    #[must_use]
    pub fn lagging(&self, partitions: &Partitions) -> Option<Lagging> {
        let (reached_ms, partition) = partitions.slowest()?;
        // The horizon follows with the next commit.
        let behind_ms = match self.horizon_ms.max(reached_ms) {
            // The time of a partition is not known yet: no owner expires.
            ..=0 => partitions.windows().map(Window::held_ms).max()?,
            slowest_ms => partitions.fastest_ms().saturating_sub(slowest_ms),
        };
        Some(Lagging { partition, behind: Duration::from_millis(u64::try_from(behind_ms).unwrap_or(0)) })
    }

    /// Notes which partitions have no unread record, where that is certain, and how late they are: at most `most_ms`, the longest window.
    /// `ends` are those that were requested last.
    pub fn note_ends(
        &mut self,
        partitions: &mut Partitions,
        ends: &BTreeMap<PartitionId, RawEnd>,
        most_ms: i64,
    ) {
        // Once all partitions are read beyond earlier ends, no record from before these is later than the fastest partition now.
        let is_passed = |p: &Partition| {
            let (next, end) = (p.running()?.state.next, ends.get(&p.id)?);
            let earlier = self.earlier_ends.get(&p.id)?;
            Some(next >= earlier.high.min(end.high) || end.is_reached(next))
        };
        let are_passed = partitions.iter().all(|p| is_passed(p) == Some(true));
        let fastest_ms = partitions.fastest_ms();
        for (id, running) in partitions.running_mut() {
            let state = &mut running.state;
            // Records of the open transaction may have to be read again.
            let end = ends.get(&id).filter(|end| state.open.is_none() && end.is_reached(state.next));
            let Some(end) = end else { continue };
            let is_exact =
                are_passed && self.earlier_ends.get(&id).is_some_and(|earlier| state.next <= earlier.high);
            let behind_ms = fastest_ms.saturating_sub(state.windows.stream_time_ms());
            state.lateness.read_to_end(*end, is_exact.then_some(behind_ms), most_ms);
        }
        if are_passed || partitions.iter().any(|p| !self.earlier_ends.contains_key(&p.id)) {
            self.earlier_ends.clone_from(ends);
        }
    }

    /// Called when a transaction has committed and the windows have expired. `slowest_ms` is the clock of the slowest partition
    /// with unread records, `None` where that is not known.
    pub fn committed(&mut self, slowest_ms: Option<i64>) {
        self.filter.expire(self.horizon_ms);
        slowest_ms.filter(|_| self.is_open).into_iter().for_each(|ms| self.resume(ms));
    }
}

/// The slowest partition, which holds back the clock by which all windows expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lagging {
    /// Its number.
    pub partition: PartitionId,
    /// How far that clock is behind the one of the fastest partition.
    pub behind: Duration,
}

impl fmt::Display for Lagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} is {} s behind", self.partition, self.behind.as_secs())
    }
}

/// How far the clock of a partition is behind the fastest one when it is read to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// At its last record, ms; `None` while that is not known.
    ms: Option<i64>,
    /// Whether the checkpoint of the committed offset does not have it.
    is_unsaved: bool,
    /// The stream time that its next record is not before, as far as that follows from reading it to its end; 0 when that was not seen.
    caught_up_ms: i64,
}

impl Lateness {
    /// As a checkpoint has it, of a partition with this stream time: what was read to its end does not survive a restart. One without records is
    /// not late.
    #[must_use]
    pub fn of(saved_ms: Option<i64>, stream_time_ms: i64) -> Self {
        Self { ms: saved_ms.or((stream_time_ms <= 0).then_some(0)), ..Self::default() }
    }

    /// A transaction of the partition was committed, with a checkpoint that has this.
    pub fn save(&mut self, ms: Option<i64>) {
        (self.ms, self.is_unsaved) = (ms, false);
    }

    /// Called when the partition has no unread record: it was read up to `end`. `behind_ms` is how far it is behind the fastest partition, if no
    /// other one has unread records from before its last one. Otherwise the fastest one might still be found to be faster. It counts as late by
    /// `most_ms` at most, and while nothing else is known.
    fn read_to_end(&mut self, end: RawEnd, behind_ms: Option<i64>, most_ms: i64) {
        if let (None, Some(_)) = (self.ms, behind_ms) {
            (self.ms, self.is_unsaved) = (behind_ms, true);
        }
        let late_ms = self.ms.unwrap_or(most_ms).clamp(0, most_ms);
        self.caught_up_ms = self.caught_up_ms.max(end.fastest_ms.saturating_sub(late_ms));
    }
}

impl WorkerOptions {
    /// What a checkpoint has while it is not known how late the partition is.
    pub(crate) fn unknown_lateness(&self) -> Option<i64> {
        (!self.keeps(Safeguard::KnownLateness)).then_some(0)
    }
}

impl DedupeState {
    /// How late the partition is after the open transaction, ms; `None` while that is not known: its records are measured when they are committed.
    #[must_use]
    pub fn late_ms(&self) -> Option<i64> {
        self.lateness.ms.filter(|_| self.open.as_ref().is_none_or(|open| open.records == 0))
    }

    /// Whether a restart would find the partition later than it is by more than a small part of the longest window.
    #[must_use]
    pub fn has_unsaved_lateness(&self, longest_ms: i64) -> bool {
        let silent_ms = self.lateness.caught_up_ms.saturating_sub(self.windows.stream_time_ms());
        self.lateness.is_unsaved && silent_ms > longest_ms / 256
    }

    /// The stream time that the next record of the partition is not before, epoch milliseconds, unless it is later than its records
    /// were so far.
    #[must_use]
    pub fn reached_ms(&self) -> i64 {
        self.windows.stream_time_ms().max(self.lateness.caught_up_ms)
    }
}

/// A copy of a record in another partition, in the windows of this kind in the partitions of these groups.
pub fn copy_elsewhere<T: Store>(
    others: &Others<'_>,
    store: &T,
    (number, kind): (usize, &Kind),
    (time, key, groups): (RecordTime, &IndexKey, PartitionGroups),
) -> Result<Option<(PartitionId, CopyOf)>, StoreError> {
    let windows = || others.windows_in(groups, number);
    let prefetch = |(_, window): (PartitionId, &Window)| window.prefetch(key);
    windows().take(AHEAD).for_each(prefetch);
    let mut ahead = windows().skip(AHEAD);
    for (partition, window) in windows() {
        ahead.next().into_iter().for_each(prefetch);
        let owners = Stored { store, window: kind.id.window(partition), is_copy: false };
        if let Some(owner) = window.copy_of(time, key, &owners)? {
            return Ok(Some((partition, owner)));
        }
    }
    Ok(None)
}

/// Whether the state of a partition is in memory, complete, and that of its committed offset and the open transaction.
#[must_use]
pub fn has_settled_state(partition: &Partition) -> bool {
    match partition.phase() {
        Phase::Running(_) => true,
        Phase::Locating(Locating { state: Some(state), .. }) => state.open.is_none() && partition.is_checked,
        Phase::Locating(_) | Phase::Loading(_) | Phase::Restoring(_) => false,
    }
}

/// Whether nothing is to be done for a partition before the next attempt for its rejected record. Its state is needed meanwhile: the
/// records of other partitions are compared with it.
#[must_use]
pub fn waits_for_retry(partition: &Partition, now: Duration) -> bool {
    partition.rejections.waits(now) && has_settled_state(partition)
}

/// Where the log of a raw partition ended, and the stream time of the fastest partition at some moment before that, epoch
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEnd {
    /// The last stable offset.
    pub stable: Offset,
    /// The high watermark. Beyond the last stable offset there are records of open transactions, which cannot be read yet.
    pub high: Offset,
    /// The stream time.
    pub fastest_ms: i64,
    /// Another reader has found no committed record between this offset and the last stable one.
    pub empty_from: Option<Offset>,
}

impl RawEnd {
    /// Whether it is known that there are only markers and aborted records from this offset up to the last stable one.
    #[must_use]
    pub fn is_empty_from(&self, next: Offset) -> bool {
        self.empty_from.is_some_and(|from| from <= next)
    }

    /// Whether there was no unread record from this offset on: it is the high watermark, or what lies before that is only markers and
    /// aborted records.
    #[must_use]
    pub fn is_reached(&self, next: Offset) -> bool {
        next >= self.high || self.stable >= self.high && self.is_empty_from(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lateness_that_no_measurement_gives_counts_as_the_nearest_possible_one() {
        let end = RawEnd { stable: 1, high: 1, fastest_ms: 10_000, empty_from: None };
        for (saved, counts_as) in [
            (Some(i64::MIN), 0),
            (Some(-5), 0),
            (Some(0), 0),
            (Some(700), 700),
            (Some(1_001), 1_000),
            (Some(i64::MAX), 1_000),
            (None, 1_000),
        ] {
            let mut lateness = Lateness::of(saved, 1);
            lateness.read_to_end(end, None, 1_000);
            assert_eq!(end.fastest_ms - lateness.caught_up_ms, counts_as, "{saved:?}");
        }
    }
}
