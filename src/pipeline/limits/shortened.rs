//! Reports limits that shorten a window: in the status immediately, in the log once per hour and limit.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use crate::clock::Clock;
use crate::config::Overflow;
use crate::dedupe::{KindId, PartitionId, Window};
use crate::metrics::WindowStatus;
use crate::pipeline::context::Context;
use crate::pipeline::error::WorkerError;
use crate::pipeline::journal::{Journal, Journals};
use crate::pipeline::limits::unheld::{Relief, Unheld};
use crate::pipeline::limits::{Enforced, Limit, Limits};
use crate::pipeline::options::WorkerOptions;
use crate::pipeline::partition::clock::{Lagging, fastest_ms, slowest};
use crate::pipeline::partition::partitions::Partitions;
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
    pub(crate) enforced: Enforced,
    unheld: Unheld,
    log: LimitLog,
}

/// By how much the slowest partition of a journal holds back its expiry.
#[derive(Debug, Default)]
pub(crate) struct ExpiryLag {
    /// That partition.
    pub lagging: Option<Lagging>,
}

impl ExpiryLag {
    /// Of the journal that has more than one partition.
    pub fn of(options: &WorkerOptions, partitions: &Partitions, journals: &Journals) -> Self {
        let lagging = |journal: &Journal| {
            let windows = journal.running()?;
            let members = || partitions.of(journal.id);
            let (reached_ms, partition) = slowest(members())?;
            // The clock of the windows follows with the next commit.
            let behind_ms = match windows.horizon_ms().max(reached_ms) {
                // The time of a partition is not known yet: no owner expires.
                ..=0 => windows.iter().map(|(_, window)| window.held_ms()).max()?,
                slowest_ms => fastest_ms(members()).saturating_sub(slowest_ms),
            };
            Some(Lagging { partition, behind: Duration::from_millis(u64::try_from(behind_ms).unwrap_or(0)) })
        };
        let is_shared = options.is_topic_wide();
        Self { lagging: journals.iter().find_map(lagging).filter(|_| is_shared) }
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
    /// The status of a window.
    pub fn status(&self, window: &Window, options: &WorkerOptions, lag: &ExpiryLag) -> WindowStatus {
        let limit = self.enforced.active_limit(window, &options.limits);
        WindowStatus {
            asked_seconds: window.configured().as_secs_f64(),
            exact_seconds: window.exact_seconds(),
            certain_seconds: window.certain_seconds(),
            miss_rate: window.evicted_share(),
            limit: limit.map(|limit| limit_text(limit, window, options) + &lag.cause(window)),
        }
    }

    /// Logs each limit once, for the window that it shortens most. To be called also while nothing is committed: a partition that lags may
    /// be one that waits.
    pub fn log(
        &mut self,
        options: &WorkerOptions,
        journals: &Journals,
        lag: &impl Deref<Target = ExpiryLag>,
        now: Duration,
    ) {
        if !is_due(&mut self.log.checked, now, CHECK_INTERVAL) {
            return;
        }
        if let Some(note) = lag.note(options).filter(|_| is_due(&mut self.log.lag, now, LOG_INTERVAL)) {
            tracing::warn!("{note}");
        }
        let mut worst: BTreeMap<Limit, (PartitionId, KindId, &Window)> = BTreeMap::new();
        for (journal, kind, window) in journals.windows() {
            let Some(limit) = self.enforced.active_limit(window, &options.limits) else { continue };
            let other = worst.entry(limit).or_insert((journal, kind, window));
            if window.certain_seconds() < other.2.certain_seconds() {
                *other = (journal, kind, window);
            }
        }
        let count = journals.iter().count() as u64;
        for (limit, (journal, kind, window)) in worst {
            if self.log.logged.get(&limit).is_some_and(|last| now.saturating_sub(*last) < LOG_INTERVAL) {
                continue;
            }
            self.log.logged.insert(limit, now);
            let of_kind = journals.windows().filter(|(_, other, _)| *other == kind);
            let rate: f64 = of_kind.map(|(_, _, window)| window.ids_a_second()).sum();
            let (remedy, command) = match limit {
                Limit::Incomplete => {
                    ("older ids are missing, and the window grows until it is complete again", None)
                }
                // The rate of new ids does not show how many are needed meanwhile.
                _ if lag.lagging(window.configured()).is_some() => {
                    ("raise the limit until it has caught up", None)
                }
                _ => (
                    "to size the window, run the command",
                    Some(plan_command(limit, window, options, rate, count)),
                ),
            };
            let (effect, cause) = (limit_text(limit, window, options), lag.cause(window));
            let kind = options.kinds.name_of(kind);
            // The command is a field of its own: other fields follow the sentence, and would be pasted with it.
            tracing::warn!(journal, kind, command, "{effect}{cause}; {remedy}");
        }
    }
}

impl<W: WorkerPorts> Context<W> {
    /// Sets the bounds that the next commit applies.
    pub(crate) fn enforce_limits(&mut self) -> Result<(), WorkerError> {
        let now = self.clock.elapsed();
        self.limit_disk(now)?;
        self.limits.enforced.apply(&self.options, &mut self.journals);
        let windows = self.journals.windows_mut();
        self.report.metrics.parts.state.evicted.inc_by(windows.map(Window::take_evicted).sum());
        Ok(())
    }

    /// Measures the directory, if that is due. Where it is too large, state that nothing holds is deleted before windows become shorter.
    fn limit_disk(&mut self, now: Duration) -> Result<(), StoreError> {
        let WindowLimiter { enforced, unheld, .. } = &mut self.limits;
        if !enforced.disk_check_due(&self.options, &self.journals, now) {
            return Ok(());
        }
        let Some(bytes) = self.store.disk_bytes()? else { return Ok(()) };
        let limits = &self.options.limits;
        let is_full = limits.most_on_disk().is_some_and(|most| bytes > most);
        let is_urgent = limits.max_disk.is_some_and(|most| bytes > most);
        let relief = if is_full && !self.options.is_topic_wide() {
            let (is_own, kinds) = (|id| self.journals.get(id).is_some(), &self.options.kinds);
            unheld.relieve(&mut self.store, is_own, |id| kinds.windows_of(id), now, is_urgent)?
        } else {
            Relief::None
        };
        match relief {
            Relief::None => enforced.disk(bytes, &self.options, &self.journals, now),
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

/// The command that computes what the configured window requires, for this process at the observed rate. Memory is left out where it is not
/// what limits the window.
fn plan_command(
    limit: Limit,
    window: &Window,
    options: &WorkerOptions,
    ids_a_second: f64,
    journals: u64,
) -> String {
    let limits: &Limits = &options.limits;
    // In topic scope one journal has all partitions.
    let partitions = if options.is_topic_wide() {
        options.partition_counts.count().into()
    } else {
        journals.saturating_mul(limits.workers)
    };
    let has_filters = window.configured() > window.exact();
    let bloom = has_filters.then(|| format!(" --bloom {}", duration_text(window.configured())));
    let memory =
        limits.max_memory.filter(|_| limit == Limit::Memory).map(|bytes| format!(" --memory {bytes}"));
    let evicts = limits.when_full == Overflow::Evict;
    let evict = evicts.then(|| format!(" --overflow evict --max-ids {}", limits.max_ids));
    let more: String = [bloom, memory, evict].into_iter().flatten().collect();
    format!(
        "dedupd plan --events {:.3} --exact {} --partitions {}{more}",
        (ids_a_second * limits.workers as f64).max(0.001),
        duration_text(window.exact()),
        partitions.max(1)
    )
}
