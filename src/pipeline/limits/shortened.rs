//! Reports limits that shorten a window: in the status immediately, in the log once per hour and limit.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::{Checkpoint, KindId, PartitionId, Window, Windows};
use crate::metrics::WindowStatus;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::kinds::Kind;
use crate::pipeline::limits::unheld::{Relief, Unheld};
use crate::pipeline::limits::{Enforced, Limit, Limits};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::partitions::Partitions;
use crate::pipeline::partition::topic::{Lagging, TopicScope};
use crate::pipeline::ports::WorkerPorts;
use crate::pipeline::time::is_due;
use crate::ports::{Store, StoreError};
use crate::units::{duration_text, seconds_text};

/// Interval between two checks of the windows for the log.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two log messages about the same limit.
const LOG_INTERVAL: Duration = Duration::from_hours(1);

/// Throttles the log messages about limits. Monotonic times.
#[derive(Debug, Default)]
pub(crate) struct LimitLog {
    checked: Option<Duration>,
    /// When a partition that lags was logged.
    lag: Option<Duration>,
    logged: BTreeMap<Limit, Duration>,
}

/// The limits on the windows of a worker: in force with each commit, and logged.
#[derive(Debug, Default)]
pub(crate) struct WindowLimiter {
    enforced: Enforced,
    unheld: Unheld,
    log: LimitLog,
}

/// What topic scope adds to the limits of windows.
#[derive(Debug, Default)]
pub(crate) struct TopicLimits {
    /// The stream time up to which a limit has removed ids from the filter over all windows, epoch milliseconds.
    pub missing_ms: Option<i64>,
    /// The partition that holds back expiry.
    pub lagging: Option<Lagging>,
}

impl TopicLimits {
    pub fn of(topic: Option<&TopicScope>, partitions: &Partitions) -> Self {
        let missing_ms = topic.and_then(|topic| topic.filter.missing_ms());
        Self { missing_ms, lagging: topic.and_then(|topic| topic.lagging(partitions)) }
    }

    /// For how much longer than their length windows hold owners.
    pub fn behind(&self) -> Duration {
        self.lagging.map_or(Duration::ZERO, |it| it.behind)
    }

    /// The partition that makes a window of this length hold owners for far longer.
    fn lagging(&self, length: Duration) -> Option<Lagging> {
        self.lagging.filter(|it| it.behind >= length / 4)
    }

    /// That partition as the end of a message.
    fn cause(&self, window: &Window) -> String {
        let lagging = self.lagging(window.configured());
        lagging.map_or_else(String::new, |it| format!("; {it}, and its records need older ids"))
    }

    /// What a partition that lags costs, and when that becomes a loss.
    pub fn note(&self, options: &WorkerOptions) -> Option<String> {
        let longest = options.kinds.longest();
        let lagging = self.lagging(longest)?;
        let needed = longest.saturating_add(lagging.behind);
        let retention = options.state_retention.filter(|retention| needed >= *retention / 10 * 9);
        let end = retention.map_or_else(String::new, |retention| {
            format!(
                "; topic {} retains records for {} only: raise its retention.ms, or an instance without local state \
                 forwards copies of that partition",
                options.state,
                duration_text(retention)
            )
        });
        let held = seconds_text(lagging.behind.as_secs_f64());
        Some(format!("{lagging}: ids are held for {held} longer than the window until it has caught up{end}"))
    }
}

impl WindowLimiter {
    /// Sets the bounds that the next commit of each window applies.
    pub fn apply(&mut self, options: &WorkerOptions, partitions: &mut Partitions) {
        self.enforced.apply(options, partitions);
    }

    /// The status of a window.
    pub fn status(&self, window: &Window, options: &WorkerOptions, of_topic: &TopicLimits) -> WindowStatus {
        let limit = self.enforced.active_limit(window, &options.limits);
        let by_window = limit.map(|limit| limit_text(limit, window, options));
        let elsewhere = seconds_elsewhere(window, of_topic.missing_ms);
        let by_filter = elsewhere.is_finite().then(|| elsewhere_text(elsewhere, window, options));
        WindowStatus {
            asked_seconds: window.configured().as_secs_f64(),
            exact_seconds: window.exact_seconds().min(elsewhere),
            certain_seconds: window.certain_seconds().min(elsewhere),
            miss_rate: window.evicted_share(),
            limit: by_window.or(by_filter).map(|limit| limit + &of_topic.cause(window)),
        }
    }

    /// Logs each limit once, for the window that it shortens most. To be called also while nothing is committed: a partition that lags may
    /// be one that waits.
    pub fn log(
        &mut self,
        options: &WorkerOptions,
        partitions: &Partitions,
        of_topic: &impl Deref<Target = TopicLimits>,
        now: Duration,
    ) {
        if !is_due(&mut self.log.checked, now, CHECK_INTERVAL) {
            return;
        }
        if let Some(note) = of_topic.note(options).filter(|_| is_due(&mut self.log.lag, now, LOG_INTERVAL)) {
            tracing::warn!("{note}");
        }
        let mut worst: BTreeMap<Limit, (PartitionId, KindId, &Window)> = BTreeMap::new();
        for (partition, kind, window) in partitions.kinds() {
            let Some(limit) = self.enforced.active_limit(window, &options.limits) else { continue };
            let other = worst.entry(limit).or_insert((partition, kind, window));
            if window.certain_seconds() < other.2.certain_seconds() {
                *other = (partition, kind, window);
            }
        }
        let by_filter = shortest_elsewhere(partitions, of_topic.missing_ms);
        let limit = options.limits.topic_filter().1;
        let by_filter = by_filter
            .filter(|_| !worst.contains_key(&limit))
            .map(|(seconds, of)| (limit, of, elsewhere_text(seconds, of.2, options)));
        let by_window = worst.into_iter().map(|(limit, of)| (limit, of, limit_text(limit, of.2, options)));
        let count = partitions.iter().count() as u64;
        for (limit, (partition, kind, window), effect) in by_window.chain(by_filter) {
            if self.log.logged.get(&limit).is_some_and(|last| now.saturating_sub(*last) < LOG_INTERVAL) {
                continue;
            }
            self.log.logged.insert(limit, now);
            let of_kind = partitions.kinds().filter(|(_, other, _)| *other == kind);
            let rate: f64 = of_kind.map(|(_, _, window)| window.ids_a_second()).sum();
            let remedy = match limit {
                Limit::Incomplete => {
                    "older ids are missing, and the window grows until it is complete again".to_owned()
                }
                // The rate of new ids does not show how many are needed meanwhile.
                _ if of_topic.lagging(window.configured()).is_some() => {
                    "raise the limit until it has caught up".to_owned()
                }
                _ => format!("to size the window, run: {}", plan_command(options, window, (rate, count))),
            };
            let (kind, cause) = (options.kinds.name_of(kind), of_topic.cause(window));
            tracing::warn!(partition, kind, "{effect}{cause}; {remedy}");
        }
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Sets the bounds that the next commit applies.
    pub(crate) fn enforce_limits(&mut self) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        self.limit_disk(now)?;
        self.limits.apply(&self.options, &mut self.partitions);
        let windows = self.partitions.windows_mut();
        self.report.metrics.parts.state.evicted.inc_by(windows.map(Window::take_evicted).sum());
        Ok(())
    }

    /// Measures the directory, if that is due. Where it is too large, state that nothing holds is deleted before windows become shorter.
    fn limit_disk(&mut self, now: Duration) -> Result<(), StoreError> {
        let WindowLimiter { enforced, unheld, .. } = &mut self.limits;
        if !enforced.disk_check_due(&self.options, now) {
            return Ok(());
        }
        let Some(bytes) = self.store.disk_bytes()? else { return Ok(()) };
        let limits = &self.options.limits;
        let is_full = limits.most_on_disk().is_some_and(|most| bytes > most);
        let is_urgent = limits.max_disk.is_some_and(|most| bytes > most);
        let relief = if is_full && !self.options.is_topic_wide() {
            let own = |id| self.partitions.get(id).is_some();
            unheld.relieve(
                &mut self.store,
                (own, |id| self.options.kinds.windows_of(id)),
                (now, is_urgent),
            )?
        } else {
            Relief::None
        };
        match relief {
            Relief::None => enforced.disk(bytes, &self.options, &self.partitions, now),
            Relief::Waits => {}
            Relief::Deleted(partition) => {
                enforced.measure_disk_again();
                tracing::info!(
                    partition,
                    setting = Limit::Disk.setting(&self.options.limits),
                    "local state of a partition that moved to another instance deleted, because the directory is full; \
                     if the partition returns, its state is restored from the state topic"
                );
            }
        }
        Ok(())
    }

    /// Empty windows for one of the current partitions, to be filled with the state up to C.
    pub(crate) fn empty_windows(&self, checkpoint: Option<&Checkpoint>) -> Windows {
        let (limits, count) = (&self.options.limits, self.options.windows_of(&self.partitions));
        let positions = self.store.positions();
        let window = |kind: &Kind| kind.window.map(|configured| limits.window(configured, positions, count));
        let mut windows = Windows::new(self.options.kinds.iter().map(|kind| (kind.id, window(kind))));
        // Nothing expires in topic scope before the horizon is known: other partitions may be far behind. A checkpoint of partition scope has none.
        let unknown_ms = if self.horizon_ms().is_some() { 0 } else { i64::MAX };
        let Some(checkpoint) = checkpoint else {
            windows.set_horizon(unknown_ms);
            return windows;
        };
        // The log can have blocks of a transaction that was undone, with later times than that of the checkpoint. The horizon may be later, too: a
        // partition without unread records does not delay it, and counts owners by its own clock. While the time of the checkpoint is unknown
        // (0), nothing expires.
        let horizon_ms = checkpoint.horizon_ms.filter(|_| unknown_ms == 0).unwrap_or(unknown_ms);
        windows.set_horizon(horizon_ms.min(checkpoint.stream_time_ms));
        // What a limit had dropped stays dropped: a limit on disk space is not known before the first commit.
        windows.inherit(&checkpoint.windows);
        windows
    }
}

/// How far back a window finds copies in other partitions, in seconds of stream time; infinite when no limit shortens that.
fn seconds_elsewhere(window: &Window, missing_ms: Option<i64>) -> f64 {
    let reach_ms = missing_ms.map(|ms| window.slowest_ms().saturating_sub(ms).max(0));
    let seconds = reach_ms.map_or(f64::INFINITY, |ms| ms as f64 / 1_000.0);
    if seconds < window.configured().as_secs_f64() { seconds } else { f64::INFINITY }
}

/// The window that finds copies in other partitions for the shortest time, if a limit shortens that.
fn shortest_elsewhere(
    partitions: &Partitions,
    missing_ms: Option<i64>,
) -> Option<(f64, (PartitionId, KindId, &Window))> {
    let reach =
        |(partition, kind, window)| (seconds_elsewhere(window, missing_ms), (partition, kind, window));
    let shortest = partitions.kinds().map(reach).min_by(|a, b| a.0.total_cmp(&b.0));
    shortest.filter(|(seconds, _)| seconds.is_finite())
}

fn elsewhere_text(seconds: f64, window: &Window, options: &WorkerOptions) -> String {
    format!(
        "{}: copies in other partitions are found for {} instead of {}",
        options.limits.topic_filter().1.setting(&options.limits),
        seconds_text(seconds),
        duration_text(window.configured())
    )
}

/// The effect of a limit on a window, in one line.
fn limit_text(limit: Limit, window: &Window, options: &WorkerOptions) -> String {
    let (configured, limit) = (duration_text(window.configured()), limit.setting(&options.limits));
    if window.evicted_share() > 0.0 {
        return format!(
            "{limit}: of the ids of the last {}, {:.2} % were overwritten (window.overflow = \"evict\"); none of the \
             last {}",
            duration_text(window.exact()),
            window.evicted_share() * 100.0,
            seconds_text(window.certain_seconds())
        );
    }
    let (exact, all) = (window.exact_seconds(), window.effective_seconds());
    let part = if exact < all { format!(" ({} exactly)", seconds_text(exact)) } else { String::new() };
    format!("{limit}: ids are stored for {}{part} instead of {configured}", seconds_text(all))
}

/// The command that computes what the configured window requires, for this process at the observed rate.
fn plan_command(options: &WorkerOptions, window: &Window, (ids_a_second, partitions): (f64, u64)) -> String {
    let limits: &Limits = &options.limits;
    let has_filters = window.configured() > window.exact();
    let bloom = has_filters.then(|| format!(" --bloom {}", duration_text(window.configured())));
    let memory = limits.max_memory.map(|bytes| format!(" --memory {bytes}"));
    let evicts = limits.when_full == Overflow::Evict;
    let evict = evicts.then(|| format!(" --overflow evict --max-ids {}", limits.max_ids));
    let more: String = [bloom, memory, evict].into_iter().flatten().collect();
    format!(
        "dedupd plan --events {:.3} --exact {} --partitions {}{more}",
        (ids_a_second * limits.workers as f64).max(0.001),
        duration_text(window.exact()),
        partitions.saturating_mul(limits.workers).max(1)
    )
}
