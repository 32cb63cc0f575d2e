//! Deletes stored owners that no window needs any more, while the state topic is read: for a start, or for a standby copy.
//!
//! An owner that still counts for the next worker must stay, so only what every later worker has dropped too is deleted: by a stream
//! time that no repair undoes, because the records of a transaction that is undone are read again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::dedupe::{Checkpoint, KindId, Offset, PartitionId, WindowId, Windows};
use crate::pipeline::partition::restoring::ReadPurpose;
use crate::ports::{Store, StoreError};

/// Most runs of owners that are looked at in one pass over a window.
const RUNS: usize = 64;

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
    /// Deletes stored owners of a window of this length below `most`. See [`oldest_ms`] for the times. Returns whether there may be more to
    /// delete.
    fn advance(
        &mut self,
        (store, window): (&mut impl Store, WindowId),
        (settled_ms, length_ms, dropped_ms): (i64, i64, Option<i64>),
        most: Offset,
    ) -> Result<bool, StoreError> {
        let Some(oldest_ms) = oldest_ms(settled_ms, length_ms, dropped_ms) else { return Ok(false) };
        let (first, is_more) = first_needed(store, window, oldest_ms)?;
        let first = first.min(most);
        if first <= self.0 {
            return Ok(false);
        }
        store.expire(window, first, oldest_ms)?;
        self.0 = first;
        Ok(is_more)
    }
}

/// What was deleted of a partition.
#[derive(Debug, Default)]
pub struct StoredExpiry {
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

    /// Deletes stored owners of a partition by this time, and those that limits have dropped according to the checkpoint. The next look is after
    /// `interval`, or at once if there may be more to delete.
    pub fn delete(
        &mut self,
        (store, id): (&mut impl Store, PartitionId),
        (windows, purpose): (&Windows, ReadPurpose),
        (settled_ms, checkpoint): (i64, Option<&Checkpoint>),
        (now, interval): (Duration, Duration),
    ) -> Result<(), StoreError> {
        let mut is_more = false;
        self.next = now + interval;
        for (kind, window) in windows.iter() {
            let times = (settled_ms, window.configured_ms(), dropped_ms(checkpoint, kind));
            // A window drops its owners in ranges, and by limits of its own. An owner that it has, and the store has not, would be taken for damage.
            // A copy is loaded again before anything is decided by it.
            let most = if purpose == ReadPurpose::Start { window.first_live() } else { Offset::MAX };
            let deleted = self.deleted.entry(kind).or_default();
            is_more |= deleted.advance((store, kind.window(id)), times, most)?;
        }
        self.next = if is_more { now } else { self.next };
        Ok(())
    }
}

/// The stored owners at the front of a window, all of which arrived before a stream time.
#[derive(Debug, Clone, Copy)]
struct Expired {
    oldest_ms: i64,
    /// One past the last of them.
    next: Offset,
}

impl Expired {
    /// Adds the owners below `next`, the last of which arrived at that time. Returns whether the ones behind them may have expired too.
    fn add(&mut self, last_ms: i64, next: Offset) -> bool {
        // Owners that arrived before stream time was known expire with the first ones that arrived later.
        let is_known = last_ms > 0;
        if is_known && last_ms < self.oldest_ms {
            self.next = self.next.max(next);
        }
        !is_known || last_ms < self.oldest_ms
    }
}

/// The lowest offset behind the first stored owners, all of which arrived before `oldest_ms`; and whether there may be more of them.
fn first_needed(store: &impl Store, window: WindowId, oldest_ms: i64) -> Result<(Offset, bool), StoreError> {
    let mut expired = Expired { oldest_ms, next: 0 };
    let sealed = store.sealed(window);
    let mut marks = sealed.iter().flat_map(|range| &range.marks);
    if !marks.all(|mark| expired.add(mark.time_ms.1, mark.next)) {
        return Ok((expired.next, false));
    }
    let mut left = RUNS;
    store.scan_from(window, 0, &mut |run| {
        left -= 1;
        let may_be_more = expired.add(run.times_ms.1, run.covered.end);
        Ok(if may_be_more && left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok((expired.next, left == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_limit_has_dropped_expires_earlier() {
        assert_eq!(oldest_ms(8_000, 1_000, None), Some(7_000));
        assert_eq!(oldest_ms(8_000, 1_000, Some(7_500)), Some(7_500));
        assert_eq!(oldest_ms(8_000, 1_000, Some(10)), Some(7_000));
        assert_eq!(oldest_ms(0, 1_000, None), None);
    }

    #[test]
    fn owners_from_before_stream_time_was_known_expire_with_the_next_ones() {
        let of = |times: &[i64]| {
            let mut expired = Expired { oldest_ms: 100, next: 0 };
            let added =
                (10..).step_by(10).zip(times).take_while(|(next, ms)| expired.add(**ms, *next)).count();
            (added, expired.next)
        };
        assert_eq!(of(&[0, 0, 99, 99, 100]), (4, 40));
        assert_eq!(of(&[0, 100, 101]), (1, 0));
        assert_eq!(of(&[0, -1]), (2, 0));
    }
}
