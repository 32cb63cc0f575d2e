//! Compares the partitions with the ends of their logs: how far they can be read, which ones end without a record, and which ones are
//! stalled. A stalled partition delivers no records although the log has more, and is reassigned inside the client.
//!
//! librdkafka sometimes loses the fetcher of a partition, or records that it has fetched. The partition stays assigned,
//! no error is reported, and the lag of the partition grows until the next rebalance.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{Offset, PartitionId};
use crate::locked::Locked;
use crate::pipeline::access::Access;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::partition::clock::RawEnd;
use crate::pipeline::partition::order::Order;
use crate::pipeline::partition::stall::{
    COMPARE_INTERVAL, Fetching, STALL_TIMEOUT, StallDetector, no_record,
};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::safeguard::Safeguard;
use crate::pipeline::time::is_due;
use crate::ports::Source;

/// How long a partition with more offsets may deliver no record before another reader looks for one.
const SILENCE: Duration = Duration::from_secs(5);

/// Where the logs of the raw partitions end. This is read by other clients than the worker's own, because a client that has lost a
/// fetcher does not receive new log ends.
///
/// Written by the topic monitor, read by the workers. Clones share the same ends.
#[derive(Debug, Clone)]
pub struct StableEnds {
    shared: Arc<Mutex<Shared>>,
    patience: Duration,
    silence: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    ends: BTreeMap<PartitionId, RawEnd>,
    /// See [`StableEnds::fastest_ms`].
    fastest_ms: i64,
    /// See [`StableEnds::silent`].
    silent: BTreeMap<PartitionId, Offset>,
    /// Those that the other reader is looking at, as long as they have been silent since.
    asked: BTreeMap<PartitionId, Offset>,
}

impl Default for StableEnds {
    fn default() -> Self {
        Self::with_patience(STALL_TIMEOUT)
    }
}

impl StableEnds {
    /// Creates an empty set. A partition counts as stalled after `patience`.
    pub fn with_patience(patience: Duration) -> Self {
        Self { shared: Arc::default(), patience, silence: SILENCE.min(patience) }
    }

    /// Another reader looks for records in a partition that has returned none for `silence`.
    #[must_use]
    pub fn silent_after(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// The committed stream time of the fastest partition now, epoch milliseconds. To be read before the ends are requested.
    pub fn fastest_ms(&self) -> i64 {
        self.shared.locked().fastest_ms
    }

    /// The partitions of which the client returns no records, each with its next offset, although the log ends later. Another reader has to
    /// find out whether there are any before that end, or only markers and aborted records. To be called before it reads.
    pub fn silent(&self) -> BTreeMap<PartitionId, Offset> {
        let mut shared = self.shared.locked();
        shared.asked = shared.silent.clone();
        shared.asked.clone()
    }

    /// Up to which offset a partition can be read. `fetched` is the high watermark that its client received last: it may be newer, but shows nothing
    /// about open transactions.
    pub(super) fn readable(&self, id: PartitionId, fetched: Option<Offset>) -> Option<Offset> {
        match self.shared.locked().ends.get(&id) {
            Some(end) if end.stable < end.high => Some(end.stable),
            end => fetched.max(end.map(|end| end.stable)),
        }
    }

    /// Sets the last stable offsets and the high watermarks of these partitions, of which the high watermarks were read first. `fastest_ms` is [`Self::fastest_ms`] before the
    /// request.
    pub fn note(
        &self,
        stable: &BTreeMap<PartitionId, Offset>,
        high: &BTreeMap<PartitionId, Offset>,
        fastest_ms: i64,
    ) {
        let mut shared = self.shared.locked();
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

    /// Notes that these partitions of [`Self::silent`] have no committed record between that offset and their last stable one, which is
    /// `stable`. Without effect for a partition that has moved or was sought since.
    pub fn note_empty(&self, empty: &BTreeMap<PartitionId, Offset>, stable: &BTreeMap<PartitionId, Offset>) {
        let Shared { ends, asked, .. } = &mut *self.shared.locked();
        for (id, from) in empty.iter().filter(|(id, from)| asked.get(id) == Some(from)) {
            if let Some(end) = ends.get_mut(id).filter(|end| stable.get(id) == Some(&end.stable)) {
                end.empty_from = Some(*from);
            }
        }
    }

    /// Publishes which partitions of a worker are silent, and drops what was found in those that were not: their logs may have been replaced.
    fn publish(&self, own: &[OwnSilence], fastest_ms: i64) {
        let Shared { ends, silent, asked, fastest_ms: fastest } = &mut *self.shared.locked();
        *fastest = fastest_ms;
        for OwnSilence { id, was_silent, from } in own {
            if !was_silent {
                asked.remove(id);
                ends.get_mut(id).into_iter().for_each(|end| end.empty_from = None);
            }
            silent.remove(id);
            silent.extend(from.map(|from| (*id, from)));
        }
    }

    fn all(&self) -> BTreeMap<PartitionId, RawEnd> {
        self.shared.locked().ends.clone()
    }
}

/// A partition of a worker: whether it has been silent since the last comparison, and its position if another reader is to look there.
struct OwnSilence {
    id: PartitionId,
    was_silent: bool,
    from: Option<Offset>,
}

/// The comparison of the partitions with the ends of their logs.
#[derive(Debug, Default)]
pub(crate) struct StallCheck {
    pub(super) ends: StableEnds,
    /// Monotonic time of the last comparison.
    compared: Option<Duration>,
}

impl StallCheck {
    /// Compares with these ends.
    pub fn new(ends: StableEnds) -> Self {
        Self { ends, compared: None }
    }

    /// Reassigns stalled partitions inside the client. While a transaction can be written, positions also skip the ends of logs that have no
    /// record.
    pub(crate) fn compare<W: WorkerPorts>(&mut self, access: &mut Access<'_, W>) -> Result<(), WorkerError> {
        let now = access.ctx.clock.elapsed();
        if !is_due(&mut self.compared, now, COMPARE_INTERVAL) {
            return Ok(());
        }
        let ends = self.ends.all();
        if access.torn.is_prepared {
            access.skip_empty_ends(&ends, self.ends.silence)?;
        }
        self.wake_stalled(access.ctx, access.source, &ends, now)
    }

    fn wake_stalled<W: WorkerPorts>(
        &self,
        ctx: &mut Context<W>,
        source: &W::Source,
        ends: &BTreeMap<PartitionId, RawEnd>,
        now: Duration,
    ) -> Result<(), WorkerError> {
        let patience = self.ends.patience;
        let (mut stalled, mut silent) = (Vec::new(), Vec::new());
        for partition in ctx.partitions.started_mut() {
            let (id, next) = (partition.id, partition.next);
            let Some(end) = ends.get(&id).copied() else {
                partition.stall = StallDetector::default();
                continue;
            };
            let seen = Fetching { next, fetched_end: source.end(id), log_end: end.stable };
            let was_silent = partition.stall.is_silent(self.ends.silence);
            // A partition that waits for a schema is paused.
            let is_open = partition.is_open();
            let stall = if is_open { partition.stall.observe(now, seen, patience) } else { None };
            let may_have_records = is_open && !end.is_empty_from(next);
            let is_silent = may_have_records && partition.stall.is_silent(self.ends.silence);
            silent.push(OwnSilence { id, was_silent, from: is_silent.then_some(next) });
            let is_unread = may_have_records && partition.stall.is_unread(next, end.stable, patience);
            let unread = is_unread.then_some(end.stable);
            if unread.is_some() && partition.unread.is_none() {
                tracing::warn!(partition = id, "{}", no_record(next, end.stable));
            }
            partition.unread = unread;
            if let Some(stall) = stall {
                ctx.report.metrics.stalled_fetches(stall).inc();
                seen.log(id, stall);
                let (from, last) = partition.position();
                stalled.push((id, from, last));
            }
        }
        // In partition scope the clocks of the windows are independent.
        if ctx.options.is_topic_wide() {
            let measures = ctx.options.keeps(Safeguard::Lateness);
            let most_ms = if measures { ctx.options.kinds.longest_ms() } else { 0 };
            ctx.ends.note(&mut ctx.partitions, ends, most_ms);
        }
        let clocks = ctx.partitions.iter().map(|partition| partition.time.committed_ms());
        self.ends.publish(&silent, clocks.max().unwrap_or(0));
        if stalled.is_empty() {
            return Ok(());
        }
        source.reassign(&stalled).map_err(|failed| WorkerError::from(failed).rewinding())?;
        for partition in ctx.partitions.started_mut() {
            if stalled.iter().any(|(stalled, ..)| *stalled == partition.id) {
                partition.order = Order::with_gap(partition.position().0..partition.next);
            }
        }
        Ok(())
    }
}
