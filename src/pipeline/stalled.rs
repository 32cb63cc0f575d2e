//! Partitions whose records have stopped coming though the log has more: they are assigned anew inside the client.
//!
//! librdkafka loses the fetcher of a partition now and then, or what it had fetched. The partition stays assigned,
//! no error comes, and its lag grows until the next rebalance.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::order::Order;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::metrics::Stall;
use crate::ports::Source;

/// How long nothing may come of a partition that has more. A leader that moves takes a few seconds, its metadata
/// up to ten.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the partitions are compared with their logs.
const LOOK: Duration = Duration::from_secs(1);

/// Where the logs of the raw topic end for `read_committed` readers, asked by other clients than the worker's own:
/// a client that has lost a fetcher does not learn of new ends.
///
/// Written by whoever watches the topics, read by the workers. Cloning gives the same ends.
#[derive(Debug, Clone)]
pub struct StableEnds {
    ends: Arc<Mutex<BTreeMap<PartitionId, Offset>>>,
    patience: Duration,
}

impl Default for StableEnds {
    fn default() -> Self {
        Self::with_patience(PATIENCE)
    }
}

impl StableEnds {
    /// No end is known yet; a partition counts as stalled after so long.
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self { ends: Arc::default(), patience }
    }

    /// Notes where these logs end.
    pub fn note(&self, ends: &BTreeMap<PartitionId, Offset>) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).extend(ends);
    }

    fn all(&self) -> BTreeMap<PartitionId, Offset> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is known of a running partition's fetching at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetching {
    /// The next offset to process.
    pub next: Offset,
    /// The stable end of the log as the client's own last fetch gave it; `None` before the first.
    pub fetched_end: Option<Offset>,
    /// The stable end of the log as another client got it.
    pub log_end: Offset,
}

impl Fetching {
    /// What is missing: the client has not heard of what the log has, or has and delivers nothing of it.
    fn missing(self) -> Option<Stall> {
        if self.log_end <= self.next {
            None
        } else if self.fetched_end.is_none_or(|end| end < self.log_end) {
            Some(Stall::NotFetched)
        } else {
            Some(Stall::NotDelivered)
        }
    }
}

/// Since when a partition has stood still.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silence {
    /// What was seen when the silence began, and when that was.
    since: Option<(Fetching, Duration)>,
    /// Where assigning the partition anew brought nothing: next offset, and end of the log. There may be nothing
    /// but markers of transactions and aborted records, which no fetch delivers.
    in_vain: Option<(Offset, Offset)>,
}

impl Silence {
    /// Takes in how things are; returns what is missing when the partition has to be assigned anew.
    pub fn observe(&mut self, now: Duration, seen: Fetching, patience: Duration) -> Option<Stall> {
        let missing = seen.missing();
        let since = self.since.filter(|(then, _)| {
            // A record or a new end came from the fetcher: it is alive.
            then.next == seen.next && then.fetched_end == seen.fetched_end && then.missing() == missing
        });
        let (then, began) = *self.since.insert(since.unwrap_or((seen, now)));
        let stall = missing.filter(|_| now.saturating_sub(began) >= patience)?;
        let place = (seen.next, then.log_end.max(seen.log_end));
        if stall == Stall::NotDelivered && self.in_vain == Some(place) {
            return None;
        }
        *self = Self { since: None, in_vain: Some(place) };
        Some(stall)
    }
}

impl<W: World> Core<W> {
    /// Assigns those partitions anew that have stopped coming though their logs have more.
    pub(super) fn wake_stalled(&mut self, source: &W::Source) -> Result<(), Trouble> {
        let now = self.clock.elapsed();
        if self.compared.is_some_and(|last| now.saturating_sub(last) < LOOK) {
            return Ok(());
        }
        self.compared = Some(now);
        let (ends, patience) = (self.stable_ends.all(), self.stable_ends.patience);
        let mut stalled = Vec::new();
        for partition in self.partitions.iter_mut() {
            let (id, next) = (partition.id, partition.next);
            let Some(log_end) = ends.get(&id).copied().filter(|_| partition.is_running()) else {
                partition.silence = Silence::default();
                continue;
            };
            let seen = Fetching { next, fetched_end: source.end(id), log_end };
            if let Some(stall) = partition.silence.observe(now, seen, patience) {
                self.report.stalled(stall);
                tell(id, seen, stall);
                let last = partition.epoch.filter(|epoch| epoch.covers(next));
                stalled.push((id, next, last));
            }
        }
        if stalled.is_empty() {
            return Ok(());
        }
        source.reassign(&stalled).map_err(|failed| Trouble::from(failed).rewinding())?;
        for (id, ..) in stalled {
            if let Some(partition) = self.partitions.get_mut(id) {
                partition.order = Order::default();
            }
        }
        Ok(())
    }
}

fn tell(partition: PartitionId, seen: Fetching, stall: Stall) {
    let Fetching { next, fetched_end, log_end } = seen;
    match stall {
        Stall::NotFetched => tracing::warn!(
            partition,
            next,
            fetched_end,
            log_end,
            "the client has stopped fetching a partition; assigning it anew"
        ),
        Stall::NotDelivered => {
            tracing::info!(partition, next, log_end, "no record comes though the log goes on; fetching anew");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: fn(u64) -> Duration = Duration::from_secs;

    fn at(next: Offset, fetched_end: Option<Offset>, log_end: Offset) -> Fetching {
        Fetching { next, fetched_end, log_end }
    }

    /// What each look returned, a second apart.
    fn looks(silence: &mut Silence, from: u64, seconds: u64, seen: Fetching) -> Vec<(u64, Stall)> {
        let look = |second| Some((second, silence.observe(SECOND(second), seen, PATIENCE)?));
        (from..from + seconds).filter_map(look).collect()
    }

    #[test]
    fn a_partition_without_lag_is_never_stalled() {
        let mut silence = Silence::default();
        assert_eq!(looks(&mut silence, 0, 1_000, at(10, Some(10), 10)), []);
        // The end is asked seldom: the fetcher knows more.
        assert_eq!(looks(&mut silence, 2_000, 1_000, at(20, Some(20), 10)), []);
        // Nothing is there that the client could have heard of.
        assert_eq!(looks(&mut silence, 4_000, 1_000, at(0, None, 0)), []);
    }

    #[test]
    fn what_is_not_fetched_is_asked_for_again_and_again() {
        for fetched_end in [None, Some(10)] {
            let mut silence = Silence::default();
            let stalled = looks(&mut silence, 0, 100, at(10, fetched_end, 11));
            // Each time, patience begins anew with the look after.
            assert_eq!(stalled, [30, 61, 92].map(|second| (second, Stall::NotFetched)));
        }
    }

    #[test]
    fn a_slow_partition_is_not_a_stalled_one() {
        let mut silence = Silence::default();
        for second in 0..1_000 {
            // One record in 29 seconds, with thousands waiting.
            let next = second / 29;
            assert_eq!(silence.observe(SECOND(second), at(next, Some(9_000), 9_000), PATIENCE), None);
        }
        for second in 1_000..2_000 {
            // Nothing but markers and aborted records: the end moves, and the client knows.
            let end = 10_000 + second / 20;
            assert_eq!(silence.observe(SECOND(second), at(100, Some(end), end - 1), PATIENCE), None);
        }
    }

    #[test]
    fn the_end_of_a_transaction_is_tried_once_and_not_for_ever() {
        let mut silence = Silence::default();
        let marker = at(10, Some(11), 11);
        assert_eq!(looks(&mut silence, 0, 1_000, marker), [(30, Stall::NotDelivered)]);
        // One more transaction, once more.
        let two = at(10, Some(13), 13);
        assert_eq!(looks(&mut silence, 1_000, 1_000, two), [(1_030, Stall::NotDelivered)]);
        // A record that is really missing is fetched by that.
        assert_eq!(looks(&mut silence, 2_000, 1_000, at(13, Some(13), 13)), []);
    }

    #[test]
    fn patience_begins_with_the_lag_and_not_with_the_last_record() {
        let mut silence = Silence::default();
        assert_eq!(looks(&mut silence, 0, 3_600, at(10, Some(10), 10)), []);
        assert_eq!(looks(&mut silence, 3_600, 31, at(10, Some(10), 12)), [(3_630, Stall::NotFetched)]);
    }
}
