//! Deletes stored owners that no window needs any more, while the state topic is read: for a start, or for a standby copy.
//!
//! An owner that still counts for the next worker must stay, so only what every later worker has dropped too is deleted: by
//! the stream time of a transaction before the last one that was read, because a repair may undo the last one, and its records are
//! then read again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::dedupe::{Checkpoint, KindId, Offset, PartitionId, WindowId, Windows};
use crate::ports::{Store, StoreError};

/// Most blocks that are looked at in one pass over a window.
const BLOCKS: usize = 64;

/// The stream time by which the owners of a copy expire.
#[derive(Debug, Clone, Copy, Default)]
struct ExpiryClock {
    /// The time of the last transaction that was read, epoch milliseconds.
    latest_ms: i64,
    /// A time before it.
    settled_ms: i64,
}

impl ExpiryClock {
    /// Takes the stream time of the partition, as far as the copy was read, and in topic scope the horizon, `None` while that is not
    /// known. Returns the time by which owners expire; 0 while that is not known.
    fn advance(&mut self, stream_ms: i64, is_topic_wide: bool, horizon_ms: Option<i64>) -> i64 {
        let now_ms = if is_topic_wide { horizon_ms.map_or(0, |ms| ms.min(stream_ms)) } else { stream_ms };
        if now_ms > self.latest_ms {
            (self.settled_ms, self.latest_ms) = (self.latest_ms, now_ms);
        }
        self.settled_ms
    }
}

/// The stream time before which the stored owners of a window do not count, at this time of the clock. `dropped_ms` is the latest
/// owner that a limit has dropped in the worker that owns the partition. In epoch milliseconds.
fn oldest_ms(settled_ms: i64, length_ms: i64, dropped_ms: Option<i64>) -> Option<i64> {
    let by_time = (settled_ms > 0).then(|| settled_ms.saturating_sub(length_ms));
    by_time.max(dropped_ms)
}

/// What a checkpoint states about owners that limits have dropped from a window.
fn dropped_ms(checkpoint: Option<&Checkpoint>, kind: KindId) -> Option<i64> {
    checkpoint?.windows.iter().find(|window| window.kind == kind)?.dropped_ms
}

/// One past the last owner of a window that was deleted.
#[derive(Debug, Clone, Copy, Default)]
struct Deleted(Offset);

impl Deleted {
    /// Deletes stored owners of a window of this length. See [`oldest_ms`] for the times. Returns whether there may be more to delete.
    fn advance(
        &mut self,
        (store, window): (&mut impl Store, WindowId),
        (settled_ms, length_ms, dropped_ms): (i64, i64, Option<i64>),
    ) -> Result<bool, StoreError> {
        let Some(oldest_ms) = oldest_ms(settled_ms, length_ms, dropped_ms) else { return Ok(false) };
        let (first, is_more) = first_needed(store, window, oldest_ms)?;
        if first <= self.0 {
            return Ok(false);
        }
        store.expire(window, first)?;
        self.0 = first;
        Ok(is_more)
    }
}

/// What was deleted of a partition.
#[derive(Debug, Default)]
pub struct StoredExpiry {
    clock: ExpiryClock,
    deleted: BTreeMap<KindId, Deleted>,
    /// Monotonic time of the next look.
    next: Duration,
}

impl StoredExpiry {
    /// Whether it is time to delete.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.next <= now
    }

    /// The stream time by which owners expire, as far as the state topic was read; 0 while that is not known. `horizon_ms` as in
    /// [`Checkpoint`], if the windows expire by it.
    pub fn settled_ms(&mut self, windows: &Windows, is_topic_wide: bool, horizon_ms: Option<i64>) -> i64 {
        self.clock.advance(windows.stream_time_ms(), is_topic_wide, horizon_ms)
    }

    /// Deletes stored owners of a partition by this time, and those that limits have dropped according to the checkpoint. The next look is after
    /// `interval`, or at once if there may be more to delete.
    pub fn delete(
        &mut self,
        (store, id): (&mut impl Store, PartitionId),
        windows: &Windows,
        (settled_ms, checkpoint): (i64, Option<&Checkpoint>),
        (now, interval): (Duration, Duration),
    ) -> Result<(), StoreError> {
        let mut is_more = false;
        self.next = now + interval;
        for (kind, window) in windows.iter() {
            let times = (settled_ms, window.configured_ms(), dropped_ms(checkpoint, kind));
            is_more |= self.deleted.entry(kind).or_default().advance((store, kind.window(id)), times)?;
        }
        self.next = if is_more { now } else { self.next };
        Ok(())
    }
}

/// The lowest offset behind the first stored owners, all of which arrived before `oldest_ms`; and whether there may be more of them.
fn first_needed(store: &impl Store, window: WindowId, oldest_ms: i64) -> Result<(Offset, bool), StoreError> {
    let is_expired = |last_ms: i64| last_ms > 0 && last_ms < oldest_ms;
    let mut first = 0;
    for mark in store.sealed(window).iter().flat_map(|range| &range.marks) {
        if !is_expired(mark.time_ms.1) {
            return Ok((first, false));
        }
        first = mark.next;
    }
    let mut left = BLOCKS;
    store.scan_from(window, 0, &mut |view| {
        left -= 1;
        if !is_expired(view.header.time_last_ms) {
            return Ok(ControlFlow::Break(()));
        }
        first = first.max(view.header.next);
        Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((first, left == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_topic_scope_owners_expire_by_the_slowest_partition() {
        let settled = |is_topic_wide, horizon_ms| {
            let mut clock = ExpiryClock::default();
            clock.advance(10_000, is_topic_wide, horizon_ms);
            clock.advance(20_000, is_topic_wide, horizon_ms.map(|ms: i64| ms + 1));
            clock.settled_ms
        };
        assert_eq!(settled(false, None), 10_000);
        assert_eq!(settled(true, Some(8_000)), 8_000);
        assert_eq!(settled(true, None), 0);
    }

    #[test]
    fn what_a_limit_has_dropped_expires_earlier() {
        assert_eq!(oldest_ms(8_000, 1_000, None), Some(7_000));
        assert_eq!(oldest_ms(8_000, 1_000, Some(7_500)), Some(7_500));
        assert_eq!(oldest_ms(8_000, 1_000, Some(10)), Some(7_000));
        assert_eq!(oldest_ms(0, 1_000, None), None);
    }

    #[test]
    fn the_last_transaction_alone_deletes_nothing() {
        let mut clock = ExpiryClock::default();
        assert_eq!([50, 50, 50].map(|ms| clock.advance(ms, false, None)), [0, 0, 0]);
        assert_eq!([60, 60, 40, 70].map(|ms| clock.advance(ms, false, None)), [50, 50, 50, 60]);
    }
}
