//! Detects stalled partitions, which deliver no records although the log has more, and reassigns them inside the client.
//!
//! librdkafka sometimes loses the fetcher of a partition, or records that it has fetched. The partition stays assigned,
//! no error is reported, and the lag of the partition grows until the next rebalance.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::metrics::Stall;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::order::Order;
use crate::pipeline::partition::stall::{Fetching, StallDetector, no_record};
use crate::pipeline::partition::topic::RawEnd;
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::ports::Source;

/// How long a partition with more records may deliver none before it counts as stalled. A leader election takes a few seconds,
/// and a metadata update up to ten.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the partitions are compared with their logs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where the logs of the raw partitions end. This is read by other clients than the worker's own, because a client that has lost a
/// fetcher does not receive new log ends.
///
/// Written by the topic monitor, read by the workers. Clones share the same ends.
#[derive(Debug, Clone)]
pub struct StableEnds {
    shared: Arc<Mutex<Shared>>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    ends: BTreeMap<PartitionId, RawEnd>,
    /// See [`StableEnds::fastest_ms`].
    fastest_ms: i64,
    /// See [`StableEnds::silent`].
    silent: BTreeMap<PartitionId, Offset>,
}

impl Default for StableEnds {
    fn default() -> Self {
        Self::with_patience(STALL_TIMEOUT)
    }
}

impl StableEnds {
    /// Creates an empty set. A partition counts as stalled after `patience`.
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self { shared: Arc::default(), patience }
    }

    /// The committed stream time of the fastest partition now, epoch milliseconds. To be read before the ends are requested.
    #[must_use]
    pub fn fastest_ms(&self) -> i64 {
        self.lock().fastest_ms
    }

    /// The partitions of which the client returns no records, each with its next offset, although the log ends later. Another reader has to
    /// find out whether there are any before that end, or only markers and aborted records.
    #[must_use]
    pub fn silent(&self) -> BTreeMap<PartitionId, Offset> {
        self.lock().silent.clone()
    }

    /// Sets the last stable offsets and the high watermarks of these partitions. `fastest_ms` is [`Self::fastest_ms`] before the
    /// request.
    pub fn note(
        &self,
        stable: &BTreeMap<PartitionId, Offset>,
        high: &BTreeMap<PartitionId, Offset>,
        fastest_ms: i64,
    ) {
        let mut shared = self.lock();
        let ends = stable.iter().map(|(id, stable)| {
            // A partition without a known high watermark never counts as read to its end.
            let high = high.get(id).copied().unwrap_or(Offset::MAX);
            let known = shared.ends.get(id).filter(|known| known.stable == *stable);
            let empty_from = known.and_then(|known| known.empty_from);
            (*id, RawEnd { stable: *stable, high, fastest_ms, empty_from })
        });
        let ends: Vec<_> = ends.collect();
        shared.ends.extend(ends);
    }

    /// Notes that these partitions have no committed record between an offset and their last stable one, which is `stable`.
    pub fn note_empty(&self, empty: &BTreeMap<PartitionId, Offset>, stable: &BTreeMap<PartitionId, Offset>) {
        let mut shared = self.lock();
        for (id, from) in empty {
            if let Some(end) = shared.ends.get_mut(id).filter(|end| stable.get(id) == Some(&end.stable)) {
                end.empty_from = Some(*from);
            }
        }
    }

    fn all(&self) -> BTreeMap<PartitionId, RawEnd> {
        self.lock().ends.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The comparison of the partitions with the ends of their logs.
#[derive(Debug, Default)]
pub(crate) struct StallCheck {
    ends: StableEnds,
    /// Monotonic time of the last comparison.
    compared: Option<Duration>,
}

impl StallCheck {
    /// Compares with these ends.
    pub fn new(ends: StableEnds) -> Self {
        Self { ends, compared: None }
    }

    fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.compared.is_none_or(|last| now.saturating_sub(last) >= CHECK_INTERVAL);
        if is_due {
            self.compared = Some(now);
        }
        is_due
    }

    /// Reassigns stalled partitions inside the client.
    pub(crate) fn wake_stalled<W: WorkerPorts>(
        &mut self,
        ctx: &mut Context<W>,
        source: &W::Source,
    ) -> Result<(), WorkerError> {
        let now = ctx.clock.elapsed();
        if !self.is_due(now) {
            return Ok(());
        }
        let (ends, patience) = (self.ends.all(), self.ends.patience);
        let (mut stalled, mut silent) = (Vec::new(), Vec::new());
        for (id, running) in ctx.partitions.running_mut().filter(|(_, running)| !running.held) {
            let next = running.state.next;
            let Some(end) = ends.get(&id).copied() else {
                running.stall = StallDetector::default();
                continue;
            };
            let seen = Fetching { next, fetched_end: source.end(id), log_end: end.stable };
            let place = (next, end.stable);
            let is_silent = running.stall.is_refetched(place) && !end.is_empty_from(next);
            silent.push((id, is_silent.then_some(next)));
            // A partition that waits for a schema is paused.
            let stall = if running.is_open() { running.stall.observe(now, seen, patience) } else { None };
            let unread = (is_silent && running.stall.is_unread(place, patience)).then_some(end.stable);
            if unread.is_some() && running.unread.is_none() {
                tracing::warn!(partition = id, "{}", no_record(next, end.stable));
            }
            running.unread = unread;
            if let Some(stall) = stall {
                ctx.report.metrics.stalled_fetches(stall).inc();
                log_stall(id, seen, stall);
                let last = running.state.epoch.filter(|epoch| epoch.covers(next));
                stalled.push((id, next, last));
            }
        }
        if let Some(topic) = &mut ctx.topic {
            let measures = ctx.options.keeps(Safeguard::Lateness);
            let most_ms = if measures { ctx.options.kinds.longest_ms() } else { 0 };
            topic.note_ends(&mut ctx.partitions, &ends, most_ms);
        }
        let clocks = ctx.partitions.iter().filter_map(|p| Some(p.state()?.windows.committed_time_ms()));
        {
            let mut shared = self.ends.lock();
            shared.fastest_ms = clocks.max().unwrap_or(0);
            // Other workers have other partitions.
            shared.silent.retain(|id, _| silent.iter().all(|(own, _)| own != id));
            shared.silent.extend(silent.into_iter().filter_map(|(id, next)| Some((id, next?))));
        }
        if stalled.is_empty() {
            return Ok(());
        }
        source.reassign(&stalled).map_err(|failed| WorkerError::from(failed).rewinding())?;
        for (id, running) in ctx.partitions.running_mut() {
            if stalled.iter().any(|(stalled, ..)| *stalled == id) {
                running.order = Order::default();
            }
        }
        Ok(())
    }
}

fn log_stall(partition: PartitionId, seen: Fetching, stall: Stall) {
    let Fetching { next, fetched_end, log_end } = seen;
    match stall {
        Stall::NotFetched => tracing::warn!(
            partition,
            next,
            fetched_end,
            log_end,
            "the client has stopped fetching a partition; reassigning it"
        ),
        Stall::NotDelivered => {
            tracing::info!(
                partition,
                next,
                log_end,
                "no records delivered although the log has more; refetching"
            );
        }
    }
}
