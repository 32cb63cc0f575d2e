//! Seals old owners: when, how many, and what follows.
//!
//! Some windows are sealed together: in topic scope those of all partitions and kinds, otherwise those of each partition. When
//! twice the size of a slice is unsealed in them, the owners of the older half are sealed, up to the same stream time in
//! each window, kind by kind. See [`slice_ids`] for its size.
//!
//! The newest part stays in the index, where a copy that arrives soon is found without the disk. Slices that are older than the exact part
//! of their windows become filters, which do not have the owners.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{BloomPart, FILTERS, KindId, PartitionId, SlicePartition, Window, slice_ids};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::partition::topic::TopicScope;
use crate::pipeline::partition::{Partition, Phase};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::time::is_due;
use crate::ports::{FilterJob, SealJob, Sealing, Store, StoreError};

/// Arrivals are slowed down when this many slices are unsealed, and this many owners, which take some 60 MiB.
const BACKLOG: u64 = 4;
const BACKLOG_IDS: u64 = 4_000_000;
/// Pause for each new owner then; twice as long for each further slice. A thread seals some million owners in a second, so a slice or two
/// further, owners arrive as fast as they are sealed. Where other processes use the cores, it seals some hundred thousand, and pauses do not
/// help: at the longest one, some thousand records in a second still arrive.
const PAUSE: Duration = Duration::from_nanos(500);
const DOUBLINGS_MAX: u64 = 7;
/// Longest pause, after which the client is polled.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// During a pause, what is sealed is polled in this interval: the next job begins as soon as one is done.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Owners that are sealed at once, if a slice has fewer: each slice costs a few writes that are synced.
const MOST_AT_ONCE: u64 = 1_000_000;

/// Interval between two looks at all windows, of which a worker can have thousands.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The slices of a standby copy are smaller than those of a worker by this factor: a takeover loads the owners that are not sealed yet, some
/// million in a second. The store merges slices, so that a copy has as many as a worker, and writes each identity about once more for that.
const COPY_PART: u64 = 4;

/// What is being sealed.
#[derive(Debug, Default)]
pub(crate) struct Sealer {
    is_copy: bool,
    cut: Option<Cut>,
    /// Monotonic time of the last look at all windows.
    looked: Option<Duration>,
    /// Unsealed owners at that time, while some are being sealed.
    unsealed: Option<u64>,
}

/// A stream time up to which owners are sealed.
#[derive(Debug)]
struct Cut {
    /// The partition; `None` for all partitions.
    partition: Option<PartitionId>,
    time_ms: i64,
    /// The kinds whose windows are still to be sealed.
    kinds: Vec<KindId>,
    is_urgent: bool,
}

impl Sealer {
    /// Seals a standby copy.
    pub(crate) fn of_copy() -> Self {
        Self { is_copy: true, ..Self::default() }
    }

    /// Continues to seal. Pauses when too many owners are unsealed.
    pub(crate) fn advance<W: WorkerPorts>(&mut self, ctx: &mut Context<W>) -> Result<(), WorkerError> {
        let Some(smallest) = ctx.options.limits.smallest_slice.filter(|_| ctx.store.seals()) else {
            return Ok(());
        };
        let mut sealing = ctx.store.poll_seal()?;
        if matches!(sealing, Sealing::Busy) && self.looks_now(ctx.clock.elapsed()) {
            let until = ctx.clock.elapsed() + self.pause(ctx, smallest);
            while matches!(sealing, Sealing::Busy) && ctx.clock.elapsed() < until {
                ctx.clock.rest(POLL_INTERVAL);
                sealing = ctx.store.poll_seal()?;
            }
        }
        match sealing {
            Sealing::Done(job) => {
                failpoint::pass("after_slice");
                self.unsealed = None;
                sealed(ctx, &job);
                failpoint::pass("after_seal");
            }
            Sealing::Busy | Sealing::Paused => {}
            Sealing::Failed => ctx.report.metrics.parts.state.discarded.inc(),
            Sealing::Idle => {
                self.unsealed = None;
                let looks = self.cut.is_none() && self.looks_now(ctx.clock.elapsed());
                if looks && begin_filter(ctx)? {
                    return Ok(());
                }
                if looks {
                    self.cut = next_cut(ctx, smallest, if self.is_copy { COPY_PART } else { 1 });
                }
                self.begin_next(ctx)?;
            }
        }
        Ok(())
    }

    /// The pause in which no owners arrive, because too many are unsealed.
    fn pause<W: WorkerPorts>(&mut self, ctx: &Context<W>, smallest: u64) -> Duration {
        let groups = groups(ctx).into_values().map(|windows| sizes(&windows, smallest));
        let (unsealed, beyond) = groups.fold((0, None), |(sum, most), (slice, unsealed)| {
            (sum + unsealed, most.max(beyond_backlog(slice, unsealed)))
        });
        let before = self.unsealed.replace(unsealed).unwrap_or(unsealed);
        pause(unsealed.saturating_sub(before), beyond)
    }

    fn looks_now(&mut self, now: Duration) -> bool {
        is_due(&mut self.looked, now, LOOK_INTERVAL)
    }

    /// Begins to seal the windows of the next kind.
    fn begin_next<W: WorkerPorts>(&mut self, ctx: &mut Context<W>) -> Result<(), WorkerError> {
        // The windows of a partition that is being loaded are incomplete, and its owners are being read.
        if self.cut.is_some() && ctx.partitions.iter().any(|p| matches!(p.phase(), Phase::Loading(_))) {
            self.cut = None;
        }
        let Some(cut) = &mut self.cut else { return Ok(()) };
        while let Some(kind) = cut.kinds.pop() {
            let partitions = to_seal(ctx, cut.partition, (kind, cut.time_ms))?;
            let job = SealJob { kind, partitions, is_urgent: cut.is_urgent };
            if !job.partitions.is_empty() {
                tracing::debug!(kind = ctx.options.kinds.name_of(kind), "sealing owners");
                ctx.store.begin_seal(job)?;
                failpoint::pass("after_begin_seal");
                return Ok(());
            }
        }
        self.cut = None;
        Ok(())
    }
}

/// The partition whose windows share slices; `None` when all partitions do.
fn group_of<W: WorkerPorts>(ctx: &Context<W>, partition: PartitionId) -> Option<PartitionId> {
    (!ctx.options.is_topic_wide()).then_some(partition)
}

/// Windows that are sealed together, as [`Sealer`] does.
fn groups<W: WorkerPorts>(ctx: &Context<W>) -> BTreeMap<Option<PartitionId>, Vec<&Window>> {
    let mut groups: BTreeMap<_, Vec<&Window>> = BTreeMap::new();
    for (partition, _, window) in ctx.partitions.kinds().filter(|(_, _, window)| window.can_seal()) {
        groups.entry(group_of(ctx, partition)).or_default().push(window);
    }
    groups
}

/// Identities of these windows in one slice, and the number of those that are not sealed.
fn sizes(windows: &[&Window], smallest: u64) -> (u64, u64) {
    let ids = windows.iter().map(|window| window.ids()).sum();
    (slice_ids(smallest, ids), windows.iter().map(|window| window.unsealed()).sum())
}

/// What to seal next. A slice has one in `part` of the identities that [`sizes`] returns for it.
fn next_cut<W: WorkerPorts>(ctx: &mut Context<W>, smallest: u64, part: u64) -> Option<Cut> {
    let groups = groups(ctx);
    let fullest = groups.into_iter().map(|(partition, windows)| {
        let (slice, unsealed) = sizes(&windows, smallest);
        let cut = smallest.max(slice / part);
        (unsealed / cut, (cut, slice, unsealed), partition, windows)
    });
    let (full, (cut, slice, unsealed), partition, windows) = fullest.max_by_key(|(full, ..)| *full)?;
    let time_ms =
        (full >= 2).then(|| cut_time(&windows, (unsealed - cut).min((2 * cut).max(MOST_AT_ONCE))))?;
    if let Some(topic) = &mut ctx.topic {
        topic.filter.seal_by(slice);
    }
    let kinds = ctx.options.kinds.iter().map(|kind| kind.id).collect();
    Some(Cut { partition, time_ms, kinds, is_urgent: beyond_backlog(slice, unsealed).is_some() })
}

/// The stream time up to which `wanted` owners of these windows have arrived.
fn cut_time(windows: &[&Window], wanted: u64) -> i64 {
    let marks = windows.iter().flat_map(|window| window.unsealed_marks());
    let mut times: Vec<(i64, u64)> = marks.map(|mark| (mark.time_ms.1, mark.count)).collect();
    times.sort_unstable();
    let mut arrived = 0;
    let reached = times.iter().find(|(_, count)| {
        arrived += count;
        arrived >= wanted
    });
    reached.or(times.last()).map_or(0, |(time_ms, _)| *time_ms)
}

/// The owners of a kind that are sealed at this cut: committed ones, which the local store has confirmed.
fn to_seal<W: WorkerPorts>(
    ctx: &mut Context<W>,
    only: Option<PartitionId>,
    (kind, time_ms): (KindId, i64),
) -> Result<Vec<SlicePartition>, StoreError> {
    let mut owners = Vec::new();
    for partition in ctx.partitions.iter_mut().filter(|p| only.is_none_or(|only| p.id == only)) {
        let (id, is_running) = (partition.id, partition.is_running());
        let Some(state) = partition.state_mut() else { continue };
        // The head of a partition without new records is that of its last transaction before its commit.
        let is_settled = is_running && state.open.is_none();
        let head = ctx.store.head(id.into())?;
        let mut confirmed = head.map_or(0, |head| head.confirmed);
        if is_settled && head.is_some() && confirmed < state.committed {
            let set = ctx.store.set_head(id.into(), state.head());
            if StoreError::unless_lease_lost(set)?.is_some() {
                confirmed = state.committed;
            }
        }
        if let Some(window) = state.windows.of_kind(kind) {
            owners.extend(window.to_seal(id, (time_ms, confirmed)));
        }
    }
    Ok(owners)
}

/// The owners of a job are in a slice now.
fn sealed<W: WorkerPorts>(ctx: &mut Context<W>, job: &SealJob) {
    for of in &job.partitions {
        let state = ctx.partitions.get_mut(of.partition).and_then(Partition::state_mut);
        if let Some(window) = state.and_then(|state| state.windows.of_kind(job.kind)) {
            window.seal(of.next);
        }
    }
    let ids = job.partitions.iter().map(SlicePartition::owners).sum();
    ctx.report.metrics.parts.state.sealed.inc_by(ids);
    tracing::debug!(kind = ctx.options.kinds.name_of(job.kind), ids, "owners sealed");
    // Not only when the store has merged slices, too: that can take a minute.
    forget_in_filter(ctx);
}

/// Begins to make a filter of the slices that are older than the exact part of all windows that share them. Returns whether there are any.
fn begin_filter<W: WorkerPorts>(ctx: &mut Context<W>) -> Result<bool, StoreError> {
    let mut jobs: BTreeMap<(KindId, Option<PartitionId>), FilterJob> = BTreeMap::new();
    if ctx.options.kinds.iter().all(|kind| kind.window.is_none_or(|window| window.bloom.is_none())) {
        return Ok(false);
    }
    // An owner of a partition that is not loaded can be in the slices, too. A restore can end at an
    // earlier offset, after an offset reset: then owners are undone, and a filter cannot lose them.
    let is_running = |id| ctx.partitions.get(id).is_some_and(Partition::is_running);
    if ctx.options.is_topic_wide() && !ctx.partitions.iter().all(Partition::is_running) {
        return Ok(false);
    }
    let horizon_ms = ctx.topic.as_ref().map(TopicScope::horizon_ms);
    for (partition, kind, window) in ctx.partitions.kinds().filter(|(id, ..)| is_running(*id)) {
        let of_kind = ctx.options.kinds.iter().find(|it| it.id == kind);
        let bloom = of_kind.and_then(|it| it.window?.bloom).filter(|_| window.has_sealed());
        let Some(BloomPart { bits, .. }) = bloom else { continue };
        let group = (kind, group_of(ctx, partition));
        let span_ms = window.configured_ms() / FILTERS.cast_signed();
        let job = jobs.entry(group).or_insert(FilterJob {
            windows: Vec::new(),
            before_ms: i64::MAX,
            span_ms,
            bits,
        });
        job.windows.push(kind.window(partition));
        job.before_ms = job.before_ms.min(window.exact_from_ms(horizon_ms));
    }
    for job in jobs.into_values() {
        if ctx.store.begin_filter(&job)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the identities of sealed owners from the filter over all windows.
fn forget_in_filter<W: WorkerPorts>(ctx: &mut Context<W>) {
    let is_complete = ctx.partitions.iter().all(|partition| partition.state().is_some());
    // A partition without new records, all of whose owners are sealed, does not delay this.
    let unsealed_ms = ctx.partitions.windows().filter_map(Window::unsealed_from_ms).min();
    if let (Some(topic), Some(ms), true) = (&mut ctx.topic, unsealed_ms, is_complete) {
        topic.filter.sealed_before(ms);
    }
}

/// Slices beyond the backlog at which arrivals are slowed down; `None` while fewer owners are unsealed.
fn beyond_backlog(slice: u64, unsealed: u64) -> Option<u64> {
    (unsealed / slice).checked_sub(BACKLOG).filter(|_| unsealed >= BACKLOG_IDS)
}

/// The pause after so many new owners.
fn pause(new: u64, beyond: Option<u64>) -> Duration {
    let each = beyond.map_or(Duration::ZERO, |beyond| PAUSE * (1 << beyond.min(DOUBLINGS_MAX)));
    each.saturating_mul(u32::try_from(new).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Owners that arrive in a second, pauses included, where `rate` would arrive without them.
    fn arrivals(rate: u64, beyond: Option<u64>) -> u64 {
        let of_look = rate * u64::try_from(LOOK_INTERVAL.as_millis()).unwrap() / 1_000;
        let cycle = LOOK_INTERVAL + pause(of_look, beyond);
        of_look * 1_000_000 / u64::try_from(cycle.as_micros()).unwrap()
    }

    #[test]
    fn arrivals_are_slowed_down_only_at_a_backlog() {
        assert_eq!(beyond_backlog(1_000_000, 3_999_999), None);
        assert_eq!(beyond_backlog(1_000_000, 4_000_000), Some(0));
        assert_eq!(beyond_backlog(1_000_000, 6_500_000), Some(2));
        assert_eq!(beyond_backlog(100_000, 3_999_999), None, "they take little memory");
        assert_eq!(arrivals(1_000_000, None), 1_000_000);
    }

    #[test]
    fn the_more_owners_wait_the_fewer_arrive() {
        let rates = [0, 1, 2, 3, 4, 5, 6, 7, 100].map(|beyond| arrivals(1_000_000, Some(beyond)) / 1_000);
        assert_eq!(rates, [666, 500, 333, 200, 111, 58, 58, 58, 58]);
    }

    /// However many owners wait: the thread that seals them can be slow because of other processes.
    #[test]
    fn some_thousand_records_in_a_second_are_hardly_delayed() {
        assert!(arrivals(1_000, Some(100)) > 900);
        assert!(arrivals(5_000, Some(100)) > 3_500);
    }
}
