//! Seals old owners: when, how many, and what follows.
//!
//! When twice the size of a slice is unsealed in a window, the older half of these owners is sealed. See [`slice_ids`] for its size.
//!
//! The newest part stays in the index, where a copy that arrives soon is found without the disk. Slices that are older than the exact part
//! of their window become filters, which do not have the owners.

use std::time::Duration;

use crate::clock::Clock;
use crate::dedupe::{BloomPart, FILTERS, PartitionId, SealedRange, Window, WindowId, slice_ids};
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::failpoint;
use crate::pipeline::journal::{Journal, Phase};
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
    /// Monotonic time of the last look at all windows.
    looked: Option<Duration>,
    /// Unsealed owners at that time, while some are being sealed.
    unsealed: Option<u64>,
}

/// A window of which owners are to be sealed.
#[derive(Debug, Clone, Copy)]
struct Full {
    window: WindowId,
    /// How many owners are sealed.
    owners: u64,
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
                if self.looks_now(ctx.clock.elapsed()) && !begin_filter(ctx)? {
                    self.begin_next(ctx, smallest)?;
                }
            }
        }
        Ok(())
    }

    /// The pause in which no owners arrive, because too many are unsealed.
    fn pause<W: WorkerPorts>(&mut self, ctx: &Context<W>, smallest: u64) -> Duration {
        let windows = ctx.journals.windows().map(|(.., window)| window).filter(|window| window.can_seal());
        let (unsealed, beyond) = windows.fold((0, None), |(sum, most), window| {
            let beyond = beyond_backlog(slice_ids(smallest, window.ids()), window.unsealed());
            (sum + window.unsealed(), most.max(beyond))
        });
        let before = self.unsealed.replace(unsealed).unwrap_or(unsealed);
        pause(unsealed.saturating_sub(before), beyond)
    }

    fn looks_now(&mut self, now: Duration) -> bool {
        is_due(&mut self.looked, now, LOOK_INTERVAL)
    }

    /// Begins to seal owners of the window that has the most slices of them, if it has two.
    fn begin_next<W: WorkerPorts>(&self, ctx: &mut Context<W>, smallest: u64) -> Result<(), WorkerError> {
        // The windows of a journal that is being loaded are incomplete, and its owners are being read. What is being undone is not sealed first.
        let is_busy = |it: &Journal| it.is_undoing() || matches!(it.phase(), Phase::Loading(_));
        if ctx.journals.iter().any(is_busy) {
            return Ok(());
        }
        let Some(full) = fullest(ctx, smallest, if self.is_copy { COPY_PART } else { 1 }) else {
            return Ok(());
        };
        if let Some(range) = to_seal(ctx, full)? {
            tracing::debug!(window = %full.window, "sealing owners");
            ctx.store.begin_seal(SealJob { window: full.window, range, is_urgent: full.is_urgent })?;
            failpoint::pass("after_begin_seal");
        }
        Ok(())
    }
}

/// The window that has the most slices of unsealed owners, if it has two. A slice has one in `part` of the identities that [`slice_ids`] returns for
/// it.
fn fullest<W: WorkerPorts>(ctx: &Context<W>, smallest: u64, part: u64) -> Option<Full> {
    let windows = ctx.journals.windows().filter(|(.., window)| window.can_seal());
    let filled = windows.map(|(journal, kind, window)| {
        let (slice, unsealed) = (slice_ids(smallest, window.ids()), window.unsealed());
        let cut = smallest.max(slice / part);
        let owners = unsealed.saturating_sub(cut).min((2 * cut).max(MOST_AT_ONCE));
        let is_urgent = beyond_backlog(slice, unsealed).is_some();
        (unsealed / cut, Full { window: kind.window(journal), owners, is_urgent })
    });
    let (slices, full) = filled.max_by_key(|(slices, _)| *slices)?;
    (slices >= 2).then_some(full)
}

/// The time up to which `wanted` owners of a window have arrived.
fn cut_time(window: &Window, wanted: u64) -> i64 {
    let (mut arrived, mut time_ms) = (0, 0);
    for mark in window.unsealed_marks() {
        if arrived >= wanted {
            break;
        }
        arrived += mark.count;
        time_ms = mark.time_ms.1;
    }
    time_ms
}

/// The owners to seal: committed ones, which the local store has confirmed.
fn to_seal<W: WorkerPorts>(ctx: &mut Context<W>, full: Full) -> Result<Option<SealedRange>, StoreError> {
    let (id, kind) = (full.window.journal(), full.window.kind());
    let is_settled = ctx.partitions.of(id).all(|it| it.open.is_none());
    let Some(journal) = ctx.journals.get_mut(id) else { return Ok(None) };
    // The head of a window without new records is that of its last transaction before its commit.
    if is_settled
        && journal.is_running()
        && StoreError::unless_lease_lost(journal.confirm(&mut ctx.store))?.is_none()
    {
        return Ok(None);
    }
    let head = ctx.store.head(full.window)?;
    // What a restore has written is committed, also what the head of a named kind does not confirm.
    let is_read = matches!(journal.phase(), Phase::Restoring(_));
    let confirmed =
        if is_read { ctx.store.next_number(full.window)? } else { head.map_or(0, |head| head.confirmed) };
    let window = journal.shown_mut().and_then(|windows| windows.of_kind(kind));
    Ok(window.and_then(|window| window.to_seal(cut_time(window, full.owners), confirmed)))
}

/// The owners of a job are in a slice now.
fn sealed<W: WorkerPorts>(ctx: &mut Context<W>, job: &SealJob) {
    let windows = ctx.journals.get_mut(job.window.journal()).and_then(Journal::shown_mut);
    if let Some(window) = windows.and_then(|windows| windows.of_kind(job.window.kind())) {
        window.seal(job.range.next);
    }
    let ids = job.range.owners();
    ctx.report.metrics.parts.state.sealed.inc_by(ids);
    tracing::debug!(window = %job.window, ids, "owners sealed");
}

/// Begins to make a filter of the slices that are older than the exact part of their window. Returns whether there are any.
fn begin_filter<W: WorkerPorts>(ctx: &mut Context<W>) -> Result<bool, StoreError> {
    let bloom_of = |kind| {
        let of_kind = ctx.options.kinds.iter().find(|it| it.id == kind);
        of_kind.and_then(|it| it.window?.bloom)
    };
    // A restore can end at an earlier offset, after an offset reset: then owners are undone, and a filter cannot lose them.
    let is_running = |id: PartitionId| ctx.journals.get(id).is_some_and(Journal::is_running);
    let windows = ctx.journals.windows().filter(|(id, _, window)| is_running(*id) && window.has_sealed());
    let jobs = windows.filter_map(|(id, kind, window)| {
        let BloomPart { bits, .. } = bloom_of(kind)?;
        let span_ms = window.configured_ms() / FILTERS.cast_signed();
        Some(FilterJob { window: kind.window(id), before_ms: window.exact_from_ms(), span_ms, bits })
    });
    for job in jobs.collect::<Vec<_>>() {
        if ctx.store.begin_filter(&job)? {
            return Ok(true);
        }
    }
    Ok(false)
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
