//! Limits that bite, told: in the status at once, in the log once an hour for each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checkpoint::Checkpoint;
use super::kinds::Kind;
use super::limits::{Enforced, Limit, Limits};
use super::options::Options;
use super::partition::Partition;
use super::trouble::Trouble;
use super::worker::{Core, World};
use crate::clock::Clock;
use crate::config::{Overflow, duration_text};
use crate::dedupe::{KindId, PartitionId, Window, Windows};
use crate::metrics::WindowStatus;
use crate::ports::{Source, Store};

/// How often the windows are looked at for the log.
const LOOK: Duration = Duration::from_secs(10);
/// How often one limit is told in the log.
const TELL: Duration = Duration::from_hours(1);

/// When which limit was told last, monotonic time.
#[derive(Debug, Default)]
pub(super) struct Told {
    looked: Option<Duration>,
    limits: BTreeMap<Limit, Duration>,
}

impl<W: World> Core<W> {
    /// Sets the bounds that the next commit applies, and tells what they cost.
    pub(super) fn enforce_limits(&mut self) -> Result<(), Trouble> {
        let now = self.clock.elapsed();
        if self.enforced.wants_disk(&self.options, now)
            && let Some(bytes) = self.store.disk_bytes()?
        {
            self.enforced.disk(bytes, &self.options, &self.partitions, now);
        }
        self.enforced.apply(&self.options, &mut self.partitions);
        let windows = self.partitions.windows_mut();
        self.report.evicted(windows.map(Window::take_evicted).sum());
        if self.told.looked.is_none_or(|last| now.saturating_sub(last) >= LOOK) {
            self.told.looked = Some(now);
            self.tell_limits(now);
        }
        Ok(())
    }

    /// The partition hit worst stands for all.
    fn tell_limits(&mut self, now: Duration) {
        let mut worst: BTreeMap<Limit, (PartitionId, KindId, &Window)> = BTreeMap::new();
        for (partition, kind, window) in self.partitions.kinds() {
            let Some(limit) = self.enforced.in_force(window, &self.options.limits) else { continue };
            let other = worst.entry(limit).or_insert((partition, kind, window));
            if window.certain_seconds() < other.2.certain_seconds() {
                *other = (partition, kind, window);
            }
        }
        let count = self.partitions.iter().count() as u64;
        for (limit, (partition, kind, window)) in worst {
            let told = self.told.limits.get(&limit);
            if told.is_some_and(|last| now.saturating_sub(*last) < TELL) {
                continue;
            }
            self.told.limits.insert(limit, now);
            let of_kind = self.partitions.kinds().filter(|(_, other, _)| *other == kind);
            let rate: f64 = of_kind.map(|(_, _, window)| window.ids_a_second()).sum();
            let remedy = match limit {
                Limit::Past => {
                    "older ids are missing, and the window grows until it is whole again".to_owned()
                }
                _ => format!("what it takes: {}", plan_command(&self.options, window, (rate, count))),
            };
            tracing::warn!(
                partition,
                kind = self.options.kinds.name_of(kind.filed(partition)),
                "{}; {remedy}",
                sentence(limit, window, &self.options)
            );
        }
    }

    /// Tables of fixed size are made anew, from the local state, when the number of partitions that
    /// share the memory has changed.
    pub(super) fn fit_tables(&mut self, source: &W::Source) -> Result<(), Trouble> {
        if self.batch.is_open() || self.options.limits.when_full == Overflow::Shrink {
            return Ok(());
        }
        let (limits, count) = (self.options.limits, self.options.windows_of(&self.partitions));
        let misfit = |p: &Partition| {
            p.windows.iter().flat_map(Windows::iter).any(|(_, window)| limits.misfits(window, count))
        };
        let misfits = self.partitions.ids(|p| p.is_running() && misfit(p));
        if misfits.is_empty() {
            return Ok(());
        }
        tracing::info!(partitions = ?misfits, "loading the state into tables of another size");
        let now = self.clock.elapsed();
        for id in &misfits {
            if let Some(partition) = self.partitions.get_mut(*id) {
                partition.unload();
                partition.relocate(now);
            }
        }
        Ok(source.pause(&misfits)?)
    }

    /// Empty windows for one of the partitions there are, about to be filled up to C.
    pub(super) fn empty_windows(&self, checkpoint: Option<&Checkpoint>) -> Windows {
        let (limits, count) = (&self.options.limits, self.options.windows_of(&self.partitions));
        let window = |kind: &Kind| kind.window.map(|wanted| limits.window(wanted, count));
        let mut windows = Windows::new(self.options.kinds.iter().map(|kind| (kind.id, window(kind))));
        if let Some(checkpoint) = checkpoint {
            windows.follow(&checkpoint.windows);
        }
        windows
    }
}

/// What a limit does to a window, in one line.
fn sentence(limit: Limit, window: &Window, options: &Options) -> String {
    let (asked, limit) = (duration_text(window.asked()), limit.told(&options.limits));
    if window.evicted_share() > 0.0 {
        return format!(
            "{limit}: of the ids of the last {}, {:.2} % were overwritten (window.overflow = \"evict\"); none of the \
             last {}",
            duration_text(window.exact()),
            window.evicted_share() * 100.0,
            span(window.certain_seconds())
        );
    }
    let (exact, all) = (window.exact_seconds(), window.effective_seconds());
    if all >= window.asked().as_secs_f64() {
        return format!(
            "{limit}: ids are remembered exactly for {} instead of {}; filters remember the rest",
            span(exact),
            duration_text(window.exact())
        );
    }
    let part = if exact < all { format!(" ({} exactly)", span(exact)) } else { String::new() };
    format!("{limit}: ids are remembered for {}{part} instead of {asked}", span(all))
}

/// The command that says what the window as configured takes at the rate observed, for this process.
fn plan_command(options: &Options, window: &Window, (ids_a_second, partitions): (f64, u64)) -> String {
    let limits: &Limits = &options.limits;
    let bloom = window.bloom().map(|_| format!(" --bloom {}", duration_text(window.asked())));
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

/// Whole seconds.
fn span(seconds: f64) -> String {
    duration_text(Duration::from_secs(Duration::from_secs_f64(seconds.max(0.0)).as_secs()))
}

/// What the status says of a window.
pub(super) fn window_status(window: &Window, enforced: &Enforced, options: &Options) -> WindowStatus {
    let limit = enforced.in_force(window, &options.limits);
    WindowStatus {
        asked_seconds: window.asked().as_secs_f64(),
        exact_seconds: window.exact_seconds(),
        certain_seconds: window.certain_seconds(),
        miss_rate: window.evicted_share(),
        limit: limit.map(|limit| sentence(limit, window, options)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_whole_seconds() {
        assert_eq!([0.4, 61.9, 86_400.0].map(span), ["0ms", "61s", "24h"]);
    }
}
