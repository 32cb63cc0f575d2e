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
use crate::pipeline::partition::partitions::{Others, Partitions};
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::{Locating, Partition, Phase};
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
    horizon_ms: i64,
    /// Where the logs ended at some time, until all records before that are read. See [`Self::note_ends`].
    earlier_ends: BTreeMap<PartitionId, RawEnd>,
}

impl TopicScope {
    /// Without identities. `filter` is empty.
    #[must_use]
    pub fn new(filter: TopicFilter) -> Self {
        Self { filter, is_open: false, horizon_ms: 0, earlier_ends: BTreeMap::new() }
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
            Some(next >= earlier.high.min(end.high) || end.is_empty_from(next))
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
            let behind_ms = fastest_ms.saturating_sub(state.windows.stream_time_ms()).min(most_ms);
            state.lateness.read_to_end(*end, is_exact.then_some(behind_ms));
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
    /// At its last record, ms; at most the longest window.
    pub ms: i64,
    /// Whether it has committed a record since that was measured.
    is_outdated: bool,
    /// The stream time that its next record is not before, as far as that follows from reading it to its end; 0 when that was not seen.
    caught_up_ms: i64,
}

impl Lateness {
    /// As a checkpoint has it, `is_outdated` if that has none. The measurement survives a restart, what was read to its end does not.
    #[must_use]
    pub fn resumed(ms: i64, is_outdated: bool) -> Self {
        Self { ms, is_outdated, ..Self::default() }
    }

    /// Whether it is not known of the last records yet.
    #[must_use]
    pub fn is_outdated(self) -> bool {
        self.is_outdated
    }

    /// A transaction with records of the partition was committed.
    pub fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// What the checkpoint of a transaction with records of the partition has: it cannot be measured yet.
    #[must_use]
    pub fn at_least(self, behind_ms: i64, most_ms: i64) -> i64 {
        self.ms.max(behind_ms.min(most_ms))
    }

    /// Called when the partition has no unread record: it was read up to `end`. `behind_ms` is how far it is behind the fastest partition, if no
    /// other one has unread records from before its last one. Otherwise the fastest one might still be found to be faster.
    fn read_to_end(&mut self, end: RawEnd, behind_ms: Option<i64>) {
        if let Some(ms) = behind_ms.filter(|_| self.is_outdated) {
            (self.ms, self.is_outdated) = (ms, false);
        }
        if !self.is_outdated {
            self.caught_up_ms = self.caught_up_ms.max(end.fastest_ms.saturating_sub(self.ms));
        }
    }
}

impl DedupeState {
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
        let owners = Stored { store, window: kind.id.window(partition) };
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
        Phase::Locating(Locating { state: Some(state), .. }) => {
            state.open.is_none() && partition.checked_from.is_some()
        }
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
    /// Whether it is known that there are only markers and aborted records from this offset on.
    #[must_use]
    pub fn is_empty_from(&self, next: Offset) -> bool {
        self.stable == self.high && self.empty_from.is_some_and(|from| from <= next)
    }

    /// Whether there was no unread record from this offset on: it is the high watermark, or what lies before that is only markers and
    /// aborted records.
    #[must_use]
    pub fn is_reached(&self, next: Offset) -> bool {
        next >= self.high || self.is_empty_from(next)
    }
}
