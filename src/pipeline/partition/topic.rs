//! Copies in other partitions (`dedupe.scope = "topic"`): what a worker needs beside the windows of its partitions.
//!
//! Two rules make the look-up exact:
//! - A record is processed only while the worker has every partition of raw, and the state of each of them is complete and
//!   settled, in memory ([`has_settled_state`]). Otherwise an owner could be missing that the record must be compared with.
//!   Partitions that are ready earlier are *held*: running, but paused.
//! - Windows expire by the *horizon*: the clock of the slowest partition that has unread records. Otherwise an owner could be
//!   gone when a copy that is closer to it than the window is read.

use std::time::Duration;

use crate::dedupe::{CopyOf, IndexKey, Offset, PartitionGroups, PartitionId, TopicFilter, Window};
use crate::pipeline::kinds::Kind;
use crate::pipeline::partition::partitions::Others;
use crate::pipeline::partition::state::DedupeState;
use crate::pipeline::partition::stored::Stored;
use crate::pipeline::partition::{Locating, Partition, Phase, Running};
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
}

impl TopicScope {
    /// Without identities. `filter` is empty.
    #[must_use]
    pub fn new(filter: TopicFilter) -> Self {
        Self { filter, is_open: false, horizon_ms: 0 }
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

    /// Called when a transaction has committed and the windows have expired. `slowest_ms` is the clock of the slowest partition
    /// with unread records, `None` where that is not known.
    pub fn committed(&mut self, slowest_ms: Option<i64>) {
        self.filter.expire(self.horizon_ms);
        slowest_ms.filter(|_| self.is_open).into_iter().for_each(|ms| self.resume(ms));
    }
}

impl DedupeState {
    /// How far the partition is read, stream time in epoch milliseconds. A partition that was read to its end counts as the
    /// fastest one at that time.
    #[must_use]
    pub fn reached_ms(&self) -> i64 {
        self.windows.stream_time_ms().max(self.caught_up_ms)
    }
}

/// A copy of a record in another partition, in the windows of this kind in the partitions of these groups. `at_ms` is the stream time
/// of the record's partition.
pub fn copy_elsewhere<T: Store>(
    others: &Others<'_>,
    store: &T,
    (number, kind): (usize, &Kind),
    (at_ms, key, groups): (i64, &IndexKey, PartitionGroups),
) -> Result<Option<(PartitionId, CopyOf)>, StoreError> {
    let windows = || others.windows_in(groups, number);
    let prefetch = |(_, window): (PartitionId, &Window)| window.prefetch(key);
    windows().take(AHEAD).for_each(prefetch);
    let mut ahead = windows().skip(AHEAD);
    for (partition, window) in windows() {
        ahead.next().into_iter().for_each(prefetch);
        let owners = Stored { store, window: kind.id.window(partition) };
        if let Some(owner) = window.copy_of(at_ms, key, &owners)? {
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
}

impl Running {
    /// Notes that the partition has no unread record, if that is certain: it had reached the high watermark, or what lies before
    /// that is only markers and aborted records.
    pub(crate) fn note_read_to_end(&mut self, end: RawEnd) {
        let state = &mut self.state;
        let has_more = state.next < end.high && !end.is_empty_from(state.next);
        // Records of the open transaction may have to be read again.
        if state.open.is_none() && !has_more {
            state.caught_up_ms = state.caught_up_ms.max(end.fastest_ms);
        }
    }
}
